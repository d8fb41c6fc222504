"""Delays stated in rounds: what is held back comes in its round, once, in order, and a resumed run holds it, too."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import RANDOMNESS, Client, Doubling, Go, Table, Up, wired

import coterie.method as fl
from coterie.transport.local import LocalTransport

LATE = {("c1", 1): 3, ("c1", 2): 1, ("c2", 2): 1, ("c0", 4): 1}
"""By client and round of the request: rounds late. c1's answer to round 2 must wait behind that to round 1."""


class Slow(Client, role="client"):
    """Needs a second."""

    def cost(self, msg: Go) -> fl.Cost:
        return fl.Cost(crypto_s=1.0)

    @fl.on(Go, cost)
    def go(self, msg: Go, src: str) -> Up:
        self.state.n += 1
        return Up(msg.round, np.array([self.state.n], np.float32))


class Hub(fl.Party, role="server"):
    """Notes who came when; keeps what arrives between its steps."""

    takes = (Up,)

    class State(msgspec.Struct):
        log: list[tuple[str, int, int, float]] = msgspec.field(default_factory=list)

    def __init__(self, names: tuple[str, ...], deadline_s: float | None = None) -> None:
        super().__init__(fl.Own("server", RANDOMNESS))
        self.names, self.deadline_s = names, deadline_s
        self.state = self.State()

    def round(self, r: int) -> fl.Steps[Any]:
        def fold(name: str, up: Up) -> None:
            self.state.log.append((name, up.round, r, float(up.w[0])))

        go = dict.fromkeys(self.names, Go(r, np.zeros(1, np.float32)))
        answers = yield from fl.for_each(go, Up, fold, deadline_s=self.deadline_s)
        late = yield from fl.take(Up, fold)
        return answers.got, dict(answers.missing), late.got


NAMES = ("c0", "c1", "c2")
LINKS = Table(dict.fromkeys(NAMES, 0.25), dict.fromkeys(NAMES, 0.25), late=LATE)


def federation(chunk: int = 10, deadline_s: float | None = None) -> tuple[Hub, LocalTransport]:
    hub = Hub(NAMES, deadline_s)
    return hub, wired(hub, *map(Slow, NAMES), effects=Doubling(chunk), links=LINKS, spool_bytes=100)


def rounds(hub: Hub, transport: LocalTransport, first: int, last: int) -> list[Any]:
    lines = []
    for r in range(first, last + 1):
        result = transport.drive(hub.round(r), r)
        meter = transport.meter
        lines.append((result, transport.clock_s, list(meter.late), meter.bytes_up["client"], meter.refused.total()))
    return lines


@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_five_rounds_by_hand(chunk: int) -> None:
    """A round is 0.25 s there, 1 s of work, 0.25 s back, and does not wait for the late, who come at its beginning."""
    hub, transport = federation(chunk)
    lines = rounds(hub, transport, 1, 5)
    late = {"c1": "late"}
    assert [line[0] for line in lines] == [
        (("c0", "c2"), late, ()),
        (("c0",), {"c1": "late", "c2": "late"}, ()),  # c1 would be one round late, behind what it owes
        (("c0", "c2"), late, ("c2",)),  # c1 is in time, and behind what it owes all the same
        (("c1", "c2"), {"c0": "late"}, ("c1", "c1", "c1")),
        (("c0", "c1", "c2"), {}, ("c0",)),
    ]
    assert [line[1] for line in lines] == [1.5, 3.0, 4.5, 6.0, 7.5]
    assert [line[2] for line in lines] == [["c1"], ["c1", "c2"], ["c1"], ["c0"], []]
    size = lines[0][3] // 2
    assert [line[3] for line in lines] == [size * n for n in (2, 1, 3, 5, 4)]  # bytes are sent when they are sent
    assert all(line[4] == 0 for line in lines)
    ones = [entry for entry in hub.state.log if entry[0] == "c1"]
    # c1 was at work all the time: n counts its trainings; in round 4 the answer in time is folded first
    assert ones == [("c1", 4, 4, 4.0), ("c1", 1, 4, 1.0), ("c1", 2, 4, 2.0), ("c1", 3, 4, 3.0), ("c1", 5, 5, 5.0)]


def test_a_deadline_is_waited_out_for_who_is_late() -> None:
    """Nobody tells the hub that an answer will not come; without late ones the round ends when all have answered."""
    hub, transport = federation(deadline_s=4.0)
    assert [line[1] for line in rounds(hub, transport, 1, 5)] == [4.0, 8.0, 12.0, 16.0, 17.5]


def test_a_hub_that_does_not_take_late_answers_loses_them() -> None:
    class Deaf(Hub, role="server"):
        takes = ()

        def round(self, r: int) -> fl.Steps[Any]:
            go = dict.fromkeys(self.names, Go(r, np.zeros(1, np.float32)))
            return (yield from fl.for_each(go, Up, lambda *_: None))

    hub = Deaf(NAMES)
    transport = wired(hub, *map(Slow, NAMES), links=LINKS)
    lost = []
    for r in range(1, 6):
        transport.drive(hub.round(r), r)
        lost.append(dict(transport.meter.lost))
    assert lost == [
        {},
        {},
        {"c2 Up of round 2": "too late"},
        {f"c1 Up of round {r}": "too late" for r in (1, 2, 3)},
        {"c0 Up of round 4": "too late"},
    ]


def test_a_request_that_is_repeated_does_not_bring_its_answer_early() -> None:
    """A captured request gets the stored answer; held like the first, it comes behind it and is refused as used."""
    hub, transport = federation()
    transport.intercept = lambda envelope, frame: [frame] * (2 if (envelope.dst, envelope.round) == ("c1", 1) else 1)
    lines = rounds(hub, transport, 1, 4)
    assert [line[4] for line in lines] == [0, 0, 0, 1]
    assert [entry[1:3] for entry in hub.state.log if entry[0] == "c1"] == [(4, 4), (1, 4), (2, 4), (3, 4)]
    assert transport.parties["c1"].state.n == 4  # each request was worked on once


@fl.message(src="client", dst="client")
class Gossip(fl.Message, frozen=True):
    """Something for another client."""

    round: int


def test_what_a_late_client_says_to_others_is_held_too() -> None:
    heard: list[tuple[int, float]] = []

    class Talker(Slow, role="client"):
        @fl.on(Go, Slow.cost)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            other = "c2" if self.name == "c1" else "c1"
            return fl.To(src, Up(msg.round, msg.w)), fl.To(other, Gossip(msg.round))

        @fl.on(Gossip)
        def gossip(self, msg: Gossip, src: str) -> None:
            if src == "c1":
                heard.append((msg.round, self.now_s))

    hub = Hub(NAMES)
    transport = wired(hub, *map(Talker, NAMES), links=Table(late=LATE))
    rounds(hub, transport, 1, 5)
    assert heard == [(1, 3.0), (2, 3.0), (3, 3.0), (4, 4.0), (5, 5.0)]
