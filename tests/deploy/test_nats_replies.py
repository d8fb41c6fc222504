"""A server does not check where a party has its answers sent. Wherever that is, nothing happens to any other party."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats.aio.client import Client
from nats_rig import Rig, drain

from coterie.deploy.engine import PRESENCE, STREAM
from coterie.deploy.nats_link import Link
from coterie.operate.nats_server import OPERATOR

NEXT, RESET = "$JS.API.CONSUMER.MSG.NEXT.COT.evil", "$JS.API.CONSUMER.RESET.COT.evil"
ONE = b'{"batch":1,"no_wait":true}'
OWN = "_INBOX.evil.own"
PARTIES = ("evil", "hub", "honest")  # the first may see who is connected
WAITED_S = 0.05  # an answer has come by then

API = [
    "INFO",
    "ACCOUNT.PURGE.COTERIE",
    "ACCOUNT.STREAM.MOVE.COTERIE.COT",
    "META.LEADER.STEPDOWN",
    "SERVER.REMOVE",
    *(f"STREAM.{act}.COT" for act in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE", "MSG.GET", "INFO", "SNAPSHOT")),
    *(f"STREAM.{act}.COT" for act in ("LEADER.STEPDOWN", "PEER.REMOVE", "RESTORE")),
    "STREAM.CREATE.OTHER",
    "CONSUMER.CREATE.COT.other",
    "CONSUMER.DURABLE.CREATE.COT.other",
    *(f"CONSUMER.{act}.COT.hub" for act in ("DELETE", "PAUSE", "RESET", "UNPIN", "INFO", "MSG.NEXT")),
    "CONSUMER.LEADER.STEPDOWN.COT.hub",
    "DIRECT.GET.COT",
]
WORST = [
    "$JS.API.STREAM.PURGE.COT",
    "$JS.API.CONSUMER.DELETE.COT.hub",
    "$JS.ACK.COT.hub.1.1.1.1.0",
    "cot.hub.honest",
    "_INBOX.hub.spied",
    "$SYS.REQ.SERVER.{server}.RELOAD",
]
REPLIES = [
    *WORST,
    *(f"$JS.API.{request}" for request in API),
    "$JS.FC.COT.hub.1",
    "cot.honest.hub",
    "_INBOX.honest.spied",
    "_INBOX.operator.spied",
    "_R_.x",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "$SYS.REQ.SERVER.PING.CONNZ",
    "$SYS.REQ.SERVER.{server}.KICK",
    "$SYS.ACCOUNT.COTERIE.SERVER.CONNS",
]
PAYLOADS = (
    b"",
    b'{"seq":1}',
    b'{"name":"OTHER","subjects":["other"],"storage":"file","retention":"limits","discard":"old"}',
    b'{"name":"COT","subjects":["cot.*.*"],"storage":"file","retention":"workqueue","discard":"old","max_msgs":1}',
    b'{"stream_name":"COT","config":{"name":"other","durable_name":"other","ack_policy":"explicit",'
    b'"filter_subject":"cot.hub.evil"}}',
    b'{"pause_until":"2099-01-01T00:00:00Z"}',
    b'{"cid":1}',
)
"""What its own packets hold, which the server hands out to where it is told to."""


class Evil:
    """A party that asks for all that it may ask for, and has each answer sent elsewhere."""

    def __init__(self, client: Client) -> None:
        self.client, self.own = client, list[Any]()

    @classmethod
    async def of(cls, rig: Rig) -> Evil:
        found = cls(await rig.raw("evil").connect())
        await found.client.subscribe(OWN, cb=keeping(found.own))
        return found

    async def asks(self, subject: str, body: bytes, reply: str, headers: dict[str, str] | None = None) -> None:
        with suppress(nats.errors.Error):
            await self.client.publish(subject, body, reply=reply, headers=headers)

    async def taken(self) -> str:
        """Where to acknowledge its own next packet, or nothing if it has none."""
        del self.own[:]
        await self.asks(NEXT, ONE, OWN)
        for _ in range(1000):
            if self.own:
                break
            await asyncio.sleep(0.001)
        return str(self.own[0].reply) if self.own else ""

    async def empties(self) -> None:
        while where := await self.taken():
            await self.client.publish(where, b"")

    async def of_nothing(self, reply: str) -> None:
        """It has no packet, and the server says so."""
        await self.empties()
        await self.asks(NEXT, ONE, reply)

    async def of_a_packet(self, reply: str) -> None:
        for body in PAYLOADS:
            await self.asks("cot.evil.evil", body, "")
            await self.asks(NEXT, ONE, reply)

    async def of_a_packet_later(self, reply: str) -> None:
        await self.empties()
        await self.asks(NEXT, b'{"batch":9,"expires":1000000000}', reply)
        for body in PAYLOADS:
            await self.asks("cot.evil.evil", body, "")

    async def of_a_reset(self, reply: str) -> None:
        await self.asks(RESET, b"", reply)

    async def of_a_push(self, reply: str) -> None:
        await self.asks("cot.evil.evil", b"x", reply)

    async def of_an_acknowledgement(self, reply: str) -> None:
        await self.asks("cot.evil.evil", b"x", "")
        await self.client.flush()
        await self.asks(await self.taken(), b"", reply)

    async def of_the_next(self, reply: str) -> None:
        for body in (b"x", b""):
            await self.asks("cot.evil.evil", body, "")
        await self.client.flush()
        await self.asks(await self.taken(), b"+NXT " + ONE, reply)

    async def of_presence(self, reply: str) -> None:
        await self.asks(PRESENCE, b"{}", reply)

    async def of_its_rights(self, reply: str) -> None:
        await self.asks("$SYS.REQ.USER.INFO", b"", reply)

    async def of_a_trace(self, reply: str) -> None:
        """A server tells of the way of a message that asks for it."""
        for only in ("true", "false"):
            await self.asks("cot.evil.evil", b"x", "", {"Nats-Trace-Dest": reply, "Nats-Trace-Only": only})

    @property
    def ways(self) -> list[Callable[[str], Awaitable[None]]]:
        return [getattr(self, name) for name in dir(Evil) if name.startswith("of_")]


def keeping(messages: list[Any]) -> Callable[[Any], Awaitable[None]]:
    """A callback that keeps what it hears."""

    async def keep(message: Any) -> None:
        messages.append(message)

    return keep


def attacked(rig: Rig, replies: list[str]) -> dict[str, list[str]]:
    """What was done to others, by reply subject; nothing if there is nothing to be seen of it."""
    honest, hub = rig.engine("honest"), rig.engine("hub")
    link = Link(OPERATOR, rig.urls, rig.operator, 20)
    harmed = dict[str, list[str]]()

    async def attack() -> None:
        heard, evil = list[Any](), await Evil.of(rig)
        victims = {name: await rig.raw(name).connect() for name in ("hub", "honest")}
        for name, client in victims.items():
            await client.subscribe(f"_INBOX.{name}.>", cb=keeping(heard))
            await client.flush()
        for one in replies:
            reply = one.format(server=evil.client._server_info["server_id"])
            before = await asyncio.to_thread(link.run, state(link))
            for way in evil.ways:
                await way(reply)
            await evil.client.flush()
            await asyncio.sleep(WAITED_S)
            after = await asyncio.to_thread(link.run, state(link))
            if done := [f"{key} is {after.get(key)}" for key in before | after if before.get(key) != after.get(key)]:
                harmed[one] = done
                await asyncio.to_thread(rig.provision)
            if heard:
                harmed[one] = [*harmed.get(one, []), f"{len(heard)} answers are heard by others"]
                heard.clear()
        for client in (evil.client, *victims.values()):
            await client.close()

    try:
        honest.push("hub", b"before", "1")
        asyncio.run(attack())
        honest.push("hub", b"after", "2")
        came = [(each.src, each.body) for each in drain(hub)]
        if came != [("honest", b"before"), ("honest", b"after")]:
            harmed["packets"] = [str(came)]
        if hub.strays:
            harmed["strays"] = [str(hub.strays)]
        if (hub._link.connections, honest._link.connections) != (1, 1):
            harmed["connections"] = ["broken"]
    finally:
        link.close()
    return harmed


async def state(link: Link) -> dict[str, Any]:
    """All that the operator can see of what is not the attacker's own."""
    stream = link.stream
    found: dict[str, Any] = {"streams": sorted(each.config.name or "" for each in await stream.streams_info())}
    with suppress(nats.js.errors.NotFoundError):
        info = await stream.stream_info(STREAM, subjects_filter="cot.>")
        held = {key: count for key, count in (info.state.subjects or {}).items() if not key.endswith(".evil")}
        found |= {"config": info.config, "held": held, "leader": info.cluster and info.cluster.leader}
        for one in await stream.consumers_info(STREAM):
            if one.name != "evil":
                counts = one.num_pending, one.num_ack_pending, one.num_redelivered
                last = [end and end.stream_seq for end in (one.delivered, one.ack_floor)]
                found[f"consumer {one.name}"] = (one.created, one.config, *last, *counts)
    return found


