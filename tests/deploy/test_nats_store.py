"""A server whose store is another one than it was: new and empty, or put back from a copy."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig, drain

from coterie.deploy import nats as engine_over_nats
from coterie.deploy.engine import EngineError
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_parts import PART


def give_new_disk(made: Rig) -> None:
    """The server dies, and starts with nothing stored."""
    made.server.kill()
    shutil.rmtree(made.server.listen.store)
    made.server.start()
    made.provision()


def test_a_server_with_a_new_disk_counts_from_the_start_and_nothing_is_taken_for_done(tmp_path: Path) -> None:
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub, one = made.engine("hub"), made.engine("client/1")
        for number in range(5):
            hub.push("client/1", b"old", f"{number}")
        assert len(drain(one)) == 5
        give_new_disk(made)
        for number in range(5):
            hub.push("client/1", b"new", f"{number}")
        assert [each.body for each in drain(one, 1.5)] == [b"new"] * 5


def test_packets_that_are_done_after_the_server_has_a_new_disk_take_no_new_ones_with_them(tmp_path: Path) -> None:
    """Two have the numbers that the new ones have: one that is held here, and one that is not handed out yet."""
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub, one = made.engine("hub"), made.engine("client/1")
        for number in range(3):
            hub.push("client/1", b"old", f"{number}")
        held = [one.pull(2)]
        time.sleep(0.5)  # the next ones are fetched ahead
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
        assert [each.body for each in drain(made.engine("client/1"), 1.5)] == [b"new"] * 3


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
        assert [each.body for each in drain(one)] == [b"before", *(b"lost %d" % number for number in range(6))]
        hub.push("client/1", b"held", "held")
        held = one.pull(2)
        interrupted(two, "client/1", 4 * PART)
        assert one.pull(1) is None
        made.server.kill()
        copied(backup, store)
        made.server.start()
        new = [(hub, b"new %d" % number) for number in range(6)] + [(two, os.urandom(2 * PART)), (two, b"last")]
        for number, (engine, body) in enumerate(new):
            engine.push("client/1", body, f"new {number}")
            if number == 2:
                assert held is not None
                held.done()
        assert [each.body for each in drain(one, 2)] == [body for _, body in new]
        one.close()
        assert drain(made.engine("client/1"), 1) == []


def interrupted(engine: NatsEngine, to: str, size: int) -> None:
    """The sender stops before the last part of a packet."""
    store = engine._store

    async def stops(dst: str, data: bytes, headers: dict[str, str], fresh_s: float) -> None:
        if len(data) < PART or headers[engine_over_nats.HEADER].split()[1] == str(size // PART - 1):
            raise EngineError("the cable is cut")
        await store(dst, data, headers, fresh_s)

    engine._store = stops  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="cable"):
        engine.push(to, bytes(size), "interrupted")
    engine._store = store  # type: ignore[method-assign]
