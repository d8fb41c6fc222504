"""At most once: whatever an attacker on the wire repeats, no handler and no fold sees it twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from transport_toys import Client, Doubling, Go, Server, Table, Up, federation, resigned

import coterie.method as fl
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport
from tests.transport.test_relay import Player

W = np.zeros(1, np.float32)
USED = "its number was used before"
FORGED = "its payload is not the one that was sent"


def attacked(
    clients: Sequence[Client], intercept: Callable[[Envelope, bytes], Sequence[bytes]], **options: Any
) -> tuple[Server, LocalTransport]:
    server, transport = federation(clients, **options)
    transport.intercept = intercept
    return server, transport


def test_a_request_that_comes_twice_gets_the_stored_bytes_again_and_is_handled_once() -> None:
    """Random answers: only the stored bytes can be the same. The hub gets them twice and takes them once."""
    draws = np.random.default_rng(1)
    answers: list[bytes] = []

    class Random(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> Up:
            self.state.n += 1
            return Up(msg.round, draws.random(3).astype(np.float32))

    def twice(envelope: Envelope, frame: bytes) -> list[bytes]:
        if envelope.kind == "Up":
            answers.append(frame)
            return [frame]
        return [frame, frame]

    server, transport = attacked([Random("x")], twice)
    assert transport.drive(server.round(1), 1).got == ("x",)
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert transport.parties["x"].state.n == 1
    assert len(server.state.notes) == 1


@pytest.mark.parametrize("work_s", [0.0, 1.0])
def test_everything_comes_twice_and_nothing_changes(work_s: float) -> None:
    """Three rounds, with and without an attacker who doubles every frame."""
    plain: Any = None
    for intercept in (None, lambda envelope, frame: [frame, frame]):
        clients = [Client(f"c{i}", i, work_s * (1 + i)) for i in range(3)]
        server, transport = federation(clients, 2.5, links=Table())
        transport.intercept = intercept
        results = [transport.drive(server.round(r), r) for r in (1, 2, 3)]
        transport.drive(fl.take(Up, server.note, until_s=20.0), 4)
        seen = results, server.state.notes, [c.state for c in clients], transport.clock_s
        if intercept is None:
            plain = seen
    assert seen == plain
    assert clients[2].state.rounds == [1, 2, 3]


def test_a_late_answer_that_comes_twice_is_taken_once() -> None:
    def twice(envelope: Envelope, frame: bytes) -> list[bytes]:
        return [frame, frame]

    server, transport = attacked([Client("x", work_s=3.0)], twice, deadline_s=1.0, links=Table())
    assert transport.drive(server.round(1), 1).missing == {"x": "late"}
    transport.drive(fl.take(Up, server.note, until_s=10.0), 2)
    assert server.state.notes == [("x", 1, 0.0)]
    # the copy of the answer, and twice the stored answer to the copy of the request
    assert transport.meter.refused == {f"server/Up: {USED}": 3}


def test_a_refusal_is_repeated_too_and_the_handler_does_not_run_again() -> None:
    runs: list[int] = []

    class Refusing(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> Up:
            runs.append(msg.round)
            raise fl.PeerError("I will not")

    server, transport = attacked([Refusing("x")], lambda envelope, frame: [frame, frame])
    assert transport.drive(server.round(1), 1).missing == {"x": fl.REFUSED}
    assert transport.meter.refused == {"client/Go: I will not": 2}
    assert runs == [1]


@pytest.mark.parametrize("kind", ["Go", "Up"])
@pytest.mark.parametrize("instead", [True, False])
def test_what_was_captured_in_an_older_round_is_refused_and_never_handled_again(kind: str, instead: bool) -> None:
    """The request or the answer of round 1 comes again in round 2, instead of the new one or before it."""
    captured: list[Any] = []

    def replay(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.kind != kind:
            return [frame]
        captured.append((envelope, frame))
        return [captured[0]] if instead else [*captured[:-1], frame]

    client = Client("x", 1)
    server, transport = attacked([client], replay)
    transport.drive(server.round(1), 1)
    answers = transport.drive(server.round(2), 2)
    assert transport.meter.refused == {f"{'client' if kind == 'Go' else 'server'}/{kind}: {USED}": 1}
    assert answers.missing == ({"x": "lost on the way"} if instead else {})
    assert client.state.rounds == ([1] if instead and kind == "Go" else [1, 2])
    assert [r for _, r, _ in server.state.notes] == ([1] if instead else [1, 2])


@pytest.mark.parametrize("first", [True, False])
def test_a_forged_frame_beside_the_true_one_changes_nothing(first: bool) -> None:
    """It uses no number, and cannot make the hub believe that its request failed, whichever comes first."""
    forged = fl.codec.encode(Go(1, W + 9))
    client = Client("x", 1, 1.0)

    def both(envelope: Envelope, frame: bytes) -> list[bytes]:
        frames = [forged, frame] if first else [frame, forged]
        return frames if envelope.kind == "Go" else [frame]

    server, transport = attacked([client], both, links=Table())
    assert transport.drive(server.round(1), 1).got == ("x",)
    assert server.state.notes == [("x", 1, 1.0)]
    assert transport.meter.refused == {f"client/Go: {FORGED}": 1}
    assert client.state.n == 1


def test_two_frames_that_a_sender_signs_under_one_number_are_one_message() -> None:
    """The hub itself lies: the second is refused, and gets no stored answer."""
    client = Client("x", 1, 1.0)

    def twice(envelope: Envelope, frame: bytes) -> list[Any]:
        other = resigned(envelope, fl.codec.encode(Go(1, W + 9)))
        return [frame, other] if envelope.kind == "Go" else [frame]

    server, transport = attacked([client], twice, links=Table())
    assert transport.drive(server.round(1), 1).got == ("x",)
    assert server.state.notes == [("x", 1, 1.0)]
    assert transport.meter.refused == {f"client/Go: {USED}": 1}
    assert client.state.n == 1


@pytest.mark.parametrize("lies", [True, False])
@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x93\xa2Go", bytes(100)])
def test_garbage_is_refused_and_counted_on_both_sides(garbage: bytes, lies: bool) -> None:
    """From a relay, whose envelope doesn't fit, and from a sender that lies and signs it."""
    for kind in ("Go", "Up"):
        client = Client("x")

        def forge(envelope: Envelope, frame: bytes, kind: str = kind) -> list[Any]:
            if envelope.kind != kind or "x" not in (envelope.src, envelope.dst):
                return [frame]
            return [resigned(envelope, garbage) if lies else garbage]

        server, transport = attacked([client, Client("y")], forge)
        answers = transport.drive(server.round(1), 1)
        assert answers.got == ("y",)
        assert answers.missing["x"] == (fl.REFUSED if kind == "Go" else fl.UNACCEPTABLE)
        reason = next(iter(transport.meter.refused)).split(": ", 1)[1]
        assert reason.startswith("not a valid" if lies else FORGED)
        assert sum(transport.meter.refused.values()) == 1
        assert client.state.n == (kind == "Up")


