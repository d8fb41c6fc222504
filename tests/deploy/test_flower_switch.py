"""The hub's switch over Flower: who is called when, who gets what, and who counts as connected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flower_parts import ID, KEYS, PARTIES

from coterie.deploy import logs
from coterie.deploy.flower_queue import Queue
from coterie.deploy.flower_switch import CALL_S, IDLE_S, ROLL_S, Switch
from coterie.deploy.flower_words import Answer, Call, Carried, read_call, write
from coterie.protocol.system import BROKER
from coterie.runs.registry import SYSTEMS


class Hub:
    """A switch with a clock that stands still."""

    def __init__(self, at: Path) -> None:
        self.now_s = 0.0
        self.queue = Queue(at / "hub.db")
        self.switch = Switch(self.queue, "hub", PARTIES, lambda: KEYS, lambda: self.now_s)
        self.switch.began()

    def turn(self, online: list[int], answers: list[tuple[int, bytes | None]] | None = None) -> dict[int, Call]:
        calls = self.switch.turn(online, [], answers or [])
        return {node: read_call(KEYS, "hub", node, data) for node, data in calls}

    def prove(self, node: int, name: str, *packets: Carried, to: Call, **more: Any) -> dict[int, Call]:
        words = Answer(**{"nonce": to.nonce, "name": name, "stored": [], "busy": False, **more}, packets=[*packets])
        return self.turn([1, 2], [(node, write(KEYS, name, node, words))])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path)
    yield made
    made.queue.close()


def test_a_node_gets_packets_only_after_its_party_has_proven_itself(hub: Hub) -> None:
    hub.queue.put("hub", "a", ID, b"secret")
    calls = hub.turn([1, 2])
    assert {node: (call.to, call.packets) for node, call in calls.items()} == {1: ("", []), 2: ("", [])}
    assert hub.turn([1, 2]) == {}  # one call is under way to a node
    forged = write(KEYS, "b", 2, Answer(calls[2].nonce, "a", [], [], False))
    assert hub.turn([1, 2], [(2, forged)]) == {}
    assert hub.switch.refused.total() == 1
    hub.now_s = IDLE_S
    old = calls[2]
    assert [call.to for call in hub.turn([1, 2]).values()] == [""]
    replayed = write(KEYS, "a", 2, Answer(old.nonce, "a", [], [], False))
    assert hub.turn([1, 2], [(2, replayed)]) == {}
    (given,) = hub.prove(1, "a", to=calls[1]).values()
    assert (given.to, given.packets) == ("a", [Carried("hub", "a", ID, b"secret")])
    assert not hub.queue.waits(to="b")
    assert hub.queue.waits(to="a")  # until it says that it has stored it
    hub.prove(1, "a", to=given, stored=[("hub", "a", ID)])
    assert not hub.queue.waits(to="a")


def test_the_hub_relays_and_takes_nothing_in_anothers_name(hub: Hub) -> None:
    calls = hub.turn([1, 2])
    hub.prove(2, "b", to=calls[2])
    own, others = Carried("a", "b", ID, b"sealed"), Carried("b", "hub", ID, b"forged")
    excluded, back = Carried("a", "nobody", ID, b""), Carried("a", "a", ID, b"")
    (relayed,) = hub.prove(1, "a", own, others, excluded, back, to=calls[1]).values()
    assert (relayed.to, relayed.packets) == ("b", [own])
    assert hub.switch.refused["a packet from or to another"] == 3
    assert hub.queue.first("hub") is None
    hub.prove(2, "b", to=relayed, stored=[("a", "b", ID), ("hub", "a", ID)])
    hub.now_s = IDLE_S
    assert hub.turn([1, 2])[1].stored == [("a", "b", ID)]  # so that a may forget it


def test_what_the_hub_sees_of_packets_between_others_is_told_with_every_system(hub: Hub) -> None:
    calls = hub.turn([1, 2])
    hub.prove(1, "a", Carried("a", "b", ID, b"sealed"), to=calls[1])
    assert [(one.src, one.dst, len(one.body)) for one in hub.queue.some(1, to="b")] == [("a", "b", 6)]
    for system in SYSTEMS.values():
        for mode in system.modes:
            broker = system.seen_by(mode)[BROKER]
            assert "Over Flower the hub learns the same of packets between other parties" in broker


def test_a_packet_whose_call_is_lost_is_called_again(hub: Hub) -> None:
    calls = hub.turn([1, 2])
    hub.queue.put("hub", "a", ID, b"body")
    first = hub.prove(1, "a", to=calls[1])[1]
    assert hub.turn([1, 2], [(1, None)]) == {}  # the ClientApp died
    assert hub.switch.present() == frozenset()
    hub.now_s = 5.0
    again = hub.turn([1, 2])[1]
    assert (again.to, again.packets) == ("a", first.packets)
    assert again.nonce != first.nonce
    hub.prove(1, "a", to=again)
    assert hub.switch.present() == {"a"}


def test_a_party_that_was_reached_before_a_restart_counts_until_it_had_time_to_answer(hub: Hub) -> None:
    assert hub.switch.present() == frozenset()  # else the first round begins before anybody is there
    hub.prove(1, "a", to=hub.turn([1, 2])[1])
    assert hub.switch.present() == {"a"}
    hub.switch.began()
    assert hub.switch.present() == {"a"}
    again = Switch(hub.queue, "hub", PARTIES, lambda: KEYS, lambda: hub.now_s)  # the hub was started again
    assert again.present() == {"a"}
    again.began()
    hub.now_s = ROLL_S - 1
    assert again.present() == {"a"}
    hub.now_s = ROLL_S
    assert again.present() == frozenset()


def test_a_busy_party_is_called_at_once_and_one_on_another_node_is_found(hub: Hub) -> None:
    calls = hub.turn([1, 2])
    (again,) = hub.prove(1, "a", to=calls[1], busy=True).values()
    assert again.wait_s == CALL_S
    hub.prove(1, "a", to=again)
    hub.prove(2, "a", to=calls[2])  # its SuperNode was started again, and Flower has not missed the old node yet
    hub.queue.put("hub", "a", ID, b"body")
    assert list(hub.turn([1, 2])) == [2]


def test_the_log_says_once_that_a_party_was_reached_and_which_node_gave_no_answer(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logs.LOGGER.name)
    calls = hub.turn([1, 2])
    for node in (1, 2, 1, 2):  # a party that has two nodes fills no log
        calls |= hub.prove(node, "a", to=calls[node])
        hub.now_s += IDLE_S
        calls |= hub.turn([1, 2])
    hub.turn([1, 2], [(1, None)])
    lines = [(one.message, one.fields) for one in caplog.records]  # type: ignore[attr-defined]
    assert lines == [
        ("reached", {"src": "a", "node": "1"}),
        ("refused", {"kind": "engine", "src": "", "reason": "Flower's node 1 gave no answer: called again in 5 s"}),
    ]


def test_a_new_app_calls_no_node_that_a_call_is_under_way_to(hub: Hub) -> None:
    hub.turn([1, 2])
    hub.switch.began()
    assert [node for node, _ in hub.switch.turn([1, 2], [1], [])] == [2]
    assert [node for node, _ in hub.switch.turn([1, 2], [2], [(1, None)])] == [1]
