"""What coalitions and a planted row find out in Coterie, and what its noise is for, after more and more rounds."""

from __future__ import annotations

from typing import Any

from benchmarks.security.compared import summary
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits.coterie import passive
from coterie.privacy.audits.hidden_grouping import grouping_steps, planted_row
from coterie.runs import RunConfig
from coterie.runs.recorded import record

ROUNDS = (10, 30, 60)
SETTINGS = {"lr": 0.1, "participation": 0.8, "min_cluster": 6, "fewest": 1}
"""With fewest=1 a round is added whoever is away, so that differences show as much as they can."""


def measured(rounds: int, seeds: int, *, deviating: bool, **options: Any) -> dict[str, Any]:
    """``summary`` of what is found in all runs with seeds 0, 1, ...; deviating: also by a planted row."""
    runs: list[dict[str, tuple[AttackResult, ...]]] = []
    for seed in range(seeds):
        config = RunConfig(
            "coterie",
            seed=seed,
            rounds=rounds,
            eval_every=rounds,
            crypto="emulated",
            record=True,
            settings=SETTINGS,
            **options,
        )
        run = record(config)
        found = [*passive(run), *(planted_row(run) if deviating else ())]
        runs.append({one.name: one.results for one in found if one.results})
    return {"attacks": summary(runs)}


def study(*, seeds: int = 3, clients: int = 24, partition: str = "permute:4+dirichlet:0.5") -> dict[str, Any]:
    """Digits, a fifth of the clients away in each round."""
    options = {"clients": clients, "partition": partition}
    variants = {
        f"{rounds} rounds": measured(rounds, seeds, deviating=rounds == ROUNDS[0], **options) for rounds in ROUNDS
    }
    return {"data": "digits", **options, "seeds": seeds, "settings": SETTINGS, "variants": variants}


def grouping(*, seeds: int = 24, clients: int = 24, partition: str = "permute:4+dirichlet:0.5") -> dict[str, Any]:
    """What the helper reads of unnamed clients when groups are made, which further rounds do not change."""
    options: dict[str, Any] = {"clients": clients, "partition": partition}
    settings = {**SETTINGS, "max_epochs": 1}
    runs = []
    for seed in range(seeds):
        config = RunConfig("coterie", seed=seed, rounds=1, crypto="emulated", record=True, settings=settings, **options)
        runs.append({one.name: one.results for one in grouping_steps(record(config)) if one.results})
    variants = {"when groups are made": {"attacks": summary(runs)}}
    return {"data": "digits", **options, "seeds": seeds, "settings": settings, "variants": variants}
