"""The engine over NATS: packets come once, in order and whole, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

import pytest
from nats_rig import Rig, drain

from benchmarks.engines import kill
from coterie.deploy import nats as engine_over_nats
from coterie.deploy.engine import EngineError, OutgoingPacket, UndeliverableError
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link, _ended
from coterie.deploy.nats_parts import PART
from coterie.deploy.nats_stream import ACK_WAIT_S

PARTIES = ("hub", *(f"client/{number}" for number in range(1, 13)), "hospital-a")


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Rig]:
    """A server that sends a message again after .3 seconds."""
    made = Rig(tmp_path, ("hub", "client/1"), ack_wait_s=0.3)
    made.start()
    yield made
    made.close()


def test_packets_of_one_sender_come_in_order_and_once(rig: Rig) -> None:
    hub, one, two = rig.engine("hub"), rig.engine("client/1"), rig.engine("hospital-a")
    for number in range(20):
        hub.push("client/1", b"hub %d" % number, f"a{number}")
        two.push("client/1", b"two %d" % number, f"a{number}")  # another's key is another packet,
        hub.push("client/2", b"to another", f"a{number}")  # and so is one to another party
        hub.push("client/1", b"again", f"a{number}")
    came = drain(one)
    assert [each.body for each in came if each.src == "hub"] == [b"hub %d" % number for number in range(20)]
    assert [each.body for each in came if each.src == "hospital-a"] == [b"two %d" % number for number in range(20)]
    assert len(came) == 40
    assert not one.strays
    assert len(drain(rig.engine("client/2"), 20)) == 20


def test_packets_to_many_parties_are_pushed_together_and_in_order(rig: Rig) -> None:
    hub = rig.engine("hub")
    large = os.urandom(2 * PART + 5)
    names = [f"client/{number}" for number in range(1, 5)]
    said = [(name, body) for body in (b"first", large, b"last") for name in names]
    parcels = [OutgoingPacket(name, f"together {at}", body) for at, (name, body) in enumerate(said)]
    stranger = OutgoingPacket("client/99", "together x", b"to nobody")
    *stored, refused = hub.push_all([*parcels, stranger])
    assert stored == [None] * len(parcels)
    assert isinstance(refused, UndeliverableError)
    assert hub.push_all(parcels) == stored  # the same keys: nothing more is stored
    for name in names:
        assert [each.body for each in drain(rig.engine(name), 3)] == [b"first", large, b"last"]


@pytest.mark.parametrize("size", [0, PART, PART + 1, 5 * PART + 17])
def test_packets_of_any_size_come_whole(rig: Rig, size: int) -> None:
    hub, one = rig.engine("hub"), rig.engine("client/1")
    body = os.urandom(size)
    hub.push("client/1", body, f"size {size}")
    hub.push("client/1", body, f"size {size}")
    hub.push("client/1", b"after", f"after {size}")
    assert [each.body for each in drain(one, 2)] == [body, b"after"]


def test_what_is_not_done_comes_again_after_a_restart_at_once_and_in_order(rig: Rig) -> None:
    hub, one = rig.engine("hub"), rig.engine("client/4")
    big = os.urandom(3 * PART)
    bodies = [b"0", big, b"2", b"3", b"4"]
    for number, body in enumerate(bodies):
        hub.push("client/4", body, f"{number}")
    held = [one.pull(2) for _ in range(3)]
    assert [each.body for each in held if each] == bodies[:3]
    assert held[2] is not None
    held[2].done()
    one.close()
    again = rig.engine("client/4")
    began = time.monotonic()
    assert [each.body for each in drain(again, 4)] == [b"0", big, b"3", b"4"]
    assert time.monotonic() - began < ACK_WAIT_S / 2, "it waits for ack_wait"
    assert not again.strays


def test_what_an_older_connection_is_given_comes_again_at_once_and_in_order(rig: Rig) -> None:
    """A server that has not noticed yet that a connection is gone answers the last request on it."""
    hub, gone = rig.engine("hub"), NatsEngine("client/12", rig.urls, rig.tls["client/12"], PARTIES)
    try:
        assert gone.pull(0.2) is None  # it has asked for messages
        one = rig.engine("client/12")
        assert one.pull(0.2) is None
        bodies = [b"%d" % number for number in range(12)]
        began = time.monotonic()
        for number, body in enumerate(bodies):
            hub.push("client/12", body, f"{number}")
        assert [each.body for each in drain(one, len(bodies))] == bodies
        assert time.monotonic() - began < ACK_WAIT_S / 2, "it waits for ack_wait"
    finally:
        gone.close()


def test_what_is_held_is_not_handed_out_twice(hasty: Rig) -> None:
    hub, one = hasty.engine("hub"), hasty.engine("client/1")
    hub.push("client/1", os.urandom(2 * PART), "0")
    hub.push("client/1", b"1", "1")
    first = one.pull(2)
    assert first is not None
    second = one.pull(2)
    assert second is not None
    for _ in range(3):  # longer than ack_wait: the server sends both again
        second.working()
        assert one.pull(0.2) is None
    first.done()
    second.done()
    assert one.pull(0.4) is None


def test_working_keeps_the_server_from_sending_a_packet_again(hasty: Rig) -> None:
    hub, one = hasty.engine("hub"), hasty.engine("client/1")
    hub.push("client/1", bytes(500_000), "0")
    held = one.pull(2)
    assert held is not None
    received = one._link.client.stats
    before = received["in_bytes"]
    for _ in range(6):  # longer than ack_wait
        held.working()
        assert one.pull(0.1) is None
    assert received["in_bytes"] - before < 100_000
    assert one.pull(0.6) is None
    assert received["in_bytes"] - before >= 500_000
    held.done()


def test_a_packet_that_stops_half_way_goes_on_at_the_missing_part_and_is_stored_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, one = rig.engine("hub"), rig.engine("client/7")
    body = os.urandom(6 * PART + 5)
    began, stored = list[str](), list[str]()
    store = hub._store

    async def fails(dst: str, data: bytes, headers: dict[str, str], *more: Any) -> None:
        began.append(headers[engine_over_nats.HEADER])
        if len(began) == 4:
            raise EngineError("the cable is cut")
        await store(dst, data, headers, *more)
        stored.append(headers[engine_over_nats.HEADER])

    monkeypatch.setattr(hub, "_store", fails)
    with pytest.raises(EngineError, match="cable"):
        hub.push("client/7", body, "big")
    before, begun = set(stored), len(began)
    assert before
    hub.push("client/7", body, "big")
    assert not before & set(began[begun:]), "only parts that are missing are sent again"
    hub.push("client/7", body, "big")  # it is stored: the parts of this attempt lack their last one
    hub.push("client/7", b"after", "after")
    assert [each.body for each in drain(one, 2)] == [body, b"after"]
    assert one.strays == {"parts of a packet that was given up": 1}
    assert drain(rig.engine("client/7")) == []


def test_a_server_that_dies_while_it_is_asked_who_is_there_ends_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_over_nats, "PRESENCE_S", 0.0)
    hub = rig.engine("hub")
    known = hub.nodes()
    assert "hub" in known
    problems: list[Exception] = [EngineError("it does not say who is connected"), ConnectionError("it broke")]

    async def fails(*_: object) -> frozenset[str]:
        raise problems.pop()

    with monkeypatch.context() as broken:
        broken.setattr(engine_over_nats, "connected", fails)
        assert [hub.nodes(), hub.nodes()] == [known, known]
    rig.engine("client/2")
    assert hub.nodes() == {*known, "client/2"}


def test_nodes_are_those_that_are_connected(rig: Rig) -> None:
    for engine in rig.engines:
        engine.close()
    hub, one = rig.engine("hub"), rig.engine("client/1")
    assert set(hub.nodes()) == {"hub", "client/1"}
    assert set(one.nodes()) == set(PARTIES), "a party that may not ask knows nothing of presence"
    one.push("hub", b"and goes on", "k")
    one.close()
    hub._present = None
    assert set(hub.nodes()) == {"hub"}


@pytest.mark.parametrize("size", [20_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_a_large_packet_passes(rig: Rig, size: int) -> None:
    hub, one = rig.engine("hub"), rig.engine("client/8")
    body = os.urandom(size)
    began = time.monotonic()
    hub.push("client/8", body, "large")
    came = one.pull(60)
    assert came is not None
    assert came.body == body
    came.done()
    assert one.pull(0.3) is None
    assert time.monotonic() - began < 30


def test_one_that_is_no_party_and_a_packet_that_is_too_large_are_refused(rig: Rig) -> None:
    hub = rig.engine("hub", largest=10)
    with pytest.raises(UndeliverableError, match="no party"):
        hub.push("client/99", b"", "k")
    with pytest.raises(UndeliverableError, match="11 bytes"):
        hub.push("client/1", b"x" * 11, "k")


def test_a_task_that_takes_no_notice_of_being_cancelled_is_cancelled_again() -> None:
    """``asyncio.wait_for`` of Python 3.11 forgets it if the answer comes at the same time."""

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    async def end() -> None:
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        await _ended(task, None)
        assert task.done()

    asyncio.run(end())


def test_a_delivery_may_be_used_from_any_thread_and_after_the_end(rig: Rig) -> None:
    hub, one = rig.engine("hub"), rig.engine("client/11")
    hub.push("client/11", b"x", "k")
    held = one.pull(2)
    assert held is not None

    def work() -> None:
        for _ in range(200):
            held.working()
        held.done()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    one.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    with pytest.raises(EngineError, match="closed"):
        one.pull(0.1)


def test_the_server_is_killed_in_mid_flow_and_nothing_is_lost(tmp_path: Path) -> None:
    dice = random.Random(5)
    bodies = [dice.randbytes(dice.choice([10, 1000, PART + 3])) for _ in range(90)]
    with Rig(tmp_path, ("hub", "client/1")) as made:
        came, reader = made.receiving("client/1", len(bodies))
        hub = made.engine("hub")
        for number, body in enumerate(bodies):
            if number in (30, 60):
                threading.Timer(0.01, lambda: (kill(made.server), time.sleep(0.1), made.server.start())).start()
            hub.push("client/1", body, f"{number}")
        reader.join(30)
        assert came == bodies


def test_what_is_done_after_the_server_was_killed_takes_no_time_and_comes_no_more(tmp_path: Path) -> None:
    """The server does not answer an acknowledgement of what it has not sent since it is back."""
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub, one = made.engine("hub"), made.engine("client/1")
        for number in range(3):
            hub.push("client/1", os.urandom(2 * PART), f"{number}")
        held = [one.pull(5) for _ in range(3)]
        kill(made.server)
        made.server.start()
        one.push("hub", b"an answer", "k")  # so it is connected again
        began = time.monotonic()
        for each in held:
            assert each is not None
            each.done()
        assert time.monotonic() - began < 1.5
        hub.push("client/1", b"next", "3")
        assert [each.body for each in drain(one, 1)] == [b"next"]
        assert drain(made.engine("client/1")) == []


SENDER = """
import sys
from pathlib import Path
from coterie.deploy.nats import NatsEngine
from coterie.deploy.engine import Tls
from coterie.deploy.nats_link import _ended
from coterie.deploy.nats_parts import PART
from coterie.deploy.nats_stream import ACK_WAIT_S
url, folder, name, first = sys.argv[1:]
tls = Tls(*(Path(path) for path in folder.split(",")))
engine = NatsEngine(name, [url], tls, ("hub", name))
for number in range(int(first), 100000):
    size = 3 * PART if number % 5 == 0 else 10
    engine.push("hub", number.to_bytes(8) + bytes(size), str(number))
    print(number, flush=True)
