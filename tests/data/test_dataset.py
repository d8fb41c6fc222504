"""Data sets: what is stored, how it is normalised, and what is refused."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import from_arrays, load
from coterie.data.dataset import ALIGNED, fixed_split
from coterie.data.tasks import Task
from coterie.protocol.errors import UserError
from coterie.runs.holdings import samples_of

RNG = np.random.default_rng(7)


def images(n: int, shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape)).astype(dtype)


def labels(n: int, classes: int = 3) -> np.ndarray:
    return np.arange(n) % classes


# Shapes and normalisation


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        ((5, 6), (1, 5, 6)),
        ((5, 6, 1), (1, 5, 6)),
        ((5, 6, 3), (3, 5, 6)),
        ((3, 5, 6), (3, 5, 6)),
        ((4, 5, 7), (4, 5, 7)),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float64", "int32", "int16"])
def test_image_layouts_and_moments(shape: tuple[int, ...], channels_first: tuple[int, ...], dtype: str) -> None:
    x, x_test = images(31, shape, dtype), images(9, shape, dtype)
    if dtype == "int16":
        x, x_test = x - 100, x_test - 100  # no bytes any more
    known = "image" if len(shape) == 2 and x.min() < 0 else None  # only whole numbers from 0 to 255 are plainly grey
    data = from_arrays("own", x, labels(31), x_test, labels(9), kind=known)
    assert (data.kind, data.input_shape, data.classes) == ("image", channels_first, 3)
    assert data.x_train.dtype == ("uint8" if dtype in ("uint8", "int32") else "float32")

    def slow(a: np.ndarray) -> np.ndarray:
        a = a[:, None] if a.ndim == 3 else (np.moveaxis(a, 3, 1) if a.shape[3] in (1, 3) else a)
        return a.astype(np.float64)

    axes = (0, 2, 3)
    mean, std = slow(x).mean(axis=axes, keepdims=True), slow(x).std(axis=axes, keepdims=True)
    for split, raw in (("train", x), ("test", x_test)):
        got = data.inputs(split=split)
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        np.testing.assert_allclose(got, (slow(raw) - mean) / std, atol=2e-6)
    np.testing.assert_allclose(data.inputs([4, 4, 0]), ((slow(x) - mean) / std)[[4, 4, 0]], atol=2e-6)
    np.testing.assert_array_equal(data.labels([4, 4, 0]), [1, 1, 0])
    assert data.inputs([]).shape == (0, *channels_first)
    np.testing.assert_array_equal(data.labels(split="test"), labels(9))


def test_scaling_takes_no_more_memory_than_its_results_and_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of megabytes are new pages each time: two more passes over them cost more than the arithmetic."""
    data = from_arrays("own", images(4000, (28, 28)), labels(4000), images(10, (28, 28)), labels(10))
    piece = 8 << 18  # of float64
    tracemalloc.start()
    try:
        _ = data.zero_and_unit
        assert tracemalloc.get_traced_memory()[1] < 1.2 * piece
        tracemalloc.reset_peak()
        x = data.inputs(np.arange(3000))
        assert tracemalloc.get_traced_memory()[1] < x.nbytes + x.size + piece  # results, stored bytes
    finally:
        tracemalloc.stop()
    given: list[np.ndarray] = []
    usual = type(data).inputs
    monkeypatch.setattr(type(data), "inputs", lambda *args: given.append(usual(*args)) or given[-1])
    found = samples_of(Task(data), np.arange(50), "train").x
    assert found.data_ptr() == given[0].ctypes.data
    assert found.data_ptr() % ALIGNED == 0


def test_moments_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(257, (4, 4, 3))
    whole = from_arrays("own", x, labels(257), x, labels(257)).zero_and_unit
    monkeypatch.setattr("coterie.data.dataset._CHUNK", 100)
    for one, other in zip(whole, from_arrays("own", x, labels(257), x, labels(257)).zero_and_unit, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def test_a_large_mean_does_not_spoil_the_deviation() -> None:
    x = (1e6 + RNG.standard_normal((5000, 2))).astype(np.float32)
    data = from_arrays("own", x, labels(5000), x[:5], labels(5))
    np.testing.assert_allclose(data.zero_and_unit[1], x.astype(np.float64).std(axis=0), rtol=1e-4)


def test_tabular_features_are_standardised_one_by_one() -> None:
    x = np.column_stack([RNG.normal(5, 2, 400), RNG.normal(-1, 0.1, 400), np.full(400, 7.0)])
    data = from_arrays("own", x, labels(400), x[:10], labels(10))
    got = data.inputs()
    assert (data.kind, data.input_shape) == ("tabular", (3,))
    np.testing.assert_allclose(got[:, :2].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(got[:, :2].std(axis=0), 1, atol=1e-5)
    np.testing.assert_array_equal(got[:, 2], 0)  # a constant is centred, not divided by zero


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float64])
def test_binary_tables_stay_zero_and_one(dtype: type) -> None:
    x = RNG.integers(0, 2, (50, 8)).astype(dtype)
    data = from_arrays("own", x, labels(50), x[:9], labels(9))
    np.testing.assert_array_equal(data.inputs(), x.astype(np.float32))
    x_more = x.astype(np.float64)
    x_more[-1, -1] = 2
    assert from_arrays("own", x_more, labels(50), x, labels(50)).inputs().min() < 0


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (7,)])
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_unit_scaling_takes_what_is_trained_on_to_0_and_1(shape: tuple[int, ...], dtype: str) -> None:
    x = RNG.integers(3, 120, (30, *shape)).astype(dtype)
    data = dataclasses.replace(from_arrays("own", x, labels(30), 2 * x[:5], labels(5)), scaling="unit")
    got, axes = data.inputs().reshape(30, *shape), (0,) if len(shape) == 1 else None  # each feature, or all pixels
    low, high = x.astype(float).min(axis=axes), x.astype(float).max(axis=axes)
    np.testing.assert_allclose(got, (x - low) / (high - low), atol=1e-6)
    np.testing.assert_array_equal([got.min(axis=axes), got.max(axis=axes)], [low * 0, low * 0 + 1])
    test = data.inputs(split="test").reshape(5, *shape)  # by the training samples' scale, so it may lie beyond 1
    np.testing.assert_allclose(test, (2 * x[:5].astype(float) - low) / (high - low), rtol=1e-5, atol=1e-6)
    constant = from_arrays("own", np.full((3, *shape), 7.0), labels(3), np.full((1, *shape), 7.0), [0])
    np.testing.assert_array_equal(dataclasses.replace(constant, scaling="unit").inputs(), 0)


