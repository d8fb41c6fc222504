"""A connection to NATS, for callers that block."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from math import inf
from typing import Any, TypeVar
from urllib.parse import ParseResult, unquote, urlparse
from urllib.request import getproxies, proxy_bypass

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.js import JetStreamContext

from coterie.deploy.engine import OWN_RIGHTS, PRESENCE, STREAM, EngineError, NotAdmittedError, Tls, UndeliverableError
from coterie.deploy.names import bracketed, is_loopback

T = TypeVar("T")

logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())
"""The client library's warning at the end of each TLS connection is no fault."""

ANSWER_S = 5.0
"""A server that is there answers within this."""
MUTE = 4
"""A caller is told of so many connections in a row that end without a word."""
ENDED = (
    "each connection ends at once, without a word: a machine in between cuts it, or the certificate was replaced, is "
    "not yet admitted, or is of another authority"
)
REFUSAL = re.compile("ALERT.*(CERTIFICATE|UNKNOWN_CA)")
"""TLS's words for a refused certificate. Anybody on the line can bring about other alerts."""
OTHERS_S = 0.25
"""For a cluster's other servers to answer."""
AGAIN_S, SELDOM_S = 0.25, 15.0
"""Between attempts to connect; at most, where connections end without a word."""
LEAVES_S = 2.0
"""For the last answer, and for the client library, which waits for ever where TLS has failed."""
NOT_STORED = (
    f"it does not say within {ANSWER_S:g} s that it has stored it. If its disk is full, or was, make room there and "
    "start it again: it stores nothing until then"
)
"""Of a connected server that does not answer."""
NEEDS = (2, 14)
"""The first server that can reset a consumer."""
NEEDS_PAYLOAD = 1 << 20
NO_STREAM = "has no stream for packets of this federation (any more). The operator's coterie deploy server DIR makes it"
PENDING = 16 << 20
"""Bytes that the client library keeps before it waits."""
LEAST, MOST = 2, 64
"""Messages of a window; a long fast line has up to 8 MiB on it."""
CALM_S = 1.0
"""A window grows while answers take at most so much longer than the quickest, and shrinks at twice as much."""


