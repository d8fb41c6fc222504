"""The engine over Flower without Flower: queues in files, calls and answers, and a grid that this test plays."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deployments import Study
from flower_parts import ID, KEYS, NONCE, PARTIES
from hypothesis import given
from hypothesis import strategies as st
from tampering import flipped

from coterie.deploy import flower_pipe as pipe
from coterie.deploy.addresses import hosts_of
from coterie.deploy.engine import EngineError, UndeliverableError
from coterie.deploy.flower import FlowerEngine
from coterie.deploy.flower_queue import Queue
from coterie.deploy.flower_words import Answer, Call, Carried, read_answer, read_call, write
from coterie.operate.applying import apply, serve
from coterie.protocol.errors import PeerError, UserError

# -- queues ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), st.integers(0, 5), st.booleans()), max_size=40))
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
def test_hostile_bytes_are_refused(data: bytes, at: int, to: int) -> None:
    genuine = write(KEYS, "a", 7, Answer(NONCE, "a", [], [], False))
    for each in (data, flipped(genuine, at % len(genuine), to or 1), genuine[: at % len(genuine)]):
        with pytest.raises(PeerError):
            read_answer(KEYS, 7, NONCE, each)
        with pytest.raises(PeerError):
            read_call(KEYS, "hub", 7, each)


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
        serve(study.folder, print)
    with pytest.raises(UserError, match="one SuperLink"):
        Study(tmp_path / "x").found(server="flower://a,flower://b")


def test_no_other_module_imports_flower() -> None:
    code = "import sys, coterie.deploy.flower, coterie.deploy.process, coterie.cli.app; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
