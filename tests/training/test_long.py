"""Minutes, on real data: bfloat16 products cost no accuracy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.training.engine import fit_many
from coterie.training.evaluate import evaluate_many
from coterie.training.jobs import Job
from coterie.training.models import build
from coterie.training.solvers import Sgd


@pytest.mark.long
@pytest.mark.real_data
def test_bf16_is_within_0_3_points_after_20_rounds_on_fashion_mnist() -> None:
    folder = os.environ.get("COTERIE_DATA")
    path = Path(folder or "") / "fashion_mnist.npz"
    if folder is None or not path.exists():
        pytest.skip("needs fashion_mnist.npz in the folder COTERIE_DATA")
    with np.load(path) as data:
        x = torch.from_numpy(
            (data["x_train"].reshape(-1, 784) / np.float32(255) - np.float32(0.286)) / np.float32(0.353)
        )
        y = torch.from_numpy(data["y_train"].reshape(-1).astype(np.int64))
        x_test = torch.from_numpy(
            (data["x_test"].reshape(-1, 784) / np.float32(255) - np.float32(0.286)) / np.float32(0.353)
        )
        y_test = torch.from_numpy(data["y_test"].reshape(-1).astype(np.int64))
    model = build("mlp", (784,), 10)
    clients = np.random.default_rng(0).permutation(len(x)).reshape(100, 600)[:50]
    shares = [(x[rows], y[rows]) for rows in torch.from_numpy(clients)]
    accuracy = {}
    for precision in ("fp32", "bf16"):
        weights = model.initial(0)
        for r in range(20):
            jobs = [Job(weights, Sgd(0.1, 50), 2, 1000 * r + i, *share) for i, share in enumerate(shares)]
            weights = np.mean([f.weights for f in fit_many(model, jobs, precision=precision)], axis=0, dtype=np.float32)
        (result,) = evaluate_many(model, weights[None], x_test, y_test)
        accuracy[precision] = result.accuracy
    assert accuracy["fp32"] > 0.82
    assert abs(accuracy["fp32"] - accuracy["bf16"]) < 0.003, accuracy
