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
def test_bf16_is_within_a_point_after_ten_rounds_on_fashion_mnist() -> None:
    folder = os.environ.get("COTERIE_DATA")
    path = Path(folder or "") / "fashion_mnist.npz"
    if folder is None or not path.exists():
        pytest.skip("needs fashion_mnist.npz in the folder COTERIE_DATA")
    with np.load(path) as data:
        x, x_test = (
            ((data[key].reshape(-1, 1, 28, 28) / np.float32(255)) - np.float32(0.286)) / np.float32(0.353)
            for key in ("x_train", "x_test")
        )
        y, y_test = (torch.from_numpy(data[key].reshape(-1).astype(np.int64)) for key in ("y_train", "y_test"))
    model = build("cnn", (1, 28, 28), 10)
    clients = np.random.default_rng(0).permutation(len(x)).reshape(100, 600)[:10]
    shares = [(torch.from_numpy(x[rows]), y[rows]) for rows in clients]
    accuracy = {}
    for precision in ("fp32", "bf16"):
        weights = model.initial(0)
        for r in range(10):
            jobs = [Job(weights, Sgd(0.05, 50), 2, 1000 * r + i, *share) for i, share in enumerate(shares)]
            weights = np.mean([f.weights for f in fit_many(model, jobs, precision=precision)], axis=0, dtype=np.float32)
        (result,) = evaluate_many(model, weights[None], torch.from_numpy(x_test), y_test)
        accuracy[precision] = result.accuracy
    assert accuracy["fp32"] > 0.75
    assert abs(accuracy["fp32"] - accuracy["bf16"]) < 0.01, accuracy
