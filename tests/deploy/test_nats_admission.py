"""The engine over NATS for parties that are not admitted, or no longer, and in front of servers that are not ours."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

import pytest
from nats_rig import PARTIES, Rig, drain

from benchmarks.engines import Authority, pin, reload
from coterie.deploy.engine import OWN_RIGHTS, EngineError, NotAdmittedError, Tls, UndeliverableError
from coterie.deploy.engines import check_apart
from coterie.deploy.nats import NatsEngine
from coterie.operate import nats_server
from coterie.operate.doctor import _apart
from coterie.operate.nats_server import configuration, free_port
from coterie.protocol.errors import RunError


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.nats_link.AGAIN_S", 0.05)


# --- who is not admitted


def refused(rig: Rig, tls: Tls, match: str, error: type[EngineError] = NotAdmittedError) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        NatsEngine("client/5", rig.urls, tls, PARTIES, connect_s=1.0)
    assert type(raised.value) is error
    assert time.monotonic() - began < 6


def test_certificates_that_are_not_of_this_federation_are_refused(rig: Rig, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign").tls("client/5")
    refused(rig, Tls(foreign.certificate, foreign.key, rig.authority.path), "the server refuses the certificate")
    refused(rig, rig.authority.tls("client/5", now_s=time.time() - 40 * 86400), "the server refuses the certificate")
    refused(rig, rig.authority.tls("client/5"), "each connection ends", EngineError)  # not the key that was approved
    refused(rig, rig.authority.tls("client/99"), "each connection ends", EngineError)


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_server_speaks_tls_1_3_only(rig: Rig, version: ssl.TLSVersion) -> None:
    """Also to a party that would take less."""
    context = ssl.create_default_context(cafile=str(rig.authority.path))
    context.load_cert_chain(rig.tls["honest"].certificate, rig.tls["honest"].key)
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", rig.server.listen.port), timeout=60) as raw:
        if version == ssl.TLSVersion.TLSv1_3:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
                assert tls.recv(4) == b"INFO"
        else:
            with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
                context.wrap_socket(raw, server_hostname="127.0.0.1")


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
                NatsEngine("client/5", [url], rig.tls["client/5"], PARTIES, connect_s=0.4)
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
        assert [each.body for each in drain(engine, 1)] == [b"x"]
        engine.close()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


def test_no_server_is_a_clear_error(rig: Rig) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(EngineError, match=f"no connection to {url}.*(refused|Connect call failed)"):
        NatsEngine("client/5", [url], rig.tls["client/5"], PARTIES, connect_s=0.4)
    assert time.monotonic() - began < 3


def test_a_server_that_goes_away_is_an_error_of_push_and_nothing_for_pull(tmp_path: Path) -> None:
    with Rig(tmp_path, ("hub", "client/1")) as made:
        hub = made.engine("hub", push_s=0.4)
        made.server.stop()
        assert hub.pull(0.2) is None
        with pytest.raises(EngineError, match=r"no connection to nats://127\.0\.0\.1:\d+"):
            hub.push("client/1", b"", "k")
        made.server.start()
        hub.push("client/1", b"", "k")
        assert len(drain(made.engine("client/1"), 1)) == 1


def test_without_a_stream_there_is_a_clear_error(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    made.server.start()
    try:
        with pytest.raises(EngineError, match="coterie deploy server DIR makes it"):
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
    reload(rig.server, rig.access)
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
    assert [each.body for each in drain(stays, 1)] == [b"next round"]


def test_a_party_that_is_enrolled_again_is_admitted_by_its_new_key_alone(rig: Rig) -> None:
    hub = rig.engine("hub")
    old, new = rig.engine("client/6"), rig.authority.tls("client/6")
    hub.push("client/6", b"waits", "k")
    rig.access = replace(rig.access, parties={**rig.access.parties, "client/6": pin(new)})
    reload(rig.server, rig.access)
    rig.provision()
    assert "the certificate was replaced" in cut_off(old)
    assert [each.body for each in drain(rig.engine("client/6", tls=new), 1)] == [b"waits"]
    assert hub._link.connections == 1


def test_a_member_that_joins_later_is_admitted_when_the_server_has_read_its_configuration_once(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    everybody, made.access = made.access, made.admitting(["hub"])
    made.server.access = made.access
    with made:
        hub = made.engine("hub")
        made.access = everybody
        reload(made.server, made.access)
        made.provision()
        late = made.engine("client/1")
        late.push("hub", b"here", "k")
        hub.push("client/1", b"good", "k")
        assert [[each.body for each in drain(one)] for one in (hub, late)] == [[b"here"], [b"good"]]
        assert hub._link.connections == 1
        assert set(hub.nodes()) == {"hub", "client/1"}


# -- several servers of the broker: who may be one of them --


def heard_as_server(rig: Rig, tls: Tls, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """What a server of a cluster says first to another that shows this certificate; nothing if it is not taken."""
    cluster = rig.server.listen.cluster
    assert cluster is not None
    context = tls.context()
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = version
    heard = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", cluster.port), 5) as plain,
        context.wrap_socket(plain) as talk,
    ):
        heard = talk.recv(6)
    return heard


def test_no_party_is_a_server_of_the_cluster(tmp_path: Path) -> None:
    """A party's certificate is of the same authority. A server of the cluster would see and send everything."""
    made = Rig(tmp_path, ("hub", "evil"), servers=2)
    server = made.server
    server.start()
    try:
        own = Tls(server.listen.certificate, server.listen.key, server.listen.authority)
        assert heard_as_server(made, own) == b"INFO {"
        assert heard_as_server(made, own, ssl.TLSVersion.TLSv1_2) == b""
        for stranger in (made.tls["evil"], made.operator, made.authority.tls("engine", ["127.0.0.1"])):
            assert heard_as_server(made, stranger) == b""
    finally:
        server.stop()


