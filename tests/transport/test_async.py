"""The asynchronous steps on a toy that is computed by hand: a staleness-weighted mean with late updates."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from transport_toys import KEYS, RANDOMNESS, Client, Doubling, Go, Table, Up

from coterie.protocol.party import Party
from coterie.protocol.setup_info import Own
from coterie.protocol.steps import Steps, for_each, take
from coterie.transport.local import LocalTransport

DEADLINE_S = 4.0


class StaleServer(Party, role="server"):
    """w <- the mean of the updates, one that is s rounds old weighted by 1 / (1 + s)."""

    takes = (Up,)

    class State(msgspec.Struct):
        w: Any

    def __init__(self, clients: tuple[str, ...]) -> None:
        super().__init__(Own("server", RANDOMNESS))
        self.clients = clients
        self.state = self.State(np.zeros(1, np.float32))

    def round(self, r: int) -> Steps[dict[str, Any]]:
        total = weights = 0.0
        ages: list[tuple[str, int, float]] = []

        def fold(name: str, up: Up) -> None:
            nonlocal total, weights
            weight = 1 / (1 + r - up.round)
            total, weights = total + weight * float(up.w[0]), weights + weight
            ages.append((name, r - up.round, self.now_s))

        go = Go(r, self.state.w)
        answers = yield from for_each(dict.fromkeys(self.clients, go), Up, fold, deadline_s=DEADLINE_S)
        late = yield from take(Up, fold)
        self.state.w = np.array([total / weights], np.float32)
        return {"got": answers.got, "missing": dict(answers.missing), "late": late.got, "ages": ages}


@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_three_rounds_by_hand(chunk: int) -> None:
    """0.5 s each way. A round lasts 4 s. c0 and c1 need 1 and 2 s: always in time, 2 and 3 s after they were asked.

    c2 needs 8 s: asked at 0 it starts at 0.5, is done at 8.5 and heard at 9, in round 3, two rounds old.
    c3 needs 4 s: heard at 5 (round 2, one round old); asked again at 4, it starts at 4.5, when it is done with the
    first, and is heard at 9 (round 3, one old); asked at 8, it is heard at 13, after the end.
    Clients add 1, 2, 4, 8 to what they were sent.
      w_1 = (1 + 2) / 2                                                            = 3/2
      w_2 = (3/2 + 1  +  3/2 + 2  +  8/2) / (1 + 1 + 1/2)           = 10 / (5/2)   = 4
      w_3 = (5 + 6 + 4/3 + (3/2 + 8)/2) / (1 + 1 + 1/3 + 1/2)       = (205/12) / (34/12)
    """
    names = ("c0", "c1", "c2", "c3")
    clients = [Client(n, plus, work) for n, plus, work in zip(names, (1, 2, 4, 8), (1, 2, 8, 4), strict=True)]
    server = StaleServer(names)
    links = Table(down=dict.fromkeys(names, 0.5), up=dict.fromkeys(names, 0.5))
    parties: dict[str, Party] = {"server": server, **{c.name: c for c in clients}}
    transport = LocalTransport(parties, "server", Doubling(chunk), keyring=KEYS, links=links)

    one = transport.drive(server.round(1), 1)
    assert one == {
        "got": ("c0", "c1"),
        "missing": {"c2": "late", "c3": "late"},
        "late": (),
        "ages": [("c0", 0, 2.0), ("c1", 0, 3.0)],
    }
    assert transport.clock_s == 4.0
    assert transport.meter.late == ["c2", "c3"]
    assert server.state.w[0] == 1.5

    two = transport.drive(server.round(2), 2)
    assert two["got"] == ("c0", "c1")
    assert two["late"] == ("c3",)
    assert two["ages"] == [("c0", 0, 6.0), ("c1", 0, 7.0), ("c3", 1, 5.0)]
    assert transport.clock_s == 8.0
    assert server.state.w[0] == 4.0

    three = transport.drive(server.round(3), 3)
    assert three["got"] == ("c0", "c1")
    assert three["late"] == ("c2", "c3")
    assert three["ages"] == [("c0", 0, 10.0), ("c1", 0, 11.0), ("c2", 2, 9.0), ("c3", 1, 9.0)]
    assert transport.clock_s == 12.0
    assert server.state.w[0] == np.float32(205 / 34)

    assert [c.state.rounds for c in clients] == [[1, 2, 3], [1, 2, 3], [1], [1, 2]]
    assert not transport.meter.refused


def test_a_busy_client_answers_in_order_each_time_from_committed_state() -> None:
    """One slow client asked three times with a deadline that it always misses: 0, 1, 2 -> done at 5, 10, 15."""
    client, server = Client("c", 1, 5.0), StaleServer(("c",))

    def round_(r: int) -> Steps[list[Any]]:
        heard: list[Any] = []
        yield from for_each({"c": Go(r, np.array([r], np.float32))}, Up, lambda *_: None, deadline_s=1.0)
        if r == 3:
            yield from take(Up, lambda name, up: heard.append((up.round, float(up.w[0]), server.now_s)), at_least=3)
        return heard

    transport = LocalTransport({"server": server, "c": client}, "server", Doubling(), keyring=KEYS, links=Table())
    assert transport.drive(round_(1), 1) == []
    assert transport.drive(round_(2), 2) == []
    assert transport.drive(round_(3), 3) == [(1, 2.0, 5.0), (2, 3.0, 10.0), (3, 4.0, 15.0)]
    assert transport.clock_s == 15.0
    assert client.state.n == 3
