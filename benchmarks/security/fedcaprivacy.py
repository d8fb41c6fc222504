"""What the parties of FedCAPrivacy find out, as the paper says and hardened, on whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.security.compared import summary
from coterie.privacy.audits.fedcaprivacy import passive
from coterie.runs import RunConfig
from coterie.runs.recorded import recorded_run

VARIANTS: Mapping[str, tuple[str, str]] = {
    "paper": ("paper", "none"),
    "hardened, sketch": ("hardened", "sketch"),
    "hardened, rotation": ("hardened", "rotation"),
    "hardened, signature": ("hardened", "signature"),
}
"""Name -> mode and protection."""


def configured(variant: str, settings: Mapping[str, Any] | None = None, **options: Any) -> RunConfig:
    """A run of this variant with recorded views. options: of ``RunConfig``."""
    mode, protection = VARIANTS[variant]
    shown = {"none": {}, "signature": {"descriptor": "signature", "clusters": "auto"}}
    given = {
        **(settings or {}),
        **shown.get(protection, {"descriptor": "model", "clusters": 5, "hardening": protection}),
    }
    return RunConfig("fedcaprivacy", mode=mode, crypto="emulated", record=True, settings=given, **options)


def measured(variant: str, seeds: int, **options: Any) -> dict[str, Any]:
    """``summary`` of the audits over runs with seeds 0, 1, ... and the accuracies that they reached."""
    found, scores = [], []
    for seed in range(seeds):
        run, experiment = recorded_run(configured(variant, seed=seed, **options))
        found.append({finding.name: finding.results for finding in passive(run)})
        scores.append(experiment.observer.scores(experiment.models()).means())
        experiment.close()
    accuracy = {name: fmean(score[name] for score in scores) for name in ("global_accuracy", "local_accuracy")}
    return {**accuracy, "attacks": summary(found), "settings": dict(run.options["settings"])}


def study(*, seeds: int = 5, clients: int = 30, rounds: int = 10, partition: str = "dirichlet:0.3") -> dict[str, Any]:
    """All variants on digits. Ciphers are emulated: what a party sees after opening is the same bit for bit."""
    options = {"clients": clients, "rounds": rounds, "partition": partition}
    variants = {variant: measured(variant, seeds, **options) for variant in VARIANTS}
    return {"data": "digits", **options, "seeds": seeds, "variants": variants}
