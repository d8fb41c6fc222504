"""Packets of 100 MB, and the numbers of packets."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from memory_engine import Exchange, MemoryEngine

from coterie.crypto.roster import simulated
from coterie.deploy.engine import EngineError, FullError, NotAdmittedError, OutgoingPacket, UndeliverableError
from coterie.deploy.logs import NodeObserver
from coterie.deploy.packet_queue import NodeLimits, PacketQueue
from coterie.deploy.packets import Letter, PlanUpdate, Report, Tally
from coterie.deploy.store import FileStore, Numbering
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Randomness
from coterie.runs.keyring import PartyKeys
from coterie.transport.envelope import Envelope

NAMES = {"hub": "server", "a": "client"}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.packet_queue._RETRY_S", 0.02)


class Told(NodeObserver):
    """Passes on what it is told of refused packets."""

    def __init__(self, said: Callable[[tuple[str, str, str]], None]) -> None:
        self.said = said

    def dropped(self, src: str, kind: str, reason: str) -> None:
        self.said((src, kind, reason))


def queues(**options: Any) -> tuple[Exchange, PacketQueue, PacketQueue, list[tuple[str, str, str]]]:
    exchange, refused = Exchange(NAMES), list[tuple[str, str, str]]()
    roster, identities = simulated(NAMES, Randomness(1, True))
    made = []
    for name in NAMES:
        keyring = PartyKeys(roster, {name: identities[name]})
        engine, stopped = exchange.engine(name), threading.Event()
        queue = PacketQueue(engine, keyring, Told(refused.append), stopped, **options)
        queue.start(Numbering())
        made.append(queue)
    return exchange, made[0], made[1], refused


def test_large_packets_pass_with_few_copies() -> None:
    """Sealed, wrapped, pulled, opened and unpacked: never more than six of them are in memory."""
    _, hub, a, _ = queues()
    size = 20 << 20
    frame = bytes(bytearray(b"coterie!") * (size // 8))
    envelope = Envelope("hub", "a", "server", "Train", hub.keyring.session, 1, 0, 1, 0, False, size)
    tracemalloc.start()
    try:
        hub.send("a", Letter(envelope, frame, (1, 0)))
        arrived = a.pull(1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert arrived is not None
    assert isinstance(arrived.packet, Letter)
    assert arrived.packet.frame == frame
    assert peak < 6 * size


def test_every_start_has_numbers_of_its_own() -> None:
    """Also those that were used after the last commit: a restart begins beyond them."""
    numbering = Numbering()
    _, hub, _, _ = queues()
    hub.start(numbering)
    used = [int(hub.wrap("a", PlanUpdate(b"")).key.split(".")[1]) for _ in range(3)]
    hub.start(Numbering(starts=numbering.starts, sent=0))
    assert int(hub.wrap("a", PlanUpdate(b"")).key.split(".")[1]) > 1 << 32 > max(used)


def test_keys_of_packets_cannot_be_guessed() -> None:
    """Who knows a key in advance has the engine take the packet for one that is stored."""
    keys = {queues()[1].wrap("a", PlanUpdate(b"")).key for _ in range(3)}
    assert len(keys) == 3
    assert all(len(key.rpartition(".")[2]) == 32 for key in keys)


def test_a_start_whose_disk_was_put_back_has_numbers_of_its_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """To before the start that it repeats: else its packets would be taken for repetitions, and dropped."""
    _, hub, a, _ = queues()
    hub.start(hub.numbering)
    kept = msgspec.msgpack.encode(hub.numbering)
    for second in (1_800_000_000, 1_800_000_003):
        monkeypatch.setattr("coterie.deploy.packet_queue.time.time", lambda second=second: second + 0.5)
        hub.start(msgspec.msgpack.decode(kept, type=Numbering))
        hub.send("a", PlanUpdate(str(second).encode()))
        arrived = a.pull(0.0)
        assert arrived is not None
        assert arrived.packet == PlanUpdate(str(second).encode())


@pytest.mark.parametrize("clock_s", [-1e18, 0.0, 1.8e9, 1e18])
def test_numbers_grow_from_start_to_start_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, clock_s: float
) -> None:
    _, hub, a, _ = queues()
    numbering, last = hub.numbering, 0
    for second in (1.7e9, clock_s, 1.7e9, 1.7e9 + 1):
        monkeypatch.setattr("coterie.deploy.packet_queue.time.time", lambda second=second: second)
        hub.start(msgspec.msgpack.decode(msgspec.msgpack.encode(numbering), type=Numbering))
        numbering = msgspec.msgpack.decode(msgspec.msgpack.encode(hub.numbering), type=Numbering)
        for _ in range(3):  # after the commit
            hub.send("a", PlanUpdate(b""))
            arrived = a.pull(0.0)
            assert arrived is not None
            assert last < arrived.number < 1 << 61
            last = arrived.number


def test_what_is_not_done_comes_again_and_what_is_done_does_not() -> None:
    exchange, hub, a, refused = queues()
    for i in range(4):
        hub.send("a", PlanUpdate(bytes([i])))
    came = [a.pull(0.0) for _ in range(3)]
    assert [one.packet for one in came if one] == [PlanUpdate(bytes([i])) for i in range(3)]
    for one in (came[0], came[2]):
        assert one is not None
        a.done(one)
    kept = a.numbering
    assert kept.open == {"hub": [came[1].number]}  # type: ignore[union-attr]
    again = PacketQueue(exchange.engine("a"), a.keyring, Told(refused.append), threading.Event())
    again.start(kept)
    came = [again.pull(0.0) for _ in range(3)]
    assert [one.packet for one in came if one] == [PlanUpdate(b"\x01"), PlanUpdate(b"\x03")]
    assert refused == []


def test_what_an_engine_holds_back_until_later_packets_have_come_is_refused_after_a_start_too() -> None:
    exchange, hub, a, refused = queues()
    for i in range(3):
        hub.send("a", PlanUpdate(bytes([i])))
    came = [a.pull(0.0) for _ in range(3)]
    kept = a.numbering
    assert kept.open == {"hub": [one.number for one in came if one]}
    engine = exchange.engine("a")
    first, second, third = (engine.pull(0.0) for _ in range(3))
    order = iter([second, first, third, first, second])
    engine.pull = lambda wait_s: next(order, None)  # type: ignore[assignment, method-assign]
    again = PacketQueue(engine, a.keyring, Told(refused.append), threading.Event())
    again.start(kept)
    found = [again.pull(0.0) for _ in range(5)]
    assert [one.packet for one in found if one] == [PlanUpdate(b"\x01"), PlanUpdate(b"\x02")]
    assert again.numbering.open == {"hub": [one.number for one in found if one]}


def test_what_the_engine_says_of_failures() -> None:
    """Failures are tried again; a packet that can never be stored is given up; a party that is not admitted ends."""
    _, hub, _, refused = queues()
    parcel, tries = OutgoingPacket("a", "hub.1", b"x"), [EngineError("away"), EngineError("away"), None]

    class Failing(MemoryEngine):
        def push(self, dst: str, body: bytes, key: str) -> None:
            if (error := tries.pop(0)) is not None:
                raise error

    hub.engine.__class__ = Failing
    assert hub.push([parcel]) == []
    assert [kind for _, kind, _ in refused] == ["engine", "engine"]
    tries[:] = [UndeliverableError("too large")]
    assert hub.push([parcel]) == [parcel]
    tries[:] = [NotAdmittedError("revoked")]
    with pytest.raises(NotAdmittedError):
        hub.push([parcel])
    assert not hub.send("nobody", PlanUpdate(b""))


def test_that_nothing_can_be_stored_for_anybody_is_told_once_and_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One recipient that is full, or gone for good, is another matter."""
    _, hub, *_ = queues(limits=NodeLimits(grace_s=0.0))
    said: list[str] = []
    hub._observer.waits = said.append  # type: ignore[method-assign]
    away, full, gone = EngineError("no stream"), FullError("full"), UndeliverableError("gone")
    tries = [[away, away], [away, None], [None], [away, None], [away], [None], [full, gone]]

    def push_all(parcels: Sequence[OutgoingPacket]) -> list[EngineError | None]:
        found = tries.pop(0)
        assert len(found) == len(parcels)
        return list(found)

    hub.engine.push_all = push_all  # type: ignore[method-assign]
    hub.push([hub.wrap(name, PlanUpdate(b"")) for name in ("a", "a")])
    assert said == ["no stream", ""]
    hub.push([hub.wrap(name, PlanUpdate(b"")) for name in ("a", "a")])
    assert said == ["no stream", "", "no stream", ""]
    hub.push([hub.wrap(name, PlanUpdate(b"")) for name in ("a", "a")])
    assert len(said) == 4
    assert not tries


