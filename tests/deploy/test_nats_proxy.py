"""A party that may leave its network by HTTPS alone: through a proxy to a server at port 443, with all its rights."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig, drain
from proxy import Proxy

from benchmarks.engines import kill, reload, servers_in
from coterie.deploy.engine import Access, EngineError, NotAdmittedError, Tls, UndeliverableError
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link
from coterie.operate import nats_server
from coterie.operate.nats_server import Listen, free_port

HOST = "broker.example.org"
URL = f"nats://{HOST}:443"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Rig(tmp_path, ("hub", "client/1"))
    own = made.authority.tls("engine", [HOST, "127.0.0.1"])
    made.servers = servers_in(tmp_path, 1, own, made.access)
    with made:
        yield made


@pytest.fixture
def proxy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy(HOST, rig.server.listen.port, "ward:7 %")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ward:7%20%25@{made.address}")
    yield made
    made.close()


def far(rig: Rig, name: str, tls: Tls | None = None, url: str = URL, connect_s: float = 10) -> NatsEngine:
    made = NatsEngine(name, [url], tls or rig.tls[name], rig.parties, connect_s=connect_s)
    rig.engines.append(made)
    return made


def test_packets_pass_a_proxy_both_ways_and_after_the_server_was_killed(rig: Rig, proxy: Proxy) -> None:
    """The hub is beside the server, and needs no proxy."""
    hub, one = rig.engine("hub"), far(rig, "client/1")
    body = os.urandom(3_000_000)
    hub.push("client/1", body, "down")
    one.push("hub", body, "up")
    assert [each.body for each in drain(one, 1)] == [body]
    assert [each.body for each in drain(hub, 1)] == [body]
    assert "client/1" in hub.nodes()
    assert proxy.said == [f"CONNECT {HOST}:443 HTTP/1.1"]
    kill(rig.server)
    rig.server.start()
    one.push("hub", b"again", "again")
    assert [each.body for each in drain(hub, 1)] == [b"again"]
    assert len(proxy.said) >= 2


def test_rights_are_the_same_behind_a_proxy(rig: Rig, proxy: Proxy) -> None:
    one = far(rig, "client/1")
    one._link.run(one._link.client.publish("cot.hub.hub", b"as another"))
    with pytest.raises(UndeliverableError, match="denies client-1"):
        one.pull(5)
    another_key = rig.authority.tls("client/1")
    with pytest.raises(EngineError, match="each connection ends"):
        far(rig, "client/1", another_key, connect_s=1.0)
    reload(rig.server, rig.admitting(["hub"]))
    with pytest.raises(NotAdmittedError):
        one.pull(20)


def test_an_alert_that_nobody_has_signed_is_no_refusal_for_good(rig: Rig) -> None:
    """Anybody on the line can write it. A party that is not admitted ends with exit code 2, and no service manager
    starts it again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def alert() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = server.accept()
                    with line:
                        line.recv(1 << 12)
                        line.sendall(bytes.fromhex("1503030002022a"))  # bad_certificate

        threading.Thread(target=alert, daemon=True).start()
        with pytest.raises(EngineError, match="TLS does not begin: SSLV3_ALERT_BAD_CERTIFICATE") as error:
            Link("client-1", [f"nats://127.0.0.1:{server.getsockname()[1]}"], rig.authority.tls("client/1"), 0.5)
        assert not isinstance(error.value, NotAdmittedError)


def test_a_proxy_that_refuses_says_why_and_no_password_is_shown(
    rig: Rig, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://ward:wrong@{proxy.address}")
    with pytest.raises(EngineError, match=r"the proxy 127\.0\.0\.1 does not let it through: 'HTTP/1\.1 407") as refused:
        far(rig, "client/1", connect_s=1)
    assert "wrong" not in str(refused.value)
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(EngineError, match="HTTPS_PROXY is a proxy of kind socks5: name one as http://host:port"):
        far(rig, "client/1", connect_s=1)


@pytest.mark.parametrize("url", [f"nats://{HOST}:4222", "nats://127.0.0.1:443", URL])
def test_only_what_looks_like_https_goes_through_the_proxy(
    rig: Rig, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Not another port, not this machine, and not what NO_PROXY names."""
    monkeypatch.setenv("NO_PROXY", HOST if url == URL else "")
    with pytest.raises(EngineError, match="no connection"):
        far(rig, "client/1", url=url, connect_s=0.5)
    assert proxy.said == []


def test_a_proxy_that_reads_tls_cannot_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows a certificate of its own authority, and cannot show the party's to the server."""
    other = Rig(rig.folder / "interceptor", ("hub", "client/1"))
    other.servers = servers_in(other.folder, 1, other.authority.tls("engine", [HOST]), other.access)
    other.server.start()
    proxy = Proxy(HOST, other.server.listen.port)
    monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
    try:
        with pytest.raises(EngineError, match="the server's certificate is refused"):
            far(rig, "client/1", connect_s=5)
    finally:
        proxy.close()
        other.server.stop()


# -- why there is no wss:// --


def upgraded(port: int, tls: Tls) -> bytes:
    """What a server says at its WebSocket port to a client that asks for a connection and a PONG."""
    plain = socket.create_connection(("127.0.0.1", port))
    with tls.context().wrap_socket(plain, server_hostname="127.0.0.1") as line:
        line.settimeout(10)
        line.sendall(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        said, words = line.recv(1 << 16), b'CONNECT {"verbose":false}\r\nPING\r\n'
        line.sendall(bytes([0x82, 0x80 | len(words), 0, 0, 0, 0]) + words)  # one frame, with a mask of zeros
        while b"PONG" not in said and (data := line.recv(1 << 16)):
            said += data
        return said


def test_a_websocket_port_knows_no_list_of_admitted_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, the server has learnt it, and wss:// can be offered."""
    port, configured = free_port(), nats_server.configuration

    def with_websocket(access: Access, listen: Listen) -> str:
        files = {"cert_file": listen.certificate, "key_file": listen.key, "ca_file": listen.authority}
        tls = {name: str(path) for name, path in files.items()} | {"verify_and_map": True}
        block = {"listen": f"127.0.0.1:{port}", "tls": {**tls, "pinned_certs": list(access.pinned())}}
        return f"{configured(access, listen)}websocket: {json.dumps(block)}\n"

    monkeypatch.setattr(nats_server, "configuration", with_websocket)
    with Rig(tmp_path, ("hub", "client/1")) as made:
        another_key = made.authority.tls("client/1")
        with pytest.raises(EngineError, match="each connection ends"):
            made.engine("client/1", tls=another_key, connect_s=1.0)
        assert b"PONG" in upgraded(port, another_key), "the key is not admitted, and the server takes it"
        reload(made.server, replace(made.admitting(["hub"]), refused=()))
        log, ends_s = tmp_path / "server0" / "nats.log", time.monotonic() + 100
        while "config reload not supported for Websocket" not in log.read_text():
            assert time.monotonic() < ends_s
            time.sleep(0.05)
        assert b"PONG" in upgraded(port, made.tls["client/1"]), "it is revoked, and the server takes it"
