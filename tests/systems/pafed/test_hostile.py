"""Messages that a party of PAFed can't accept are refused with who, what and why, and the run goes on without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, misbehaving, on_the_wire, to
from pafed_parts import (
    TARGETS,
    change,
    four,
    model,
    opened,
    signed,
    signed_train,
    stranger,
    taken,
)
from tampering import flipped

from coterie.protocol.effects import Fit, Fitted
from coterie.systems.pafed import messages

D = TARGETS.shape[1]


# -- updates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """What a client sends instead, properly signed or not, and what the aggregator says to it."""

    name: str
    make: Callable[[Any, messages.Update], messages.Update]
    why: str
    settings: tuple[tuple[str, Any], ...] = ()


def holding(cipher: Callable[[Any], Any]) -> Callable[[Any, messages.Update], messages.Update]:
    """With another ciphertext (a vector, or bytes), everything signed."""

    def make(party: Any, update: messages.Update) -> messages.Update:
        made = cipher(party)
        return signed(party, change(update, cipher=made if isinstance(made, bytes) else made.to_bytes()))

    return make


def pk(party: Any) -> Any:
    return party.keys.public("service")


def own(party: Any, update: messages.Update) -> Any:
    return pk(party).from_bytes(update.cipher)


def under(name: str) -> Callable[[Any], Any]:
    return lambda p: stranger(pk(p).emulated, name).encrypt(np.zeros(D))


def told(length: float) -> Callable[[Any, messages.Update], messages.Update]:
    return lambda p, u: signed(p, change(u, length=length))


def of_round(r: int) -> Callable[[Any, messages.Update], messages.Update]:
    return lambda p, u: signed(p, change(u, round=r))


BAD = [
    Bad("another ciphertext, unsigned", lambda p, u: change(u, cipher=flipped(u.cipher)), "signature"),
    Bad("a round that had its answer", of_round(1), "an answer of round 1 to a request of round 2"),
    Bad("a length without clip", told(2.0), "client/0: an update that was 2.0 long"),
    Bad("a length beyond the clip", told(5.5), "an update that was 5.5 long", (("clip", 5.0),)),
    Bad("its own key", holding(lambda p: p.keys.own("user").public.encrypt(np.zeros(D))), "under key"),
    Bad("other parameters", holding(under("insecure-1024-add")), "under key"),
    Bad("a scalar", holding(lambda p: pk(p).encrypt_scalar(0.5)), "1 values where 20 were expected"),
    Bad("a sum of two", lambda p, u: holding(lambda p: own(p, u) + own(p, u))(p, u), "2 terms where 1"),
    Bad("a level lower", lambda p, u: holding(lambda p: own(p, u).at_level(2))(p, u), "level"),
    Bad("masked", holding(lambda p: masked(p, D)), "mask"),
]
REAL = ("its own key", "a level lower")
CASES = [(bad, True) for bad in BAD] + [(bad, False) for bad in BAD if bad.name in REAL]


def masked(party: Any, length: int) -> Any:
    key = pk(party)
    top = key.parameters.levels
    return key.encrypt(np.zeros(length)).blind(key.mask(length, np.random.default_rng(0).bytes, top))


@pytest.mark.parametrize(("bad", "emulated"), CASES, ids=[f"{bad.name}{'' if e else ', real'}" for bad, e in CASES])
def test_a_bad_update_is_refused_and_the_others_go_on(bad: Bad, emulated: bool) -> None:
    run = four(emulated=emulated, delta=0.0, **dict(bad.settings))
    run.round(1)
    misbehaving(run.party("client/0"), messages.Train, lambda party, request, update: bad.make(party, update))
    before = model(run)
    notes, updates = taken(run, 2)
    ((reason, count),) = run.refused.items()
    assert reason.startswith("aggregator/Update:")
    assert bad.why in reason
    assert count == 1
    assert notes["participants"] == 3
    honest = [opened(run, u) * u.length for name, u in updates if name != "client/0"]
    if not run.config.clip:
        assert np.abs(model(run) - before - run.config.server_step(2) * np.mean(honest, axis=0)).max() < 1e-4


@pytest.mark.parametrize("delta", [0.0, 0.5], ids=["in time", "late"])
def test_who_comes_first_with_another_form_shuts_nobody_out_and_ends_no_run(delta: float) -> None:
    """Neither the sum of those in time nor the products of the late ones meet a vector that they can't take."""
    run = four(delta=delta)
    for name in run.common.clients[:2]:
        misbehaving(run.party(name), messages.Train, lambda p, r, u: holding(lambda p: own(p, u).at_level(1))(p, u))
    notes = [run.round(r) for r in range(1, 6)]
    assert {note.get("skipped", "no update came") for note in notes} == {"no update came"}
    assert 8 <= sum(note["participants"] for note in notes) <= 10  # the others' of five rounds, but those under way


