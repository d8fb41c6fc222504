"""Parties that go away on the virtual clock (``Links.there``): members, and leaders in the middle of their round."""

from __future__ import annotations

import pytest
from leader_toys import Client, Lead, Net, Summed, Train, Trained, two_levels

from coterie.protocol.party import Cost, on
from coterie.protocol.steps import Steps, ask, spend
from coterie.transport.wire import GONE


@pytest.mark.parametrize(
    ("leaves_s", "why", "lost"),
    [
        (0.5, "offline", {"c1 Lead of round 1": "offline"}),
        (5.0, "offline", {"c1 Trained of round 1": "offline"}),
        (8.0, GONE, {"c1 Summed of round 1": GONE, "c1 Trained of round 1": "offline"}),
    ],
)
def test_a_leader_that_goes_away_costs_its_cluster_the_round(leaves_s: float, why: str, lost: dict[str, str]) -> None:
    """It leaves before it is asked; before its members' answers come, after 6 s; or before its deadline, after 11 s.

    c2 needs 50 s. What a leader had begun is taken back; what it had finished without being able to tell, stays. In
    round 2 another one leads.
    """
    clients = [Client(i, 50.0 if i == 2 else 1.0, deadline_s=10.0) for i in range(5)]
    server, transport = two_levels(clients, net=Net(leaves={"c1": leaves_s}))
    assert transport.drive(server.round(1), 1) == (("c4",), {"c1": why})
    assert lost.items() <= transport.meter.lost.items()
    assert set(transport.meter.lost.values()) <= {why, "offline"}
    assert transport.parties["c1"].state == Client.State([], [1] if why == GONE else [])
    assert server.state.sums[0][1:4] == ("c4", 9, 2)
    server.clusters = (("c2", "c0"), ("c3", "c4"))
    assert transport.drive(server.round(2), 2)[1] == {}
    assert {entry[1] for entry in server.state.sums if entry[0] == 2} == {"c2", "c3"}


def test_a_member_that_goes_away_during_its_work_is_missing_at_once() -> None:
    """c2 has the request after 3 s and works for one; then it is away, and its leader does not wait for it."""
    server, transport = two_levels(net=Net(leaves={"c2": 3.5}))
    assert transport.drive(server.round(1), 1) == (("c1", "c4"), {})
    assert transport.clock_s == 7.0
    assert transport.meter.lost == {"c2 Trained of round 1": GONE}
    assert [entry[1:4] for entry in server.state.sums] == [("c1", 3, 2), ("c4", 9, 2)]


def test_a_leader_that_is_away_before_it_asks_its_members_is_given_up() -> None:
    """It works for five seconds first, and leaves after three; the round does not wait for it."""

    class Slow(Client, role="client", also=("leader",)):
        @on(Lead)
        def lead(self, msg: Lead, src: str) -> Steps[Summed]:
            self.state.led.append(msg.round)
            yield from spend(Cost(crypto_s=5.0))
            yield from ask("c0", Train(msg.round, msg.x), Trained)
            return Summed(msg.round, 0, 1)

    server, transport = two_levels([Slow(i) for i in range(5)], net=Net(leaves={"c1": 3.0, "c4": 3.0}))
    assert transport.drive(server.round(1), 1) == ((), {"c1": GONE, "c4": GONE})
    assert transport.clock_s == 6.0
    assert transport.meter.lost == {
        f"{name} {what} of round 1": GONE for name in ("c1", "c4") for what in ("Lead", "Train")
    }
    assert transport.parties["c1"].state == Client.State()


def test_what_a_party_that_is_away_would_send_counts_no_bytes() -> None:
    """c2's answer never leaves it; the request did reach it."""
    _, with_all = served(Net())
    meter = served(Net(leaves={"c2": 3.5}))[1]
    assert meter["client > server Trained"] * 3 == with_all["client > server Trained"] * 2
    assert meter["server > client Train"] == with_all["server > client Train"]
    unreached = served(Net(leaves={"c2": 2.5}))[1]
    assert unreached["leader > server Train"] == with_all["leader > server Train"]
    assert unreached["server > client Train"] * 3 == with_all["server > client Train"] * 2


def served(net: Net) -> tuple[object, dict[str, int]]:
    server, transport = two_levels(net=net)
    return transport.drive(server.round(1), 1), dict(transport.meter.message_bytes)
