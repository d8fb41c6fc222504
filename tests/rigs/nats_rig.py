"""A NATS server with a few parties, their certificates, and clients that keep to no rule: for tests of the engine."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client

from benchmarks.engines import pin, servers_in
from coterie.crypto import certificates
from coterie.deploy import nats, nats_link
from coterie.deploy.engine import STREAM, Access, Delivery, Tls
from coterie.deploy.names import common, safe
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link
from coterie.deploy.nats_stream import provision
from coterie.operate.nats_server import OPERATOR, NatsServer

T = TypeVar("T")
nats.LEAVES_S = nats_link.LEAVES_S = 0.3  # at the end of a test whose server has gone already
DAYS = 30.0
PARTIES = ("hub", "honest", "evil", *(f"client/{number}" for number in range(1, 9)))


@dataclass
class Authority:
    """A certificate authority whose files lie in a folder."""

    folder: Path
    key: bytes = field(default_factory=certificates.new_key)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = certificates.new_authority(self.key, time.time(), DAYS)
        self.path.write_bytes(self.certificate)

    @property
    def path(self) -> Path:
        return self.folder / "authority.pem"

    def tls(self, name: str, hosts: Sequence[str] = (), *, now_s: float | None = None, days: float = DAYS) -> Tls:
        """A fresh key and its certificate."""
        key = certificates.new_key()
        public = certificates.public_of(key)
        begins_s = time.time() if now_s is None else now_s
        signed = certificates.sign(self.certificate, self.key, common(name), public, begins_s, days, hosts)
        stem = f"{name.replace('/', '-')}-{hashlib.sha256(key).hexdigest()[:8]}"
        paths = Tls(self.folder / f"{stem}.pem", self.folder / f"{stem}.key", self.path)
        paths.certificate.write_bytes(signed)
        paths.key.write_bytes(key)
        return paths


class Rig:
    """One server, or several that form a cluster, and the parties' keys. The first party watches.

    As a context manager it is started, and closed at the end.
    """

    def __init__(self, folder: Path, parties: Sequence[str], servers: int = 1, **setting: Any) -> None:
        self.folder, self.parties, self.setting = folder, tuple(parties), setting
        self.authority = Authority(folder / "keys")
        self.tls = {name: self.authority.tls(name) for name in parties}
        self.operator = self.authority.tls("operator")
        own = self.authority.tls("engine", ["127.0.0.1"])
        self.access = self.admitting(parties)
        self.servers = servers_in(folder, servers, own, self.access)
        self.engines: list[NatsEngine] = []

    @property
    def server(self) -> NatsServer:
        return self.servers[0]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def admitting(self, parties: Collection[str]) -> Access:
        pins = {name: pin(self.tls[name]) for name in self.parties}
        refused = [pins.pop(name) for name in self.parties if name not in parties]
        return Access(pins, frozenset(self.parties[:1]), pin(self.operator), self.parties, refused)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.provision()

    def provision(self) -> None:
        provision(self.urls, self.operator, self.access, **self.setting)

    def engine(self, name: str, **setting: Any) -> NatsEngine:
        """A connection of this party. Its older ones are closed: a party has one at a time."""
        for older in [one for one in self.engines if one.name == name]:
            older.close()
            self.engines.remove(older)
        found = NatsEngine(name, self.urls, setting.pop("tls", self.tls[name]), self.parties, **setting)
        self.engines.append(found)
        return found

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Rig:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def receiving(self, name: str, count: int) -> tuple[list[bytes], threading.Thread]:
        """The bodies that come to a party, in a list that a thread fills until so many packets have come."""
        came: list[bytes] = []

        def receive() -> None:
            engine = self.engine(name)
            while len(came) < count:
                if (delivery := engine.pull(1)) is not None:
                    came.append(delivery.body)
                    delivery.done()

        reader = threading.Thread(target=receive)
        reader.start()
        return came, reader

    def raw(self, name: str) -> Raw:
        """A client with the certificate of a party that keeps to no rule of ours."""
        return Raw(self.urls[0], self.tls[name], safe(name))


@dataclass
class Raw:
    """Plain NATS. said: what the server complained of."""

    url: str
    tls: Tls
    token: str
    said: list[str] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    async def connect(self) -> Client:
        async def hear(problem: Exception) -> None:
            self.said.append(str(problem))

        client = Client()
        await client.connect(
            self.url.replace("nats://", "tls://"),
            tls=self.tls.context(),
            tls_handshake_first=True,
            inbox_prefix=f"_INBOX.{self.token}",
            allow_reconnect=False,
            error_cb=hear,
        )
        return client


def delete_stream(urls: Sequence[str], operator: Tls) -> None:
    """With all packets and consumers, as nobody but the operator may."""
    link = Link(OPERATOR, urls, operator, 60)
    try:
        link.run(link.stream.delete_stream(STREAM))
    finally:
        link.close()


def drain(engine: NatsEngine, least: int = 0) -> list[Delivery]:
    """All that comes until nothing comes for a while. least: so many packets are waited for longer."""
    found: list[Delivery] = []
    while (delivery := engine.pull(10 if len(found) < least else 0.2)) is not None:
        delivery.done()
        found.append(delivery)
    return found