def test_what_is_lost_is_missing_on_both_sides() -> None:
    for kind in ("Go", "Up"):
        server, transport = attacked(
            [Client("x"), Client("y")],
            lambda e, frame, kind=kind: [] if e.kind == kind and "x" in (e.src, e.dst) else [frame],
        )
        answers = transport.drive(server.round(1), 1)
        assert answers.got == ("y",)
        assert answers.missing == {"x": "lost on the way"}
        assert len(transport.meter.lost) == 1


def test_a_lost_answer_comes_with_the_repeated_request() -> None:
    """The attacker drops the answer and repeats the request: the stored answer goes out, under its old number."""
    dropped: list[int] = []

    def nasty(envelope: Envelope, frame: bytes) -> list[bytes]:
        if envelope.kind == "Up" and not dropped:
            dropped.append(envelope.number)
            return []
        return [frame, frame] if envelope.kind == "Go" else [frame]

    client = Client("x", 1)
    server, transport = attacked([client], nasty)
    assert transport.drive(server.round(1), 1).got == ("x",)
    assert dropped == [1]
    assert client.state.n == 1


def test_sealed_messages_between_clients_come_twice_and_are_handled_once() -> None:
    x, y = Player("x"), Player("y")
    server, transport = attacked([x, y], lambda envelope, frame: [frame, frame])
    for r in (1, 2):
        transport.drive(server.round(r), r)
    assert (y.state.balls, x.state.backs) == ([1, 2], [1, 2])
    assert transport.spool.held_bytes == 0  # nothing of what was kept for repetition outlives its round


@pytest.mark.parametrize("lies", [True, False])
def test_a_frame_of_another_link_does_not_open(lies: bool) -> None:
    """What x sealed for y is put in the place of what y sealed for x, by a relay or by y itself."""
    balls: list[bytes] = []

    def swap(envelope: Envelope, frame: bytes) -> list[Any]:
        if envelope.kind == "Ball":
            balls.append(frame)
        if envelope.kind != "Back":
            return [frame]
        return [resigned(envelope, balls[0]) if lies else balls[0]]

    x, y = Player("x"), Player("y")
    server, transport = attacked([x, y], swap)
    transport.drive(server.round(1), 1)
    assert transport.meter.refused == {f"client/Back: {'sealed by somebody else' if lies else FORGED}": 1}
    assert x.state.backs == []


def test_answers_are_kept_for_repetition_only_under_attack_and_only_for_a_round() -> None:
    for intercept in (None, lambda envelope, frame: [frame]):
        server, transport = federation([Client(f"c{i}") for i in range(5)], effects=Doubling())
        transport.intercept = intercept
        kept: list[int] = []

        def count(transport: LocalTransport = transport) -> int:
            return sum(len(numbers.kept) for numbers in transport.snapshot().numbers.values())

        server.note = lambda name, up, kept=kept, count=count: kept.append(count())  # type: ignore
        transport.drive(server.round(1), 1)
        assert kept[-1] == (0 if intercept is None else 5)
        assert count() == 0
        assert transport.spool.held_bytes == 0
