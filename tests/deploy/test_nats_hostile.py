"""The engine over NATS among parties that keep to no rule."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Raw, Rig, drain

from coterie.deploy.engine import UndeliverableError
from coterie.deploy.nats import HEADER
from coterie.deploy.nats_parts import PART, PacketPart

# --- what the server denies to a party with a certificate of its own


async def denied(evil: Raw, subject: str, reply: str = "") -> bool:
    """Whether the server says that it does not take this."""
    client = await evil.connect()
    before = len(evil.said)
    try:
        await client.publish(subject, b"{}", reply=reply)
        await client.flush()
        await client.flush()
    finally:
        await client.close()
    return any("permissions violation for publish" in said.lower() for said in evil.said[before:])


ALLOWED = ["cot.hub.evil", "cot.evil.evil", "$JS.API.CONSUMER.MSG.NEXT.COT.evil", "$JS.API.CONSUMER.RESET.COT.evil"]
DENIED = [
    "cot.hub.honest",
    "cot.evil.honest",
    "cot.evil.evil.more",
    "cot.hub",
    "_INBOX.honest.x",
    "_INBOX.hub.x.y",
    "$JS.ACK.COT.hub.1.1.1.1.1",
    "$JS.API.CONSUMER.MSG.NEXT.COT.hub",
    "$JS.API.CONSUMER.RESET.COT.hub",
    "$JS.API.CONSUMER.INFO.COT.hub",
    "$JS.API.CONSUMER.CREATE.COT.other.cot.hub.evil",
    "$JS.API.CONSUMER.DURABLE.CREATE.COT.other",
    "$JS.API.CONSUMER.DELETE.COT.hub",
    "$JS.API.CONSUMER.PAUSE.COT.hub",
    "$JS.API.CONSUMER.LIST.COT",
    "$JS.API.STREAM.PURGE.COT",
    "$JS.API.STREAM.DELETE.COT",
    "$JS.API.STREAM.UPDATE.COT",
    "$JS.API.STREAM.CREATE.OTHER",
    "$JS.API.STREAM.MSG.GET.COT",
    "$JS.API.STREAM.MSG.DELETE.COT",
    "$JS.API.STREAM.INFO.COT",
    "$JS.API.DIRECT.GET.COT",
    "$JS.API.INFO",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.PING.CONNZ",
]


def test_a_party_publishes_in_its_own_name_only_and_manages_nothing(rig: Rig) -> None:
    evil = rig.raw("evil")

    async def found() -> tuple[list[str], list[str]]:
        taken = [subject for subject in ALLOWED if await denied(evil, subject)]
        return taken, [subject for subject in DENIED if not await denied(evil, subject)]

    assert evil.run(found()) == ([], [])
    drain(rig.engine("evil"))
    drain(rig.engine("hub"))


def test_a_party_listens_to_its_own_inbox_only(rig: Rig) -> None:
    evil = rig.raw("evil")
    heard: list[bytes] = []

    async def listen(message: object) -> None:
        heard.append(message.data)  # type: ignore[attr-defined]

    async def spy() -> None:
        client = await evil.connect()
        for subject in ("cot.>", "cot.hub.*", "_INBOX.>", "_INBOX.hub.>", "$JS.>", "$SYS.>", ">", "*.*.*"):
            await client.subscribe(subject, cb=listen)
        await client.flush()
        rig_sends()
        await asyncio.sleep(0.1)
        await client.close()

    def rig_sends() -> None:
        honest, hub = rig.engine("honest"), rig.engine("hub")
        honest.push("hub", b"for the hub alone", "spied")
        assert [each.body for each in drain(hub, 1)] == [b"for the hub alone"]

    evil.run(spy())
    assert heard == []
    assert sum("permissions violation for subscription" in said.lower() for said in evil.said) == 8


def test_a_denied_subject_is_an_error_at_once_and_the_engine_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = rig.engine("evil")
    monkeypatch.setattr("coterie.deploy.nats.subject", lambda dst, src: "cot.hub.honest")
    began = time.monotonic()
    with pytest.raises(
        UndeliverableError, match=r"denies evil: permissions violation for publish to \"cot.hub.honest\""
    ):
        evil.push("hub", b"x", "k")
    assert time.monotonic() - began < 2
    monkeypatch.undo()
    evil.push("hub", b"mine", "k")
    assert [(each.src, each.body) for each in drain(rig.engine("hub"), 1)] == [("evil", b"mine")]


def test_no_party_can_have_the_rest_of_anothers_packet_taken_for_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a wrong expectation the server answers with the last identity that it has stored, whoever has sent it."""
    honest, evil, hub = rig.engine("honest"), rig.raw("evil"), rig.engine("hub")
    body, store, told = os.urandom(20 * PART), honest._store, list[str]()

    async def guess() -> None:
        client = await evil.connect()
        wrong = {"Nats-Expected-Last-Msg-Id": "x"}
        answer = await client.request("cot.evil.evil", b"", headers=wrong)
        told.append(json.loads(answer.data)["error"]["description"].removeprefix("wrong last msg ID: "))
        for index in range(20):
            await client.publish("cot.evil.evil", b"", headers={"Nats-Msg-Id": f"{told[0].split('.')[0]}.{index}"})
        await client.flush()
        await client.close()

    async def disturbed(*arguments: Any) -> None:
        if arguments[2][HEADER].split()[1] == "8" and not told:  # of the second window
            await asyncio.to_thread(evil.run, guess())
        await store(*arguments)

    monkeypatch.setattr(honest, "_store", disturbed)
    honest.push("hub", body, "large")
    assert len(told[0]) == 32
    assert [each.body == body for each in drain(hub, 1)] == [True]
    drain(rig.engine("evil"))


