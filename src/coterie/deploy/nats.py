"""The engine over NATS JetStream.

A packet from a to b is one or more messages on ``cot.b.a``, which the server stores in one stream and hands to b's one
consumer until b has acknowledged them.

- The last part of a packet (``nats_parts``) is sent when the server has stored all others. It alone has an identity
  that a second attempt shares, so a packet is stored once and wholly, or not at all.
- A sender pushes a packet anew if the server does not store a part within ``push_s``, or after a long sleep.
- At each new connection, and when a delivery is missing, the consumer is reset to unacknowledged messages, so that
  packets come in order. Packets held here are not handed out a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from coterie.deploy.engine import (
    PRESENCE,
    STREAM,
    SUBJECT,
    Delivery,
    Engine,
    EngineError,
    FullError,
    NotAdmittedError,
    OutgoingPacket,
    Tls,
    UndeliverableError,
    subject,
)
from coterie.deploy.names import safe
from coterie.deploy.nats_link import AGAIN_S, ANSWER_S, NO_STREAM, NOT_STORED, Link, Pulls, connected
from coterie.deploy.nats_parts import GIVEN_UP, PART, STALE_S, Assembly, PacketPart, Stored, Upload, parts_of
from coterie.deploy.nats_stream import ACK_WAIT_S

WINDOW = 8
"""So many parts of a packet are on their way at the same time."""
UNDER_WAY = 16
"""So many parts of all packets are: on a slow line more would not be stored before they are sent again."""
SMALL = 1 << 13
"""Parts of at most so many bytes are not counted there."""
RECIPIENTS = 32
"""To so many parties packets are on their way at the same time."""
PULL_S = 2.0
"""A server that was started again has forgotten who waits for a packet, so each request for one ends after this."""
PRESENCE_S = 2.0
"""What is known of presence is asked again after this."""
TRIES = 3
FULL = frozenset({10023, 10047, 10077})
"""Errors of a server that holds as much as it may: for one party, of a stream, on its disk."""
KEPT = 1 << 16
"""So many messages that were done are remembered."""
HEADER = "Coterie-Part"
ROOM_S = 30.0
"""A party that could not store parts asks for them again after this."""


@dataclass
class _Packet:
    src: str
    body: bytes
    messages: tuple[Stored, ...]
    engine: NatsEngine

    def done(self) -> None:
        self.engine._link.soon(self.engine._drop, self.messages)

    def working(self) -> None:
        with contextlib.suppress(EngineError):
            self.engine._link.run(self.engine._keep(self.messages))


class _Handle(NamedTuple):
    reply: str
    era: tuple[int, int]


class NatsEngine(Engine):
    """The connection of one party to NATS. Raises EngineError if no server is reached, with the reason.

    servers: ``nats://host:port``; several if they form a cluster.  parties: all possible recipients.  spool: a folder
    for incomplete packets.  connect_s: how long to wait for a server at first.  push_s: how long to try to store a part
    of a packet, also while the server is away.  largest: bytes of a packet.
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[str],
        tls: Tls,
        parties: Collection[str],
        *,
        spool: Path | None = None,
        connect_s: float = 20.0,
        push_s: float = 10.0,
        largest: int = 1 << 30,
    ) -> None:
        self.name, self.strays = name, Counter[str]()
        self._token, self._parties = safe(name), {safe(party): party for party in parties}
        self._push_s, self._largest = push_s, largest
        self._seen = 0  # the connection whose consumer was reset
        self._pulls: Pulls | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._ready: deque[Upload] = deque()
        self._news = asyncio.Event()  # a packet is ready, or nothing is fetched any more
        self._under_way = asyncio.Semaphore(UNDER_WAY)
        self._assembly = Assembly(spool)
        self._resets, self._reset_s, self._delivered = 0, 0.0, 0  # of the consumer: how often, when, messages since
        self._held: dict[Stored, _Handle] = {}  # what was not done yet
        self._finished: OrderedDict[Stored, None] = OrderedDict()
        self._tasks: set[asyncio.Future[None]] = set()
        self._room_s = 0.0  # until when nothing is asked for, since there was no room for parts
        self._absent: float | None = None  # since when there is no consumer for this party
        self._present: tuple[float, frozenset[str]] | None = None
        self._sees = True
        self._link = Link(self._token, servers, tls, connect_s)
        self._beat: asyncio.Future[None] = self._link.run(self._start())

    def nodes(self) -> Collection[str]:
        """The connected parties, or the last known while the server is away; all if this one may not ask."""
        fresh = self._present is not None and time.monotonic() - self._present[0] < PRESENCE_S
        if self._sees and not fresh and self._link.is_up():
            try:
                self._present = (time.monotonic(), self._link.run(self._connected()))
            except NotAdmittedError:
                raise
            except (EngineError, OSError) as error:  # it may have died in the middle of this
                self._sees = PRESENCE.lower() not in str(error).lower()
                self._present = self._present and (time.monotonic(), self._present[1])
        return self._present[1] if self._sees and self._present else frozenset(self._parties.values())

    def push(self, dst: str, body: bytes, key: str) -> None:
        self._link.run(self._push(dst, body, key))

    def push_all(self, parcels: Sequence[OutgoingPacket]) -> list[EngineError | None]:
        try:
            return self._link.run(self._push_all(parcels))
        except NotAdmittedError:
            raise
        except EngineError:  # the server denies one, and does not say which
            return super().push_all(parcels)

    def pull(self, wait_s: float) -> Delivery | None:
        upload = self._link.run(self._pull(wait_s))
        if upload is None:
            return None
        return _Packet(self._parties[upload.src], upload.read(), tuple(upload.messages.values()), self)

    def close(self) -> None:
        with contextlib.suppress(EngineError):
            self._link.run(self._acknowledged())
        self._link.close()
        self._assembly.close()
        for upload in self._ready:
            upload.file.close()

    async def _start(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._keep_own())

    async def _connected(self) -> frozenset[str]:
        tokens = await self._link.whole(connected(self._link, 4 * len(self._parties) + 64))
        return frozenset(party for token, party in self._parties.items() if token in tokens)

    # --- sending

    async def _push_all(self, parcels: Sequence[OutgoingPacket]) -> list[EngineError | None]:
        found: list[EngineError | None] = [None] * len(parcels)
        among = asyncio.Semaphore(RECIPIENTS)

        async def to_one(places: Sequence[int]) -> None:
            async with among:
                problem: EngineError | None = None
                for at in places:
                    if problem is None or isinstance(problem, UndeliverableError):
                        try:
                            await self._push(parcels[at].dst, parcels[at].body, parcels[at].key)
                            problem = None
                        except EngineError as error:
                            problem = error
                    found[at] = problem

        by: dict[str, list[int]] = {}
        for at, parcel in enumerate(parcels):
            by.setdefault(parcel.dst, []).append(at)
        groups = [to_one(places) for places in by.values()]
        await (asyncio.gather(*groups) if len(groups) > 1 else groups[0])
        return found

    async def _push(self, dst: str, body: bytes, key: str) -> None:
        if dst not in self._parties.values():
            raise UndeliverableError(f"{self.name} cannot send to {dst!r:.60}: it is no party here")
        if len(body) > self._largest:
            raise UndeliverableError(f"a packet of {len(body)} bytes to {dst} is larger than {self._largest}")
        upload, count = secrets.token_hex(8), parts_of(len(body))

        async def send(index: int, identity: str, fresh_s: float) -> None:
            part = body[index * PART : (index + 1) * PART] if count > 1 else body
            headers = {"Nats-Msg-Id": identity, HEADER: PacketPart(upload, index, count, len(body)).text()}
            await self._store(dst, part, headers, fresh_s)

        fresh_s = time.time() + STALE_S / 2  # until when the parts before are surely held
        for begin in range(0, count - 1, WINDOW):
            window, began_s = range(begin, min(begin + WINDOW, count - 1)), time.time()
            await _all(send(index, secrets.token_hex(16), fresh_s) for index in window)
            fresh_s = began_s + STALE_S / 2
        # hashed: to a wrong expectation the server tells any party the last identity that it has stored
        identity = hashlib.sha256(f"{subject(dst, self.name)} {key}".encode()).hexdigest()[:32]
        await send(count - 1, identity, fresh_s)

    async def _store(self, dst: str, data: bytes, headers: dict[str, str], fresh_s: float) -> None:
        clock, where = asyncio.get_running_loop().time, self._link.place()
        deadline = clock() + self._push_s
        absent: float | None = None
        problem = "no answer"
        while clock() < deadline:
            await self._link.connected(deadline)
            if time.time() > fresh_s:
                problem = "it was interrupted for too long, and begins anew"
                break
            before_s = clock()
            try:
                async with self._under_way if len(data) > SMALL else contextlib.nullcontext():
                    deadline += clock() - before_s  # the others' time is not its own
                    await self._link.whole(self._link.stream.publish(subject(dst, self.name), data, headers=headers))
                return
            except nats.js.errors.NoStreamResponseError:
                problem = f"no stream takes packets to {dst}"
                absent = absent or clock()
                if clock() - absent > (3 * ANSWER_S if self._link.of_several() else ANSWER_S / 5):
                    break
            except nats.js.errors.APIError as error:
                if error.err_code in FULL:
                    raise FullError(f"{where} takes no more to {dst} at present: {error.description}") from None
                problem = str(error.description)
            except (TimeoutError, nats.errors.Error, OSError) as error:
                problem = NOT_STORED if isinstance(error, TimeoutError) else str(error) or problem
            await asyncio.sleep(0.1)
        if absent is not None:
            with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
                if not await self._link.takes(subject(self.name, self.name)):
                    raise EngineError(f"{where} {NO_STREAM}")
                raise UndeliverableError(f"{where} did not store a packet from {self.name}: {problem}")
        raise EngineError(f"{where} did not store a packet from {self.name} to {dst}: {problem}")

    # --- receiving

    async def _pull(self, wait_s: float) -> Upload | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while True:
            self._fetch_ahead()
            if self._ready:
                return self._ready.popleft()
            if clock() >= deadline:
                return None
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), deadline - clock())

    def _fetch_ahead(self) -> None:
        if self._fetching is not None and self._fetching.done():
            fetched, self._fetching = self._fetching, None
            fetched.result()
        if self._fetching is None and len(self._ready) <= 1:
            self._fetching = asyncio.ensure_future(self._fetch())
            self._fetching.add_done_callback(lambda _: self._news.set())

    async def _fetch(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        with contextlib.suppress(EngineError):
            await self._link.connected(began + PULL_S)
        if (wait_s := self._room_s - clock()) > 0:
            await asyncio.sleep(min(wait_s, PULL_S))
            return
        if not self._link.is_up():
            return
        try:
            messages = (await self._link.whole(self._reset())).messages(PULL_S)
            while (message := await self._link.whole(anext(messages, None))) is not None:
                self._take(message)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            if self._pulls is None:
                self._absent = self._absent or began
                if clock() - self._absent > 3 * ANSWER_S and self._link.is_up():
                    raise EngineError(f"{self._link.place()} {NO_STREAM} ({error})") from None
            if clock() - began < 0.9 * PULL_S:  # a refusal: a cluster chooses its leader, or the consumer is gone
                self._seen = 0
                await asyncio.sleep(0.1)
            elif self._reset_s < (before_s := time.monotonic() - STALE_S):  # all that is stored has come
                self._drop(self._assembly.stale(before_s), GIVEN_UP)

    async def _reset(self) -> Pulls:
        connection = self._link.connections
        if self._pulls is None or self._seen != connection:
            if self._pulls is not None:
                await self._pulls.close()
                self._pulls = None
            answer = await self._link.client.request(f"$JS.API.CONSUMER.RESET.{STREAM}.{self._token}", timeout=ANSWER_S)
            consumer = json.loads(answer.data)
            if problem := consumer.get("error"):
                raise nats.js.errors.APIError.from_error(problem)
            self._resets, self._reset_s, self._delivered = self._resets + 1, time.monotonic(), 0
            self._pulls = await Pulls.of(self._link.client, self._token)
            self._seen, self._absent = connection, None
        return self._pulls

    def _take(self, message: Msg) -> None:
        if not message.reply.startswith(f"$JS.ACK.{STREAM}.{self._token}."):
            self.strays["not of this party's consumer"] += 1
            return
        metadata = message.metadata
        if metadata.sequence.consumer != self._delivered + 1:  # else packets would come in another order
            self._seen = 0
            raise ConnectionError(f"an older connection of {self.name} has been given a message")
        self._delivered += 1
        stored = Stored(metadata.sequence.stream, metadata.timestamp.timestamp())
        known = stored in self._held
        self._held[stored] = _Handle(message.reply, self._era())
        if known:
            return
        if stored in self._finished:
            self._drop([stored])
            return
        prefix, to, *rest = message.subject.split(".")
        part = PacketPart.read((message.headers or {}).get(HEADER), len(message.data), self._largest)
        if (prefix, to) != (SUBJECT, self._token) or len(rest) != 1 or rest[0] not in self._parties:
            self._drop([stored], "not from a party to this one")
        elif part is None:
            self._drop([stored], "no part of a packet")
        else:
            self._join(rest[0], part, stored, message.data)

    def _join(self, src: str, part: PacketPart, stored: Stored, data: bytes) -> None:
        if overtaken := self._assembly.overtaken(src, part, stored):
            self._drop(overtaken, GIVEN_UP)
        begun = self._assembly.uploads.get(src)
        try:
            found = self._assembly.add(src, part, stored, data)
        except OSError as error:
            self._come_again([stored, *(begun.messages.values() if begun is not None else ())])
            raise EngineError(
                f"{self.name} cannot store a packet of {part.size} bytes from {src}: {error}. Make room on its disk: "
                "the packet comes again"
            ) from None
        match found:
            case Upload() as upload:
                self._ready.append(upload)
                self._news.set()
            case str() as reason:
                self._drop([stored], reason)

    def _come_again(self, messages: Iterable[Stored]) -> None:
        for message in messages:
            self._held.pop(message, None)
        self._seen, self._room_s = 0, asyncio.get_running_loop().time() + ROOM_S

    def _drop(self, messages: Collection[Stored], reason: str | None = None) -> None:
        if not messages:
            return
        if reason is not None:
            self.strays[reason] += 1
        task = asyncio.ensure_future(self._acknowledge(tuple(messages)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acknowledged(self) -> None:
        if self._link.is_up() and self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_S / 2)

    async def _acknowledge(self, messages: Collection[Stored]) -> None:
        handles = [handle for message in messages if (handle := self._held.pop(message, None)) is not None]
        self._finished.update(dict.fromkeys(messages))
        while len(self._finished) > KEPT:
            self._finished.popitem(last=False)
        replies = [handle.reply for handle in handles if handle.era == self._era()]
        with contextlib.suppress(OSError):
            for begin in range(0, len(replies), 64):
                await self._link.whole(_all(self._confirmed(reply) for reply in replies[begin : begin + 64]))

    def _era(self) -> tuple[int, int]:
        return self._link.connections, self._resets

    async def _confirmed(self, reply: str) -> None:
        for _ in range(TRIES):
            with contextlib.suppress(TimeoutError, nats.errors.Error):
                await self._link.client.request(reply, timeout=ANSWER_S / 2)
                return
            await asyncio.sleep(AGAIN_S)

    async def _keep(self, messages: Iterable[Stored]) -> None:
        for message in messages:
            if message in self._held and self._link.is_up():
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self._link.client.publish(self._held[message].reply, b"+WPI")

    async def _keep_own(self) -> None:
        while True:
            await asyncio.sleep(ACK_WAIT_S / 5)
            waiting = (message for upload in self._ready for message in upload.messages.values())
            await self._keep((*waiting, *self._assembly.messages()))


async def _all(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