def test_two_different_answers_count_once_and_the_first_stands() -> None:
    run = four(delta=0.0)

    def twice(party: Any, request: messages.Train, update: messages.Update) -> Any:
        other = signed(party, change(update, cipher=pk(party).encrypt(-np.ones(D) / D**0.5).to_bytes()))
        return to(messages.HUB, update, other)

    misbehaving(run.party("client/0"), messages.Train, twice)
    start = model(run)
    _, updates = taken(run, 1)
    first = {name: opened(run, u) for name, u in reversed(updates)}
    assert run.refusals(messages.HUB, "Update") == 1
    assert np.abs(model(run) - start - 0.8 * np.mean(list(first.values()), axis=0)).max() < 1e-5


def test_an_old_update_in_a_new_message_is_refused_and_a_late_one_counts_once() -> None:
    """client/0 sends its update of round 1 again instead of each later one; its signature is good."""
    run, kept = four(delta=0.0), []

    def again(party: Any, request: messages.Train, update: messages.Update) -> messages.Update:
        kept.append(update)
        return kept[0]

    misbehaving(run.party("client/0"), messages.Train, again)
    assert [run.round(r)["participants"] for r in (1, 2, 3)] == [4, 3, 3]
    assert run.refusals(messages.HUB, "Update") == 1


def test_the_update_of_another_client_is_refused() -> None:
    """Replayed with that client's signature, in time and for the right round."""
    run, seen = four(delta=0.0), []
    misbehaving(run.party("client/0"), messages.Train, lambda p, r, u: seen.append(u) or u)
    misbehaving(run.party("client/1"), messages.Train, lambda p, r, u: seen[-1] if seen else u)
    run.links.slow["client/1"] = 2.0
    assert run.round(1)["participants"] == 3
    ((reason, _),) = run.refused.items()
    assert "signature" in reason


# -- the sender --------------------------------------------------------------------------------------------------------


class Broken(Pulled):
    """Somebody's training ends in numbers that are none."""

    value = float("nan")
    who = frozenset({"client/0"})

    def fit(self, party: str, effect: Fit) -> Fitted:
        if party in self.who:
            weights = np.array(effect.weights)
            weights[3] = self.value
            return Fitted(weights, 1, 1, 0.0, {"dual": np.full_like(weights, self.value)})
        return super().fit(party, effect)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_no_number_stays_with_its_sender_who_starts_again_clean(value: float) -> None:
    run = four(effects=Broken, delta=0.0)
    run.transport.effects.value = value
    with np.errstate(invalid="ignore"):
        notes = run.round(1)
    assert notes["participants"] == 3
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/Train: value nan at index")
    assert run.party("client/0").state.dual is None
    run.transport.effects.who = frozenset()
    assert run.round(2)["participants"] == 4
    assert np.isfinite(model(run)).all()
    assert run.hub.state.owed["client/0"] == (1,)


# -- requests to clients -----------------------------------------------------------------------------------------------

FORGED: list[tuple[str, Callable[[Rig, messages.Train], messages.Train], str]] = [
    ("signature flipped", lambda run, m: change(m, signature=flipped(m.signature)), "signature"),
    ("made out to another client", lambda run, m: signed_train(run, "client/1", m), "signature"),
    ("an old round", lambda run, m: signed_train(run, "client/0", change(m, round=1)), "for round 1 after round 1"),
    ("another shape", lambda run, m: signed_train(run, "client/0", change(m, spec=bytes(16))), "another shape"),
    ("another's key", lambda run, m: signed_train(run, "client/0", change(m, cipher=of_another(run))), "under key"),
    (
        "a short model",
        lambda run, m: signed_train(run, "client/0", change(m, cipher=short_model(run))),
        "a model of 3 numbers",
    ),
]


def of_another(run: Rig) -> bytes:
    return run.hub.keys.public(f"user {'client/1'}").encrypt(np.zeros(D), 0).to_bytes()


def short_model(run: Rig) -> bytes:
    return run.hub.keys.public(f"user {'client/0'}").encrypt(np.zeros(3), 0).to_bytes()


@pytest.mark.parametrize(("name", "forge", "why"), FORGED, ids=[name for name, *_ in FORGED])
def test_a_forged_request_is_refused_by_its_recipient(name: str, forge: Callable, why: str) -> None:
    run = four(delta=0.0)
    run.round(1)
    dual = run.party("client/0").state.dual
    on_the_wire(run.transport, messages.Train, lambda m: forge(run, m), dst="client/0", rounds=[2])
    assert run.round(2)["participants"] == 3
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/Train:")
    assert why in reason
    assert run.party("client/0").state.round == 1
    assert run.party("client/0").state.dual is dual or (run.party("client/0").state.dual == dual).all()
    run.transport.intercept = None
    assert run.round(3)["participants"] == 4
