"""Rounds by the machine's clock: who is missing, what is tried again, and what is skipped."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federation import Steady, planted, rig
from nodes import Doom, Nodes, nodes

from coterie.baselines.rfl_ha import Belong, Lead
from coterie.deploy.engine import FullError
from coterie.deploy.hub import HubNode, RoundOutcome
from coterie.deploy.node import Node
from coterie.deploy.packets import BeginAttempt, Era, Letter, wrap
from coterie.deploy.surroundings import NodeSettings
from coterie.protocol.errors import RunError
from coterie.protocol.messages import Message, bundle
from coterie.protocol.party import To
from coterie.runs import registry
from coterie.runs.evaluation import models_digest

ROUNDS, SIZE = 3, 16
TARGETS = planted([0, 0, 1], SIZE)
BRISK = NodeSettings(patience_s=20.0, grace_s=0.3, poll_s=0.02)


def made(name: str = "fedavg", settings: NodeSettings = BRISK, **options: Any) -> Nodes:
    return nodes(
        rig(registry.get(name), TARGETS, delta=0.0, links=Steady(), **options), name, TARGETS, settings=settings
    )


def digest(models: np.ndarray) -> str:
    return models_digest(dict(enumerate(models)))


def changed(apart: Nodes, name: str, change: Callable[[Node], None]) -> None:
    """Let every node of this party be changed when it is made."""
    make = apart.node

    def node(of: str, **options: Any) -> Node:
        found = make(of, **options)
        if of == name:
            change(found)
        return found

    apart.node = node  # type: ignore[method-assign]


def failing(times: int, in_round: int = 2) -> Callable[[Node], None]:
    """The hub's rounds fail so often, after they have changed its state."""
    left = [times]

    def change(node: Node) -> None:
        party: Any = node.member.party
        honest = party.round

        def run(r: int) -> Any:
            notes = yield from honest(r)
            if r == in_round and left[0]:
                left[0] -= 1
                raise RunError("something was missing")
            return notes

        party.round = run

    return change


def test_without_a_virtual_clock_sums_are_the_same_too() -> None:
    together, apart = rig(registry.get("fedavg"), TARGETS, delta=0.0), made()
    together.rounds(ROUNDS)
    apart.run(ROUNDS)
    assert digest(apart.models()) == digest(together.models())


def test_a_round_that_fails_is_tried_again_from_its_beginning() -> None:
    together, apart = rig(registry.get("fedavg"), TARGETS, delta=0.0), made()
    together.rounds(ROUNDS)
    changed(apart, "server", failing(2))
    apart.run(ROUNDS)
    assert digest(apart.models()) == digest(together.models())
    assert [one.attempts for one in apart.rounds] == [[], [], 2 * ["something was missing"], []]
    assert not any(one.skipped for one in apart.rounds)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_round_whose_attempts_all_fail_is_skipped_and_changes_nothing(name: str) -> None:
    """Everybody goes on from the state before it: as if its messages had never been. SCAFFOLD's clients have one."""
    together, apart = rig(registry.get(name), TARGETS, delta=0.0), made(name)
    together.round(1)
    together.round(3)
    changed(apart, "server", failing(3))
    apart.run(3)
    assert [one.skipped for one in apart.rounds] == ["", "", "something was missing", ""]
    assert len(apart.rounds[2].attempts) == 3
    assert digest(apart.models()) == digest(together.models())


def test_a_run_without_any_round_fails() -> None:
    apart = made()
    changed(apart, "server", failing(3, in_round=1))
    with pytest.raises(RunError, match="all rounds failed; the last one: something was missing"):
        run_hub(apart, 1)


def run_hub(apart: Nodes, rounds: int) -> None:
    """Run to the hub's end; the others are stopped after it."""
    others: list[Node] = []
    over = threading.Event()

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        try:
            if isinstance(node, HubNode):
                apart.rounds += node.run(rounds)
            else:
                others.append(node)
                if over.is_set():  # the hub may have ended before this party has begun
                    node.stop()
                node.serve()
        except BaseException as error:
            apart.errors[name] = error
        if isinstance(node, HubNode):
            over.set()
            for other in others:
                other.stop()

    apart.run(rounds, live)


