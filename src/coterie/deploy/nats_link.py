"""A connection to NATS, on an asyncio loop of its own in one thread, for callers that block.

The client library connects, connects again and repeats subscriptions. Here its errors become ``EngineError``: a denied
subject reaches the library's error callback only, and a certificate that is not taken shows as a connection that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.js import JetStreamContext

from coterie.deploy.engine import EngineError
from coterie.deploy.nats_server import Tls

T = TypeVar("T")

logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())
"""It warns at the end of each TLS connection of the client library, which is in order."""

ANSWER_S = 5.0
"""A server that is there answers within this."""
MUTE = 4
"""A server that ends so many connections in a row without a word does not take the certificate."""
AGAIN_S = 0.25
"""From one attempt to connect again to the next."""
NEEDS = (2, 14)
"""The first server that can reset a consumer."""
NEEDS_PAYLOAD = 1 << 20
PENDING = 16 << 20
"""Bytes that the client library keeps before it waits for the network."""


class Link:
    """A connection to NATS on a loop of its own in one thread, for callers that block."""

    def __init__(
        self,
        token: str,
        servers: Sequence[str],
        tls: Tls,
        connect_s: float,
    ) -> None:
        self.token, self.servers = token, servers
        self.connections = 0
        self._last: str = ""
        self._mute = 0  # connections in a row that the server has taken and ended without a word
        self._refused: str | None = None  # for good
        self._up = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._broken: asyncio.Future[str] = self._loop.create_future()  # each call is raced with it
        self._lost: asyncio.Future[None] = self._loop.create_future()  # when this connection breaks
        self.client = Client()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nats {token}", daemon=True)
        self._thread.start()
        try:
            self.run(self._connect(tls.context(), connect_s))
        except BaseException:
            self.close()
            raise
        self.stream: JetStreamContext = self.client.jetstream(timeout=ANSWER_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop and wait. Raises EngineError, also if the server denies something meanwhile."""
        if self._refused is not None or not self._thread.is_alive():
            work.close()
            raise EngineError(self._refused or f"the connection of {self.token} is closed")
        return asyncio.run_coroutine_threadsafe(self._raced(work), self._loop).result()

    async def connected(self, deadline: float) -> None:
        """Wait for a connection. deadline: on the loop's clock. Raises EngineError."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._up.wait()
        except TimeoutError:
            raise EngineError(f"no connection to {self.place()}: {self._last or 'it does not answer'}") from None

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on one connection. Raises ConnectionError if this one breaks: then no answer will come."""
        if not self._up.is_set():
            work.close()
            raise ConnectionError("the connection broke")
        return await self._first(work, self._lost, lambda: ConnectionError("the connection broke"))

    def place(self) -> str:
        return ", ".join(self.servers)

    def of_several(self) -> bool:
        """Whether the server is one of a cluster."""
        return "cluster" in self.client._server_info

    def is_up(self) -> bool:
        return self._up.is_set()

    def close(self) -> None:
        if not self._thread.is_alive():
            return

        async def leave() -> None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.client.close(), 2)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _raced(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._first(work, self._broken, self._complaint)

    def _complaint(self) -> EngineError:
        reason = self._broken.result()
        if self._refused is None:
            self._broken = self._loop.create_future()
        return EngineError(reason)

    @staticmethod
    async def _first(work: Coroutine[Any, Any, T], end: asyncio.Future[Any], problem: Callable[[], Exception]) -> T:
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, end}
        try:
            await asyncio.wait(either, return_when="FIRST_COMPLETED")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            raise problem()
        return task.result()

    async def _connect(self, context: ssl.SSLContext, connect_s: float) -> None:
        try:
            async with asyncio.timeout(connect_s):
                await self.client.connect(
                    [re.sub(r"^(nats|tls)://|^", "tls://", server, count=1) for server in self.servers],
                    tls=context,
                    tls_handshake_first=True,  # else a machine in between could ask for a connection without TLS
                    inbox_prefix=f"_INBOX.{self.token}",
                    connect_timeout=5,
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
        except TimeoutError:
            raise EngineError(f"no connection to {self.place()}: {self._last or 'it does not answer'}") from None
        version = self.client.connected_server_version
        if (version.major, version.minor) < NEEDS or self.client.max_payload < NEEDS_PAYLOAD:
            raise EngineError(
                f"{self.place()} is nats-server {version} with max_payload {self.client.max_payload}: "
                f"{NEEDS[0]}.{NEEDS[1]} or later, and at least {NEEDS_PAYLOAD}, are needed"
            )
        await self._on_connection()

    async def _on_connection(self) -> None:
        self.connections, self._mute = self.connections + 1, 0
        self._up.set()
        self._lost = self._loop.create_future()

    async def _on_leave(self) -> None:
        self._up.clear()
        if not self._lost.done():
            self._lost.set_result(None)

    async def _on_close(self) -> None:
        await self._on_leave()
        self._break(f"the connection of {self.token} to {self.place()} is closed: {self._last}", for_good=True)

    async def _on_error(self, problem: Exception) -> None:
        said = str(problem).removeprefix("nats: ").strip() or type(problem).__name__
        self._last = said
        self._mute = self._mute + 1 if "empty response" in said else 0
        lower = said.lower()
        if "permissions violation" in lower:
            self._break(f"{self.place()} denies {self.token}: {said}", for_good=False)
        elif "authorization violation" in lower:
            self._break(
                f"{self.place()} does not admit {self.token}: its certificate is of no user there. "
                "Was it revoked, or is it not yet approved?",
                for_good=True,
            )
        elif self._mute == MUTE:
            self._break(
                f"{self.place()} ends each connection of {self.token} at once: its certificate was revoked or "
                "replaced, has expired, or is of another authority",
                for_good=True,
            )
        elif isinstance(problem, ssl.SSLError) and (advice := _tls_advice(problem)):
            self._break(f"no connection of {self.token} to {self.place()}: {advice}", for_good=True)

    def _break(self, reason: str, *, for_good: bool) -> None:
        if for_good:
            self._refused = self._refused or reason
        if not self._broken.done():
            self._broken.set_result(reason)


def _tls_advice(problem: ssl.SSLError) -> str | None:
    """What is wrong if TLS itself refuses, and trying again does not help."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {problem.verify_message}"
    if "ALERT" in (problem.reason or "").upper():
        return f"the server refuses the certificate: {problem.reason}"
    return None
