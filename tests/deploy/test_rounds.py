"""Rounds by the machine's clock: who is missing, what is tried again, and what is skipped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federation import planted, rig
from nodes import Doom, Nodes, digest, steady

from coterie.deploy.engine import FullError
from coterie.deploy.hub import HubNode, RoundOutcome
from coterie.deploy.node import Node
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import Era
from coterie.protocol.errors import RunError
from coterie.runs import registry

ROUNDS, SIZE = 3, 16
TARGETS = planted([0, 0, 1], SIZE)
BRISK = NodeLimits(patience_s=20.0, grace_s=0.3, poll_s=0.02)


def made(name: str = "fedavg", limits: NodeLimits = BRISK, **options: Any) -> Nodes:
    return steady(TARGETS, name, limits, **options)


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
            others.append(node)
            if over.is_set():  # the hub may have ended before this party has begun
                node.stop()
            apart.drive(node, rounds)
        except BaseException as error:
            apart.errors[name] = error
        if isinstance(node, HubNode):
            over.set()
            for other in others:
                other.stop()

    apart.run(rounds, live)


def test_a_set_up_that_has_failed_is_tried_again_by_the_next_start() -> None:
    apart, left = made(limits=NodeLimits(patience_s=20.0, grace_s=0.3, poll_s=0.02, retries=0)), [1]

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


def leaving(apart: Nodes, back: threading.Event) -> Callable[[str, int], None]:
    """How the parties live if client/1 stops as round 2 begins, and comes again when ``back`` is set."""

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        if name == "client/1":
            node.observer.began = lambda era: node.stop() if era[0] == 2 else None  # type: ignore[method-assign]
            node.serve()
            assert back.wait(20.0)
            node = apart.node(name)
        apart.drive(node, rounds)

    return live


def test_a_party_that_leaves_is_missed_after_a_while_and_welcomed_back() -> None:
    """It stops after round 1 and comes again after round 3; its state is what it was.

    The broker holds so much for each party, and in all. Meanwhile it is told of rounds, and asked nothing.
    """
    apart, again, counts = made(), threading.Event(), list[int]()

    def closed(one: RoundOutcome) -> None:
        counts.append(apart.exchange.packets["server", "client/1"])
        if one.round == 3:
            again.set()
            while "client/1" not in apart.exchange.here():
                time.sleep(0.01)
            time.sleep(BRISK.grace_s / 3)  # until it is seen

    apart.closed = closed
    apart.run(5, leaving(apart, again))
    assert [one.gone for one in apart.rounds] == [{}, {}, {"client/1": "gone"}, {"client/1": "gone"}, {}, {}]
    assert [one.back for one in apart.rounds] == [[], [], [], [], ["client/1"], []]
    assert [one.notes.get("participants") for one in apart.rounds] == [None, 3, 2, 2, 3, 3]
    assert counts[3] - counts[2] == 1, "one Begin a round"


def test_a_party_that_was_paused_for_long_takes_the_newest_round_alone() -> None:
    """It scores and reports once, and not for each round that it has missed. Round 5 had two attempts."""
    apart, awake, began, scored = made(), threading.Event(), list[Era](), list[int]()
    changed(apart, "server", failing(1, in_round=5))
    held: list[Node] = []

    def closed(one: RoundOutcome) -> None:
        if one.round == 9:
            awake.set()
            while not began or began[-1][0] < 9:
                time.sleep(0.01)

    def live(name: str, rounds: int) -> None:
        if name != "client/1":
            apart.live(name, rounds)
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

    apart.closed = closed
    apart.run(14, live)
    lost = [one.gone for one in apart.rounds[:10]]
    first = lost.index({"client/1": "gone"})  # round 2 may have been answered before the pause
    assert first in (2, 3)
    assert lost == first * [{}] + (10 - first) * [{"client/1": "gone"}]
    under_way = [3] if first == 3 and (3, 0) in began else []  # the hub had sent it before the pause
    assert began == [(r, 0) for r in (0, 1, 2, *under_way, *range(9, 16))][: len(began)]
    assert scored[: 4 + len(under_way)] == [0, 1, 2, *under_way, 9]
    assert held[0].member.numbers.attempts[5] == 1, "late messages of the first attempt would be taken"
    assert (apart.rounds[14].gone, apart.rounds[14].notes["participants"]) == ({}, 3), "it is welcomed back"
    first, second = (apart.system.own_model(apart.parties[name]) for name in ("client/0", "client/1"))
    np.testing.assert_array_equal(first, second)


def test_a_party_that_is_there_and_takes_no_packets_is_not_waited_for() -> None:
    """The broker takes no more for it. Others wait for so long as a party may be away, and for patience never."""
    apart = made()
    put, full = apart.exchange.put, threading.Event()

    def refusing(src: str, dst: str, body: bytes, key: str) -> None:
        if dst == "client/1" and full.is_set():
            raise FullError("4,096 packets wait")
        put(src, dst, body, key)

    def closed(one: RoundOutcome) -> None:
        if one.round in (1, 3):
            (full.set if one.round == 1 else full.clear)()

    apart.exchange.put, apart.closed = refusing, closed  # type: ignore[method-assign]
    apart.run(4)
    assert [one.gone for one in apart.rounds] == [{}, {}, {"client/1": "gone"}, {"client/1": "gone"}, {}]
    assert max(one.seconds for one in apart.rounds) < 10


def test_a_party_that_says_nothing_is_waited_for_no_longer_than_patience() -> None:
    apart = made(limits=NodeLimits(patience_s=0.6, grace_s=0.5, poll_s=0.02))
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


def test_a_member_that_says_nothing_costs_its_leader_no_answer() -> None:
    """A leader waits less long than the hub waits for it, so what the others have sent is not lost with it."""
    apart = made("rfl_ha", NodeLimits(patience_s=2.0, grace_s=2.0, poll_s=0.02), clusters=1)

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
    assert not any(one.traffic.refused for one in apart.rounds)


def test_reports_tell_numbers_and_the_scores_that_an_owner_allows() -> None:
    apart = made()
    heard: list[Any] = []

    apart.options = lambda name: {
        "scores": lambda r: {"local_accuracy": 0.25, "round": r} if name == "client/1" else {}
    }
    apart.heard = lambda name, report: heard.append((name, report))
    apart.run(2)
    last = {(name, report.era[0]): report for name, report in heard}
    assert set(last) == {(f"client/{i}", r) for i in range(3) for r in range(3)}
    assert last["client/1", 2].scores == {"local_accuracy": 0.25, "round": 2}
    assert last["client/0", 2].scores == {}
    assert [last["client/0", r].commit for r in range(3)] == sorted(last["client/0", r].commit for r in range(3))
    up, down = last["client/0", 1].bytes_up, last["client/0", 1].bytes_down
    assert up > 4 * SIZE
    assert down > 4 * SIZE
    assert last["client/0", 1].busy_s > 0
