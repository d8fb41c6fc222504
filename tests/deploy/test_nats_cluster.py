"""Several servers of the broker: who may be one of them."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from nats_rig import Rig

from coterie.deploy.nats_names import Tls


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
