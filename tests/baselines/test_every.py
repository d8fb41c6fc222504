"""What every baseline keeps: updates that do not fit are refused, settings are checked, no answer changes no model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from every_system import BASELINES, CASES, Case, after, own_messages, parameters
from federation import Rig, misbehaving

from coterie.protocol.errors import UserError
from coterie.protocol.messages import forms
from coterie.protocols.averaging import MOST_SAMPLES
from coterie.runs.registry import SYSTEMS

TRAINED = [
    (name, mode, {"participation": 1.0, **settings})
    for name, mode, settings in CASES
    if name in BASELINES and name not in ("local", "rfl_ha", "secagg")
]
"""Baselines whose clients answer the server's ``Train``."""
EVERY = pytest.mark.parametrize("case", TRAINED, ids=lambda case: case[0])
change = msgspec.structs.replace


def lies(update: Any) -> Iterator[Any]:
    """Updates of another round, shape or length, of no samples, and of numbers beyond measure."""
    yield change(update, round=0)
    yield change(update, spec=bytes(16))
    for samples in (0, -1, MOST_SAMPLES + 1, (1 << 64) - 1) if hasattr(update, "samples") else ():
        yield change(update, samples=samples)
    for name in forms(type(update)).arrays:
        values = getattr(update, name)
        for wrong in (values[:-1], values[:0], np.full_like(values, -3e38)):
            yield change(update, **{name: wrong})


def models(run: Rig) -> bytes:
    held = run.hub.state
    return bytes(held.weights.tobytes() if hasattr(held, "weights") else b"") + bytes(getattr(held, "models", b""))


@pytest.mark.parametrize("case", parameters(TRAINED, lambda case: own_messages(case, TRAINED)))
def test_an_update_that_does_not_fit_counts_as_none(case: Case) -> None:
    without = after(case)
    without.links.away = {("client/2", 1): "offline"}
    without.round(1)
    sent: list[Any] = []

    def lie(party: Any, request: Any, update: Any) -> Any:
        sent[:] = [*lies(update)]
        return sent[tried]

    tried = 0
    while not sent or tried < len(sent):
        run = after(case)
        (request,) = (kind for kind in run.party("client/2").handlers if kind.__name__ == "Train")
        misbehaving(run.party("client/2"), request, lie)
        run.round(1)
        assert ["client/2: " in why for why in run.refused.elements()] == [True], (sent[tried], run.refused)
        assert models(run) == models(without), sent[tried]
        tried += 1
    assert tried >= 5


@EVERY
def test_each_role_receives_exactly_what_its_system_says(case: Case) -> None:
    run = after(case, 1)
    assert run.transport.transcript is not None
    for role, sees in run.system.views("paper").items():
        kinds = set[str]().union(*(view.kinds() for view in run.transport.transcript.of_role(role)))
        assert kinds == {kind.__name__ for kind in sees.receives}


@EVERY
def test_a_round_without_answers_changes_no_model(case: Case) -> None:
    run = after(case, 1)
    run.links.away = {(f"client/{i}", 2): "offline" for i in range(6)}
    before = models(run)
    assert run.round(2)["participants"] == 0
    assert models(run) == before


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fedprox", {"mu": -1.0}, "mu must be a finite number of at least 0"),
    ("fedavg", {"momentum": 1.0}, "momentum"),
    ("fedavg", {"batch_size": 0}, "batch_size"),
    ("fedavg", {"max_epochs": 0}, "max_epochs must be at least 1"),
    ("fedadam", {"beta_1": 1.0}, r"beta_1 must lie in \[0, 1\)"),
    ("fedadam", {"tau": 0.0}, "tau must be a finite number above 0"),
    ("fedyogi", {"beta_2": -0.1}, "beta_2"),
    ("fedavgm", {"beta": 1.0}, "beta"),
    ("feddyn", {"alpha": 0.0}, "must be"),
    ("fedem", {"components": 0}, "components must be at least 1"),
    ("ifca", {"clusters": 0}, "clusters must be at least 1"),
    ("scaffold", {"momentum": 0.9}, "scaffold has no momentum"),
    ("scaffold", {"server_lr": 0.0}, "server_lr must be a finite number above 0"),
    ("scaffold", {"server_lr": float("inf")}, "server_lr must be a finite number above 0"),
    ("time_weighted", {"base": 1.0}, "base must be a finite number above 1"),
    ("fedasync", {"exponent": -0.5}, "exponent must be a finite number of at least 0"),
    ("fedasync", {"server_lr": 1.5}, r"server_lr must lie in \(0, 1\]"),
    ("fedadmm", {"rho": 0.0}, "rho must be a finite number above 0"),
    ("krum", {"faulty": -0.1}, r"faulty must lie in \[0, 0.5\)"),
    ("krum", {"faulty": 0.5}, "faulty"),
    ("flame", {"noise": -0.1}, "noise must be a finite number of at least 0"),
    ("fedrep", {"head_epochs": 0}, "head_epochs must be at least 1"),
    ("ditto", {"lam": -1.0}, "lam must be a finite number of at least 0"),
    ("apfl", {"alpha": 0.0}, "alpha must lie in"),
    ("fedlc", {"tau": -1.0}, "tau must be a finite number of at least 0"),
    ("fedbuff", {"buffer": 0}, "buffer must be at least 1"),
    ("fedbuff", {"exponent": -1.0}, "exponent must be a finite number of at least 0"),
    ("ca2fl", {"buffer": 0}, "buffer must be at least 1"),
    ("cfl", {"eps1": 0.0}, "eps1 must be a finite number above 0"),
    ("cfl", {"eps1": 0.9, "eps2": 0.5}, "eps1 <= eps2 must hold"),
    ("cfl", {"gamma": 1.0}, "gamma"),
    ("cfl", {"gamma": float("nan")}, "gamma"),
    ("cfl", {"smallest": 0}, "smallest must be at least 1"),
    ("rfl_ha", {"clusters": 0}, "clusters"),
    ("rfl_ha", {"server_lr": 1.5}, "server_lr"),
    ("rfl_ha", {"exponent": -1.0}, "exponent"),
    ("clsm_fl", {"clusters": 0}, "clusters"),
    ("clsm_fl", {"fuzzifier": 1.0}, "fuzzifier must be a finite number above 1"),
    ("flacc", {"similarity": 1.5}, r"similarity must lie in \[-1, 1\]"),
    ("flacc", {"settle": 0}, "settle"),
    ("haccs", {"epsilon": 0.0}, "epsilon must be positive"),
    ("haccs", {"rho": 1.1}, r"rho must lie in \[0, 1\]"),
    ("haccs", {"radius": 0.0}, "radius must be a finite number above 0"),
    ("haccs", {"density": "kmeans"}, "density must be one of"),
    ("oort", {"exploration": 2.0}, "exploration"),
    ("oort", {"penalty": -1.0}, "penalty"),
    ("oort", {"window": 0}, "window"),
    ("oort", {"pace_step": 0.0}, "step"),
    ("oort", {"most_selected": -1}, "most_selected must be at least 0"),
]


@pytest.mark.parametrize(("name", "settings", "words"), WRONG, ids=[f"{name}-{given}" for name, given, _ in WRONG])
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SYSTEMS[name].config(**settings)