def test_a_node_that_is_stopped_while_the_engine_fails_lets_no_packet_overtake_another() -> None:
    """A recipient takes a number below the last one for a repetition: what could not be sent comes first, or never."""
    exchange, hub, a, _ = queues()
    hub._stopped.set()
    push = hub.engine.push
    hub.engine.push = lambda *_: (_ for _ in ()).throw(EngineError("away"))  # type: ignore[method-assign]
    first, second = hub.wrap("a", PlanUpdate(b"1")), hub.wrap("a", PlanUpdate(b"2"))
    assert hub.push([first]) == [first]
    hub.engine.push = push  # type: ignore[method-assign]
    assert hub.push([second]) == [second]
    again = PacketQueue(exchange.engine("hub"), hub.keyring, NodeObserver(), threading.Event())
    again.start(hub.numbering)
    assert again.push([first]) == []
    assert again.push([second]) == []
    came = [a.pull(0.0) for _ in range(2)]
    assert [one.packet for one in came if one] == [PlanUpdate(b"1"), PlanUpdate(b"2")]


def test_a_recipient_that_takes_nothing_stops_nobody() -> None:
    """Its sender waits once for as long as it may be away, and then gives its packets up until there is room."""
    _, hub, _, refused = queues(limits=NodeLimits(grace_s=0.05))
    full = True

    class Full(MemoryEngine):
        def push(self, dst: str, body: bytes, key: str) -> None:
            if full:
                raise FullError("4,096 packets wait")

    hub.engine.__class__ = Full
    late = threading.Timer(20.0, hub._stopped.set)
    late.daemon = True
    late.start()
    assert hub.push([OutgoingPacket("a", "hub.1", b"x")])
    assert not hub._stopped.is_set()
    waited = len(refused)
    assert hub.push([OutgoingPacket("a", "hub.2", b"x")])
    assert len(refused) == waited + 1  # not waited for again
    full = False
    time.sleep(0.6)  # long after, it is waited for once more
    assert hub.push([OutgoingPacket("a", "hub.3", b"x")]) == []
    full = True
    assert hub.push([OutgoingPacket("a", "hub.4", b"x")])
    assert len(refused) > waited + 2


