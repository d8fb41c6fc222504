"""The engine over NATS where parts of packets cannot be stored, never become a packet, or take long."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

import json
import shutil

import nats.errors
import pytest
from live_deployment import live
from nats_rig import Rig, drain
from typer.testing import CliRunner

from benchmarks.engines import kill
from coterie.cli.app import app
from coterie.deploy import nats as engine_over_nats
from coterie.deploy.engine import STREAM, SUBJECT, EngineError, FullError, UndeliverableError
from coterie.deploy.engines import connect
from coterie.deploy.home import plan_of
from coterie.deploy.names import safe
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link
from coterie.deploy.nats_parts import MESSAGE, PART, Assembly, PacketPart, Stored, parts_of
from coterie.deploy.nats_stream import STORE, room
from coterie.runs.config import RunConfig

PARTIES = ("hub", *(f"client/{number}" for number in range(1, 8)))


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file of this process may grow beyond this."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def bodies(engine: NatsEngine, count: int) -> list[bytes]:
    """Of the next packets, which are done."""
    came = [delivery for _ in range(count) if (delivery := engine.pull(5.0)) is not None]
    for delivery in came:
        delivery.done()
    return [delivery.body for delivery in came]


@pytest.mark.parametrize("size", [PART * 2, PART * 4 + 5])
def test_a_packet_that_finds_no_room_comes_again_when_there_is_some(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also what came before it and is still held, and what came after it, each once and in order."""
    monkeypatch.setattr(engine_over_nats, "ROOM_S", 0.3)
    hub, other, one = rig.engine("hub"), rig.engine("client/2"), rig.engine("client/1", spool=tmp_path)
    body = os.urandom(size)
    other.push("client/1", b"before", f"{size}.0")
    held = one.pull(5.0)
    assert held is not None
    with full_after(PART + PART // 2):
        hub.push("client/1", body, f"{size}.1")
        hub.push("client/1", b"after", f"{size}.2")
        for _ in range(2):
            with pytest.raises(EngineError, match=r"client/1 cannot store a packet of .* from hub: .*Make room"):
                one.pull(5.0)
    assert not one._assembly.uploads
    assert bodies(one, 2) == [body, b"after"]
    held.done()
    assert list(tmp_path.iterdir()) == []
    one.close()  # the server has heard by then that all is done
    assert drain(rig.engine("client/1")) == []


def test_a_party_that_finds_no_room_takes_what_others_send_in_the_meantime_afterwards(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for nothing for a while, so that the same parts do not come in a circle."""
    monkeypatch.setattr(engine_over_nats, "PULL_S", 0.3)
    hub, one = rig.engine("hub"), rig.engine("client/3", spool=tmp_path)
    body = os.urandom(2 * PART)
    hub.push("client/3", body, "1")
    with full_after(PART // 2), pytest.raises(EngineError, match="cannot store"):
        one.pull(5.0)
    assert one._pulls is not None
    asked = one._resets, one._pulls.requests
    assert one.pull(0.4) is None
    assert (one._resets, one._pulls.requests) == asked
    monkeypatch.setattr(one, "_room_s", 0.0)
    assert bodies(one, 1) == [body]


def test_what_could_not_be_stored_is_forgotten_as_a_whole(tmp_path: Path) -> None:
    assembly = Assembly(tmp_path)
    parts = [PacketPart("a" * 16, index, 3, 3 * PART) for index in range(3)]
    assert assembly.add("x", parts[0], Stored(1, 0.0), bytes(PART)) is None
    with full_after(PART + 10), pytest.raises(OSError, match="File too large"):
        assembly.add("x", parts[1], Stored(2, 0.0), bytes(PART))
    assert not assembly.uploads
    assert [assembly.add("x", part, Stored(3 + i, 0.0), bytes([i]) * PART) is None for i, part in enumerate(parts)] == [
        True,
        True,
        False,
    ]


# --- parts that never become a packet


def test_parts_whose_sender_never_goes_on_are_removed_after_a_while(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recipient's disk and from the broker; what came in between is taken."""
    monkeypatch.setattr(engine_over_nats, "PULL_S", 0.3)
    hub, other, one = rig.engine("hub"), rig.engine("client/2"), rig.engine("client/4", spool=tmp_path)
    store, sent = hub._store, list[object]()

    async def dies(*arguments: Any) -> None:
        if len(sent) == 8:
            raise EngineError("killed")
        sent.append(arguments)
        await store(*arguments)

    monkeypatch.setattr(hub, "_store", dies)
    with pytest.raises(EngineError, match="killed"):
        hub.push("client/4", bytes(10 * PART), "1")
    other.push("client/4", b"in between", "2")
    assert bodies(one, 1) == [b"in between"]
    (upload,) = one._assembly.uploads.values()
    assert 0 < len(upload.messages) <= 8
    assert one.pull(0.5) is None
    assert not upload.file.closed, "it may go on"
    monkeypatch.setattr(engine_over_nats, "STALE_S", 0.3)
    ends_s = time.monotonic() + 10
    while not upload.file.closed and time.monotonic() < ends_s:
        assert one.pull(0.2) is None
    assert upload.file.closed
    assert not one._assembly.uploads
    assert not one._held
    again = rig.engine("client/4")
    assert again.pull(0.5) is None
    assert not again._held, "the broker has them no more"


def test_a_sender_that_was_stopped_for_long_begins_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipient may have dropped the parts before. A sleeping machine is told by the wall clock alone."""
    hub, one = rig.engine("hub"), rig.engine("client/5")
    body, store, clock = os.urandom(20 * PART), hub._store, time.time
    slept = 0.0
    monkeypatch.setattr(engine_over_nats.time, "time", lambda: clock() + slept)

    async def sleeps(dst: str, data: bytes, headers: dict[str, str], *more: Any) -> None:
        nonlocal slept
        await store(dst, data, headers, *more)
        slept = 0.51 * engine_over_nats.STALE_S if headers[engine_over_nats.HEADER].split()[1] == "3" else slept

    monkeypatch.setattr(hub, "_store", sleeps)
    with pytest.raises(EngineError, match="interrupted for too long, and begins anew"):
        hub.push("client/5", body, "1")
    hub.push("client/5", body, "1")
    assert bodies(one, 1) == [body]


def test_a_packet_takes_as_long_as_its_parts_take(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow line it takes longer than ``push_s``, within which each of its parts has to be stored."""
    hub, one = rig.engine("hub", push_s=0.5), rig.engine("client/6")
    publish = hub._link.stream.publish

    async def slow(*arguments: Any, **more: Any) -> Any:
        await asyncio.sleep(0.2)
        return await publish(*arguments, **more)

    monkeypatch.setattr(hub._link.stream, "publish", slow)
    body = os.urandom(30 * PART)
    hub.push("client/6", body, "1")
    assert bodies(one, 1) == [body]


# -- a server whose store is another one than it was: new and empty, or put back from a copy --


def give_new_disk(made: Rig) -> None:
    """The server dies, and starts with nothing stored."""
    kill(made.server)
    shutil.rmtree(made.server.listen.store)
    made.server.start()
    made.provision()


@pytest.mark.long
def test_a_server_with_a_new_disk_counts_from_the_start_and_nothing_is_taken_for_done(tmp_path: Path) -> None:
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub, one = made.engine("hub"), made.engine("client/1")
        for number in range(5):
            hub.push("client/1", b"old", f"{number}")
        assert len(drain(one, 5)) == 5
        give_new_disk(made)
        for number in range(5):
            hub.push("client/1", b"new", f"{number}")
        assert [each.body for each in drain(one, 5)] == [b"new"] * 5


def test_packets_that_are_done_after_the_server_has_a_new_disk_take_no_new_ones_with_them(tmp_path: Path) -> None:
    """Two have the numbers that the new ones have: one that is held here, and one that is not handed out yet."""
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub, one = made.engine("hub"), made.engine("client/1")
        for number in range(3):
            hub.push("client/1", b"old", f"{number}")
        held = [one.pull(2)]
        time.sleep(0.3)  # the next ones are fetched ahead
        give_new_disk(made)
        for number in range(3):
            hub.push("client/1", b"new", f"{number}")
        while (came := one.pull(2)) is not None and came.body == b"old":
            held.append(came)
        assert len(held) >= 2
        for each in held:
            assert each is not None
            each.done()
        time.sleep(0.5)
        one.close()
        assert [each.body for each in drain(made.engine("client/1"), 3)] == [b"new"] * 3


def copied(store: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(store, to)


def test_a_store_that_was_put_back_uses_numbers_again_and_no_new_packet_is_taken_for_an_old_one(
    tmp_path: Path,
) -> None:
    """Of the packets that the store lost some were done, one is held, and one is on its way: its parts came in part."""
    with Rig(tmp_path, ("hub", "client/1", "client/2")) as made:
        hub, one, two = (made.engine(name) for name in made.parties)
        store, backup = made.server.listen.store, tmp_path / "backup"
        hub.push("client/1", b"before", "0")
        made.server.stop()
        copied(store, backup)
        made.server.start()
        for number in range(6):
            hub.push("client/1", b"lost %d" % number, f"lost {number}")
        assert [each.body for each in drain(one, 7)] == [b"before", *(b"lost %d" % number for number in range(6))]
        hub.push("client/1", b"held", "held")
        held = one.pull(2)
        interrupted(two, "client/1", 4 * PART)
        assert one.pull(0.3) is None
        kill(made.server)
        copied(backup, store)
        made.server.start()
        new = [(hub, b"new %d" % number) for number in range(6)] + [(two, os.urandom(2 * PART)), (two, b"last")]
        for number, (engine, body) in enumerate(new):
            engine.push("client/1", body, f"new {number}")
            if number == 2:
                assert held is not None
                held.done()
        assert [each.body for each in drain(one, len(new))] == [body for _, body in new]
        one.close()
        assert drain(made.engine("client/1")) == []


def interrupted(engine: NatsEngine, to: str, size: int) -> None:
    """The sender stops before the last part of a packet."""
    store = engine._store

    async def stops(dst: str, data: bytes, headers: dict[str, str], *more: Any) -> None:
        if len(data) < PART or headers[engine_over_nats.HEADER].split()[1] == str(size // PART - 1):
            raise EngineError("the cable is cut")
        await store(dst, data, headers, *more)

    engine._store = stops  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="cable"):
        engine.push(to, bytes(size), "interrupted")
    engine._store = store  # type: ignore[method-assign]


def waits(made: Rig) -> dict[tuple[str, str], int]:
    """By sender and recipient, how many parts of packets are not done."""
    names = {safe(name): name for name in made.parties}
    with closing(Link("operator", made.urls, made.operator, 20.0)) as link:
        found = link.run(link.stream.stream_info(STREAM, subjects_filter="cot.>")).state.subjects or {}
    ends = ((subject.split(".")[1:], count) for subject, count in found.items())
    return {(names[of], names[to]): count for (to, of), count in ends}


# -- what waits at the server is bounded: each pair of parties by itself, and no one takes the room of the others --


def test_a_pair_has_room_for_two_of_the_largest_packets_and_for_a_third_of_all_at_most() -> None:
    assert 2 * parts_of(1 << 30) + 100 < room(1 << 30)
    assert 3 * room(1 << 30) * MESSAGE < STORE


def test_one_that_fills_its_share_stops_no_other(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1", "client/2"), waiting=4)
    made.start()
    try:
        hub, one, flooding = (made.engine(name) for name in made.parties)
        for to in ("hub", "client/1"):
            for number in range(4):
                flooding.push(to, b"x", f"{number}")
            began = time.monotonic()
            with pytest.raises(FullError, match=f"takes no more to {to} at present: maximum") as full:
                flooding.push(to, b"x", "4")
            assert not isinstance(full.value, UndeliverableError)
            assert time.monotonic() - began < 1, "others wait for it"
        hub.push("client/1", b"work", "1")
        one.push("hub", b"done", "1")
        held = {("client/2", "hub"): 4, ("client/2", "client/1"): 4, ("hub", "client/1"): 1, ("client/1", "hub"): 1}
        assert waits(made) == held
        assert [each.body for each in drain(one, 5)] == [b"x"] * 4 + [b"work"]
        assert waits(made) == {("client/2", "hub"): 4, ("client/1", "hub"): 1}
        flooding.push("client/1", b"x", "4")
        assert len(drain(one, 1)) == 1
    finally:
        made.close()


def test_no_message_is_larger_than_a_part_or_the_share_of_a_pair_would_be_larger(tmp_path: Path) -> None:
    with Rig(tmp_path, ("hub", "evil")) as made:
        raw = made.raw("evil")

        async def publish() -> list[str]:
            client = await raw.connect()
            said = []
            for size in (PART, MESSAGE + 1):
                answer = await client.request(f"{SUBJECT}.hub.evil", bytes(size), timeout=60)
                said.append(json.loads(answer.data).get("error", {}).get("description", "stored"))
            await client.close()
            return said

        assert raw.run(publish()) == ["stored", "message size exceeds maximum allowed"]
        assert waits(made) == {("evil", "hub"): 1}


def test_a_server_that_stores_nothing_may_have_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes packets then, and gives no answer (nats-server 2.15.1, until it is started again)."""
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub = made.engine("hub", push_s=0.3)

        async def mute(*_: object, **__: object) -> None:
            raise nats.errors.TimeoutError

        monkeypatch.setattr(hub._link.stream, "publish", mute)
        with pytest.raises(EngineError, match=r"If its disk is full, or was, make room there and start it again"):
            hub.push("client/1", b"x", "k")


def test_the_operator_is_told_what_waits(tmp_path: Path) -> None:
    with live(tmp_path, RunConfig("fedavg", rounds=1), ("hospital-a", "hospital-b")) as deployed:
        for name, count in (("hospital-a", 1), ("hospital-b", 3)):
            home = deployed.homes[name]
            engine = connect(home, plan_of(home))
            for number in range(count):
                engine.push("server", b"x", f"{number}")
            engine.close()
        said = CliRunner().invoke(app, ["deploy", "server", str(deployed.folder.path)])
    assert said.exit_code == 0
    assert said.stdout.splitlines()[-2:] == [
        "From hospital-b to server: 3 parts of packets wait",
        "From hospital-a to server: 1 part of packets waits",
    ]