class Tunnel(TcpTransport):
    """TCP. To port 443 it goes through the proxy of ``HTTPS_PROXY``, unless ``NO_PROXY`` names the host.

    The proxy is told host and port (CONNECT), and passes on TLS.
    """

    def __bool__(self) -> bool:  # or the client library would make one of its own
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        host, proxy = str(uri.hostname), getproxies().get("https", "")
        if uri.port != 443 or not proxy or proxy_bypass(host) or is_loopback(host):
            await super().connect(uri, buffer_size, connect_timeout)
            return
        via = urlparse(proxy if "://" in proxy else f"http://{proxy}")
        if via.scheme != "http":
            raise ConnectionError(f"HTTPS_PROXY is a proxy of kind {via.scheme}: name one as http://host:port")
        async with asyncio.timeout(connect_timeout):
            reader, writer = await asyncio.open_connection(via.hostname, via.port or 80, limit=buffer_size)
            self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer = reader, writer
            target = f"{bracketed(host)}:{uri.port}"
            lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
            if via.username:
                user = f"{unquote(via.username)}:{unquote(via.password or '')}"
                lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}")
            try:
                writer.write("\r\n".join([*lines, "", ""]).encode())
                said = (await reader.readline()).decode(errors="replace").strip()
                if re.match(r"HTTP/1\.[01] 200\b", said) is None:
                    raise ConnectionError(f"the proxy {via.hostname} does not let it through: {said[:80]!r}")
                while (await reader.readline()).strip():
                    pass
            except BaseException:
                writer.close()
                raise

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Until the server has shown its certificate, nobody has signed what ends this, so it is no refusal for good
        (TLS 1.3: the server refuses later).
        """
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except ssl.SSLCertVerificationError:
            raise
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS does not begin: {error.reason}") from None


class Link:
    def __init__(self, token: str, servers: Sequence[str], tls: Tls, connect_s: float) -> None:
        self.token, self.servers, self._tls = token, servers, tls
        self._context = tls.context()
        self.connections = 0
        self._last: str = ""
        self._mute = 0  # connections in a row that were taken and ended without a word
        self._refused: EngineError | None = None  # for good
        self._closing, self._lock = False, threading.Lock()
        self._up = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._broken: asyncio.Future[EngineError] = self._loop.create_future()  # each call is raced with it
        self._lost: asyncio.Future[None] = self._loop.create_future()  # when this connection breaks
        self.client = self._new()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats {token}", daemon=True)
        self._thread.start()
        try:
            self.run(self._connect(connect_s))
        except BaseException:
            self.close()
            raise
        self.stream: JetStreamContext = self.client.jetstream(timeout=ANSWER_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises EngineError, also if the server denies something meanwhile."""
        closed = EngineError(f"the connection of {self.token} is closed")
        with self._lock:
            if self._refused is not None or self._closing:
                work.close()
                raise _again(self._refused or closed)
            future = asyncio.run_coroutine_threadsafe(self._raced(work), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise closed from None

    def soon(self, act: Callable[..., object], *args: Any) -> None:
        with self._lock:
            if not self._closing:
                self._loop.call_soon_threadsafe(act, *args)

    async def connected(self, deadline: float) -> None:
        """Raises EngineError."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._up.wait()
        except TimeoutError:
            raise EngineError(f"no connection to {self.place()}: {self._last or 'it does not answer'}") from None

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises ConnectionError if this one breaks."""
        if not self._up.is_set():
            work.close()
            raise ConnectionError("the connection broke")
        return await self._first(work, self._lost, lambda: ConnectionError("the connection broke"))

    async def takes(self, subject: str) -> bool:
        """Whether a stream takes what is published there; stores nothing. Raises TimeoutError, OSError or
        nats.errors.Error.
        """
        try:
            await self.whole(self.stream.publish(subject, stream="none"))
        except nats.js.errors.NoStreamResponseError:
            return False
        except nats.js.errors.APIError:
            pass
        return True

    def place(self) -> str:
        return ", ".join(self.servers)

    def server(self) -> str:
        """An identifier, another one after each start."""
        return str(self.client._server_info.get("server_id"))

    def of_several(self) -> bool:
        return "cluster" in self.client._server_info

    def is_up(self) -> bool:
        return self._up.is_set()

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True

        async def leave() -> None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.client.close(), LEAVES_S)
            await _ended(*(asyncio.all_tasks() - {asyncio.current_task()}))

        asyncio.run_coroutine_threadsafe(leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    def _new() -> Client:
        client = Client()
        client._transport = Tunnel()  # type: ignore[no-untyped-call]  # it offers no other place for a proxy
        return client

    async def _raced(self, work: Coroutine[Any, Any, T]) -> T:
        broken = self._broken
        return await self._first(work, broken, lambda: self._complaint(broken))

    def _complaint(self, broken: asyncio.Future[EngineError]) -> EngineError:
        if self._refused is None and self._broken is broken:  # told once to all that wait now
            self._broken = self._loop.create_future()
        return _again(broken.result())

    @staticmethod
    async def _first(work: Awaitable[T], end: asyncio.Future[Any], problem: Callable[[], Exception]) -> T:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise problem()
            return task.result()
        finally:
            await _ended(task)

    async def _connect(self, connect_s: float) -> None:
        clock = self._loop.time
        deadline = clock() + connect_s
        while True:
            attempt = asyncio.ensure_future(
                self.client.connect(
                    [re.sub(r"^(nats|tls)://|^", "tls://", server, count=1) for server in self.servers],
                    tls=self._context,
                    tls_handshake_first=True,  # else a machine in between could ask for a connection without TLS
                    inbox_prefix=f"_INBOX.{self.token}",
                    connect_timeout=5,
                    allow_reconnect=False,
                    reconnect_time_wait=AGAIN_S,  # type: ignore[arg-type]  # it is slept
                    max_reconnect_attempts=-1,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    pending_size=PENDING,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_leave,
                    reconnected_cb=self._on_connection,
                    closed_cb=self._on_close,
                )
            )
            try:
                await asyncio.wait({attempt}, timeout=deadline - clock())
            finally:
                await _ended(attempt)
            if not attempt.cancelled() and attempt.exception() is None:
                break
            if attempt.cancelled() or clock() > deadline:
                raise EngineError(f"no connection to {self.place()}: {self._last or 'it does not answer'}")
            await asyncio.sleep(min(self._again_s(), max(0.0, deadline - clock())))
            self.client = self._new()
        self.client.options["allow_reconnect"] = True
        version = self.client.connected_server_version
        if (version.major, version.minor) < NEEDS or self.client.max_payload < NEEDS_PAYLOAD:
            raise EngineError(
                f"{self.place()} is nats-server {version} with max_payload {self.client.max_payload}: "
                f"{NEEDS[0]}.{NEEDS[1]} or later, and at least {NEEDS_PAYLOAD}, are needed"
            )
        await self._on_connection()

    async def _on_connection(self) -> None:
        self.connections, self._mute = self.connections + 1, 0
        self.client.options["reconnect_time_wait"] = self._again_s()
        self._up.set()
        self._lost = self._loop.create_future()

    async def _on_leave(self) -> None:
        self._up.clear()
        with contextlib.suppress(OSError):  # the certificate may have been renewed
            self._context.load_cert_chain(self._tls.certificate, self._tls.key)
        if not self._lost.done():
            self._lost.set_result(None)

    async def _on_close(self) -> None:
        await self._on_leave()
        self._break(EngineError(f"the connection of {self.token} to {self.place()} is closed: {self._last}"))

    async def _on_error(self, problem: Exception) -> None:
        said = str(problem).removeprefix("nats: ").strip() or type(problem).__name__
        self._mute = self._mute + 1 if "empty response" in said else 0
        self._last = said = ENDED if self._mute else said
        self.client.options["reconnect_time_wait"] = self._again_s()
        if "permissions violation" in said.lower():
            self._break(UndeliverableError(f"{self.place()} denies {self.token}: {said}"), for_good=False)
        elif "authorization violation" in said.lower():
            reason = "its certificate is of no user there: it was revoked, or is not yet approved"
            self._break(NotAdmittedError(f"{self.place()} does not admit {self.token}: {reason}"))
        elif self._mute >= MUTE and self.connections:
            self._break(EngineError(f"no connection of {self.token} to {self.place()}: {said}"), for_good=False)
        elif isinstance(problem, ssl.SSLCertVerificationError):
            reason = f"the server's certificate is refused: {problem.verify_message}"
            self._break(EngineError(f"no connection of {self.token} to {self.place()}: {reason}"), for_good=False)
        elif isinstance(problem, ssl.SSLError) and REFUSAL.search(problem.reason or ""):
            reason = f"the server refuses the certificate: {problem.reason}"
            self._break(NotAdmittedError(f"no connection of {self.token} to {self.place()}: {reason}"))

    def _again_s(self) -> float:
        return min(SELDOM_S, AGAIN_S * 2.0 ** min(max(0, self._mute - MUTE), 20))

    def _break(self, problem: EngineError, *, for_good: bool = True) -> None:
        if for_good:
            self._refused = self._refused or problem
        if not self._broken.done():
            self._broken.set_result(problem)


def _again(problem: EngineError) -> EngineError:
    return type(problem)(*problem.args)


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    ended = [task for task in tasks if task is not None]
    left = {task for task in ended if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)
    for task in ended:
        if not task.cancelled():
            task.exception()  # it is known, so nothing is logged about it


class Window:
    """How many messages may be under way.

    As TCP's congestion window it grows by one with each answer. Long answers show a full line, and halve it (TCP
    Vegas).
    """

    def __init__(self) -> None:
        self.size, self.used = LEAST, 0
        self._halved_s, self._least_s = 0.0, inf
        self._queue: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self.used -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue and self.used < self.size:
            turn = self._queue.popleft()
            if not turn.done():
                self.used += 1
                turn.set_result(None)

    def answered(self, sent_s: float, now_s: float) -> None:
        self._least_s = min(self._least_s, now_s - sent_s)
        waited_s = now_s - sent_s - self._least_s
        if waited_s < CALM_S:
            self.size = min(MOST, self.size + 1)
        elif waited_s > 2 * CALM_S and sent_s > self._halved_s:  # what was sent before has waited for the same
            self.size, self._halved_s = max(LEAST, self.size // 2), now_s


class Pulls:
    """A party's own messages over one connection.  subscription: below the inbox.  wait_s: after which the server ends
    a request.  window: of messages asked for.
    """

    def __init__(self, client: Client, token: str, wait_s: float, inbox: str, subscription: Subscription) -> None:
        self.window, self.requests = Window(), 0
        self._client, self._inbox, self._subscription, self._wait_s = client, inbox, subscription, wait_s
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{token}"
        self._asked: deque[float] = deque()  # when, for each message that is still to come

    async def next(self, more: bool) -> Msg | None:
        """None if none is to come, and none to be asked for (more).

        Raises TimeoutError if there is none at present, and ConnectionError if the server refuses.
        """
        while True:
            if more and 2 * len(self._asked) <= self.window.size:
                await self._ask(self.window.size - len(self._asked))
            if not self._asked:
                return None
            try:
                message = await self._subscription.next_msg(timeout=self._wait_s + ANSWER_S)
            except TimeoutError:  # the server has forgotten the requests
                self._asked.clear()
                raise
            if message.reply:  # it is to be acknowledged; else the server says something of a request
                if self._asked:
                    self.window.answered(self._asked.popleft(), asyncio.get_running_loop().time())
                return message
            said = message.headers or {}
            told = said.get("Nats-Pending-Messages", "")[:9]
            for _ in range(min(int(told) if told.isdecimal() else MOST, len(self._asked))):
                self._asked.popleft()
            if said.get("Status") != "408":
                raise ConnectionError(said.get("Description", "the server gives no messages"))
            if not self._asked:
                raise TimeoutError("nothing waits")

    async def _ask(self, count: int) -> None:
        self.requests += 1
        self._asked.extend([asyncio.get_running_loop().time()] * count)
        request = {"batch": count, "expires": int(self._wait_s * 1e9)}
        reply = f"{self._inbox}.{self.requests}"
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=reply)

    async def close(self) -> None:
        await self._subscription.unsubscribe()


async def connected(link: Link, most: int) -> frozenset[str]:
    """Connected parties (``names.safe``).  most: that a server may list. Raises EngineError without an answer."""
    client = link.client
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish(PRESENCE, json.dumps({"auth": True, "limit": most}).encode(), reply=inbox)
    users: set[str] = set()
    wait_s = ANSWER_S
    try:
        while True:  # each server of a cluster answers for itself
            answer = json.loads((await answers.next_msg(timeout=wait_s)).data)
            users.update(one.get("authorized_user", "") for one in answer["data"]["connections"])
            if not link.of_several():
                break
            wait_s = OTHERS_S
    except TimeoutError:
        if wait_s == ANSWER_S:
            raise EngineError(f"{link.place()} does not say who is connected") from None
    finally:
        await answers.unsubscribe()
    return frozenset(user.removeprefix("CN=") for user in users)


def rights(link: Link) -> dict[str, Any]:
    """User, account and permissions; {} if an earlier version's configuration forbids it. Raises EngineError."""
    try:
        return dict(json.loads(link.run(link.client.request(OWN_RIGHTS, timeout=ANSWER_S)).data)["data"])
    except UndeliverableError:
        return {}
    except (TimeoutError, nats.errors.Error, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{link.place()} does not say which rights {link.token} has: {error}") from None