# --- a machine on the line that ends or spoils connections: no answer of the broker


class Line:
    """A machine between parties and the server. It cuts a connection when TLS has begun, or changes a byte there.

    cuts: how many connections more.  garbles: it changes a byte in the party's certificate instead.
    """

    def __init__(self, port: int, cuts: int, *, garbles: bool = False) -> None:
        self.cuts, self.port, self.garbles, self.passed = cuts, port, garbles, list[socket.socket]()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection(("127.0.0.1", self.port))
                if self.cuts > 0:
                    self.cuts -= 1
                    self._spoil(here, there)
                else:
                    self.passed += [here, there]
                    for ends in ((here, there), (there, here)):
                        threading.Thread(target=_forward, args=ends, daemon=True).start()

    def _spoil(self, here: socket.socket, there: socket.socket) -> None:
        with here, there, contextlib.suppress(OSError):
            there.sendall(here.recv(1 << 16))
            while here not in (ready := select.select([here, there], [], [], 5)[0]) and ready:
                here.sendall(there.recv(1 << 16))
            said = bytearray(here.recv(1 << 16))  # the party has seen the server's certificate, and shows its own
            if self.garbles and said:
                said[-1] ^= 1
                there.sendall(said)
                while data := there.recv(1 << 16):
                    here.sendall(data)

    def cut(self, more: int) -> None:
        self.cuts = more
        for end in self.passed:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_connections_that_are_cut_when_tls_has_begun_are_made_again(rig: Rig) -> None:
    """More often than four times, at the start and later. A revoked key was believed to look like this."""
    line = Line(rig.server.listen.port, 6)
    one = NatsEngine("client/5", [line.url], rig.tls["client/5"], PARTIES)
    try:
        one.push("hub", b"here", "1")
        line.cut(7)
        with pytest.raises(EngineError, match="each connection ends at once, without a word") as error:
            one.pull(20)
        assert type(error.value) is EngineError
        rig.engine("hub").push("client/5", b"still", "2")
        came, ends_s = None, time.monotonic() + 30
        while came is None and time.monotonic() < ends_s:
            with contextlib.suppress(EngineError):  # told at each further cut
                came = one.pull(1)
        assert came is not None
        assert (came.body, line.cuts) == (b"still", 0)
    finally:
        one.close()


def test_it_tries_seldom_where_connections_end_without_a_word(rig: Rig) -> None:
    line = Line(rig.server.listen.port, 1000)
    with pytest.raises(EngineError, match="each connection ends at once") as error:
        NatsEngine("client/5", [line.url], rig.tls["client/5"], PARTIES, connect_s=1.5)
    assert type(error.value) is EngineError
    assert 4 < 1000 - line.cuts < 12  # .05 s after each of the first four, then twice as long each time


def test_an_alert_that_a_changed_byte_brings_about_is_no_refusal(rig: Rig) -> None:
    """The server signs it, and anybody on the line can make it say this."""
    line = Line(rig.server.listen.port, 1000, garbles=True)
    with pytest.raises(EngineError) as error:
        NatsEngine("client/5", [line.url], rig.tls["client/5"], PARTIES, connect_s=0.5)
    assert type(error.value) is EngineError
    assert line.cuts < 999


# --- a configuration of an earlier version, in which members share an account


def earlier(*about: Any) -> str:
    """The configuration with all users in the account of the stream, and no question about rights."""
    lines = configuration(*about).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("accounts: ")]
    users = [user for one in json.loads(lines[at].removeprefix("accounts: ")).values() for user in one.get("users", ())]
    for user in users:
        allowed = user["permissions"]["publish"]["allow"]
        user["permissions"]["publish"]["allow"] = [one for one in allowed if one != OWN_RIGHTS]
    lines[at] = "accounts: " + json.dumps({"COTERIE": {"jetstream": "enabled", "users": users}})
    return "\n".join(lines) + "\n"


def home(rig: Rig, name: str) -> Any:
    return SimpleNamespace(name=name, path="H", server=",".join(rig.urls), tls=rig.tls[name])


def test_a_broker_whose_members_share_an_account_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_server, "configuration", earlier)
    with Rig(tmp_path, ("hub", "client/1")) as made:
        with pytest.raises(RunError, match=r"any member can delete what waits there\. Run coterie deploy server DIR"):
            check_apart(home(made, "client/1"))
        [found] = _apart(home(made, "client/1"), check_apart)
        assert found.level == "problem"


def test_the_own_configuration_keeps_members_apart(rig: Rig) -> None:
    check_apart(home(rig, "hub"))
    [found] = _apart(home(rig, "client/1"), check_apart)
    assert found.level == "ok"


def test_a_broker_that_cannot_be_asked_is_a_warning(tmp_path: Path) -> None:
    made = Rig(tmp_path, ("hub", "client/1"))
    with pytest.raises(EngineError, match="no connection"):
        check_apart(home(made, "hub"), connect_s=0.5)
    [found] = _apart(home(made, "hub"), lambda one: check_apart(one, connect_s=0.5))
    assert (found.level, found.text[:27]) == ("warning", "the broker cannot be asked:")
