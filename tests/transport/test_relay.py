"""A relay sees envelopes and payloads and may do what it likes with both: all that it achieves is that they are lost.

The federation has real keys (Ed25519, HPKE). x asks y through the hub, sealed; the hub asks both in the open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from transport_toys import Client, Go, Server, Up, federation

import coterie.method as fl
from coterie.crypto.roster import simulated
from coterie.runs.keyring import PartyKeys
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport


@fl.message(src="client", dst="client")
class Ball(fl.Message, frozen=True):
    """From one client to another."""

    round: int


@fl.message(src="client", dst="client")
class Back(fl.Message, frozen=True):
    """The answer."""

    round: int


class Player(Client, role="client", also=("leader",)):
    """x throws a ball to y when the hub asks it; counts what it is thrown."""

    class State(msgspec.Struct):
        n: int = 0
        balls: list[int] = msgspec.field(default_factory=list)
        backs: list[int] = msgspec.field(default_factory=list)

    @fl.on(Go)
    def go(self, msg: Go, src: str) -> Up | tuple[fl.To, ...]:
        up = Up(msg.round, msg.w)
        return (fl.To(src, up), fl.To("y", Ball(msg.round))) if self.name == "x" else up

    @fl.on(Ball)
    def ball(self, msg: Ball, src: str) -> Back:
        self.state.balls.append(msg.round)
        return Back(msg.round)

    @fl.on(Back)
    def back(self, msg: Back, src: str) -> None:
        self.state.backs.append(msg.round)


NAMES = ("server", "x", "y", "z")


def keys_of(seed: int) -> PartyKeys:
    return PartyKeys(*simulated(dict.fromkeys(NAMES, "client"), fl.Randomness(seed, emulated=True)))


KEYS = keys_of(0)


def players(intercept: Any = None) -> tuple[Server, LocalTransport]:
    server, transport = federation([Player(name) for name in NAMES[1:]], keyring=KEYS)
    transport.intercept = intercept
    return server, transport


def seen(transport: LocalTransport) -> dict[str, tuple[list[int], list[int]]]:
    return {name: (transport.parties[name].state.balls, transport.parties[name].state.backs) for name in NAMES[1:]}


HONEST = {"x": ([], [1, 2]), "y": ([1, 2], []), "z": ([], [])}


def test_a_relay_that_changes_nothing_is_not_noticed() -> None:
    server, transport = players(lambda envelope, frame: [(envelope, frame)])
    for r in (1, 2):
        assert set(transport.drive(server.round(r), r).got) == {"x", "y", "z"}
        assert not transport.meter.refused
    assert seen(transport) == HONEST


def changed(**fields: Any) -> Callable[[Envelope], Envelope]:
    def change(envelope: Envelope) -> Envelope:
        new = {name: value(getattr(envelope, name)) if callable(value) else value for name, value in fields.items()}
        return msgspec.structs.replace(envelope, **new)

    return change


def more(n: int) -> int:
    return n + 1


UNSIGNED = "its envelope was not signed by"
CHANGES: list[tuple[str, Callable[[Envelope], Envelope], str]] = [
    ("number", changed(number=more), UNSIGNED),
    ("huge number", changed(number=1 << 60), UNSIGNED),
    ("round", changed(round=more), UNSIGNED),
    ("attempt", changed(attempt=more), UNSIGNED),
    ("answers", changed(answers=more), UNSIGNED),
    ("weight", changed(weight=more), UNSIGNED),
    ("kind", changed(kind="Other"), UNSIGNED),
    ("sealed", changed(sealed=lambda sealed: not sealed), UNSIGNED),
    ("role", changed(role=lambda role: {"client": "leader"}.get(role, role + "s")), ""),
    ("no such role", changed(role="king"), "is no 'king' of this federation"),
    ("session", changed(session="another"), "in session 'another'"),
    ("sender", changed(src=lambda src: "z"), ""),
    ("stranger", changed(src="nobody"), "'nobody' is no"),
    ("digest", changed(digest=bytes(32)), "its payload is not the one that was sent"),
    ("signature", changed(signature=bytes(64)), UNSIGNED),
    ("no signature", changed(signature=b""), UNSIGNED),
]


@pytest.mark.parametrize("kind", ["Go", "Up", "Ball", "Back"])
@pytest.mark.parametrize(("name", "change", "reason"), CHANGES, ids=[name for name, *_ in CHANGES])
def test_a_changed_envelope_is_refused_with_its_reason_and_changes_nothing(
    kind: str, name: str, change: Callable[[Envelope], Envelope], reason: str
) -> None:
    """In round 1 between x and another party. Round 2 is as if nothing had been."""

    def relay(envelope: Envelope, frame: bytes) -> list[Any]:
        here = envelope.kind == kind and "x" in (envelope.src, envelope.dst) and envelope.round == 1
        return [(change(envelope), frame)] if here else [frame]

    server, transport = players(relay)
    answers = transport.drive(server.round(1), 1)
    (refused,) = transport.meter.refused
    assert reason in refused.split(": ", 1)[1]
    assert set(answers.got) == {"x", "y", "z"} - ({"x"} if kind in ("Go", "Up") else set())
    assert transport.parties["y"].state.balls == ([1] if kind in ("Up", "Back") else [])
    assert transport.parties["x"].state.backs == ([1] if kind == "Up" else [])
    assert set(transport.drive(server.round(2), 2).got) == {"x", "y", "z"}
    assert not transport.meter.refused
    assert (transport.parties["y"].state.balls[-1:], transport.parties["x"].state.backs[-1:]) == ([2], [2])


@pytest.mark.parametrize("fitting", [True, False], ids=["with its digest", "as it is"])
@pytest.mark.parametrize("kind", ["Go", "Up", "Ball"])
def test_swapped_payloads_are_refused(kind: str, fitting: bool) -> None:
    """The payload of round 1 in the envelope of round 2."""
    kept: list[bytes] = []

    def relay(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.kind != kind or "x" not in (envelope.src, envelope.dst):
            return [frame]
        kept.append(frame)
        digest = hashlib.sha256(kept[0]).digest() if fitting else envelope.digest
        return [(msgspec.structs.replace(envelope, digest=digest), kept[0])]

    server, transport = players(relay)
    transport.drive(server.round(1), 1)
    answers = transport.drive(server.round(2), 2)
    (refused,) = transport.meter.refused
    assert (UNSIGNED if fitting else "its payload is not the one that was sent") in refused
    if kind == "Up":
        assert answers.missing == {"x": fl.UNACCEPTABLE}
    assert transport.parties["y"].state.balls == ([1, 2] if kind == "Up" else [1])


@pytest.mark.parametrize("kind", ["Go", "Up", "Ball"])
def test_redirected_messages_are_refused(kind: str) -> None:
    """To z: it learns nothing, the recipient gets nothing, and nobody waits for ever."""
    for says in (True, False):

        def relay(envelope: Envelope, frame: bytes, says: bool = says) -> list[Any]:
            if envelope.kind != kind or "x" not in (envelope.src, envelope.dst) or not says:
                return [frame]
            return [(msgspec.structs.replace(envelope, dst="z"), frame)]

        server, transport = players(relay)
        answers = transport.drive(server.round(1), 1)
        assert sum(transport.meter.refused.values()) == says
        assert ("x" in answers.missing) == (says and kind != "Ball")
        assert seen(transport)["z"] == ([], [])
        assert len(seen(transport)["y"][0]) == (not (says and kind in ("Go", "Ball")))
    member, (envelope, frame) = transport.members["z"], captured("Ball")
    with pytest.raises(Exception, match="it is for 'y'"):
        member.open(envelope, frame)


def captured(kind: str) -> tuple[Envelope, bytes]:
    """A message of an honest run."""
    found: list[tuple[Envelope, bytes]] = []
    server, transport = players(lambda envelope, frame: found.append((envelope, frame)) or [frame])
    transport.drive(server.round(1), 1)
    return next(one for one in found if one[0].kind == kind)


def test_a_message_of_another_session_is_refused() -> None:
    """The same parties with other keys; and as it would be, were it named for their session."""
    envelope, frame = captured("Go")
    keys = keys_of(1)
    _, transport = federation([Player(name) for name in NAMES[1:]], keyring=keys)
    with pytest.raises(Exception, match="in session"):
        transport.members[envelope.dst].open(envelope, frame)
    with pytest.raises(Exception, match="was not signed by"):
        transport.members[envelope.dst].open(msgspec.structs.replace(envelope, session=keys.session), frame)


def test_what_is_sealed_is_bound_to_its_envelope() -> None:
    """Even the sender's own signature does not bring a sealed payload into another envelope."""
    envelope, frame = captured("Ball")
    _, transport = players()
    assert transport.members["y"].open(envelope, frame).message.round == 1
    for name in ("number", "round", "answers", "weight", "attempt"):
        if name == "attempt":  # the hub has announced it: nobody else may
            transport.members["y"].numbers.attempts[envelope.round] = envelope.attempt + 1
        bare = msgspec.structs.replace(envelope, **{name: getattr(envelope, name) + 1})
        signature = KEYS.sign("x", bare.header(), bare.digest)
        with pytest.raises(Exception, match="don't open"):
            transport.members["y"].open(msgspec.structs.replace(bare, signature=signature), frame)


def test_a_party_that_says_that_it_acts_in_a_role_it_has_not_is_refused() -> None:
    """A signature is no licence: the registered roles count."""
    envelope, frame = captured("Ball")
    _, transport = players()
    bare = msgspec.structs.replace(envelope, role="server")
    signature = KEYS.sign("x", bare.header(), bare.digest)
    with pytest.raises(Exception, match="'x' is no 'server'"):
        transport.members["y"].open(msgspec.structs.replace(bare, signature=signature), frame)
