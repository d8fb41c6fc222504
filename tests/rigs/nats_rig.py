"""A NATS server with a few parties, their certificates, and clients that keep to no rule: for tests of the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nats.aio.client import Client

from benchmarks.engines import Deployment
from coterie.deploy import nats, nats_link
from coterie.deploy.engine import STREAM, Delivery, Tls
from coterie.deploy.names import OPERATOR, safe
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link

T = TypeVar("T")
nats.LEAVES_S = nats_link.LEAVES_S = 0.3  # at the end of a test whose server has gone already
PARTIES = ("hub", "honest", "evil", *(f"client/{number}" for number in range(1, 9)))


class Rig(Deployment):
    """With what tests of the engine ask for."""

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
