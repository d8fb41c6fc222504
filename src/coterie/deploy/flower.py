"""Packets over Flower (experimental): for sites whose SuperNodes run already. See docs/engines.md.

A party's process holds its keys, data and state. Flower's apps are pipes to it: a ClientApp brings a call of the hub
and takes the answer along, and the hub's ServerApp carries what the hub's process wants called. Packets between two
sites are relayed by the hub, which cannot read them. Nothing here needs flwr, which runs in processes of its own.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coterie.deploy import flower_pipe as pipe
from coterie.deploy import logs
from coterie.deploy.engine import Delivery, Engine, EngineError, UndeliverableError
from coterie.deploy.flower_queue import Queue
from coterie.deploy.flower_switch import CALL_BYTES, Switch
from coterie.deploy.flower_words import Answer, Call, Carried, identity, read_call, write
from coterie.protocol.errors import CoterieError
from coterie.transport.envelope import Keyring

QUEUE = "packets.db"
LARGEST = 512 << 20
"""Bytes of a packet."""
LEAVE_S = 60.0
"""How long a party that leaves waits until what it has pushed was fetched. The rest is fetched when it is back."""
_SILENT_S = 180.0
_LOOK_S = 0.5


@dataclass
class _Packet:
    """A packet that was handed out."""

    src: str
    body: bytes
    number: int
    engine: FlowerEngine

    def done(self) -> None:
        self.engine._done(self.number)

    def working(self) -> None:
        """Nothing to do: a packet comes again only when its recipient starts again."""


class FlowerEngine(Engine):
    """The end of a pipe: a site's, or with its own name as ``hub`` the hub's.

    home: the folder for the pipe and for packets that wait.  parties: all names.  keyring: the keys that count now.
    Raises EngineError if the folder cannot be used.
    """

    def __init__(
        self, name: str, hub: str, home: Path, parties: Collection[str], keyring: Callable[[], Keyring]
    ) -> None:
        self.name, self.home = name, home
        self._hub, self._parties, self._keyring = hub, frozenset(parties), keyring
        self._changed = threading.Condition()
        self._held: set[int] = set()
        self._idle = self._leaving = self._closed = self._serving = False
        self._over: bool | None = None
        self._called_s = float("-inf")
        self._queue = Queue(home / QUEUE)
        self.switch = Switch(self._queue, hub, parties, keyring) if name == hub else None
        try:
            self._listener = pipe.listen(home / pipe.PIPE)
        except OSError as error:
            self._queue.close()
            raise EngineError(f"{home / pipe.PIPE} cannot be made: {error}") from None
        self._path = home / pipe.PIPE
        self._thread = threading.Thread(target=self._listen, name="flower", daemon=True)
        self._thread.start()

    def nodes(self) -> Collection[str]:
        """At the hub, the parties that answer; elsewhere all, since sites know nothing of each other."""
        return self._parties if self.switch is None else self.switch.present() | {self.name}

    def push(self, dst: str, body: bytes, key: str) -> None:
        if dst not in self._parties or dst == self.name:
            raise UndeliverableError(f"{self.name} cannot send to {dst!r:.60}: it is no other party here")
        if len(body) > LARGEST:
            raise UndeliverableError(f"a packet of {len(body)} bytes to {dst} is larger than {LARGEST}")
        if not self._queue.put(self.name, dst, identity(self.name, dst, key), body):
            raise EngineError(f"{self._queue.path} takes no more to {dst}: what waits has to be fetched first")
        with self._changed:
            self._changed.notify_all()

    def pull(self, wait_s: float) -> Delivery | None:
        until_s = time.monotonic() + wait_s
        with self._changed:
            while self._closed or (found := self._queue.first(self.name, self._held)) is None:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or self._closed:
                    return None
                self._idle = True
                self._changed.notify_all()
                self._changed.wait(left_s)
                self._idle = False
            self._held.add(found.number)
        return _Packet(found.src, found.body, found.number, self)

    def close(self) -> None:
        """Leave, when what was pushed has been fetched, or ``LEAVE_S`` is over, or nobody has called for long."""
        with self._changed:
            if self._closed:
                return
            self._leaving = True
            if self.switch is not None:
                self.switch.leaving = True
            until_s = time.monotonic() + LEAVE_S
            while not self._settled() and time.monotonic() < min(until_s, self._called_s + _SILENT_S):
                self._changed.notify_all()
                self._changed.wait(_LOOK_S)
            if self.switch is not None and self._over is not None:
                self._over = True
                self._changed.wait_for(lambda: self._over is None, 5.0)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        with self._changed:
            self._queue.close()

    def _settled(self) -> bool:
        if self.switch is not None:
            return self.switch.settled()
        return not self._serving and not self._queue.waits(but=self.name)

    def _done(self, number: int) -> None:
        with self._changed:
            self._held.discard(number)
            if not self._closed:
                with contextlib.suppress(EngineError):  # then it comes again, at the latest at the next start
                    self._queue.done(number)

    # --- the pipe

    def _listen(self) -> None:
        """Serve whichever app has come last."""
        while not self._closed:
            if not self._ready(self._listener):
                continue
            try:
                connection, _ = self._listener.accept()
                self._serving = True
                with connection:
                    (self._answer if self.switch is None else self._serve)(connection)
            except (OSError, CoterieError, EngineError, msgspec.MsgspecError) as error:
                logs.refusal("engine", self._hub, str(error))  # the app is asked again
            with self._changed:
                self._over, self._serving = None, False
                self._changed.notify_all()

    @staticmethod
    def _ready(*sockets: socket.socket, wait_s: float = 0.2) -> list[socket.socket]:
        return select.select(sockets, [], [], wait_s)[0]

    def _serve(self, connection: socket.socket) -> None:
        """The hub's app: it tells what it sees, and is told what to carry, until either ends."""
        assert self.switch is not None
        with self._changed:
            self.switch.began()
            self._over = False
        while not self._closed:
            ready = self._ready(connection, self._listener)
            if self._listener in ready:
                return  # an app that was started later
            if not ready:
                continue
            if (data := pipe.receive(connection)) is None:
                return
            told = msgspec.msgpack.decode(data, type=tuple[list[int], list[int], list[tuple[int, bytes | None]]])
            with self._changed:
                calls = self.switch.turn(*told)
                over, self._called_s = bool(self._over), time.monotonic()
                self._changed.notify_all()
            pipe.send(connection, msgspec.msgpack.encode((calls, over)))
            if over:
                return

    def _answer(self, connection: socket.socket) -> None:
        """A site's app: take the call's packets, let the party work, and answer with what it has to send."""
        data = pipe.receive(connection)
        if data is None:
            return
        node, words = msgspec.msgpack.decode(data, type=tuple[int, bytes])
        call = read_call(self._keyring(), self._hub, node, words)
        if call.to not in ("", self.name):
            call = Call(call.nonce, "", 0.0, [], [])  # this node was another party's
        self._called_s = time.monotonic()
        stored = self._take(call)
        busy = call.to != "" and self._work(connection, call.wait_s)
        if busy is None:
            return
        packets = self._queue.some(CALL_BYTES, but=self.name) if call.to else []
        more = self._queue.waits(but=self.name, after=packets[-1].number if packets else 0)
        carried = [Carried(one.src, one.dst, one.id, one.body) for one in packets]
        answer = Answer(call.nonce, self.name, stored, carried, busy or more)
        pipe.send(connection, write(self._keyring(), self.name, node, answer))
        with self._changed:
            self._changed.notify_all()

    def _take(self, call: Call) -> list[tuple[str, str, bytes]]:
        """Store the packets of a call; which are stored."""
        self._queue.stored(ref for ref in call.stored if ref[0] == self.name)
        stored = []
        with self._changed:
            for packet in call.packets:
                if packet.dst != self.name or packet.src not in self._parties - {self.name}:
                    continue
                if not self._queue.put(packet.src, packet.dst, packet.id, packet.body):
                    break
                stored.append((packet.src, packet.dst, packet.id))
            if stored:
                self._idle = False
                self._changed.notify_all()
        return stored

    def _work(self, connection: socket.socket, wait_s: float) -> bool | None:
        """Wait until the party has nothing to do. Gives whether it still has, or None if the app has gone meanwhile."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            while not (self._idle or self._leaving) and time.monotonic() < until_s:
                self._changed.wait(0.1)
                if self._closed or self._ready(connection, self._listener, wait_s=0):
                    return None
            return not (self._idle or self._leaving)
