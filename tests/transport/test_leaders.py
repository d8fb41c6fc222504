"""Any party may coordinate: leaders of clusters on the virtual clock, what they are recorded as, and how they fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leader_toys import CLUSTERS, Client, Lead, Net, Server, Summed, Train, Trained, two_levels

import coterie.method as fl
from coterie.transport.wire import GONE

WORTH = {f"c{i}": i + 1 for i in range(5)}


def run(transport: Any, server: Any, last: int) -> list[Any]:
    return [(transport.drive(server.round(r), r), transport.clock_s) for r in range(1, last + 1)]


@pytest.mark.parametrize("chunk", [1, 2, 10])
def test_two_levels_with_leaders_that_change_by_hand(chunk: int) -> None:
    """Lead 1 s; Train 2 s (up and down) and 1 s of work; Trained 2 s; Summed 1 s: 7 s a round."""
    server, transport = two_levels(chunk=chunk)
    lines = run(transport, server, 4)
    leaders = [("c1", "c4"), ("c2", "c3"), ("c0", "c4"), ("c1", "c3")]
    assert lines == [((pair, {}), 7.0 * r) for r, pair in enumerate(leaders, 1)]
    expected = []
    for r, pair in enumerate(leaders, 1):
        for leader, cluster in zip(pair, CLUSTERS, strict=True):
            total = sum(WORTH[name] + r - 1 for name in cluster)
            expected.append((r, leader, total, len(cluster), 7.0 * r))
    assert server.state.sums == expected
    assert transport.parties["c0"].state == Client.State([1, 2, 4], [3])
    assert transport.parties["c4"].state == Client.State([2, 4], [1, 3])
    assert not transport.meter.refused
    assert not transport.meter.lost


def test_messages_views_and_meters_are_of_the_role_that_a_party_acted_in() -> None:
    """What c1 learnt as the leader of round 1 stands in the leader's view; in round 2 it is a client like others."""
    server, transport = two_levels()
    run(transport, server, 1)
    meter = transport.meter
    assert set(meter.message_bytes) == {
        "server > leader Lead",
        "leader > server Train",
        "server > client Train",
        "client > server Trained",
        "server > leader Trained",
        "leader > server Summed",
    }
    assert set(meter.bytes_up) == {"server", "leader", "client"}
    assert {key for key in meter.seconds if key.startswith("leader/")} >= {"leader/Lead", "leader/Trained"}
    assert "client/Train" in meter.virtual_seconds
    run_again = transport.drive(server.round(2), 2)
    assert run_again[0] == ("c2", "c3")
    views = transport.transcript.views
    assert set(views) == {"server", *WORTH, *(f"{name} as leader" for name in ("c1", "c4", "c2", "c3"))}
    assert [(s.kind, s.src, s.round) for s in views["c1 as leader"].seen] == [
        ("Lead", "server", 1),
        ("Trained", "c0", 1),
        ("Trained", "c2", 1),
    ]
    assert [(s.kind, s.src, s.round) for s in views["c1"].seen] == [("Train", "c2", 2)]
    assert {view.role for view in transport.transcript.of_role("leader")} == {"leader"}
    assert len(transport.transcript.of_role("leader")) == 4
    relayed = [s for s in views["server"].seen if s.message is None]
    assert {s.kind for s in relayed} == {"Train", "Trained"}  # of which the server sees ends and sizes


def test_members_that_are_away_or_late_are_missing_and_the_leader_goes_on() -> None:
    """c0 is offline; c2 needs 50 s, and the leader waits 10: the rest is summed, and what comes later is too late."""
    clients = [Client(i, 50.0 if i == 2 else 1.0, 10.0) for i in range(5)]
    server, transport = two_levels(clients, net=Net(away={("c3", 1)}))
    (got, missing), clock_s = run(transport, server, 1)[0]
    assert (got, missing) == (("c1",), {"c4": fl.REFUSED})
    assert server.state.sums == [(1, "c1", WORTH["c0"] + WORTH["c1"], 2, 12.0)]
    assert dict(transport.meter.refused) == {"leader/Lead: only 0 of 1 members answer": 1}
    assert transport.parties["c4"].state == Client.State()
    assert clock_s == 12.0
    assert transport.meter.late == ["c2"]
    assert transport.meter.lost == {"c3 Train of round 1": "offline"}
    server.clusters = (("c0", "c1"),)
    transport.drive(fl.wake(100.0), 2)
    assert transport.meter.lost == {"c2 Trained of round 1": "too late"}


