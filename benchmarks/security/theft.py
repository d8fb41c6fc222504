"""How many clients of PAFed get the helper's key, and what it costs the others, on runs with digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coterie.privacy.audits.pafed import by_theft, steal
from coterie.runs import RunConfig
from coterie.runs.recorded import record

Row = dict[str, Any]


def thieves(seeds: int, sizes: Sequence[int] = (12, 20, 31), each: int = 2, **options: Any) -> list[Row]:
    """Runs with digits and an MLP, default settings and real keys, each with another client as a thief.

    sizes: of federations.  each: how many of a federation's clients are thieves, one a run.  "accuracy without" is of
    the same run without a thief, with emulated keys.
    """
    rows = []
    for clients in sizes:
        given: Row = {"rounds": 10, "model": "mlp", **options}
        configs = [RunConfig("pafed", clients=clients, seed=seed, **given) for seed in range(seeds)]
        played = [_robbed(config, f"client/{i}") for config in configs for i in range(each)]
        errors = [error for run in played if (error := run.pop("error")) is not None]
        rows.append(
            {
                "clients": clients,
                **given,
                "thieves": len(played),
                "with the key": len(errors),
                "error of the others' updates": max(errors, default=None),
                **{name: [run[name] for run in played] for name in played[0]},
                "accuracy without": [_accuracy(replace(config, crypto="emulated")) for config in configs],
            }
        )
    return rows


def _robbed(config: RunConfig, client: str) -> Row:
    """One thief's run in numbers, so that its record is not kept. error: of the others' updates, if it has the key."""
    run, thief = steal(partial(record, replace(config, record=True)), client)
    key, *opened = by_theft(client, run, thief)
    return {
        "error": opened[0].results[0].value if opened else None,
        "forged": len(thief.forged_in),
        "in round": key.round,
        "agreement": key.results[0].value,
        "chance": key.results[0].chance,
        "accuracy": run.lines[-1]["global_accuracy"],
        "rounds skipped": sum("skipped" in line["notes"] for line in run.lines),
    }


def _accuracy(config: RunConfig) -> float:
    return float(record(replace(config, record=True)).lines[-1]["global_accuracy"])
