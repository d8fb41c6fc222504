"""The engine over NATS among parties that keep to no rule, and for parties that are not admitted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Authority, Raw, Rig, drain, pin

from coterie.deploy.engine import EngineError, NotAdmittedError, UndeliverableError
from coterie.deploy.nats import HEADER, NatsEngine
from coterie.deploy.nats_parts import PART, Part
from coterie.deploy.nats_server import Access, Tls, free_port

PARTIES = ("hub", "honest", "evil", *(f"client/{number}" for number in range(1, 9)))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("nats"), PARTIES)
    made.start()
    yield made
    made.close()


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
    "$SYS.REQ.USER.INFO",
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
        assert [each.body for each in drain(hub)] == [b"for the hub alone"]

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
    assert [(each.src, each.body) for each in drain(rig.engine("hub"))] == [("evil", b"mine")]


def test_no_party_can_have_anothers_packet_taken_for_one_that_is_known(rig: Rig) -> None:
    """An identity is stored once for all parties, so one that another could guess would suppress the packet."""
    honest, evil = rig.engine("honest"), rig.engine("evil")
    evil.push("hub", b"evil", "round 1")
    evil._identity = bytes(32)
    evil.push("hub", b"evil", "round 1")
    honest.push("hub", b"honest", "round 1")
    assert [each.body for each in drain(rig.engine("hub"))] == [b"evil", b"evil", b"honest"]


# --- what a party can send all the same


def test_a_reply_that_leads_into_anothers_subject_reaches_nobody(rig: Rig) -> None:
    """The server does not check reply subjects: its own answer can be led to the hub as if it were honest's."""
    evil, hub = rig.raw("evil"), rig.engine("hub")

    async def lead() -> None:
        client = await evil.connect()
        await client.publish("cot.client-1.evil", b"x", reply="cot.hub.honest")
        await client.flush()
        await client.publish("$JS.API.CONSUMER.RESET.COT.evil", b"", reply="cot.hub.honest")
        await client.flush()
        await asyncio.sleep(0.1)
        await client.close()

    evil.run(lead())
    assert drain(hub) == []
    assert hub.strays["no part of a packet"] >= 1


def test_a_packet_of_its_own_cannot_be_led_into_anothers_subject(rig: Rig) -> None:
    """What a consumer hands out keeps its subject, wherever it is led. (Packets are signed all the same.)"""
    evil, hub = rig.raw("evil"), rig.engine("hub")
    body = b"signed by nobody"

    async def lead() -> None:
        client = await evil.connect()
        await client.publish("cot.evil.evil", body, headers={HEADER: Part("0" * 16, 0, 1, len(body)).text()})
        await client.flush()
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.COT.evil", b"", reply="cot.hub.honest")
        await client.flush()
        await asyncio.sleep(0.1)
        await client.close()

    evil.run(lead())
    assert drain(hub) == []
    drain(rig.engine("evil"))


def sent_raw(rig: Rig, dst: str, messages: list[tuple[bytes, dict[str, str] | None]]) -> None:
    evil = rig.raw("evil")

    async def send() -> None:
        client = await evil.connect()
        for body, headers in messages:
            await client.publish(f"cot.{dst}.evil", body, headers=headers)
        await client.flush()
        await asyncio.sleep(0.05)
        await client.close()

    evil.run(send())


def test_random_bytes_by_the_thousand_are_dropped_and_counted(rig: Rig) -> None:
    honest, one = rig.engine("honest"), rig.engine("client/2")
    dice = os.urandom
    wrong = [
        None,
        {HEADER: "x"},
        {HEADER: dice(20).hex()},
        {HEADER: Part("a" * 16, 1, 1, 50).text()},
        {HEADER: Part("a" * 16, 0, 1, 51).text()},
        {HEADER: Part("a" * 16, 0, 3, 50).text()},
        {HEADER: Part("a" * 16, 0, 10**9 - 1, 10**12 - 1).text()},
        {HEADER: f"{'a' * 16} ٠ ١ 50"},
        {HEADER: Part("a" * 16, 0, 2, 2 * PART).text()},
    ]
    sent_raw(rig, "client-2", [(dice(50), wrong[number % len(wrong)]) for number in range(1000)])
    honest.push("client/2", b"sense", "k")
    came = one.pull(20)
    assert came is not None
    came.done()
    assert (came.src, came.body) == ("honest", b"sense")
    assert one.strays == {"no part of a packet": 1000}
    assert drain(rig.engine("client/2"), 0.2) == [], "what was dropped comes again"


