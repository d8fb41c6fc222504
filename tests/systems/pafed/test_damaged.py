"""Damaged answers of the helper end no run and cost no model. A relay's forgeries are refused by their signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation import Rig, on_the_wire
from pafed_parts import REALLY, change, four, model

from coterie.protocol.messages import Message, bundle
from coterie.systems.pafed import messages


def service(run: Rig) -> Any:
    return run.hub.keys.public("service")


def disturbed(key: Any, data: bytes) -> bytes:
    """The same ciphertext with another number in its first place."""
    cipher = key.from_bytes(data)
    if cipher.emulated:
        values = cipher.array.copy()
        values[0] += 1 << 60
        return replace(cipher, array=values).to_bytes()
    polynomials = cipher.array.copy()
    polynomials[0, 0, 0, 0] ^= 1
    return replace(cipher, array=polynomials).to_bytes()


def forged(key: Any, size: int) -> bytes:
    """What anybody can make: zeros under a mask of one's own, in the form of a model."""
    vector = key.encrypt(np.zeros(size), 0).within(messages.MODEL_TERMS)
    return vector.blind(key.mask(size, np.random.default_rng(0).bytes)).to_bytes()


Damage = Callable[[Rig, messages.Refreshed, list[messages.Refreshed]], messages.Refreshed]
DAMAGED: dict[str, Damage] = {
    "one residue": lambda run, m, kept: change(m, cipher=disturbed(service(run), m.cipher)),
    "forged": lambda run, m, kept: change(m, cipher=forged(service(run), run.hub.layout.size)),
    "swapped": lambda run, m, kept: change(m, cipher=kept[0].cipher if len(kept) > 1 else m.cipher),
    "empty": lambda run, m, kept: change(m, cipher=b""),
}


def relayed(run: Rig, damage: Damage, rounds: set[int]) -> None:
    """Let the helper give back something else in some rounds."""
    kept: list[messages.Refreshed] = []

    def relay(message: messages.Refreshed) -> messages.Refreshed:
        kept.append(message)
        return damage(run, message, kept) if message.round in rounds else message

    on_the_wire(run.transport, messages.Refreshed, relay)


@pytest.mark.parametrize("emulated", REALLY)
@pytest.mark.parametrize(
    "rounds", [{3, 4}, *(pytest.param(one, marks=pytest.mark.long) for one in ({3}, {3, 4, 5, 6}, {3, 5}))], ids=str
)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_copy_costs_rounds_and_never_the_model(name: str, rounds: set[int], emulated: bool) -> None:
    """Clients go on from the last model that they have opened, whatever comes back, and so does the observer."""
    run = four(emulated=emulated, delta=0.0)
    relayed(run, DAMAGED[name], rounds)
    for r in (1, 2):
        run.round(r)
    good, sound = model(run), run.models()[0]
    for r in range(3, max(rounds) + 1):
        notes = run.round(r)
        if name == "empty":
            assert ("helper did not answer Refresh" in notes["skipped"]) if r in rounds else "skipped" not in notes
        elif r == 4:
            assert "the last model that clients have opened is taken up again" in notes["skipped"]
        if len(rounds) == max(rounds) - 2:  # in every round from 3 on: nothing is ever added to the good one
            np.testing.assert_allclose(run.models()[0], sound, atol=1e-4)
    after = [run.round(r) for r in range(max(rounds) + 1, max(rounds) + 4)]
    assert [note["participants"] for note in after[1:]] == [4, 4]
    assert np.linalg.norm(model(run) - good) > 0.5
    assert np.abs(model(run) - good).max() < 3
    np.testing.assert_allclose(run.models()[0], model(run), atol=1e-4)


def test_where_nobody_answers_a_damaged_copy_is_not_taken_up() -> None:
    run = four(delta=0.0)
    relayed(run, DAMAGED["forged"], {3})
    for r in (1, 2):
        run.round(r)
    before = model(run)
    for name in run.common.clients:
        run.links.away[name, 3] = "offline"
    assert run.round(3)["skipped"] == "no update came"
    assert (model(run) == before).all()
    assert run.round(4)["participants"] == 4


def test_where_all_answers_are_late_the_model_of_those_that_came_is_kept() -> None:
    """Nobody in time says that a model opens; the late ones of its round do, and then it is the one to go back to."""
    run, sent = four(delta=1.0), []
    relayed(run, DAMAGED["forged"], {7, 8})
    for r in range(1, 8):
        sent.append(model(run))
        run.round(r)
    assert np.abs(sent[-1] - run.common.initial).max() > 0.1
    assert "is taken up again" in run.round(8)["skipped"]
    assert any((model(run) == of).all() for of in sent[3:6])  # what was sent out in rounds 4 to 6
    before = model(run)
    assert sum(run.round(r)["participants"] for r in range(9, 14)) >= 8
    assert np.abs(run.models()[0] - before).max() > 0.1


# -- what a relay forges -----------------------------------------------------------------------------------------------


def scalars(key: Any, count: int, at_most: int) -> bytes:
    return bundle([key.encrypt_scalar(0.5, at_most).to_bytes()] * count)


FORGED: dict[type[Message], Callable[[Rig, Any], Any]] = {
    messages.Refreshed: lambda run, m: change(m, cipher=forged(service(run), run.hub.layout.size)),
    messages.Converted: lambda run, m: change(
        m, cipher=forged(run.hub.keys.public(f"user {m.client}"), run.hub.layout.size)
    ),
    messages.Compared: lambda run, m: change(m, ciphers=scalars(service(run), 2 + run.config.dummies, 1)),
    messages.Inverted: lambda run, m: change(m, ciphers=scalars(service(run), 3, messages.LARGEST)),
}


@pytest.mark.parametrize("kind", FORGED, ids=lambda kind: kind.__name__)
def test_a_relay_that_forges_what_the_helper_says_is_refused_by_signature(kind: type[Message]) -> None:
    run = four()
    run.round(1)
    caught = on_the_wire(run.transport, kind, lambda m: FORGED[kind](run, m), rounds=[2], signed=False)
    run.round(2)
    assert caught
    assert run.refusals(messages.HUB, kind.__name__) == len(caught)
    assert all("signature" in reason for reason in run.refused)