def test_a_recipient_that_makes_room_for_one_packet_at_a_time_stops_nobody() -> None:
    """Else its sender would wait for it again and again, and take nothing from others meanwhile."""
    said, room = [time.monotonic()], [0]

    def refused(words: tuple[str, str, str]) -> None:
        said.append(time.monotonic())

    _, hub, _, _ = queues(limits=NodeLimits(grace_s=0.1))
    hub._observer = Told(refused)

    class Stingy(MemoryEngine):
        def push(self, dst: str, body: bytes, key: str) -> None:
            if not room[0]:
                raise FullError("18,432 parts wait")
            room[0] -= 1

    hub.engine.__class__ = Stingy
    hub._stopped.wait = time.sleep  # type: ignore[method-assign, assignment]
    began = time.monotonic()
    for number in range(4):
        room[0] = 1
        assert hub.push([OutgoingPacket("a", f"hub.{number}", b"x")]) == []
        assert hub.push([OutgoingPacket("a", f"hub.{number}.again", b"x")])
    assert time.monotonic() < began + 1.5  # one wait is half a second, and four would be two


def test_tables_in_packets_are_bounded() -> None:
    """A packet may have 1 GiB. As entries of a table that is many times as much memory."""
    _, hub, a, refused = queues()
    many = {f"{i}": 1 for i in range(1 << 17)}
    for packet in (Report((0, 0), 0, refused=many), Report((0, 0), 0, scores=many), Tally((0, 0), many, {})):
        a.send("hub", packet)
        assert hub.pull(0.0) is None
        assert "length" in refused.pop()[2]


