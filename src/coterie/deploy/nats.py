"""The engine over NATS JetStream (docs/engines.md).

The last part of a packet (``nats_parts``) is sent when all others are stored. It alone has an identity that a second
attempt shares, so a packet is stored once and wholly, or not at all. A packet that is pushed again goes on at the
missing parts; at another server, and after a long sleep, it begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
from coterie.deploy.nats_link import (
    AGAIN_S,
    ANSWER_S,
    LEAST,
    LEAVES_S,
    NO_STREAM,
    NOT_STORED,
    Link,
    Pulls,
    Window,
    connected,
)
from coterie.deploy.nats_parts import GIVEN_UP, PART, STALE_S, Assembly, PacketPart, Stored, Upload, parts_of
from coterie.deploy.nats_stream import ACK_WAIT_S

PULL_S = 2.0
"""A request for a packet ends after this: a server that was started again has forgotten it."""
PRESENCE_S = 2.0
"""Presence is asked again after this."""
TRIES = 3
FULL = frozenset({10023, 10047, 10077})
"""Errors of a full server: for one party, of a stream, on its disk."""
KEPT = 1 << 16
"""Done messages that are remembered."""
HEADER = "Coterie-Part"
ROOM_S = 30.0
"""A party without room for parts asks for them again after this."""


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


@dataclass
class _Begun:
    """A packet of which parts are stored.  of: server, key, size.  missing: identities of the others, by index.
    fresh_s: Unix seconds until which stored ones are surely held.
    """

    of: tuple[str, str, int]
    missing: dict[int, str]
    upload: str = field(default_factory=lambda: secrets.token_hex(8))
    fresh_s: float = field(default_factory=lambda: time.time() + STALE_S / 2)


class _Handle(NamedTuple):
    reply: str
    era: tuple[int, int]


class NatsEngine(Engine):
    """Raises EngineError if no server is reached.  servers: ``nats://host:port``; several if they form a cluster.
    parties: all recipients.  spool: a folder for incomplete packets.  connect_s: for a server at first.  push_s: how
    long to go on while nothing is stored.  largest: bytes of a packet.
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
        self._window = Window()
        self._begun: dict[str, _Begun] = {}  # by recipient, the packet whose parts are not all stored
        self._due: dict[int, float] = {}  # by number of a part on its way, since when its answer is awaited
        self._parts = 0
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
        self._link.soon(self._begin)

    def nodes(self) -> Collection[str]:
        """Connected parties, or the last known while the server is away; all if this one may not ask."""
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
            self._link.run(self._ends())
        self._link.close()
        self._assembly.close()
        for upload in self._ready:
            upload.file.close()

    def _begin(self) -> None:
        self._beat = asyncio.ensure_future(self._keep_own())  # a task that nobody holds may be collected

    async def _connected(self) -> frozenset[str]:
        tokens = await self._link.whole(connected(self._link, 4 * len(self._parties) + 64))
        return frozenset(party for token, party in self._parties.items() if token in tokens)

    # --- sending

    async def _push_all(self, parcels: Sequence[OutgoingPacket]) -> list[EngineError | None]:
        found: list[EngineError | None] = [None] * len(parcels)

        async def to_one(places: Sequence[int]) -> None:
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
        of = self._link.server(), key, len(body)  # a server that was started again may have another disk
        packet = self._begun.get(dst)
        if packet is None or packet.of != of or packet.fresh_s < time.time():
            identities = [secrets.token_hex(16) for _ in range(parts_of(len(body)) - 1)]
            # hashed: to a wrong expectation the server tells any party the last identity that it has stored
            identities.append(hashlib.sha256(f"{subject(dst, self.name)} {key}".encode()).hexdigest()[:32])
            packet = self._begun[dst] = _Begun(of, dict(enumerate(identities)))
        *parts, last = list(packet.missing)
        await self._send(dst, packet, body, parts)
        await self._send(dst, packet, body, [last])
        del self._begun[dst]

    async def _send(self, dst: str, packet: _Begun, body: bytes, indexes: Iterable[int]) -> None:
        count = parts_of(len(body))

        async def store(index: int) -> None:
            data = body[index * PART : (index + 1) * PART] if count > 1 else body
            text, began_s = PacketPart(packet.upload, index, count, len(body)).text(), time.time()
            headers = {"Nats-Msg-Id": packet.missing[index], HEADER: text}
            number = self._parts = self._parts + 1
            self._due[number] = asyncio.get_running_loop().time()
            try:
                await self._store(dst, data, headers, packet.fresh_s, number)
            finally:
                del self._due[number]
            del packet.missing[index]
            packet.fresh_s = max(packet.fresh_s, began_s + STALE_S / 2)

        try:
            async with asyncio.TaskGroup() as tasks:
                for index in indexes:
                    await self._window.enter()
                    tasks.create_task(store(index)).add_done_callback(lambda _: self._window.leave())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _store(self, dst: str, data: bytes, headers: dict[str, str], fresh_s: float, number: int) -> None:
        clock, where = asyncio.get_running_loop().time, self._link.place()
        absent: float | None = None
        problem = "no answer"
        while clock() < self._due[number] + self._push_s:
            await self._link.connected(self._due[number] + self._push_s)
            if time.time() > fresh_s:
                problem = "it was interrupted for too long, and begins anew"
                break
            try:
                await self._link.whole(self._publish(dst, data, headers, number))
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
                self._window.size = LEAST
                problem = NOT_STORED if isinstance(error, TimeoutError) else str(error) or problem
            await asyncio.sleep(0.1)
        if absent is not None:
            with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
                if not await self._link.takes(subject(self.name, self.name)):
                    raise EngineError(f"{where} {NO_STREAM}")
                raise UndeliverableError(f"{where} did not store a packet from {self.name}: {problem}")
        raise EngineError(f"{where} did not store a packet from {self.name} to {dst}: {problem}")

    async def _publish(self, dst: str, data: bytes, headers: dict[str, str], number: int) -> None:
        """Raises TimeoutError without an answer to this or an earlier part for ``ANSWER_S``."""
        clock = asyncio.get_running_loop().time
        sent_s, answers = clock(), self._link.stream.publish(subject(dst, self.name), data, STALE_S, headers=headers)
        answer = asyncio.ensure_future(answers)
        try:
            while not answer.done():
                if (left_s := max(sent_s, self._due[number]) + ANSWER_S - clock()) <= 0:
                    raise TimeoutError
                await asyncio.wait({answer}, timeout=left_s)
            answer.result()
        finally:
            answer.cancel()
        self._window.answered(sent_s, clock())
        self._due.update(dict.fromkeys((later for later in self._due if later > number), clock()))

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
            pulls = await self._link.whole(self._reset())
            while (message := await self._link.whole(pulls.next(len(self._ready) <= 1))) is not None:
                self._take(message)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            if self._pulls is None:
                self._absent = self._absent or began
                if clock() - self._absent > 3 * ANSWER_S and self._link.is_up():
                    raise EngineError(f"{self._link.place()} {NO_STREAM} ({error})") from None
            if self._pulls is None or not isinstance(
                error, TimeoutError
            ):  # a cluster chooses its leader, or it is gone
                self._seen = 0
                await asyncio.sleep(0.1)
            elif self._reset_s < (before_s := time.monotonic() - STALE_S):  # all that is stored has come
                self._drop(self._assembly.stale(before_s), GIVEN_UP)

    async def _reset(self) -> Pulls:
        # at each new connection, and when a delivery is missing: so packets come in order, and those held here are not
        # handed out twice
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
            inbox = self._link.client.new_inbox()
            subscription = await self._link.client.subscribe(f"{inbox}.*")
            self._pulls = Pulls(self._link.client, self._token, PULL_S, inbox, subscription)
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

    async def _ends(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        if self._link.is_up():
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=ANSWER_S / 2)
            # a request that reached the server only as the connection ends would still be given messages
            with contextlib.suppress(TimeoutError, nats.errors.Error, OSError):
                await self._link.client.request(f"$JS.API.CONSUMER.RESET.{STREAM}.{self._token}", timeout=LEAVES_S)

    async def _acknowledge(self, messages: Collection[Stored]) -> None:
        handles = [handle for message in messages if (handle := self._held.pop(message, None)) is not None]
        self._finished.update(dict.fromkeys(messages))
        while len(self._finished) > KEPT:
            self._finished.popitem(last=False)
        replies = [handle.reply for handle in handles if handle.era == self._era()]
        with contextlib.suppress(OSError):
            for begin in range(0, len(replies), 64):
                some = replies[begin : begin + 64]
                await asyncio.gather(*(self._link.whole(self._confirmed(reply)) for reply in some))

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
