"""A trained model has the same bits wherever it is trained: in one process with all others, alone, or at a worker."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.models import build
from coterie.training.solvers import Sgd


@pytest.mark.parametrize(("model", "batch"), [("mlp", 50), ("linear", 20), ("mlp_small", 300)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_job_gives_the_same_bits_whoever_trains_beside_it(model: str, batch: int, momentum: float) -> None:
    made, solver = build(model, (64,), 10), Sgd(0.1, batch, momentum)
    sizes = np.random.default_rng(3).integers(3, 140, 13).tolist() if batch <= 256 else [40] * 13
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 64, generator=generator), torch.randint(0, 10, (n,), generator=generator)) for n in sizes]
    jobs = [Job(made.initial(0), solver, 1 + i % 3, i, x, y) for i, (x, y) in enumerate(data)]
    together = fit_many(made, jobs)
    for width in (1, 2, 3, 5, 8):
        parts = [fit_many(made, jobs[start : start + width]) for start in range(0, len(jobs), width)]
        for i, alone in enumerate(chain.from_iterable(parts)):
            np.testing.assert_array_equal(alone.weights, together[i].weights, err_msg=f"job {i}, {width} together")
