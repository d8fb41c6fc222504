"""FedCAPrivacy: its audit, and what its parties find out as the paper says and hardened, on whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from coterie.audit.fedcaprivacy import Rows, Unprotect, measure, recorded_rounds
from coterie.audit.findings import Finding, summary
from coterie.crypto.sketch import project, unrotate
from coterie.reproduce.security.recorded import Recorded, recorded_run
from coterie.runs.config import RunConfig
from coterie.systems.fedcaprivacy.participant import round_seed

VARIANTS: Mapping[str, tuple[str, str]] = {
    "paper": ("paper", "none"),
    "hardened, sketch": ("hardened", "sketch"),
    "hardened, rotation": ("hardened", "rotation"),
}
"""Name -> mode and protection."""


def participants_help(protection: str, size: int) -> Unprotect:
    """What a participant, who has the common seed, makes of the service's rows. size: d of the model.

    A rotation it undoes. Of a sketch it gives the shortest models that have it: m equations for d unknowns. With a
    guessed seed it is what the service can try on its own.
    """

    @lru_cache(maxsize=4)
    def inverse(secret: bytes, dim: int) -> Rows:
        projection = np.stack([project(unit, dim, secret) for unit in np.eye(size)])  # (d, m)
        return np.asarray(np.linalg.pinv(projection))

    def unprotect(rows: Rows, seed: bytes, r: int) -> Rows:
        secret = round_seed(seed, r)
        if protection == "rotation":
            return np.stack([unrotate(row, secret) for row in rows])
        if protection == "sketch":
            return np.asarray(rows @ inverse(secret, rows.shape[1]))
        return rows

    return unprotect


def audit(run: Recorded) -> list[Finding]:
    """Every attack of ``coterie.audit.fedcaprivacy`` on a recorded run."""
    protection = run.settings.hardening if run.config.mode == "hardened" else "none"
    rounds = recorded_rounds(run.views, run.clients, participants_help(protection, run.spec.size))
    found = measure(rounds, run.label_counts, run.spec, run.initial, run.groups)
    return [Finding(name, tuple(results)) for name, results in found.items()]


def configured(variant: str, settings: Mapping[str, Any] | None = None, **options: Any) -> RunConfig:
    """A run of this variant with recorded views. options: of ``RunConfig``."""
    mode, protection = VARIANTS[variant]
    given = {**(settings or {}), **({} if protection == "none" else {"hardening": protection})}
    return RunConfig("fedcaprivacy", mode=mode, crypto="emulated", record=True, settings=given, **options)


def measured(variant: str, seeds: int, **options: Any) -> dict[str, Any]:
    """``summary`` of the audits over runs with seeds 0, 1, ... and the accuracies that they reached."""
    found, scores = [], []
    for seed in range(seeds):
        run, experiment = recorded_run(configured(variant, seed=seed, **options))
        found.append({finding.name: finding.results for finding in audit(run)})
        scores.append(experiment.observer.scores(experiment.models()).means())
        experiment.close()
    accuracy = {name: fmean(score[name] for score in scores) for name in ("global_accuracy", "local_accuracy")}
    return {**accuracy, "attacks": summary(found), "settings": dict(run.config.settings)}


def study(*, seeds: int = 5, clients: int = 30, rounds: int = 10, partition: str = "dirichlet:0.3") -> dict[str, Any]:
    """All variants on digits. Ciphers are emulated: what a party sees after opening is the same bit for bit."""
    options = {"clients": clients, "rounds": rounds, "partition": partition}
    variants = {variant: measured(variant, seeds, **options) for variant in VARIANTS}
    return {"data": "digits", **options, "seeds": seeds, "variants": variants}