def test_nothing_can_be_changed() -> None:
    data = load("digits")
    with pytest.raises(ValueError, match="read-only"):
        data.x_train[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        data.labels()[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.classes = 3  # type: ignore[misc]
    data.inputs()[:] = 0  # one's own copy
    assert data.inputs().any()


def test_keras_style_labels_are_flattened() -> None:
    assert from_arrays("own", images(6, (2, 2)), labels(6)[:, None], images(6, (2, 2)), labels(6)).y_train.shape == (6,)


# Mistakes


def arrays(**changes: object) -> dict[str, object]:
    good = {"x_train": images(12, (4, 4)), "y_train": labels(12), "x_test": images(6, (4, 4)), "y_test": labels(6)}
    return {**good, **changes}


def with_value(value: float) -> np.ndarray:
    x = images(12, (4, 4)).astype(np.float64)
    x[7, 1, 1] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": images(6, (4, 5))}, r"x_train has shape \(1, 4, 4\), one of x_test \(1, 4, 5\)"),
        ({"x_test": images(6, (4,))}, "both must have the same shape"),
        ({"x_train": images(12, ())}, r"x_train has shape \(12,\)"),
        ({"x_train": images(12, (4, 4, 4, 4))}, "x_train has shape"),
        ({"x_test": images(0, (4, 4)), "y_test": labels(0)}, "at least one sample"),
        ({"x_train": images(12, (7, 8, 9))}, "1, 3 or 4 channels"),
        ({"x_train": np.array([["a"] * 4] * 12)}, "x_train has type <U1"),
        ({"x_train": np.array([[None] * 4] * 12)}, "x_train has type object"),
        ({"x_train": with_value(np.nan)}, "1 of 12 samples hold NaN, .* first is sample 7"),
        ({"x_train": with_value(-np.inf)}, "first is sample 7"),
        ({"x_train": with_value(1e300)}, "too large for float32"),
        ({"y_train": labels(11)}, r"y_train has shape \(11,\); there are 12 samples"),
        ({"y_test": labels(6).reshape(2, 3)}, "y_test has shape"),
        ({"y_train": labels(12) + 0.5}, "y_train has type float64; labels must be integers"),
        ({"y_train": labels(12) - 1}, "y_train has label -1"),
        ({"y_train": labels(12).astype(np.uint64) + 2**63}, "y_train has label"),
        ({"y_train": labels(12) + 1}, "highest label is 3, but no training sample has label 0"),
        ({"y_test": np.array([0, 1, 2, 0, 1, 5])}, "highest label is 5, but no training sample has label 3"),
        ({"y_train": labels(12) * 0, "y_test": labels(6) * 0}, "at least two classes"),
        ({"classes": 2}, r"y_train has label 2, but labels must be 0..1"),
    ],
)
def test_arrays_that_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        from_arrays("own", **arrays(**changes))  # type: ignore[arg-type]
    assert "data set 'own' (arrays)" in str(error.value)


def test_wrong_split_name() -> None:
    for method in (load("digits").inputs, load("digits").labels):
        with pytest.raises(UserError, match="'train' or 'test'"):
            method(split="Test")  # type: ignore[call-arg,arg-type]


# The fixed split


def test_fixed_split_by_hand() -> None:
    #              0  1  2  3  4  5  6  7  8  9 10
    y = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    # in order of class: 1 3 5 7 9 | 0 2 4 6 8 10; every fifth from the first: 1, 0, 10
    train, test = fixed_split(y)
    np.testing.assert_array_equal(test, [0, 1, 10])
    np.testing.assert_array_equal(train, [2, 3, 4, 5, 6, 7, 8, 9])


@given(y=st.lists(st.integers(0, 9), min_size=1, max_size=300).map(np.array))
def test_fixed_split_is_stratified(y: np.ndarray) -> None:
    train, test = fixed_split(y)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(y)))
    assert len(test) == -(-len(y) // 5)
    for label, count in enumerate(np.bincount(y)):
        assert abs((y[test] == label).sum() - count / 5) < 1


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    data, raw = load("digits"), load_digits()
    assert (data.kind, data.input_shape, data.classes) == ("image", (1, 8, 8), 10)
    assert (len(data.y_train), len(data.y_test)) == (1437, 360)
    train, test = fixed_split(raw.target)
    np.testing.assert_array_equal(data.x_train[:, 0], raw.images[train])
    np.testing.assert_array_equal(data.x_test[:, 0], raw.images[test])
    np.testing.assert_array_equal(data.labels(split="test"), raw.target[test])
    assert np.bincount(data.y_test).min() >= 34
    x = data.inputs()
    assert x.mean() == pytest.approx(0, abs=1e-5)
    assert x.std() == pytest.approx(1, abs=1e-5)
    assert "1,437 training and 360 test" in data.source