def test_each_way_has_an_answer(rig: Rig) -> None:
    """If it goes to the party's own inbox. Else the other tests would show nothing."""

    async def answered() -> dict[str, int]:
        evil, came, answers = await Evil.of(rig), dict[str, int](), list[Any]()
        await evil.client.subscribe("_INBOX.evil.asked", cb=keeping(answers))
        for way in evil.ways:
            del answers[:]
            for step in range(150):
                if step % 50 == 0:  # asked again: a busy server may have had nothing to hand out yet
                    await way("_INBOX.evil.asked")
                await asyncio.sleep(WAITED_S / 5)
                if answers:
                    break
            came[way.__name__] = len(answers)
        await evil.empties()
        await evil.client.close()
        return came

    assert [way for way, count in asyncio.run(answered()).items() if not count] == ["of_a_trace"]


@pytest.mark.parametrize("replies", [WORST, pytest.param(REPLIES, marks=pytest.mark.long)], ids=["worst", "all"])
def test_no_answer_does_anything_to_others(rig: Rig, replies: list[str]) -> None:
    assert attacked(rig, replies) == {}


@pytest.mark.long
def test_no_answer_does_anything_to_others_in_a_cluster(tmp_path: Path) -> None:
    with Rig(tmp_path, ("evil", "hub", "honest"), servers=3) as made:
        assert attacked(made, REPLIES) == {}