def test_a_set_up_that_fails_ends_the_run() -> None:
    apart = made(settings=NodeSettings(patience_s=20.0, grace_s=0.3, poll_s=0.02, retries=0))

    def change(node: Node) -> None:
        def setup() -> Any:
            raise RunError("nobody is there")
            yield

        node.member.party.setup = setup  # type: ignore[method-assign]

    changed(apart, "server", change)
    with pytest.raises(RunError, match="the set-up failed: nobody is there"):
        run_hub(apart, 1)


def test_a_set_up_that_has_failed_is_tried_again_by_the_next_start() -> None:
    apart, left = made(settings=NodeSettings(patience_s=20.0, grace_s=0.3, poll_s=0.02, retries=0)), [1]

    def change(node: Node) -> None:
        def setup() -> Any:
            if left.pop():
                left.append(0)
                raise RunError("nobody is there")
            yield from ()

        node.member.party.setup = setup  # type: ignore[method-assign]

    changed(apart, "server", change)
    with pytest.raises(RunError, match="the set-up failed"):
        apart.node("server").run(1)  # type: ignore[attr-defined]
    apart.run(1)
    assert [(one.round, one.skipped, one.attempts) for one in apart.rounds] == [
        (0, "", ["the hub was stopped"]),
        (1, "", []),
    ]


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_ends_early_has_its_finish_and_no_further_round(killed: bool) -> None:
    """Also if the hub is killed as soon as its last round is committed."""
    apart = made(deployed=True)

    def stopping(node: Node) -> None:
        party: Any = node.member.party
        honest = party.round

        def run(r: int) -> Any:
            notes = yield from honest(r)
            return {**notes, "stopped": "nothing moves any more"} if r == 2 else notes

        party.round = run

    changed(apart, "server", stopping)
    if killed:
        apart.dooms["server"] = Doom(when=lambda node, what: node.kept.done == 2 and what == "after a commit")
    apart.run(4)
    assert [one.round for one in apart.rounds if one.round] == [1, 3] if killed else [1, 2, 3]
    hub: Any = apart.parties["server"]
    for name in apart.made.common.clients:
        np.testing.assert_array_equal(apart.system.own_model(apart.parties[name]), hub.state.weights)


def leaving(apart: Nodes, closed: Callable[[RoundOutcome], None], back: threading.Event) -> Callable[[str, int], None]:
    """How the parties live if client/1 stops as round 2 begins, and comes again when ``back`` is set."""

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        if isinstance(node, HubNode):
            node.run(rounds, closed)
            return
        if name == "client/1":
            node.observer.began = lambda era: node.stop() if era[0] == 2 else None  # type: ignore[method-assign]
            node.serve()
            assert back.wait(20.0)
            node = apart.node(name)
        node.serve()

    return live


def test_a_party_that_leaves_is_missed_after_a_while_and_welcomed_back() -> None:
    """It stops after round 1 and comes again in round 3; its state is what it was."""
    apart, again = made(), threading.Event()

    def closed(one: RoundOutcome) -> None:
        apart.rounds.append(one)
        if one.round == 2:
            again.set()
            while "client/1" not in apart.exchange.here():
                time.sleep(0.01)
            time.sleep(BRISK.grace_s / 3)  # until it is seen

    apart.run(4, leaving(apart, closed, again))
    assert [one.gone for one in apart.rounds] == [{}, {}, {"client/1": "gone"}, {}, {}]
    assert [one.back for one in apart.rounds] == [[], [], [], ["client/1"], []]
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 3, 2, 3, 3]


