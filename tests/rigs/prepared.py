"""Federations that are set up: what many tests begin with is made once, and each has a copy."""

from __future__ import annotations

from copy import deepcopy

from coterie.runs import RunConfig
from coterie.runs.experiment import Experiment, build

_MADE: dict[tuple[str, int], Experiment] = {}


def prepared(config: RunConfig, rounds: int = 0) -> Experiment:
    """A copy of the federation after its set-up and so many rounds. Nothing may be patched that they need."""
    key = str(config), rounds
    if key not in _MADE:
        if rounds:
            _MADE[key] = prepared(config, rounds - 1)
            _MADE[key].round(rounds)
        else:
            _MADE[key] = build(config)
            _MADE[key].set_up()
    return deepcopy(_MADE[key])
