"""Matrices of which a part runs by default, and all in ``make test-long``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def few(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """For ``pytest.mark.parametrize``: all values, or sets of values. Those that are not ``quick`` are long tests."""
    return [value if value in quick else _long(value) for value in values]


def _long(value: Any) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=pytest.mark.long)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)


class OnDemand(dict[str, T]):
    """What ``make`` gives for a key, made when it is first asked for."""

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: str) -> T:
        self[key] = made = self._make(key)
        return made