def test_a_store_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.bin"
    store = FileStore(path)
    assert store.load() is None
    store.save(b"one")
    store.save(b"two")
    assert store.load() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["state.bin"]
    (tmp_path / ".state.bin.x1").write_bytes(b"half")  # of a process that was killed while it wrote
    assert store.load() == b"two"
    assert [one.name for one in path.parent.iterdir()] == ["state.bin"]
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(UserError):
        store.load()


class Picky(MemoryEngine):
    """It refuses some bodies, each for as long as a problem is left for it."""

    problems: dict[bytes, list[EngineError]]
    tried: list[bytes]

    def push(self, dst: str, body: bytes, key: str) -> None:
        self.tried.append(body)
        if problems := self.problems.get(body):
            raise problems.pop(0)
        super().push(dst, body, key)


def picky(problems: dict[bytes, list[EngineError]]) -> tuple[Exchange, PacketQueue, Picky]:
    exchange = Exchange([*NAMES, "b"])
    _, hub, _, _ = queues()
    engine = Picky("hub", exchange)
    engine.problems, engine.tried = problems, []
    hub.engine = engine
    return exchange, hub, engine


def parcels(*said: str) -> list[OutgoingPacket]:
    """Of "a1": packet 1 to a."""
    return [OutgoingPacket(one[0], f"hub.{one[1:]}", one.encode()) for one in said]


def bodies(exchange: Exchange, name: str) -> list[bytes]:
    engine = exchange.engine(name)
    return [one.body for one in iter(lambda: engine.pull(0.0), None)]


def test_of_packets_that_are_pushed_together_none_overtakes_one_to_the_same_party() -> None:
    """The second packet to a cannot be stored at first. Those to b do not wait for it, and the third to a does."""
    exchange, hub, engine = picky({b"a2": [EngineError("away")]})
    assert hub.push(parcels("a1", "b1", "a2", "b2", "a3")) == []
    assert engine.tried == [b"a1", b"b1", b"a2", b"b2", b"a2", b"a3"]
    assert bodies(exchange, "a") == [b"a1", b"a2", b"a3"]
    assert bodies(exchange, "b") == [b"b1", b"b2"]


def test_a_packet_that_can_never_be_stored_holds_up_no_other() -> None:
    exchange, hub, _ = picky({b"a1": [UndeliverableError("too large")]})
    first, *others = parcels("a1", "a2", "b1")
    assert hub.push([first, *others]) == [first]
    assert bodies(exchange, "a") == [b"a2"]
    assert bodies(exchange, "b") == [b"b1"]


def test_what_was_put_aside_leaves_before_what_is_pushed_later_and_is_lost_to_flush_alone() -> None:
    exchange, hub, engine = picky({b"a2": [UndeliverableError("too large")]})
    aside, late = parcels("a1", "a2", "a3"), parcels("a4")
    for one in aside:
        hub.put_aside(one)
    assert engine.tried == []
    assert hub.push(late) == []
    assert bodies(exchange, "a") == [b"a1", b"a3", b"a4"]
    assert hub.flush() == [aside[1]]
    assert hub.flush() == []


def test_what_is_put_aside_takes_little_memory() -> None:
    exchange, hub, engine = picky({})
    for at in range(5):
        hub.put_aside(OutgoingPacket("a", f"hub.{at}", bytes(3 << 20)))
    assert len(engine.tried) == 3  # as soon as it is more than 8 MiB
    hub.flush()
    assert len(bodies(exchange, "a")) == 5
