"""The engine over NATS where parts of packets cannot be stored, never become a packet, or take long."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig, drain

from coterie.deploy import nats as engine_over_nats
from coterie.deploy.engine import EngineError
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_parts import PART, Assembly, PacketPart, Stored

PARTIES = ("hub", *(f"client/{number}" for number in range(1, 8)))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("nats"), PARTIES)
    made.start()
    yield made
    made.close()


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
    hub, one = rig.engine("hub"), rig.engine("client/3", spool=tmp_path)
    body = os.urandom(2 * PART)
    hub.push("client/3", body, "1")
    with full_after(PART // 2), pytest.raises(EngineError, match="cannot store"):
        one.pull(5.0)
    assert one._pulls is not None
    asked = one._resets, one._pulls._requests
    assert one.pull(1.0) is None
    assert (one._resets, one._pulls._requests) == asked
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
    hub, other, one = rig.engine("hub"), rig.engine("client/2"), rig.engine("client/4", spool=tmp_path)
    store, sent = hub._store, list[object]()

    async def dies(*arguments: Any) -> None:
        if len(sent) == engine_over_nats.WINDOW:
            raise EngineError("killed")
        sent.append(arguments)
        await store(*arguments)

    monkeypatch.setattr(hub, "_store", dies)
    with pytest.raises(EngineError, match="killed"):
        hub.push("client/4", bytes(10 * PART), "1")
    other.push("client/4", b"in between", "2")
    assert bodies(one, 1) == [b"in between"]
    (upload,) = one._assembly.uploads.values()
    assert len(upload.messages) == engine_over_nats.WINDOW
    assert one.pull(2.5) is None
    assert not upload.file.closed, "it may go on"
    monkeypatch.setattr(engine_over_nats, "STALE_S", 1.0)
    assert one.pull(2.5) is None
    assert upload.file.closed
    assert not one._assembly.uploads
    assert not one._held
    again = rig.engine("client/4")
    assert again.pull(1.0) is None
    assert not again._held, "the broker has them no more"


def test_a_sender_that_was_stopped_for_long_begins_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipient may have dropped the parts before. A sleeping machine is told by the wall clock alone."""
    hub, one = rig.engine("hub"), rig.engine("client/5")
    body, store, clock = os.urandom(20 * PART), hub._store, time.time
    slept = 0.0
    monkeypatch.setattr(engine_over_nats.time, "time", lambda: clock() + slept)

    async def sleeps(dst: str, data: bytes, headers: dict[str, str], fresh_s: float) -> None:
        nonlocal slept
        await store(dst, data, headers, fresh_s)
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