@pytest.mark.parametrize("deadline_s", [None, 30.0])
def test_a_leader_that_dies_in_mid_round_fails_its_cluster_with_a_reason_and_nothing_hangs(
    deadline_s: float | None,
) -> None:
    """c1 gets Lead and asks its members; then it is gone. The other cluster's round is as ever, and so is the next."""
    server, transport = two_levels(net=Net(dies={("c1", 1)}), deadline_s=deadline_s)
    (first, clock_s), (second, _) = run(transport, server, 2)
    assert first == (("c4",), {"c1": "dropped"})
    assert clock_s == (7.0 if deadline_s is None else 30.0)
    assert transport.parties["c1"].state == Client.State([2], [])  # what it began as a leader is taken back
    assert transport.parties["c0"].state == Client.State([1, 2], [])
    assert second == (("c2", "c3"), {})
    assert server.state.sums[0][:4] == (1, "c4", WORTH["c3"] + WORTH["c4"], 2)


def test_a_member_without_which_a_leader_cannot_go_on_refuses_its_request() -> None:
    class Strict(Client, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            self.state.led.append(msg.round)
            trained = yield from fl.ask("c0", Train(msg.round, msg.x), Trained)
            return Summed(msg.round, trained.x, 1)

    clients = [Strict(i) for i in range(5)]
    server, transport = two_levels(clients, net=Net(away={("c0", 1)}))
    assert run(transport, server, 1)[0][0] == ((), {"c1": fl.REFUSED, "c4": fl.REFUSED})
    assert dict(transport.meter.refused) == {"leader/Lead: c0 did not answer Train: offline": 2}
    assert clients[1].state.led == []


def test_a_leader_that_fails_in_its_own_code_ends_the_run_and_takes_everybody_back() -> None:
    class Broken(Client, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            self.state.led.append(msg.round)
            yield from fl.ask("c0", Train(msg.round, msg.x), Trained)
            raise ZeroDivisionError

    clients = [Broken(i) if i == 1 else Client(i) for i in range(5)]
    server, transport = two_levels(clients)
    with pytest.raises(ZeroDivisionError):
        run(transport, server, 1)
    assert [client.state.led for client in clients] == [[], [], [], [], []]
    assert server.state == Server.State()


def test_what_a_leader_cannot_send_refuses_its_request_only() -> None:
    @fl.message(src="leader", dst="client")
    class Bad(fl.Message, frozen=True):
        x: float

    class Nan(Client, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            yield from fl.ask("c0", Bad(float("nan")), Trained)
            raise AssertionError

    server, transport = two_levels([Nan(i) if i == 1 else Client(i) for i in range(5)])
    assert run(transport, server, 1)[0][0] == (("c4",), {"c1": fl.REFUSED})
    assert dict(transport.meter.refused) == {"leader/Lead: Bad.x: nan is not finite": 1}


def test_further_requests_wait_in_order_while_a_party_leads() -> None:
    """c1 leads from 1 to 6. It is asked to train at 2 and to lead again at 3, by others and by the server."""

    class Asking(Server, role="server"):
        def round(self, r: int) -> fl.Steps[Any]:
            yield from fl.post({"c1": Lead(1, "c0,c1", 0)})
            yield from fl.post({"c2": Lead(1, "c2,c1", 0)})
            yield from fl.post({"again": fl.To("c1", Lead(2, "c1,c3", 0))})
            heard: list[Any] = []
            yield from fl.take(Summed, lambda name, s: heard.append((name, s.round, s.total, self.now_s)), at_least=3)
            return heard

    server, transport = two_levels(server=Asking(CLUSTERS))
    heard = transport.drive(server.round(1), 1)
    # c1's answer at 6 + 1; then it leads c3 (6 to 11); c2's Train came last, is worked on from 11 to 12, back at 14
    assert heard == [("c1", 1, 3, 7.0), ("c1", 2, 6, 12.0), ("c2", 1, 5, 15.0)]
    assert transport.parties["c1"].state == Client.State([1], [1, 2])


def test_a_leader_asks_itself_in_vain_and_is_told_so() -> None:
    class Selfish(Client, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            yield from fl.ask(self.name, Train(msg.round, msg.x), Trained)
            raise AssertionError

    server, transport = two_levels([Selfish(i) for i in range(5)])
    assert run(transport, server, 1)[0][0] == ((), {"c1": fl.REFUSED, "c4": fl.REFUSED})
    assert dict(transport.meter.refused) == {
        f"leader/Lead: {name} asks itself for Trained; nobody would ever answer": 1 for name in ("c1", "c4")
    }


def test_leaders_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    """A and B each ask the other to lead, and neither answers while it leads: known at once, and no deadline needed."""

    @fl.message(src="leader", dst="leader")
    class You(fl.Message, frozen=True):
        round: int

    class Polite(Client, role="client", also=("leader",)):
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            other = {"c1": "c4", "c4": "c1"}[self.name]
            answers = yield from fl.for_each({other: You(msg.round)}, Trained, lambda *_: None)
            return Summed(msg.round, len(answers.missing), 1)

        @fl.on(You)
        def you(self, msg: You, src: str) -> None:
            self.state.led.append(msg.round)

    server, transport = two_levels([Polite(i) for i in range(5)])
    assert run(transport, server, 1)[0][0] == (("c4", "c1"), {})  # whoever began last is told first
    assert [s[2] for s in server.state.sums] == [1, 1]
    assert transport.clock_s < 100


def test_a_leader_that_is_still_at_it_when_the_round_ends_is_stopped() -> None:
    """Its changes are taken back, what comes for it is too late, and the checkpoint is whole."""
    server, transport = two_levels([Client(i, 50.0 if i == 2 else 1.0) for i in range(5)], deadline_s=20.0)
    lines = run(transport, server, 1)
    lost = dict(transport.meter.lost)
    lines.append((transport.drive(server.round(2), 2), transport.clock_s))
    assert lines[0] == ((("c4",), {"c1": fl.LATE}), 20.0)
    assert lost == {"c1 Lead of round 1": "its leader was not done when round 1 ended"}
    assert transport.parties["c1"].state == Client.State([], [])
    assert lines[1][0] == (("c3",), {"c2": fl.LATE})  # busy with the training of round 1
    transport.drive(fl.wake(200.0), 3)
    assert transport.parties["c1"].state == Client.State([2], [])
    assert [p.envelope.kind for p in transport.snapshot().parcels] == ["Summed"]  # which a later round may take


def test_timers_spent_time_and_taking_are_for_leaders_too() -> None:
    """Wake at 10, spend 5, then take what two members have told meanwhile: one at 4, one at 20."""

    @fl.message(src="client", dst="leader")
    class Told(fl.Message, frozen=True):
        x: int

    class Teller(Client, role="client", also=("leader",)):
        @fl.on(Train, Client.cost)
        def train(self, msg: Train, src: str) -> fl.To:
            return fl.To(src, Told(self.worth))

        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            heard: list[tuple[int, float]] = []
            yield from fl.post({name: Train(msg.round, 0) for name in ("c0", "c2")})
            yield from fl.wake(10.0)
            yield from fl.wake(3.0)  # has passed
            assert self.now_s == 10.0
            yield from fl.spend(fl.Cost(crypto_s=5.0))
            assert self.now_s == 15.0
            yield from fl.take(Told, lambda name, told: heard.append((told.x, self.now_s)), at_least=2)
            assert (self.now_s, heard) == (20.0, [(1, 6.0), (3, 20.0)])
            with pytest.raises(fl.NoAnswerError, match="c1 waits for 1 Told, has 0, and no more will come"):
                yield from fl.take(Told, lambda *_: None, at_least=1)
            return Summed(msg.round, 0, 2)

    clients = [Teller(0), Teller(1), Teller(2, 15.0)]
    server, transport = two_levels(clients, server=Server((("c0", "c1", "c2"),)))
    assert run(transport, server, 1) == [((("c1",), {}), 21.0)]


# -- the hub answers ---------------------------------------------------------------------------------------------------


@fl.message(src=fl.ANY, dst="server")
class Question(fl.Message, frozen=True):
    """What is x? add: and add this to it."""

    add: int


@fl.message(src="server", dst=fl.ANY)
class Reply(fl.Message, frozen=True):
    """x."""

    x: int


class Answering(Server, role="server"):
    """Answers what x was when its round began."""

    work_s = 0.0

    def cost(self, msg: Question) -> fl.Cost:
        return fl.Cost(crypto_s=self.work_s)

    @fl.on(Question, cost)
    def reply(self, msg: Question, src: str) -> Any:
        twice = yield self.state.x
        if msg.add:
            self.state.x += msg.add
        return Reply(twice // 2)


class Curious(Client, role="client", also=("leader",)):
    """A leader that asks the server, during the server's own step."""

    add = 0

    @fl.on(Lead)
    def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
        reply = yield from fl.ask("server", Question(self.add), Reply)
        self.state.led.append(reply.x)
        return Summed(msg.round, reply.x, 1)


def test_the_hub_answers_requests_in_its_own_step_by_what_is_committed() -> None:
    class Busy(Answering, role="server"):
        def round(self, r: int) -> fl.Steps[Any]:
            self.state.x += 100
            got = yield from super().round(r)
            return got

    server, transport = two_levels([Curious(i) for i in range(5)], server=Busy(CLUSTERS))
    assert run(transport, server, 2) == [((("c1", "c4"), {}), 4.0), ((("c2", "c3"), {}), 8.0)]
    assert [s[2] for s in server.state.sums] == [0, 0, 101, 101]
    assert server.state.x == 202
    assert "leader > server Question" in transport.meter.message_bytes
    assert [s.kind for s in transport.transcript.views["server"].seen].count("Question") == 4


def test_the_hubs_answers_take_its_time_one_after_the_other() -> None:
    server, transport = two_levels([Curious(i) for i in range(5)], server=Answering(CLUSTERS))
    server.work_s = 10.0
    assert run(transport, server, 1)[0][1] == 24.0  # questions at 2, answers at 12 and 22


def test_the_hub_changes_nothing_in_answer_to_requests_in_the_midst_of_its_round() -> None:
    clients = [Curious(i) for i in range(5)]
    clients[1].add = 3
    server, transport = two_levels(clients, server=Answering(CLUSTERS))
    with pytest.raises(fl.RunError, match="server changes its state in answer to Question during its own round"):
        run(transport, server, 1)
    assert server.state.x == 0


def test_the_hub_does_not_coordinate_in_answer_to_a_request() -> None:
    class Forward(Server, role="server"):
        @fl.on(Question)
        def reply(self, msg: Question, src: str) -> Any:
            yield from fl.ask("c0", Lead(1, "c0", 0), Summed)

    server, transport = two_levels([Curious(i) for i in range(5)], server=Forward(CLUSTERS))
    with pytest.raises(fl.RunError, match="server yields steps in answer to Question: only its rounds may"):
        run(transport, server, 1)


# -- nothing waits for ever --------------------------------------------------------------------------------------------


def test_no_step_waits_for_ever_while_others_chatter() -> None:
    """Two clients write to each other every day, without end. The server waits for what never comes: a week."""

    @fl.message(src="client", dst="client")
    class Ping(fl.Message, frozen=True):
        n: int

    class Chatty(Client, role="client", also=("leader",)):
        def day(self, msg: Ping) -> fl.Cost:
            return fl.Cost(crypto_s=86_400.0)

        @fl.on(Ping, day)
        def ping(self, msg: Ping, src: str) -> Ping:
            return Ping(msg.n + 1)

        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> tuple[fl.To, ...]:
            return (fl.To("c1" if self.name == "c0" else "c0", Ping(0)),)

    def steps() -> fl.Steps[str]:
        yield from fl.post({"c0": Lead(1, "", 0)})
        try:
            yield from fl.take(Summed, lambda *_: None, at_least=1)
        except fl.NoAnswerError as error:
            return str(error)
        return ""

    _, transport = two_levels([Chatty(i) for i in range(2)])
    assert "server waits for 1 Summed, has 0" in transport.drive(steps(), 1)
    assert transport.clock_s == fl.PATIENCE_S


# -- whatever the batches ----------------------------------------------------------------------------------------------

times = st.sampled_from([0.0, 1.0, 2.0, 5.0])


@given(
    st.lists(times, min_size=5, max_size=5),
    st.lists(times, min_size=5, max_size=5),
    st.sampled_from([None, 3.0, 8.0]),
    st.sampled_from([None, 6.0, 15.0]),
    st.sets(st.tuples(st.sampled_from(sorted(WORTH)), st.integers(1, 3)), max_size=2),
)
def test_results_do_not_depend_on_how_handlers_are_batched(
    work: list[float], legs: list[float], deadline_s: float | None, limit_s: float | None, dies: set[tuple[str, int]]
) -> None:
    seen = []
    for chunk in (1, 3, 10):
        clients = [Client(i, work[i], deadline_s) for i in range(5)]
        net = Net(dies=dies, legs={f"c{i}": leg for i, leg in enumerate(legs)})
        server, transport = two_levels(clients, net=net, chunk=chunk, deadline_s=limit_s)
        lines = run(transport, server, 3)
        snapshot = msgspec.msgpack.encode(transport.snapshot())
        seen.append((lines, server.state, [c.state for c in clients], dict(transport.meter.lost), snapshot))
    assert seen[0] == seen[1] == seen[2]


# -- parties that go away ----------------------------------------------------------------------------------------------


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
        @fl.on(Lead)
        def lead(self, msg: Lead, src: str) -> fl.Steps[Summed]:
            self.state.led.append(msg.round)
            yield from fl.spend(fl.Cost(crypto_s=5.0))
            yield from fl.ask("c0", Train(msg.round, msg.x), Trained)
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
