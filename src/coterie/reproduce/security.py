"""What the parties of FedCAPrivacy find out, measured on whole runs: as the paper says, and hardened.

    python -m coterie.reproduce.security docs/security/fedcaprivacy.json --clients 30 --rounds 10 --seeds 5

Ciphers are emulated: what a party sees after opening is the same bit for bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from coterie.audit.fedcaprivacy import Rows, Unprotect, measure, recorded_rounds, summary
from coterie.crypto.sketch import project, unrotate
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.experiment import Experiment, build
from coterie.systems.fedcaprivacy.participant import round_seed

VARIANTS: Mapping[str, tuple[str, str]] = {
    "paper": ("paper", "none"),
    "hardened, sketch": ("hardened", "sketch"),
    "hardened, rotation": ("hardened", "rotation"),
}
"""Name -> mode and protection."""


def participants_help(protection: str, size: int) -> Unprotect:
    """What a participant, who has the common seed, makes of the service's rows. size: d of the model.

    A rotation it undoes. Of a sketch it gives the shortest models that have it: m equations for d unknowns.
    """

    def unprotect(rows: Rows, seed: bytes, r: int) -> Rows:
        secret = round_seed(seed, r)
        if protection == "rotation":
            return np.stack([unrotate(row, secret) for row in rows])
        if protection == "sketch":
            projection = np.stack([project(unit, rows.shape[1], secret) for unit in np.eye(size)])  # (d, m)
            return np.asarray(rows @ np.linalg.pinv(projection))
        return rows

    return unprotect


def recorded_run(variant: str, **options: Any) -> Experiment:
    """One run of FedCAPrivacy with all views recorded, to its last round. options: of ``RunConfig``."""
    mode, protection = VARIANTS[variant]
    settings = {**options.pop("settings", {}), **({} if protection == "none" else {"hardening": protection})}
    experiment = build(
        RunConfig("fedcaprivacy", mode=mode, crypto="emulated", record=True, settings=settings, **options)
    )
    experiment.set_up()
    for r in range(1, int(experiment.config.rounds or 0) + 1):
        experiment.round(r)
    return experiment


def measured(variant: str, seeds: int, **options: Any) -> dict[str, Any]:
    """``coterie.audit.fedcaprivacy.summary`` over runs with seeds 0, 1, ... and the accuracies that they reached."""
    found, scores = [], []
    for seed in range(seeds):
        experiment = recorded_run(variant, seed=seed, **options)
        transcript, setting = experiment.transport.transcript, experiment.setting
        if transcript is None or transcript.stopped_at is not None:
            raise UserError("the views of this run don't fit record_mib: measure fewer clients or rounds")
        unprotect = participants_help(VARIANTS[variant][1], setting.spec.size)
        rounds = recorded_rounds(transcript.views, setting.clients, unprotect)
        found.append(measure(rounds, experiment.label_counts, setting.spec, setting.initial))
        scores.append(experiment.observer.scores(experiment.models()).means())
        experiment.close()
    accuracy = {name: fmean(score[name] for score in scores) for name in ("global_accuracy", "local_accuracy")}
    return {**accuracy, "attacks": summary(found), "settings": dict(experiment.config.settings)}


def main(arguments: list[str] | None = None) -> None:
    """Measure all variants and write one JSON file."""
    parser = argparse.ArgumentParser(prog="python -m coterie.reproduce.security", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--partition", default="dirichlet:0.3")
    given = parser.parse_args(arguments)
    options = {"clients": given.clients, "rounds": given.rounds, "partition": given.partition}
    content = {
        "data": "digits",
        **options,
        "seeds": given.seeds,
        "variants": {variant: measured(variant, given.seeds, **options) for variant in VARIANTS},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
