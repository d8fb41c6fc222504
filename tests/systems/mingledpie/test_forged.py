"""What clients of MingledPie are sent and shouldn't be, by servers, others and the wire: refused, and put right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import misbehaving, on_the_wire, to
from mingledpie_parts import change, held, near
from tampering import flipped

from coterie.clustering.identities import ClusterKeys
from coterie.protocol import codec
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message
from coterie.protocols.key_centre import KEY_CENTRE, Deal, Granted
from coterie.systems.mingledpie.messages import HUB, USER, Mingled, Noted, Parameters, Received, Train
from tests.systems.mingledpie.test_hostile import SIX, kept_models, six

# -- sums and parameters ---------------------------------------------------------------------------------------------

FORGED_SUMS: list[tuple[str, Callable[[Mingled], Mingled]]] = [
    ("signature", lambda m: change(m, signature=flipped(m.signature))),
    ("a sum", lambda m: change(m, ciphers=flipped(m.ciphers))),
    ("no sums", lambda m: change(m, ciphers=b"")),
    ("sizes", lambda m: change(m, sizes=m.sizes + 1)),
    ("no sizes", lambda m: change(m, sizes=m.sizes[:0])),
    ("participants", lambda m: change(m, participants=m.participants - 1)),
    ("round", lambda m: change(m, round=m.round + 1)),
    ("shape", lambda m: change(m, spec=bytes(16))),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_SUMS, ids=[name for name, _ in FORGED_SUMS])
def test_forged_sums_are_refused_and_their_recipient_catches_up(name: str, forge: Callable) -> None:
    run = six()
    run.round(1)
    before = held(run)
    on_the_wire(run.transport, Mingled, forge, dst="client/1")
    note = run.round(2)
    assert note["rebuilt"]["by"] == 5
    assert run.refusals("client", "Mingled") == 1
    assert kept_models(run, before) == [False, True, False, False, False, False]
    run.transport.intercept = None
    note = run.round(3)
    assert note["behind"] == []
    assert note["participants"] == 6
    assert len({held(run, name).tobytes() for name in SIX}) == 1


def test_genuine_sums_of_an_earlier_round_do_not_come_back() -> None:
    """Sent once more under a new number."""
    run = six()
    old = on_the_wire(run.transport, Mingled, lambda m: m, dst="client/1", rounds=[1])
    run.rounds(2)
    after = held(run)
    on_the_wire(run.transport, Mingled, lambda m: old[0], dst="client/1", rounds=[3])
    run.round(3)
    reason = "client/Mingled: sums of round 1 for models of round 2, or of another shape"
    assert dict(run.refused) == {reason: 1}
    assert held(run, "client/1").tobytes() == after.tobytes()


FORGED_PARAMETERS: list[tuple[str, Callable[[Parameters], Parameters]]] = [
    ("signature", lambda m: change(m, signature=flipped(m.signature))),
    ("keys", lambda m: change(m, keys=flipped(m.keys))),
    ("other keys", lambda m: change(m, keys=b"")),
    ("start", lambda m: change(m, start=m.start + np.float32(1))),
    ("shape", lambda m: change(m, spec=bytes(16))),
    ("round", lambda m: change(m, round=m.round + 1)),
]


@pytest.mark.parametrize(("name", "forge"), FORGED_PARAMETERS, ids=[name for name, _ in FORGED_PARAMETERS])
def test_forged_parameters_are_refused_and_asked_for_again(name: str, forge: Callable) -> None:
    """In the set-up: the federation begins without it, and it gets them in round 1."""

    run = six(wire=lambda t: on_the_wire(t, Parameters, forge, dst="client/1", rounds=[0]))
    assert run.refusals("client", "Parameters") == 1
    assert run.party("client/1").state.models is None
    assert (run.models()[1] == near()[0]).all()  # for whoever evaluates
    note = run.round(1)
    assert note["participants"] == 6
    assert note["behind"] == []


def test_old_parameters_do_not_come_back() -> None:
    """Replayed under a new number after p has changed: the client would draw other sets, which could be intersected."""
    old: list[Parameters] = []

    def keep(envelope: Any, frame: bytes) -> list[bytes]:
        if envelope.kind == "Parameters" and envelope.dst == "client/1":
            old.append(codec.decode(frame, Parameters))
        return [frame]

    run = six(p_changes="2:0.25,3:0.125", intercept=keep)
    run.rounds(2)
    keys = run.party("client/1").state.keys
    on_the_wire(run.transport, Parameters, lambda m: old[1], dst="client/1")
    note = run.round(3)
    assert dict(run.refused) == {"client/Parameters: parameters of round 2 after those of round 2": 1}
    assert run.party("client/1").state.keys == keys
    assert note["behind"] == ["client/1"]


@pytest.mark.parametrize(
    ("clusters", "bits", "why"),
    [
        (4, 2, "keys of 4 clusters instead of 3"),
        (3, 1, "keys of 1 bits instead of 2, which p requires"),
        (3, 10, "keys of 10 bits instead of 2, which p requires"),  # each true cluster among next to no others
        (3, 32, "keys of 32 bits instead of 2, which p requires"),
    ],
)
def test_keys_at_odds_with_the_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, clusters: int, bits: int, why: str
) -> None:
    run = six(p_changes="1:0.25")
    other = ClusterKeys.generate(clusters, bits)
    monkeypatch.setattr(ClusterKeys, "generate", lambda *_: other)
    note = run.round(1)
    assert note["participants"] == 0
    assert dict(run.refused) == {f"client/Parameters: {why}": 6}


STALE: list[tuple[str, Callable[[Train], Train], str]] = [
    ("an older basis", lambda m: change(m, basis=0), "on models of round 0, but it holds those of 1"),
    ("a later basis", lambda m: change(m, basis=5), "on models of round 5, but it holds those of 1"),
    ("a round that is over", lambda m: change(m, round=1), "asked to train for round 1 after round 1"),
    ("a round of nobody", lambda m: change(m, round=0), "asked to train for round 0 after round 1"),
]


@pytest.mark.parametrize(("name", "forge", "why"), STALE, ids=[name for name, *_ in STALE])
def test_a_client_trains_nothing_but_the_models_that_it_is_asked_to(name: str, forge: Callable, why: str) -> None:
    run = six()
    run.round(1)
    on_the_wire(run.transport, Train, forge, dst="client/1")
    assert run.round(2)["participants"] == 5
    ((reason, _),) = run.refused.items()
    assert reason.startswith("client/Train:")
    assert why in reason
    run.transport.intercept = None
    assert run.round(3)["participants"] == 6


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_kind", "answer"), [(Mingled, Received(9, True)), (Parameters, Noted(9))])
def test_an_answer_for_another_round_is_refused_and_its_sender_asked_again(request_kind: type, answer: Message) -> None:
    run = six(p_changes="2:0.25")
    run.round(1)
    misbehaving(run.party("client/1"), request_kind, lambda p, request, honest: answer)
    run.round(2)
    assert run.refusals("server", type(answer).__name__) == 1
    note = run.round(3)
    assert note["behind"] == ["client/1"]
    assert note["participants"] == 5


# -- enrolment and roles -----------------------------------------------------------------------------------------------


def test_nobody_but_the_hub_asks_for_keys_and_nobody_but_the_key_centre_grants_them() -> None:
    run = six()
    mine = next(m for _, m in run.view("client/2").messages(Granted))
    issued = run.party("client/0").keys.own_bytes(USER)
    misbehaving(
        run.party("client/2"),
        Train,
        lambda p, r, u: to(HUB, u) + to("client/0", mine) + to(KEY_CENTRE, Deal(2, USER, "client/2")),
    )
    note = run.rounds(2)[-1]
    assert note["participants"] == 6
    assert run.refusals("client", "Granted") == 1
    assert run.refusals("key_centre", "Deal") == 1
    assert run.party("client/0").keys.own_bytes(USER) == issued


def test_a_client_is_provided_with_keys_once_and_with_its_own() -> None:
    run = six()
    party = run.party("client/2")
    before = msgspec.to_builtins(party.secret)
    for name, reason in (("client/2", "already provided with keys"), ("client/1", "the signature is not one of key")):
        again = next(m for _, m in run.view(name).messages(Granted))
        with pytest.raises(PeerError, match=reason):
            party.keys.keep(again, KEY_CENTRE)
    assert msgspec.to_builtins(party.secret) == before