"""

RECEIVER = """
import sys
from pathlib import Path
from coterie.deploy.nats import NatsEngine
from coterie.deploy.engine import Tls
url, folder, name = sys.argv[1:4]
tls = Tls(*(Path(path) for path in folder.split(",")))
engine = NatsEngine(name, [url], tls, ("hub", name))
while True:
    if (delivery := engine.pull(5)) is not None:
        print(int.from_bytes(delivery.body[:8]), flush=True)
        delivery.done()
"""


def party(rig: Rig, code: str, name: str, *more: object) -> subprocess.Popen[str]:
    tls = rig.tls[name]
    files = f"{tls.certificate},{tls.key},{tls.authority}"
    command = [sys.executable, "-c", code, rig.server.url, files, name, *map(str, more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed_after(process: subprocess.Popen[str], lines: int) -> list[int]:
    """What a process says until it is killed (-9)."""
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    said.extend(int(line) for line in process.stdout.read().split("\n")[:-1])
    process.wait()
    return said


def test_a_sender_that_is_killed_and_begins_again_with_its_last_packet(rig: Rig) -> None:
    first = 0
    for lines in (7, 12):
        said = killed_after(party(rig, SENDER, "client/9", first), lines)
        first = said[-1]  # as one that does not know whether it was stored; and it may have begun the next
    hub = rig.engine("hub")
    last = first + 1
    engine = rig.engine("client/9")
    for number in (first, last):
        body = number.to_bytes(8) + bytes(3 * PART if number % 5 == 0 else 10)
        engine.push("hub", body, str(number))
    came = [each for each in drain(hub) if each.src == "client/9"]
    assert [int.from_bytes(each.body[:8]) for each in came] == list(range(last + 1))
    assert all(len(each.body) == 8 + (3 * PART if number % 5 == 0 else 10) for number, each in enumerate(came))


def test_a_receiver_that_is_killed_gets_each_packet_again_unless_it_was_done(rig: Rig) -> None:
    hub = rig.engine("hub")
    for number in range(60):
        hub.push("client/10", number.to_bytes(8) + bytes(2 * PART if number % 7 == 0 else 0), f"{number}")
    first = killed_after(party(rig, RECEIVER, "client/10"), 20)
    second = [int.from_bytes(each.body[:8]) for each in drain(rig.engine("client/10"))]
    assert first == list(range(len(first)))
    assert second == list(range(second[0], 60))
    assert first[-1] - 5 < second[0] <= first[-1] + 1  # the server may not have heard of the last ones


# -- a connection to NATS: what the server denies is told to all threads that wait --


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_what_the_server_denies_is_told_to_all_that_wait() -> None:
    """Two threads wait: that of the node, and the one that says that packets are worked on."""
    link = Link.__new__(Link)
    link.token, link._refused, link._closing, link._lock = "a", None, False, threading.Lock()
    link._loop = asyncio.new_event_loop()
    link._broken = link._loop.create_future()
    turning = threading.Thread(target=link._loop.run_forever)
    turning.start()
    said: list[str] = []

    def waits() -> None:
        try:
            link.run(never())
        except EngineError as error:
            said.append(str(error))

    threads = [threading.Thread(target=waits) for _ in range(2)]
    for one in threads:
        one.start()
    denied = UndeliverableError("denied")
    link._loop.call_soon_threadsafe(link._loop.call_later, 0.1, lambda: link._break(denied, for_good=False))
    for one in threads:
        one.join()
    link._loop.call_soon_threadsafe(link._loop.stop)
    turning.join()
    link._loop.close()
    assert said == ["denied", "denied"]