def test_what_the_server_tells_of_the_last_packet_names_nobody(rig: Rig) -> None:
    evil, told = rig.raw("evil"), list[str]()

    async def ask() -> None:
        client = await evil.connect()
        answer = await client.request("cot.evil.evil", b"", headers={"Nats-Expected-Last-Msg-Id": "x"})
        told.append(json.loads(answer.data)["error"]["description"].removeprefix("wrong last msg ID: "))
        await client.close()

    rig.engine("honest").push("hub", b"packet", "honest.17.secret")
    evil.run(ask())
    drain(rig.engine("hub"))
    assert len(bytes.fromhex(told[0])) == 16


# --- what a party can send all the same


def published(rig: Rig, *messages: tuple[str, bytes, dict[str, Any]]) -> None:
    """Messages of the party evil, one after the other: subject, body, and its reply subject or headers."""
    evil = rig.raw("evil")

    async def publish() -> None:
        client = await evil.connect()
        for subject, body, options in messages:
            await client.publish(subject, body, **options)
            await client.flush()
        await asyncio.sleep(0.1)
        await client.close()

    evil.run(publish())


def test_a_packet_of_its_own_cannot_be_led_into_anothers_subject(rig: Rig) -> None:
    """``tests/deploy/test_nats_replies.py`` tries all other subjects."""
    hub, body = rig.engine("hub"), b"signed by nobody"
    packet = {"headers": {HEADER: PacketPart("0" * 16, 0, 1, len(body)).text()}}
    ask = ("$JS.API.CONSUMER.MSG.NEXT.COT.evil", b"", {"reply": "cot.hub.honest"})
    published(rig, ("cot.evil.evil", body, packet), ask)
    assert drain(hub) == []
    assert not hub.strays
    drain(rig.engine("evil"))


def sent_raw(rig: Rig, dst: str, messages: list[tuple[bytes, dict[str, str] | None]]) -> None:
    published(rig, *((f"cot.{dst}.evil", body, {"headers": headers}) for body, headers in messages))


def test_random_bytes_by_the_thousand_are_dropped_and_counted(rig: Rig) -> None:
    honest, one = rig.engine("honest"), rig.engine("client/2")
    dice = os.urandom
    wrong = [
        None,
        {HEADER: "x"},
        {HEADER: dice(20).hex()},
        {HEADER: PacketPart("a" * 16, 1, 1, 50).text()},
        {HEADER: PacketPart("a" * 16, 0, 1, 51).text()},
        {HEADER: PacketPart("a" * 16, 0, 3, 50).text()},
        {HEADER: PacketPart("a" * 16, 0, 10**9 - 1, 10**12 - 1).text()},
        {HEADER: f"{'a' * 16} ٠ ١ 50"},
        {HEADER: PacketPart("a" * 16, 0, 2, 2 * PART).text()},
    ]
    sent_raw(rig, "client-2", [(dice(50), wrong[number % len(wrong)]) for number in range(1000)])
    honest.push("client/2", b"sense", "k")
    came = one.pull(20)
    assert came is not None
    came.done()
    assert (came.src, came.body) == ("honest", b"sense")
    assert one.strays == {"no part of a packet": 1000}
    assert drain(rig.engine("client/2")) == [], "what was dropped comes again"


def test_parts_that_contradict_each_other_hold_nothing(rig: Rig) -> None:
    honest, one = rig.engine("honest"), rig.engine("client/3")
    full, two, three = bytes(PART), 2 * PART, 3 * PART

    def part(upload: str, index: int, size: int) -> dict[str, str]:
        return {HEADER: PacketPart(upload * 16, index, size // PART, size).text()}

    messages = [
        (full, part("a", 0, two)),
        (full, part("a", 0, two)),  # twice
        (full, part("a", 1, three)),  # of another size
        *((full, part(upload, 0, three)) for upload in "0123456789"),  # each one gives up the one before
        (full, part("b", 0, two)),
        (full, part("b", 1, two)),
    ]
    sent_raw(rig, "client-3", messages)
    honest.push("client/3", b"sense", "k")
    came = drain(one, 2)
    assert [(each.src, len(each.body)) for each in came] == [("evil", two), ("honest", 5)]
    assert one.strays == {"parts of a packet that was given up": 11, "a part that contradicts the others": 2}
    assert not one._held
    assert not one._assembly.uploads


def test_an_upload_of_one_does_not_touch_that_of_another(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, one = rig.engine("honest"), rig.engine("client/4")
    body, store, sent = os.urandom(5 * PART), honest._store, 0

    async def disturbed(*arguments: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            headers = {HEADER: PacketPart(f"{sent:016x}", 0, 4, 4 * PART).text()}
            await asyncio.to_thread(sent_raw, rig, "client-4", [(bytes(PART), headers)])
        await store(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(honest, "_store", disturbed)
    honest.push("client/4", body, "k")
    assert [(each.src, each.body) for each in drain(one)] == [("honest", body)]
