"""The engine over Flower without Flower: queues in files, calls and answers, and a grid that this test plays."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployments import EMULATED, Study
from hypothesis import given, settings
from hypothesis import strategies as st
from tampering import flipped

from coterie.crypto.roster import entry, new_identity, sign_roster
from coterie.crypto.signing import SigningKey
from coterie.deploy import flower_pipe as pipe
from coterie.deploy import logs
from coterie.deploy.applying import apply, serve
from coterie.deploy.engine import EngineError, UndeliverableError
from coterie.deploy.engine_files import hosts_of
from coterie.deploy.flower import FlowerEngine
from coterie.deploy.flower_queue import Queue
from coterie.deploy.flower_switch import CALL_S, IDLE_S, ROLL_S, Switch
from coterie.deploy.flower_words import Answer, Call, Carried, read_answer, read_call, write
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.system import BROKER
from coterie.protocol.told import Identity
from coterie.runs.keyring import PartyKeys
from coterie.runs.registry import SYSTEMS

PARTIES = ("hub", "a", "b")
IDENTITIES: dict[str, Identity] = {name: new_identity(name, EMULATED) for name in PARTIES}
OPERATOR = SigningKey.load(new_identity("operator", EMULATED).signing)
ROSTER = sign_roster(tuple(entry(n, "any", one) for n, one in IDENTITIES.items()), OPERATOR, b"s" * 16)
KEYS = PartyKeys(ROSTER, IDENTITIES)
NONCE = b"n" * 16
ID = b"i" * 16


# -- queues ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), st.integers(0, 5), st.booleans()), max_size=40))
@settings(deadline=None, max_examples=30)
def test_a_queue_is_a_list_that_remembers(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    path = tmp_path_factory.mktemp("queue") / "q"
    queue, twin, known = Queue(path), [], set()  # type: ignore[var-annotated]
    for src, dst, number, take in steps:
        one = (src, dst, b"%016d" % number)
        assert queue.put(*one, b"body %d" % number)
        if one not in known:
            known.add(one)
            twin.append(one)
        if take:
            queue.close()
            queue = Queue(path)  # as after a crash
            first, expected = queue.first(dst), next((each for each in twin if each[1] == dst), None)
            assert (first and (first.src, first.dst, first.id)) == expected
            if first is not None:
                queue.done(first.number)
                twin.remove(expected)
        for dst in "ab":
            assert [(each.src, each.dst, each.id) for each in queue.some(1 << 20, to=dst)] == [
                each for each in twin if each[1] == dst
            ]
            assert queue.waits(to=dst) == any(each[1] == dst for each in twin)
            assert queue.waits(but=dst) == any(each[1] != dst for each in twin)
    queue.close()


def test_a_queue_is_private_and_full_at_its_limits(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q", most=2, most_bytes=10)
    assert queue.put("a", "b", b"1", b"12345")
    assert not queue.put("a", "b", b"2", b"123456")
    assert queue.put("a", "b", b"3", b"1234")
    assert not queue.put("a", "b", b"4", b"")
    assert queue.put("a", "b", b"1", b"12345")  # known: not stored again
    queue.stored([("a", "b", b"1")])
    assert queue.put("a", "b", b"2", b"123456")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    queue.close()
    (tmp_path / "bad").write_bytes(b"no database" * 1000)
    with pytest.raises(EngineError, match="cannot be used"):
        Queue(tmp_path / "bad")


def test_some_packets_are_at_least_one_and_no_more_bytes_than_asked(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "q")
    for number in range(4):
        queue.put("a", "b", b"%d" % number, b"x" * 10)
    assert [len(queue.some(most, to="b")) for most in (0, 10, 25, 99)] == [1, 1, 2, 4]
    first, second = queue.some(20, to="b")
    assert queue.first("b", {first.number, second.number}) not in (None, first, second)
    queue.close()


# -- words -------------------------------------------------------------------------------------------------------------


def test_an_answer_proves_its_party_its_node_and_its_call() -> None:
    answer = Answer(NONCE, "a", [], [Carried("a", "b", ID, b"body")], False)
    data = write(KEYS, "a", 7, answer)
    assert read_answer(KEYS, 7, NONCE, data) == answer
    for node, nonce in ((8, NONCE), (7, b"m" * 16)):
        with pytest.raises(PeerError):
            read_answer(KEYS, node, nonce, data)
    with pytest.raises(PeerError):
        read_answer(KEYS, 7, NONCE, write(KEYS, "b", 7, answer))  # signed by another
    call = Call(NONCE, "a", 1.0, [], [])
    assert read_call(KEYS, "hub", 7, write(KEYS, "hub", 7, call)) == call
    with pytest.raises(PeerError):
        read_call(KEYS, "hub", 7, write(KEYS, "b", 7, call))
    with pytest.raises(PeerError):
        read_call(KEYS, "a", 7, data)  # an answer is no call


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 255))
@settings(deadline=None, max_examples=200)
def test_hostile_bytes_are_refused(data: bytes, at: int, to: int) -> None:
    genuine = write(KEYS, "a", 7, Answer(NONCE, "a", [], [], False))
    for each in (data, flipped(genuine, at % len(genuine), to or 1), genuine[: at % len(genuine)]):
        with pytest.raises(PeerError):
            read_answer(KEYS, 7, NONCE, each)
        with pytest.raises(PeerError):
            read_call(KEYS, "hub", 7, each)


# -- the hub's switch --------------------------------------------------------------------------------------------------


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
    astray, back = Carried("a", "nobody", ID, b""), Carried("a", "a", ID, b"")
    (relayed,) = hub.prove(1, "a", own, others, astray, back, to=calls[1]).values()
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


# -- both ends of the pipes --------------------------------------------------------------------------------------------


class Grid:
    """What Flower does, in a thread: calls go to the pipes of their nodes, one at a time each.

    kill: asked of each call, whether its ClientApp dies on the way back.
    """

    NODES = {1: "a", 2: "b"}  # noqa: RUF012

    def __init__(self, at: Path, kill: Callable[[int], bool] = lambda node: False) -> None:
        self.at, self.kill, self.calls = at, kill, 0
        self.over = False
        self._answers: list[tuple[int, bytes | None]] = []
        self._called: set[int] = set()
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(30)
        assert self.over

    def _relay(self) -> None:
        import msgspec

        with pipe.dial(self.at / "hub" / pipe.PIPE, 10) as connection:
            while True:
                answers, self._answers = self._answers, []
                pipe.send(connection, msgspec.msgpack.encode(([*self.NODES], [*self._called], answers)))
                data = pipe.receive(connection)
                if data is None:
                    return
                calls, self.over = msgspec.msgpack.decode(data, type=tuple[list[tuple[int, bytes]], bool])
                if self.over:
                    return
                for node, call in calls:
                    assert node not in self._called
                    self._called.add(node)
                    self.calls += 1
                    threading.Thread(target=self._call, args=(node, call), daemon=True).start()
                time.sleep(0.01)

    def _call(self, node: int, call: bytes) -> None:
        import msgspec

        answer = None
        try:
            with pipe.dial(self.at / self.NODES[node] / pipe.PIPE) as connection:
                pipe.send(connection, msgspec.msgpack.encode((node, call)))
                answer = pipe.receive(connection)
        except OSError:
            pass
        self._called.discard(node)
        self._answers.append((node, None if self.kill(node) else answer))


def engine(at: Path, name: str) -> FlowerEngine:
    (at / name).mkdir(exist_ok=True)
    return FlowerEngine(name, "hub", at / name, PARTIES, lambda: KEYS)


def test_packets_come_once_and_in_order_between_all(tmp_path: Path) -> None:
    engines = {name: engine(tmp_path, name) for name in PARTIES}
    grid = Grid(tmp_path)
    got: dict[tuple[str, str], list[bytes]] = {}

    def live(name: str) -> None:
        one = engines[name]
        for number in range(10):
            for dst in PARTIES:
                if dst != name:
                    for _ in range(2):
                        one.push(dst, b"%d" % number, f"{number}")
        for _ in range(20):
            while (came := one.pull(5)) is None:
                pass
            got.setdefault((came.src, name), []).append(came.body)
            came.done()

    threads = [threading.Thread(target=live, args=(name,)) for name in PARTIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {(src, dst): [b"%d" % n for n in range(10)] for src in PARTIES for dst in PARTIES if src != dst}
    assert set(engines["hub"].nodes()) == set(PARTIES)
    closing = [threading.Thread(target=one.close) for one in engines.values()]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(30)
    grid.join()
    assert grid.calls < 60
    for name in PARTIES:
        queue = Queue(tmp_path / name / "packets.db")
        assert [one[:3] for each in PARTIES for one in queue.some(1 << 20, to=each)] == []
        queue.close()


def test_what_is_not_done_comes_again_to_a_party_that_was_killed(tmp_path: Path) -> None:
    first = engine(tmp_path, "a")
    hub, other = engine(tmp_path, "hub"), engine(tmp_path, "b")
    deaths = iter([True])
    Grid(tmp_path, kill=lambda node: node == 1 and next(deaths, False))
    for number in range(3):
        hub.push("a", b"%d" % number, str(number))
    handled = _pull(first)
    handled.done()
    assert _pull(first).body == b"1"
    assert _pull(first).body == b"2"
    first._called_s = float("-inf")  # as if it were killed: it waits for nobody
    first.close()
    again = engine(tmp_path, "a")
    assert [_pull(again).body, _pull(again).body] == [b"1", b"2"]
    assert again.pull(0.3) is None
    for one in (again, hub, other):
        one._called_s = float("-inf")
        one.close()


def test_a_site_answers_when_its_party_has_done_its_work(tmp_path: Path) -> None:
    hub, site = engine(tmp_path, "hub"), engine(tmp_path, "a")
    grid = Grid(tmp_path)
    while site.pull(0.1) is None:  # it is there before it is asked for anything
        if grid.calls >= 2:
            break
    before = grid.calls
    hub.push("a", b"train", "1")
    task = _pull(site)
    time.sleep(0.5)
    site.push("hub", b"trained", "1")
    task.done()
    threading.Thread(target=site.pull, args=(5,), daemon=True).start()
    assert _pull(hub).body == b"trained"
    assert grid.calls - before <= 3  # one of them to b, which is away
    for one in (hub, site):
        one._called_s = float("-inf")
        one.close()


def _pull(one: FlowerEngine) -> Any:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if (came := one.pull(1)) is not None:
            return came
    raise AssertionError(f"nothing came for {one.name}")


def test_a_pipe_is_for_its_user_alone_and_strangers_change_nothing(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 20) / ("name" * 20)
    deep.mkdir(parents=True)
    site = FlowerEngine("a", "hub", deep, PARTIES, lambda: KEYS)
    path = deep / pipe.PIPE
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    for data in (b"", b"junk", os.urandom(1000)):
        with pipe.dial(path, 5) as connection:
            pipe.send(connection, data)
            assert pipe.receive(connection) is None
    forged = write(KEYS, "b", 1, Call(NONCE, "a", 0, [], [Carried("hub", "a", ID, b"x")]))
    import msgspec

    with pipe.dial(path, 5) as connection:
        pipe.send(connection, msgspec.msgpack.encode((1, forged)))
        assert pipe.receive(connection) is None
    assert site.pull(0.1) is None
    with pytest.raises(UndeliverableError):
        site.push("nobody", b"", "1")
    with pytest.raises(UndeliverableError):
        site.push("a", b"", "1")
    site.close()
    assert not path.exists()


# -- deployments -------------------------------------------------------------------------------------------------------


def test_a_deployment_over_flower_has_an_app_and_no_server(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found(server="flower://hub.example.org:8000")
    project = tomllib.loads((study.folder.flower / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"coterie-home": str(study.folder.hub)}
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "coterie.deploy.flower_app:server",
        "clientapp": "coterie.deploy.flower_app:client",
    }
    assert not study.folder.nats_conf.exists()
    assert hosts_of("flower://hub.example.org:8000") == ("hub.example.org", "127.0.0.1")  # its own apps ask there
    assert hosts_of("nats://hub.example.org:4222") == ("hub.example.org",)
    home = study.enrol()
    assert home.server == "flower://hub.example.org:8000"
    assert not apply(study.folder)
    with pytest.raises(UserError, match="flower-superlink"):
        serve(study.folder)
    with pytest.raises(UserError, match="one SuperLink"):
        Study(tmp_path / "x").found(server="flower://a,flower://b")


def test_no_other_module_imports_flower() -> None:
    code = "import sys, coterie.deploy.flower, coterie.deploy.process, coterie.cli.app; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
