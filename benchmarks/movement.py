"""How far a client's training moves its model in a round, beside the noise on its upload in OFL's mode hardened.

    python -m benchmarks.movement ofl/movement --seeds 3 --out docs/ofl

16 clients train from a common start for a round, as in OFL's table 3. Lengths are L2 norms over all parameters that are
uploaded. A client of mode hardened cuts its change to the length C = 1 before it adds the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np

from benchmarks.items import main
from coterie.dp.uploads import eligible
from coterie.protocol.randomness import Secrets, rng
from coterie.reproductions.study import Calculation, Item, Row, by_cell, named
from coterie.runs.experiment import build
from coterie.systems.ofl import SYSTEM
from coterie.systems.ofl.config import OFLConfig
from papers.ofl import RATES, config

CASES = (("cora", 0.1), ("cora", RATES["ofl@hardened"]), ("mnist-mlp", 0.1), ("fashion_mnist-mlp", 0.1))
"""Tasks, and the rates that they are trained with."""


def moved(task: str, rate: float, seed: int) -> Row:
    """Lengths of one round: of the clients' changes, of their mean, of one upload's noise, and of the noise's mean."""
    made = config("local", task, lr=rate)
    run = build(replace(made, rounds=1, seed=seed, fine_tune="no"))
    try:
        run.set_up()
        run.round(1)
        spec, start = run.common.spec, run.common.initial.astype(np.float64)
        models = [np.asarray(model, np.float64) for model in run.system.models(run.federation).values()]
        changes = (np.stack(models) - start)[:, eligible(spec)]
    finally:
        run.close()
    mechanism = OFLConfig(**SYSTEM.defaults("hardened")).standard()
    nothing, draw = np.zeros(changes.shape[1]), Secrets(rng(seed, "movement", task))
    noise = np.stack([mechanism.noised(nothing, draw) for _ in changes])
    return {
        "parameters": changes.shape[1],
        "client": float(np.median(np.linalg.norm(changes, axis=1))),
        "mean": float(np.linalg.norm(changes.mean(axis=0))),
        "noise": float(np.median(np.linalg.norm(noise, axis=1))),
        "mean noise": float(np.linalg.norm(noise.mean(axis=0))),
    }


@by_cell
def _rows(name: str, seeds: Sequence[Row]) -> Row:
    task, _, rate = name.partition("/")
    return {
        "task": task,
        "rate": rate,
        "parameters": seeds[0]["parameters"],
        "a client's change": fmean(one["client"] for one in seeds),
        "noise on a whole upload": fmean(one["noise"] for one in seeds),
        "mean change of all": fmean(one["mean"] for one in seeds),
        "mean noise of all": fmean(one["mean noise"] for one in seeds),
    }


ITEMS: Mapping[str, Item[Row]] = named(
    Item(
        "ofl/movement",
        "OFL: what a round moves, and the noise of mode hardened (L2 norms, mean over the seeds)",
        tuple(Calculation(f"{task}/{rate:g}", partial(moved, task, rate)) for task, rate in CASES),
        _rows,
        command="python -m benchmarks.movement",
    )
)

if __name__ == "__main__":
    main(ITEMS)
