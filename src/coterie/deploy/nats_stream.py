"""What the operator makes on a NATS server for a federation: one stream, and a consumer for each party."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from coterie.deploy.engine import EngineError
from coterie.deploy.names import safe
from coterie.deploy.nats_link import ANSWER_S, Link
from coterie.deploy.nats_server import OPERATOR, STREAM, SUBJECT, Access, Tls

ACK_WAIT_S = 30.0
"""A message that was neither done nor worked on for so long comes again."""
DUPLICATES_S = 7200.0
"""A packet that is pushed again within this is stored once."""


def provision(
    servers: Sequence[str],
    tls: Tls,
    access: Access,
    *,
    replicas: int = 1,
    largest_store: int = 8 << 30,
    waiting: int = 4096,
    ack_wait_s: float = ACK_WAIT_S,
    connect_s: float = 20.0,
) -> None:
    """Make what the parties use, or bring it to the newest ``access``: the stream, and a consumer for each party.

    What waited for, or came from, a party that is gone is removed. tls: the operator's.  replicas: 1, or 3 in a cluster
    of three servers.  largest_store: bytes of all packets that are not done.  waiting: messages (of at most 1 MiB) from
    one party to another that are not done; more are not taken until some are.  ack_wait_s: after which a message comes
    again.  Raises EngineError.
    """
    link = Link(OPERATOR, servers, tls, connect_s)
    try:
        link.run(_provision(link, access, replicas, largest_store, waiting, ack_wait_s))
    finally:
        link.close()


async def _provision(
    link: Link, access: Access, replicas: int, largest_store: int, waiting: int, ack_wait_s: float
) -> None:
    stream, tokens = link.stream, {safe(name) for name in access.parties}
    config = StreamConfig(
        name=STREAM,
        subjects=[f"{SUBJECT}.{token}.*" for token in sorted(tokens)],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=waiting,
        max_msg_size=1 << 20,
        max_bytes=largest_store,
        duplicate_window=DUPLICATES_S,
        num_replicas=replicas,
    )
    deadline = asyncio.get_running_loop().time() + 3 * ANSWER_S
    while True:
        try:
            there = await _consumers(stream)
            break
        except nats.js.errors.NotFoundError:
            there = None
            break
        except (TimeoutError, nats.errors.Error) as error:  # a cluster has no leader yet
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"{link.place()} has no JetStream: {error}") from None
            await asyncio.sleep(0.2)
    try:
        for gone in sorted((there or set()) - tokens):
            await stream.delete_consumer(STREAM, gone)
            await stream.purge_stream(STREAM, subject=f"{SUBJECT}.{gone}.*")
            await stream.purge_stream(STREAM, subject=f"{SUBJECT}.*.{gone}")
        await (stream.add_stream(config) if there is None else stream.update_stream(config))
        for token in sorted(tokens):
            await stream.add_consumer(
                STREAM,
                ConsumerConfig(
                    durable_name=token,
                    filter_subject=f"{SUBJECT}.{token}.*",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=ack_wait_s,
                    max_deliver=-1,
                    max_ack_pending=-1,
                    max_waiting=8,
                ),
            )
    except (TimeoutError, nats.errors.Error) as error:
        raise EngineError(f"{link.place()} does not set up the packets of this federation: {error}") from None


async def _consumers(stream: JetStreamContext) -> set[str]:
    names: set[str] = set()
    while True:
        page = await stream.consumers_info(STREAM, offset=len(names))
        names.update(one.name for one in page)
        if not page:
            return names
