"""A client that signs what is no encryption of an update, which nobody can see: what it costs, and that no run ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving
from pafed_parts import REALLY, change, four, mistrusting, model, signed

from coterie.systems.pafed.messages import HUB, Train, Update


def forging(forge: Callable[[Any], Any], rounds: set[int]) -> Callable[[Any, Train, Update], Update]:
    """Properly signed, in some rounds: what ``forge`` makes of the client's ciphertext."""

    def lie(party: Any, request: Train, update: Update) -> Update:
        if request.round not in rounds:
            return update
        cipher = forge(party.keys.public("service").from_bytes(update.cipher))
        return signed(party, change(update, cipher=cipher.to_bytes()))

    return lie


def noise(cipher: Any) -> Any:
    """Polynomials that encrypt nothing."""
    if cipher.emulated:
        return replace(cipher, array=cipher.array + (1 << 58))
    return replace(cipher, array=np.random.default_rng(0).integers(0, 1 << 30, cipher.array.shape, np.uint64))


def top_limb_only(cipher: Any) -> Any:
    """Randomness that is gone one level lower."""
    polynomials = cipher.array.copy()
    polynomials[:, 1, :-1] = 0
    return replace(cipher, array=polynomials)


def factor_inverse(cipher: Any) -> Any:
    """Randomness in every limb that is gone one level lower: 1 after the factor that ``at_level`` multiplies with."""
    ring, form, lower = cipher.key.arrays.ring, cipher.tally.form, cipher.tally.form._replace(level=1)
    moduli = [int(q) for q in ring.moduli[:, 0]]
    factor = round(ring.scale(lower) * moduli[lower.level + 1] / ring.scale(form))
    polynomials = cipher.array.copy()
    for limb in range(form.level + 1):
        polynomials[:, 1, limb] = pow(factor, -1, moduli[limb])
    return replace(cipher, array=polynomials)


def liar(forge: Callable[[Any], Any], rounds: set[int], count: int = 1, **options: Any) -> Rig:
    run = four(**options)
    for name in run.common.clients[:count]:
        misbehaving(run.party(name), Train, forging(forge, rounds))
    return run


@pytest.mark.parametrize("emulated", REALLY)
@pytest.mark.parametrize("first", [1, 2])
def test_a_model_that_nobody_can_open_is_taken_back(emulated: bool, first: int) -> None:
    """Where nothing is late no scalar is opened, so noise gets into the model; the next round's clients refuse it."""
    run = liar(noise, {first}, emulated=emulated, delta=0.0)
    for r in range(1, first):
        run.round(r)
    before = model(run)
    assert run.round(first)["participants"] == 4
    np.testing.assert_allclose(run.models()[1], before, atol=1e-4)  # what the federation will go on from
    notes = run.round(first + 1)
    assert "the last model that clients have opened is taken up again" in notes["skipped"]
    assert notes["participants"] == 0
    np.testing.assert_allclose(model(run), before, atol=1e-4)
    assert sum(run.refused.values()) == 4
    notes = run.round(first + 2)
    assert (notes["participants"], "skipped" in notes) == (4, False)
    assert np.abs(model(run) - before).max() > 1e-2


def test_few_who_refuse_a_good_model_take_nothing_back() -> None:
    run = four(delta=0.0)
    run.round(1)
    for name in run.common.clients[:2]:
        mistrusting(run.party(name), HUB)
    before = model(run)
    notes = run.round(2)
    assert (notes["participants"], "skipped" in notes) == (2, False)
    assert np.abs(model(run) - before).max() > 1e-2


def test_whose_updates_the_aggregator_refuses_takes_no_model_back() -> None:
    """All of them bad: refused by the aggregator, not the clients' refusal of its model."""
    run = four(delta=0.0)
    run.round(1)
    before = model(run)
    for name in run.common.clients:
        misbehaving(run.party(name), Train, lambda p, request, u: change(u, signature=bytes(64)))
    assert run.round(2)["skipped"] == "no update came"
    np.testing.assert_allclose(model(run), before, atol=1e-6)


def test_randomness_that_a_lower_level_has_not_is_refused() -> None:
    run = liar(top_limb_only, {2}, emulated=False, delta=0.0)
    run.round(1)
    assert run.round(2)["participants"] == 3
    assert list(run.refused) == ["aggregator/Update: a ciphertext without randomness: it hides nothing"]


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 1), *(pytest.param(one, 4, marks=pytest.mark.long) for one in ({"delta": 0.0}, {"project": "none"}, {}))],
    ids=str,
)
def test_what_the_library_will_not_compute_with_costs_a_round(settings: dict[str, Any], count: int) -> None:
    run = liar(factor_inverse, {2}, count, emulated=False, **settings)
    notes = [run.round(r) for r in range(1, 7)]
    skipped = {r for r, note in enumerate(notes, 1) if "skipped" in note}
    assert skipped <= {1, 2, 3, 4}  # an update of round 2 comes in round 2 or 3
    assert all(note["participants"] >= 2 for note in notes[4:])
    assert np.isfinite(run.models()[0]).all()