def test_parts_that_contradict_each_other_hold_nothing(rig: Rig) -> None:
    honest, one = rig.engine("honest"), rig.engine("client/3")
    full, two, three = bytes(PART), 2 * PART, 3 * PART

    def part(upload: str, index: int, size: int) -> dict[str, str]:
        return {HEADER: Part(upload * 16, index, size // PART, size).text()}

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
    came = drain(one, 0.5)
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
            headers = {HEADER: Part(f"{sent:016x}", 0, 4, 4 * PART).text()}
            await asyncio.to_thread(sent_raw, rig, "client-4", [(bytes(PART), headers)])
        await store(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(honest, "_store", disturbed)
    honest.push("client/4", body, "k")
    assert [(each.src, each.body) for each in drain(one)] == [("honest", body)]


# --- who is not admitted


def refused(rig: Rig, tls: Tls, match: str, error: type[EngineError] = NotAdmittedError) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        NatsEngine("client/5", rig.urls, tls, PARTIES)
    assert type(raised.value) is error
    assert time.monotonic() - began < 6


def test_certificates_that_are_not_of_this_federation_are_refused(rig: Rig, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign").tls("client/5")
    refused(rig, Tls(foreign.certificate, foreign.key, rig.authority.path), "ends each connection|refuses the cert")
    refused(rig, rig.authority.tls("client/5", now_s=time.time() - 40 * 86400), "ends each connection|refuses the cert")
    refused(rig, rig.authority.tls("client/5"), "ends each connection|does not admit")  # not the key that was approved
    refused(rig, rig.authority.tls("client/99"), "ends each connection|does not admit")


def test_a_server_of_another_authority_is_refused(rig: Rig, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    own = rig.tls["client/5"]
    refused(rig, Tls(own.certificate, own.key, other.path), "the server's certificate is refused: ", EngineError)


def test_files_that_are_missing_or_do_not_fit_are_named(rig: Rig, tmp_path: Path) -> None:
    own = rig.tls["client/5"]
    refused(rig, Tls(own.certificate, tmp_path / "no.key", own.authority), "no.key", EngineError)
    refused(rig, Tls(own.certificate, rig.tls["hub"].key, own.authority), "TLS cannot be set up", EngineError)


def test_no_certificate_no_connection(rig: Rig) -> None:
    context = ssl.create_default_context(cafile=str(rig.authority.path))
    with socket.create_connection(("127.0.0.1", rig.server.listen.port), timeout=5) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
                heard = tls.recv(100)  # with TLS 1.3 the client believes for a while that it is connected
        except OSError:
            heard = b""
    assert heard == b""


def test_a_users_certificate_is_no_servers(rig: Rig, tmp_path: Path) -> None:
    """A party that plays the server to another, with its own certificate."""
    evil = rig.tls["evil"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(evil.certificate, evil.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve_tls, args=(listener, context), daemon=True).start()
        own = rig.tls["client/5"]
        with pytest.raises(EngineError, match="the server's certificate is refused"):
            NatsEngine("client/5", [f"nats://127.0.0.1:{listener.getsockname()[1]}"], own, PARTIES, connect_s=5)


def _serve_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(taken, server_side=True):
                pass


def test_nothing_is_ever_said_without_tls(rig: Rig) -> None:
    """A machine in between that says "no TLS here" hears nothing but the beginning of TLS."""
    heard: list[bytes] = []
    info = json.dumps({"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True})
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken, _ = listener.accept()
                    with taken:
                        taken.sendall(f"INFO {info}\r\n".encode())
                        taken.settimeout(1)
                        heard.append(taken.recv(1 << 16))

        threading.Thread(target=play, daemon=True).start()
        for scheme in ("nats://", ""):
            url = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(EngineError):
                NatsEngine("client/5", [url], rig.tls["client/5"], PARTIES, connect_s=1)
    said = [each for each in heard if each]
    assert said
    assert all(each[:1] == b"\x16" and b"CONNECT" not in each for each in said)


def test_a_connection_that_is_cut_while_tls_begins_is_made_again(rig: Rig) -> None:
    """As when the server dies at that moment. The client library alone waits for the end of the old one for ever."""
    cuts = 3
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            with contextlib.suppress(OSError):
                for _ in range(cuts):
                    taken, _ = listener.accept()
                    taken.recv(1 << 16)
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    taken.close()
                taken, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", rig.server.listen.port))
                threading.Thread(target=_forward, args=(taken, server), daemon=True).start()
                _forward(server, taken)

        threading.Thread(target=play, daemon=True).start()
        own, url = rig.tls["client/5"], f"nats://127.0.0.1:{listener.getsockname()[1]}"
        engine = NatsEngine("client/5", [url], own, PARTIES)
        assert engine.pull(0.1) is None
        engine.push("client/5", b"x", "k")
        assert [each.body for each in drain(engine)] == [b"x"]
        engine.close()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


def test_no_server_is_a_clear_error(rig: Rig) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(EngineError, match=f"no connection to {url}.*(refused|Connect call failed)"):
        NatsEngine("client/5", [url], rig.tls["client/5"], PARTIES, connect_s=1)
    assert time.monotonic() - began < 3


def test_a_server_that_goes_away_is_an_error_of_push_and_nothing_for_pull(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    made.start()
    try:
        hub = made.engine("hub", push_s=1.0)
        made.server.stop()
        assert hub.pull(0.2) is None
        with pytest.raises(EngineError, match=r"no connection to nats://127\.0\.0\.1:\d+"):
            hub.push("client/1", b"", "k")
        made.server.start()
        hub.push("client/1", b"", "k")
        assert len(drain(made.engine("client/1"))) == 1
    finally:
        made.close()


def test_without_a_stream_there_is_a_clear_error(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    made.server.start()
    try:
        with pytest.raises(EngineError, match="no stream takes packets to client/1"):
            made.engine("hub").push("client/1", b"", "k")
    finally:
        made.close()


# --- revoked, and enrolled again


def cut_off(engine: NatsEngine) -> str:
    """Why an engine gives up, within ten seconds."""
    for _ in range(100):
        try:
            engine.pull(0.1)
        except EngineError as error:
            return str(error)
    return "it goes on"


def test_a_party_that_is_revoked_is_cut_off_within_seconds_and_the_others_go_on(rig: Rig) -> None:
    hub, gone, stays = rig.engine("hub"), rig.engine("client/7"), rig.engine("client/8")
    hub.push("client/7", b"never read", "k")
    gone.push("hub", b"before", "k")
    rig.access = rig.admitting([name for name in PARTIES if name != "client/7"])
    began = time.monotonic()
    rig.server.reload(rig.access)
    assert "revoked" in cut_off(gone)
    assert time.monotonic() - began < 5
    with pytest.raises(NotAdmittedError, match="revoked"):
        gone.push("hub", b"after", "k2")
    with pytest.raises(NotAdmittedError, match="revoked"):
        rig.engine("client/7", connect_s=5)
    rig.provision()
    hub._present = None
    assert "client/7" not in hub.nodes()
    assert hub._link.connections == stays._link.connections == 1, "others were cut off"
    assert drain(hub) == [], "what came from it is gone"
    with pytest.raises(UndeliverableError, match="no stream takes packets to client/7"):
        hub.push("client/7", b"", "k3")
    hub.push("client/8", b"next round", "k")
    assert [each.body for each in drain(stays)] == [b"next round"]


def test_a_party_that_is_enrolled_again_is_admitted_by_its_new_key_alone(rig: Rig) -> None:
    hub = rig.engine("hub")
    old, new = rig.engine("client/6"), rig.authority.tls("client/6")
    hub.push("client/6", b"waits", "k")
    rig.access = Access({**rig.access.parties, "client/6": pin(new)}, rig.access.watchers, rig.access.operator)
    rig.server.reload(rig.access)
    rig.provision()
    assert "revoked or replaced" in cut_off(old)
    assert [each.body for each in drain(rig.engine("client/6", tls=new))] == [b"waits"]
    assert hub._link.connections == 1
