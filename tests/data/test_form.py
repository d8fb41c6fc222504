"""A party's own samples: what a model takes goes into the home as it is, and all else is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployments import FACTS, NOW_S, Study, samples

from coterie.data.form import OwnSamples, SampleForm, read_data
from coterie.protocol.errors import UserError

X = np.random.default_rng(0).random((20, 1, 8, 8))
Y = np.arange(20) % 10


def test_samples_come_back_as_they_are(tmp_path: Path) -> None:
    path = samples(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3])
    found = read_data(path, FACTS)
    np.testing.assert_array_equal(found.x, X.astype(np.float32))
    np.testing.assert_array_equal(found.y_test, Y[:3])
    (tmp_path / "b.npz").write_bytes(found.to_bytes())
    again = read_data(tmp_path / "b.npz", FACTS)
    for name in ("x", "y", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        assert getattr(again, name).dtype == getattr(found, name).dtype


def test_without_tests_a_fifth_of_each_class_is_kept(tmp_path: Path) -> None:
    found = read_data(samples(tmp_path / "a.npz", x=np.repeat(X, 5, 0), y=np.repeat(Y, 5)), FACTS)
    assert np.bincount(found.y).tolist() == [8] * 10
    assert np.bincount(found.y_test).tolist() == [2] * 10
    whole = read_data(samples(tmp_path / "a.npz", x=X, y=Y), FACTS, tests=False)
    assert (len(whole.x), len(whole.x_test)) == (20, 0)
    (tmp_path / "b.npz").write_bytes(whole.to_bytes())
    assert len(read_data(tmp_path / "b.npz", FACTS).x) == 20


def test_bytes_are_divided_by_255(tmp_path: Path) -> None:
    x = np.full((20, 1, 8, 8), 51, np.uint8)
    assert set(read_data(samples(tmp_path / "a.npz", x=x, y=Y), FACTS).x.ravel().tolist()) == {np.float32(0.2)}


def test_other_tasks(tmp_path: Path) -> None:
    x = X[:, 0, 0, :4]
    several = read_data(samples(tmp_path / "a.npz", x=x, y=np.eye(20, 3)), SampleForm((4,), 3, "multilabel"))
    assert several.y.shape == (16, 3)
    numbers = read_data(samples(tmp_path / "a.npz", x=x, y=Y / 7), SampleForm((4,), 1, "regression"))
    assert (numbers.y.shape, numbers.y.dtype) == ((16, 1), np.float32)


def with_nan() -> np.ndarray:
    x = X.copy()
    x[4, 0, 0, 0] = np.nan
    return x


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": None}, "no array 'x'"),
        ({"y": None}, "no array 'y'"),
        ({"z": Y}, "has an array 'z'"),
        ({"xtest": Y}, "did you mean 'x_test'"),
        ({"x_test": X}, "one of x_test and y_test"),
        ({"x": X[:, 0]}, r"shape \(20, 8, 8\); the plan's model takes \(n, 1, 8, 8\)"),
        ({"x": X[:0], "y": Y[:0]}, "x has no sample"),
        ({"x": X[:1], "y": Y[:1]}, "has one sample"),
        ({"x": X.astype(str)}, "must hold numbers"),
        ({"x": X.astype(complex)}, "must hold numbers"),
        ({"x": with_nan()}, "the first is sample 4"),
        ({"x": X * 1e300}, "too large for float32"),
        ({"y": Y[:5]}, r"y has shape \(5,\); there are 20 samples"),
        ({"y": Y[:, None]}, r"it must be \(20,\)"),
        ({"y": Y + 1}, "has label 10; labels are 0 to 9"),
        ({"y": Y - 1}, "has label -1"),
        ({"y": Y + 0.5}, "no whole numbers"),
        ({"y": Y * np.nan}, "no whole numbers"),
        ({"y": Y.astype(str)}, "labels must be numbers"),
        ({"x_test": X[:2, 0], "y_test": Y[:2]}, "x_test has shape"),
        ({"x_test": X[:2], "y_test": Y[:3]}, "y_test has shape"),
        ({"x": np.array([{}])}, "array of Python objects"),
    ],
)
def test_samples_that_are_refused_leave_no_home(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_data(samples(tmp_path / "a.npz", **{"x": X, "y": Y, **arrays}), FACTS)
    assert "a.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("task", "y", "says"),
    [
        ("multilabel", np.full((20, 3), 2), "other than 0 and 1"),
        ("multilabel", np.zeros((20, 2)), r"must be \(20, 3\)"),
        ("regression", np.full((20, 3), np.inf), "infinity"),
    ],
)
def test_labels_of_other_tasks_that_are_refused(tmp_path: Path, task: str, y: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_data(samples(tmp_path / "a.npz", x=X, y=y), SampleForm((1, 8, 8), 3, task))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 no archive")
    np.save(tmp_path / "single.npy", X)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    for name, says in {"a.npz": "cannot be read", "single.npz": "single array", "b.npz": "there is no file"}.items():
        with pytest.raises(UserError, match=says):
            read_data(tmp_path / name, FACTS)


def test_a_party_whose_data_are_refused_has_no_home(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    text = study.invite()
    from coterie.operate import joining

    for data, options, says in (
        (None, {}, "name them with --data"),
        (samples(tmp_path / "bad.npz", y=np.arange(12)), {}, "has label 11"),
        (samples(tmp_path / "own.npz"), {"report": ["local_accuracy", "samples"]}, "no score 'samples'"),
        (tmp_path / "own.npz", {"epochs": 0}, "local epochs"),
        (tmp_path / "own.npz", {"epochs": 99}, "local epochs"),
        (tmp_path / "own.npz", {"out": tmp_path / "nowhere"}, "no folder"),
    ):
        with pytest.raises(UserError, match=says):
            joining.join(text, tmp_path / "home", data, now_s=NOW_S, **{"out": tmp_path, **options})  # type: ignore[arg-type]
        assert not (tmp_path / "home").exists()
    home, _ = study.join(text, report=["local_accuracy"], epochs=1, accelerator="auto")
    assert (home.report, home.about.epochs, home.about.accelerator) == (("local_accuracy",), 1, "auto")
    assert isinstance(read_data(home.data, FACTS), OwnSamples)


@pytest.mark.parametrize("rows", [[[1, 2], [3]], [None, 1.0], [{}, {}]])
def test_objects_are_refused_in_words(tmp_path: Path, rows: list[Any]) -> None:
    x = np.empty(len(rows), object)
    x[:] = rows
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(len(rows)))
    with pytest.raises(UserError, match=r"a\.npz: x is an array of Python objects.* must hold numbers") as error:
        read_data(tmp_path / "a.npz", FACTS)
    assert "pickle" not in str(error.value)


def test_a_file_that_is_no_npz_is_not_to_be_loaded_unsafely(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f0,f1,label\n1,2,0\n")
    with pytest.raises(
        UserError, match=r"a\.csv cannot be read as an \.npz file: .* write one with numpy\.savez"
    ) as error:
        read_data(tmp_path / "a.csv", FACTS)
    assert "pickle" not in str(error.value)
