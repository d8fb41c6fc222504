"""A federation's stream on a NATS server, with a consumer for each party, which the operator makes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from coterie.deploy.engine import STREAM, SUBJECT, Access, EngineError, Tls
from coterie.deploy.names import OPERATOR, safe
from coterie.deploy.nats_link import Link
from coterie.deploy.nats_parts import MESSAGE, parts_of

ACK_WAIT_S = 30.0
"""A message neither done nor worked on for so long comes again."""
SET_UP_S = 20.0
STORE = 8 << 30
"""Bytes of all packets that are not done."""
NO_PEERS = 10005
"""While a cluster's servers look for each other."""
DUPLICATES_S = 7200.0
"""A packet that is pushed again within this is stored once."""


def room(largest: int) -> int:
    """Parts from one party to another that may wait: two largest packets, and some small ones."""
    return 2 * parts_of(largest) + 1518


def provision(
    servers: Sequence[str],
    tls: Tls,
    access: Access,
    *,
    largest_store: int = STORE,
    waiting: int = room(1 << 30),
    ack_wait_s: float = ACK_WAIT_S,
    connect_s: float = 20.0,
) -> None:
    """Make the stream and the consumers, or bring them to the newest ``access``. Raises EngineError.

    Packets for or from a party that is gone are removed.  tls: the operator's.  largest_store: bytes of all that wait.
    waiting: messages (at most 128 KiB each) from one party to another.  ack_wait_s: after which a message comes again.
    """
    tokens = sorted(safe(name) for name in access.parties)
    stream = StreamConfig(
        name=STREAM,
        subjects=[f"{SUBJECT}.{token}.*" for token in tokens],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=waiting,
        max_msg_size=MESSAGE,
        max_bytes=largest_store,
        duplicate_window=DUPLICATES_S,
        num_replicas=3 if len(servers) >= 3 else 1,
    )
    consumers = [
        ConsumerConfig(
            durable_name=token,
            filter_subject=f"{SUBJECT}.{token}.*",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            max_deliver=-1,
            max_ack_pending=-1,
            max_waiting=8,
        )
        for token in tokens
    ]
    with closing(Link(OPERATOR, servers, tls, connect_s)) as link:
        link.run(_until_made(link, stream, consumers))


async def _until_made(link: Link, stream: StreamConfig, consumers: Sequence[ConsumerConfig]) -> None:
    """Retries: new servers of a cluster refuse for a while."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + SET_UP_S
    while True:
        try:
            return await _make(link.stream, stream, consumers)
        except (TimeoutError, nats.errors.Error) as error:
            refused = isinstance(error, nats.js.errors.BadRequestError) and error.err_code != NO_PEERS
            if refused or clock() > deadline:
                raise EngineError(f"{link.place()} does not hold packets for this federation: {error}") from None
        await asyncio.sleep(0.2)


async def _make(stream: JetStreamContext, config: StreamConfig, consumers: Sequence[ConsumerConfig]) -> None:
    tokens = {consumer.durable_name for consumer in consumers}
    try:
        await stream.stream_info(STREAM)  # a cluster lists no consumers, and no error, of a stream that is not there
    except nats.js.errors.NotFoundError:
        await stream.add_stream(config)
    for gone in sorted(await _consumers(stream) - tokens):
        await stream.delete_consumer(STREAM, gone)
        await stream.purge_stream(STREAM, subject=f"{SUBJECT}.{gone}.*")
        await stream.purge_stream(STREAM, subject=f"{SUBJECT}.*.{gone}")
    await stream.update_stream(config)
    for consumer in consumers:
        await stream.add_consumer(STREAM, consumer)


async def _consumers(stream: JetStreamContext) -> set[str]:
    names: set[str] = set()
    while True:
        page = await stream.consumers_info(STREAM, offset=len(names))
        names.update(one.name for one in page)
        if not page:
            return names
