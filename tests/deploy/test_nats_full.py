"""What waits at the server is bounded: each pair of parties by itself, and no one takes the room of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

import nats.errors
from live_deployment import live
from nats_rig import Rig, drain
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.engine import EngineError, FullError
from coterie.deploy.engines import connect
from coterie.deploy.home import plan_of
from coterie.deploy.nats_names import SUBJECT
from coterie.deploy.nats_parts import MESSAGE, PART, parts_of
from coterie.deploy.nats_stream import STORE, WAITING, waits
from coterie.runs.config import RunConfig


def test_a_pair_has_room_for_two_of_the_largest_packets_and_for_a_third_of_all_at_most() -> None:
    assert 2 * parts_of(1 << 30) + 100 < WAITING
    assert 3 * WAITING * MESSAGE < STORE


def test_one_that_fills_its_share_stops_no_other(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1", "client/2"), waiting=4)
    made.start()
    try:
        hub, one, flooding = (made.engine(name) for name in made.parties)
        for to in ("hub", "client/1"):
            for number in range(4):
                flooding.push(to, b"x", f"{number}")
            with pytest.raises(FullError):
                flooding.push(to, b"x", "4")
        hub.push("client/1", b"work", "1")
        one.push("hub", b"done", "1")
        held = {("client/2", "hub"): 4, ("client/2", "client/1"): 4, ("hub", "client/1"): 1, ("client/1", "hub"): 1}
        assert waits(made.urls, made.operator, made.parties) == held
        assert [each.body for each in drain(one)] == [b"x"] * 4 + [b"work"]
        assert waits(made.urls, made.operator, made.parties) == {("client/2", "hub"): 4, ("client/1", "hub"): 1}
    finally:
        made.close()


def test_no_message_is_larger_than_a_part_or_the_share_of_a_pair_would_be_larger(tmp_path: Path) -> None:
    with Rig(tmp_path, ("hub", "evil")) as made:
        raw = made.raw("evil")

        async def publish() -> list[str]:
            client = await raw.connect()
            said = []
            for size in (PART, MESSAGE + 1):
                answer = await client.request(f"{SUBJECT}.hub.evil", bytes(size), timeout=5)
                said.append(json.loads(answer.data).get("error", {}).get("description", "stored"))
            await client.close()
            return said

        assert raw.run(publish()) == ["stored", "message size exceeds maximum allowed"]
        assert waits(made.urls, made.operator, made.parties) == {("evil", "hub"): 1}


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