def test_a_party_that_was_paused_for_long_takes_the_newest_round_alone() -> None:
    """It scores and reports once, and not for each round that it has missed. Round 5 had two attempts."""
    apart, awake, began, scored = made(), threading.Event(), list[Era](), list[int]()
    changed(apart, "server", failing(1, in_round=5))
    held: list[Node] = []

    def closed(one: RoundOutcome) -> None:
        apart.rounds.append(one)
        if one.round == 9:
            awake.set()
            while not began or began[-1][0] < 9:
                time.sleep(0.01)

    def live(name: str, rounds: int) -> None:
        if name != "client/1":
            node = apart.node(name)
            node.run(rounds, closed) if isinstance(node, HubNode) else node.serve()
            return
        node = apart.node(name, scores=lambda r: {"local_accuracy": float(scored.append(r) is None)})
        held.append(node)
        node.observer.began = began.append  # type: ignore[method-assign]
        engine: Any = node.queue.engine
        pull = engine.pull

        def paused(wait_s: float) -> Any:
            if node.era[0] == 2 and not awake.is_set():
                apart.exchange.leave(engine)
                assert awake.wait(20.0)
                apart.exchange._here[name] = engine
            return pull(wait_s)

        engine.pull = paused
        node.serve()

    apart.run(14, live)
    assert [one.gone for one in apart.rounds[:10]] == 2 * [{}] + 8 * [{"client/1": "gone"}]
    assert began == [(r, 0) for r in (0, 1, 2, *range(9, 16))][: len(began)]
    assert scored[:4] == [0, 1, 2, 9]
    assert held[0].member.numbers.attempts[5] == 1, "late messages of the first attempt would be taken"
    assert (apart.rounds[14].gone, apart.rounds[14].notes["participants"]) == ({}, 3), "it is welcomed back"
    first, second = (apart.system.own_model(apart.parties[name]) for name in ("client/0", "client/1"))
    np.testing.assert_array_equal(first, second)


def test_nothing_piles_up_for_a_party_that_is_away() -> None:
    """The broker holds so much for each party, and in all. It is told of rounds, and asked nothing."""
    apart, counts = made(), list[int]()
    over = threading.Event()

    def closed(one: RoundOutcome) -> None:
        apart.rounds.append(one)
        counts.append(apart.exchange.packets["server", "client/1"])
        if one.round == 5:
            over.set()

    apart.run(6, leaving(apart, closed, over))
    assert [one.gone for one in apart.rounds[2:6]] == 4 * [{"client/1": "gone"}]
    assert counts[5] - counts[2] == 3  # one Begin a round


def test_a_party_that_is_there_and_takes_no_packets_is_not_waited_for() -> None:
    """The broker takes no more for it. Others wait for so long as a party may be away, and for patience never."""
    apart = made(settings=NodeSettings(patience_s=20.0, grace_s=0.3, poll_s=0.02))
    put, full = apart.exchange.put, threading.Event()

    def refusing(src: str, dst: str, body: bytes, key: str) -> None:
        if dst == "client/1" and full.is_set():
            raise FullError("4,096 packets wait")
        put(src, dst, body, key)

    def closed(one: RoundOutcome) -> None:
        apart.rounds.append(one)
        if one.round in (1, 3):
            (full.set if one.round == 1 else full.clear)()

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        if isinstance(node, HubNode):
            node.run(rounds, closed)
        else:
            node.serve()

    apart.exchange.put = refusing  # type: ignore[method-assign]
    apart.run(4, live)
    assert [one.gone for one in apart.rounds] == [{}, {}, {"client/1": "gone"}, {"client/1": "gone"}, {}]
    assert max(one.seconds for one in apart.rounds) < 10


def test_a_party_that_says_nothing_is_waited_for_no_longer_than_patience() -> None:
    apart = made(settings=NodeSettings(patience_s=0.6, grace_s=0.5, poll_s=0.02))
    lost = [1]

    def tamper(src: str, dst: str, body: bytes) -> list[bytes]:
        if (src, dst) == ("client/2", "server") and apart.exchange.packets[src, dst] == 2:
            lost.append(1)
            return []  # the answer of round 1 never comes
        return [body]

    apart.exchange.tamper = tamper
    apart.run(2)
    assert len(lost) == 2
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 2, 3]
    assert apart.rounds[1].seconds > 0.5


