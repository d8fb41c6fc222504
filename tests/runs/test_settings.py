"""Typed settings: text and TOML into fields, and errors that name the field and what would fit."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.errors import UserError
from coterie.runs.settings import assignments, typed


@dataclass(frozen=True)
class Toy:
    lr: float = 0.1
    epochs: int = 5
    fast: bool = False
    name: str = "x"
    deadline_s: float | None = None
    gamma: float | Literal["median"] = 0.5
    kernel: Literal["rbf", "laplacian"] = "rbf"
    note: str | None = None
    level: Literal[1, 2] = 1


def read(**texts: str) -> dict[str, object]:
    return typed(Toy, texts, "setting of toy", text=True)


@given(st.floats(allow_nan=False))
def test_floats_round_trip_through_text(value: float) -> None:
    assert read(lr=repr(value)) == {"lr": value}
    assert read(deadline_s=repr(value)) == {"deadline_s": value}
    assert read(gamma=repr(value)) == {"gamma": value}


@given(st.integers(-(10**30), 10**30))
def test_integers_round_trip_through_text_and_fit_floats(value: int) -> None:
    assert read(epochs=str(value)) == {"epochs": value}
    got = read(lr=str(value))["lr"]
    assert type(got) is float
    assert got == float(value)


@pytest.mark.parametrize(("text", "value"), [(".5", 0.5), ("-.25", -0.25), ("1e-3", 0.001), ("5.", None)])
def test_a_number_needs_no_leading_zero(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(UserError, match="must be a number"):
            read(lr=text)
    else:
        assert read(lr=text) == {"lr": value}


@given(st.text())
def test_text_is_kept_and_nothing_else_escapes(text: str) -> None:
    assert read(name=text) == {"name": text}
    for field in ("lr", "epochs", "fast", "kernel", "gamma", "level"):
        with contextlib.suppress(UserError):
            value = read(**{field: text})[field]
            assert value == text or str(value).lower() == text.strip().lower() or float(value) == float(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="=", exclude_categories=("Z", "C")), min_size=1), st.text()
    )
)
def test_assignments_are_split_at_the_first_equals_sign(given: dict[str, str]) -> None:
    assert assignments(f"{key}={value}" for key, value in given.items()) == {k: v.strip() for k, v in given.items()}


def test_the_kinds_of_fields() -> None:
    texts = {
        "fast": "True",
        "deadline_s": "None",
        "gamma": "median",
        "kernel": "laplacian",
        "note": "none",
        "level": "2",
    }
    assert read(**texts) == {
        "fast": True,
        "deadline_s": None,
        "gamma": "median",
        "kernel": "laplacian",
        "note": None,
        "level": 2,
    }


def test_values_of_python_and_toml_are_strict() -> None:
    good = {"lr": 1, "epochs": 3, "fast": True, "deadline_s": None, "gamma": "median", "note": "none", "level": 2}
    got = typed(Toy, good, "setting of toy")
    assert got == {
        "lr": 1.0,
        "epochs": 3,
        "fast": True,
        "deadline_s": None,
        "gamma": "median",
        "note": None,
        "level": 2,
    }
    assert type(got["lr"]) is float
    bad = {"lr": "0.1", "epochs": 3.0, "fast": 1, "name": 3, "deadline_s": "soon", "gamma": True, "level": True}
    for key, value in bad.items():
        with pytest.raises(UserError, match=key):
            typed(Toy, {key: value}, "setting of toy")
    with pytest.raises(UserError, match="lr"):
        typed(Toy, {"lr": math.nan}, "setting of toy")
    with pytest.raises(UserError, match=r"'name' must be text, not .*: write 'auroc,f1'"):
        typed(Toy, {"name": ["auroc", "f1"]}, "setting of toy")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"learning": "1"}, ["unknown setting of toy 'learning'", "deadline_s", "lr"]),
        ({"epoch": "1"}, ["did you mean 'epochs'?"]),
        ({"lr": "fast"}, ["'lr'", "a number", "'fast'"]),
        ({"epochs": "1.5"}, ["'epochs'", "a whole number", "'1.5'"]),
        ({"fast": "yes"}, ["'fast'", "true or false"]),
        ({"kernel": "linear"}, ["'kernel'", "'rbf' or 'laplacian'"]),
        ({"gamma": "mean"}, ["'gamma'", "a number or 'median'"]),
        ({"deadline_s": "never"}, ["'deadline_s'", "a number or none"]),
        ({"lr": "nan"}, ["'lr'"]),
    ],
)
def test_errors_say_what_would_fit(texts: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read(**texts)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["lr", "", "=3", " = 3"])
def test_what_is_no_assignment(text: str) -> None:
    with pytest.raises(UserError, match="key=value"):
        assignments([text])


def test_one_key_twice() -> None:
    with pytest.raises(UserError, match=r"lr.*twice"):
        assignments(["lr=1", "lr=2"])
