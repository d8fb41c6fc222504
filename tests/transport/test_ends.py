"""Who is there, who may say what to whom, and what it costs, on the local transport."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import KEYS, Client, Doubling, Go, Table, Up, federation

import coterie.method as fl

W = np.zeros(1, np.float32)


# -- who is there ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deadline_s", "ends_s"), [(None, 1.5), (4.0, 4.0)])
def test_the_offline_and_the_dropped_are_missing_and_the_rest_goes_on(deadline_s: float | None, ends_s: float) -> None:
    """Without a deadline the step ends when all that can answer have; with one the hub cannot tell lost from late."""
    names = ("x", "off", "drop")
    fates = {("off", 1): "offline", ("drop", 1): "dropped"}
    links = Table(dict.fromkeys(names, 0.25), dict.fromkeys(names, 0.25), fates)
    clients = [Client(name, work_s=1.0) for name in names]
    server, transport = federation(clients, deadline_s, links=links)
    answers = transport.drive(server.round(1), 1)
    assert answers.got == ("x",)
    assert answers.missing == {"off": "offline", "drop": "dropped"}
    assert transport.meter.lost == {"off Go of round 1": "offline", "drop Go of round 1": "dropped"}
    assert transport.clock_s == ends_s
    assert [c.state.n for c in clients] == [1, 0, 0]
    size = transport.meter.message_bytes["client > server Up"]
    assert transport.meter.message_bytes["server > client Go"] == 2 * size  # nothing is sent to who is not there
    assert set(transport.drive(server.round(2), 2).got) == set(names)


def test_a_failure_takes_the_time_until_it_happens() -> None:
    """y refuses after 5 s of work, x answers after 1: the hub goes on at 5, not before."""

    class Refusing(Client, role="client"):
        @fl.on(Go, Client.cost)
        def go(self, msg: Go, src: str) -> Up:
            raise fl.PeerError("no")

    server, transport = federation([Client("x", work_s=1.0), Refusing("y", work_s=5.0)], links=Table())
    assert transport.drive(server.round(1), 1).missing == {"y": fl.REFUSED}
    assert transport.clock_s == 5.0


def test_fates_do_not_depend_on_how_handlers_are_batched() -> None:
    """Each message has a request number of its own, the same for all chunks."""

    @dataclass(frozen=True)
    class Drawn(Table):
        drawn: list[tuple[str, int, int]] = field(default_factory=list)

        def fate(self, party: str, round: int, request: int) -> str:
            self.drawn.append((party, round, request))
            return "ok"

    seen = []
    for chunk in (1, 3):
        links = Drawn()
        clients = [Talker("x"), Talker("y"), Client("z")]
        server, transport = federation(clients, links=links, effects=Doubling(chunk), keyring=KEYS)
        for r in (1, 2):
            transport.drive(server.round(r), r)
        seen.append(sorted(links.drawn))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * (3 + 2)  # Go to three; x writes to y twice, y to itself, where nothing can be lost
    assert len({request for _, _, request in seen[0]}) == len(seen[0])


# -- other ends --------------------------------------------------------------------------------------------------------


@fl.message(src=fl.ANY, dst="client")
class Whisper(fl.Message, frozen=True):
    """Between clients."""

    text: str


@fl.message(src="leader", dst="client")
class Order(fl.Message, frozen=True):
    """From a client that leads."""

    text: str


class Talker(Client, role="client", also=("leader",)):
    """Passes what the server says on to another client, who wakes itself up."""

    class State(msgspec.Struct):
        heard: list[tuple[str, str, float]] = msgspec.field(default_factory=list)

    @fl.on(Go)
    def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
        return fl.To("server", Up(1, W)), fl.To("y", Whisper("psst")), fl.To("y", Order("go"))

    @fl.on(Whisper)
    def whisper(self, msg: Whisper, src: str) -> tuple[fl.To, ...]:
        self.state.heard.append((src, msg.text, self.now_s))
        return () if src == self.name else (fl.To(self.name, Whisper("again")),)

    @fl.on(Order)
    def order(self, msg: Order, src: str) -> Generator[Any, Any, None]:
        self.state.heard.append((src, msg.text, self.now_s))
        yield 1


def test_clients_talk_through_the_hub_and_to_themselves() -> None:
    """x -> y takes x's uplink and y's downlink; a wake-up takes nothing; the answer is the letter to who asked."""
    x, y = Talker("x"), Talker("y")
    links = Table(down={"x": 1.0, "y": 2.0}, up={"x": 4.0, "y": 8.0})
    server, transport = federation([x, y], links=links, keyring=KEYS)
    server.clients = ["x"]
    answers = transport.drive(server.round(1), 1)
    assert answers.got == ("x",)
    assert transport.clock_s == 5.0
    transport.drive(fl.take(Up, lambda *_: None, until_s=10.0), 2)
    assert y.state.heard == [("x", "psst", 7.0), ("x", "go", 7.0), ("y", "again", 7.0)]
    assert "client > client Whisper" not in transport.meter.message_bytes


def test_only_who_may_send_a_message_is_heard() -> None:
    class Liar(Client, role="client"):
        @fl.on(Go)
        def go(self, msg: Go, src: str) -> tuple[fl.To, ...]:
            return (fl.To("y", Order("obey")), fl.To("server", Go(1, W)))

    server, transport = federation([Liar("x"), Talker("y")], keyring=KEYS)
    server.clients = ["x"]
    answers = transport.drive(server.round(1), 1)
    assert answers.missing["x"] == fl.UNACCEPTABLE
    assert any(reason.startswith("server/Go: not a valid Up") for reason in transport.meter.refused)
    assert transport.meter.refused["client/Order: Order comes from a client, not from a leader"] == 1


def test_cost_is_by_the_committed_state_and_a_cost_that_refuses_is_no_crash() -> None:
    class Growing(Client, role="client"):
        def cost(self, msg: Go) -> fl.Cost:
            if msg.round == 3:
                raise fl.PeerError("what is this?")
            return fl.Cost(crypto_s=10.0**self.state.n)

        @fl.on(Go, cost)
        def go(self, msg: Go, src: str) -> Up:
            if msg.round == 3:
                raise fl.PeerError("refused as well")
            self.state.n += 1
            return Up(msg.round, msg.w)

    server, transport = federation([Growing("x")], links=Table())
    ends = []
    for r in (1, 2, 3):
        answers = transport.drive(server.round(r), r)
        ends.append(transport.clock_s)
    assert ends == [1.0, 11.0, 11.0]
    assert answers.missing == {"x": fl.REFUSED}
    assert transport.meter.refused == {"client/Go: refused as well": 1}
