"""Federations that are set up: what many tests begin with is made once, and each has a copy."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment, build

T = TypeVar("T", bound=Any)
_MADE: dict[tuple[str, int], Any] = {}


def prepared(config: RunConfig, rounds: int = 0) -> Experiment:
    """A copy of the federation after its set-up and so many rounds. Nothing may be patched that they need."""

    def made() -> Experiment:
        experiment = build(config)
        experiment.set_up()
        return experiment

    return begun(str(config), made, rounds)


def begun(key: str, make: Callable[[], T], rounds: int = 0) -> T:
    """The same of what ``make`` sets up, and what one of this key made before."""
    if (key, rounds) not in _MADE:
        made = begun(key, make, rounds - 1) if rounds else make()
        if rounds:
            made.round(rounds)
        _MADE[key, rounds] = made
    copied: T = deepcopy(_MADE[key, rounds])
    return copied