def test_a_request_that_waited_for_its_leader_begins_nothing_in_the_next_round() -> None:
    """A head is asked twice; when the next round begins it is still at work on the first request."""
    apart = made("rfl_ha", clusters=1)
    hub, head = apart.node("server").member, apart.node("client/0")
    number = itertools.count(1)

    def tell(packet: Any) -> None:
        body = wrap(apart.keys("server"), "server", "client/0", next(number), packet)
        apart.exchange.put("server", "client/0", body, str(body))
        while (arrived := head.queue.pull(0.0)) is not None:
            head.take(arrived)

    def ask(message: Message, r: int) -> None:
        for sent in hub.send([To("client/0", message)], "server", round=r, attempt=0):
            tell(Letter(sent.envelope, sent.frame, (r, 0)))

    head.open()
    weights = apart.made.common.initial
    names = bundle([name.encode() for name in apart.made.common.clients])
    tell(BeginAttempt((0, 0), 0))
    ask(Belong(0, "client/0", names, 3), 0)
    tell(BeginAttempt((1, 0), 0))
    for _ in range(2):
        ask(Lead(1, apart.made.common.spec.digest, weights, b"\1\1\1"), 1)
    assert head.lead is not None
    tell(BeginAttempt((2, 0), 0))
    assert head.lead is None
    assert head.kept.era == (2, 0)
    head.turn()  # nothing comes, so there is time to store that the round has begun
    assert apart.exchange.waiting("client/0") == 0
    head.close()


def test_a_member_that_says_nothing_costs_its_leader_no_answer() -> None:
    """A leader waits less long than the hub waits for it, so what the others have sent is not lost with it."""
    apart = made("rfl_ha", NodeSettings(patience_s=2.0, grace_s=2.0, poll_s=0.02), clusters=1)

    def tamper(src: str, dst: str, body: bytes) -> list[bytes]:
        """One member never says anything to its head."""
        return [] if "server" not in (src, dst) and src == silent else [body]

    apart.exchange.tamper = tamper
    silent = "client/2"
    apart.run(1)
    led = [one.notes for one in apart.rounds if one.round]
    assert [one.skipped for one in apart.rounds] == ["", ""], led
    assert [one["participants"] for one in led] == [2], led


def test_everything_comes_three_times_and_late_and_nothing_changes() -> None:
    together, apart = rig(registry.get("fedavg"), TARGETS, delta=0.0), made()
    together.rounds(ROUNDS)
    draws = np.random.default_rng(0)
    apart.exchange.repeats, apart.exchange.delay_s = 3, lambda src, dst: float(draws.uniform(0, 0.03))
    apart.run(ROUNDS)
    assert digest(apart.models()) == digest(together.models())
    assert not any(one.refused for one in apart.rounds)


def test_reports_tell_numbers_and_the_scores_that_an_owner_allows() -> None:
    apart = made()
    heard: list[Any] = []

    def live(name: str, rounds: int) -> None:
        scores = {"local_accuracy": 0.25} if name == "client/1" else {}
        node = apart.node(name, scores=lambda r: {**scores, **({"round": r} if scores else {})}, samples=len(scores))
        if isinstance(node, HubNode):
            apart.rounds += node.run(rounds, on_report=lambda name, report: heard.append((name, report)))
        else:
            node.serve()

    apart.run(2, live)
    last = {(name, report.era[0]): report for name, report in heard}
    assert set(last) == {(f"client/{i}", r) for i in range(3) for r in range(3)}
    assert last["client/1", 2].scores == {"local_accuracy": 0.25, "round": 2}
    assert last["client/0", 2].scores == {}
    assert [last["client/0", r].commit for r in range(3)] == sorted(last["client/0", r].commit for r in range(3))
    up, down = last["client/0", 1].bytes_up, last["client/0", 1].bytes_down
    assert up > 4 * SIZE
    assert down > 4 * SIZE
    assert last["client/0", 1].busy_s > 0
