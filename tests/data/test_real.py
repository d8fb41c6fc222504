"""The real data sets, where COTERIE_DATA has them: numbers that their publishers and others state."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coterie.data import Dataset, label_counts, load, partition

pytestmark = pytest.mark.real_data


def real(name: str) -> Dataset:
    folder = os.environ.get("COTERIE_DATA")
    if not folder or not (Path(folder) / f"{name}.npz").is_file():
        pytest.skip(f"COTERIE_DATA has no {name}.npz")
    return load(name, download=False)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("fashion_mnist", [0.2860], [0.3530]),
        pytest.param("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616], marks=pytest.mark.long),
    ],
)
def test_moments_as_everybody_states_them(name: str, mean: list[float], std: list[float]) -> None:
    data = real(name)
    got_mean, got_std = data.zero_and_unit
    np.testing.assert_allclose(got_mean.ravel() / 255, mean, atol=6e-5)
    np.testing.assert_allclose(got_std.ravel() / 255, std, atol=6e-5)
    sample = data.inputs(np.arange(0, len(data.y_train), 50))
    assert abs(sample.mean()) < 0.03
    assert abs(sample.std() - 1) < 0.05


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (1, 28, 28), 60_000, 10_000),
        ("fashion_mnist", (1, 28, 28), 60_000, 10_000),
        ("cifar10", (3, 32, 32), 50_000, 10_000),
    ],
)
def test_images(name: str, shape: tuple[int, ...], train: int, test: int) -> None:
    data = real(name)
    assert (data.input_shape, len(data.y_train), len(data.y_test), data.classes) == (shape, train, test, 10)
    assert "complete" not in data.source
    if name == "mnist":
        np.testing.assert_array_equal(data.y_train[:8], [5, 0, 4, 1, 9, 2, 1, 3])
        np.testing.assert_array_equal(np.bincount(data.y_test), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    else:
        np.testing.assert_array_equal(np.bincount(data.y_train), [train // 10] * 10)


def test_a_subset_of_cifar100_says_so() -> None:
    data = real("cifar100")
    assert (data.input_shape, data.classes, len(data.y_test)) == ((3, 32, 32), 100, 10_000)
    assert ("the complete set has 50,000" in data.source) == (len(data.y_train) != 50_000)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "train"),
    [("cora", 2708, 5278, 1433, 7, 140), ("citeseer", 3327, 4552, 3703, 6, 120)],
)
def test_planetoid(name: str, nodes: int, edges: int, features: int, classes: int, train: int) -> None:
    data = real(name)
    g = data.graph
    assert g is not None
    assert (g.x.shape, g.edges.shape, data.classes) == ((nodes, features), (2, edges), classes)
    assert (len(g.train), len(g.val), len(g.test)) == (train, 500, 1000)
    np.testing.assert_array_equal(np.bincount(data.y_train), [20] * classes)
    assert (g.y < 0).sum() == (15 if name == "citeseer" else 0)
    np.testing.assert_allclose(g.x.sum(axis=1), g.x.any(axis=1), rtol=1e-5)


def test_location30() -> None:
    data = real("location30")
    assert (data.input_shape, data.classes, len(data.y_train), len(data.y_test)) == ((446,), 30, 4008, 1002)
    assert set(np.unique(data.inputs())) == {0.0, 1.0}
    shares = np.bincount(data.y_test) / np.bincount(np.concatenate([data.y_train, data.y_test]))
    assert np.abs(shares - 0.2).max() < 0.02


def test_fedcaprivacy_setting_on_mnist() -> None:
    """100 clients, Dir(0.1): all samples placed, nobody poor, test shares equal to training shares."""
    data = real("mnist")
    split = partition("dirichlet:0.1", data.y_train, data.y_test, 100, 0)
    train, test = (label_counts(split, y, 10, part) for part, y in (("train", data.y_train), ("test", data.y_test)))
    assert train.sum() == 60_000
    assert split.sizes.min() >= 10
    np.testing.assert_array_equal(test.sum(axis=1), 200)
    assert np.abs(test / 200 - train / train.sum(axis=1, keepdims=True)).max() < 1 / 200
