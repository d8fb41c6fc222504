"""An engine and a store in memory: parties in threads of one process, and all that may go wrong on a wire."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from coterie.deploy.engine import Engine, UndeliverableError

Tamper = Callable[[str, str, bytes], Sequence[bytes]]
"""An attacker at the engine: given sender, recipient and bytes of a packet, what is delivered instead."""


@dataclass(eq=False)
class _Packet:
    src: str
    body: bytes
    key: str
    ready_s: float = 0.0


class Exchange:
    """The broker of all engines of a process. It keeps packets until they are done, also when their parties are gone.

    tamper: changes what is delivered.  delay_s: by sender and recipient, seconds until a packet may be pulled.
    repeats: how often each packet is delivered.  bytes: pushed, by sender and recipient.
    """

    def __init__(
        self,
        names: Collection[str],
        *,
        tamper: Tamper | None = None,
        delay_s: Callable[[str, str], float] | None = None,
        repeats: int = 1,
    ) -> None:
        self.tamper, self.delay_s, self.repeats = tamper, delay_s, repeats
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.packets: Counter[tuple[str, str]] = Counter()
        self._boxes: dict[str, list[_Packet]] = {name: [] for name in names}
        self._keys: set[tuple[str, str, str]] = set()
        self._here: dict[str, MemoryEngine] = {}
        self._changed = threading.Condition()

    def engine(self, name: str) -> MemoryEngine:
        """A connection of this party. It takes the place of an earlier one, whose packets come again."""
        with self._changed:
            made = self._here[name] = MemoryEngine(name, self)
            self._changed.notify_all()
        return made

    def leave(self, engine: MemoryEngine) -> None:
        with self._changed:
            if self._here.get(engine.name) is engine:
                del self._here[engine.name]

    def here(self) -> Collection[str]:
        with self._changed:
            return frozenset(self._here)

    def put(self, src: str, dst: str, body: bytes, key: str) -> None:
        with self._changed:
            if dst not in self._boxes:
                raise UndeliverableError(f"{dst} is no party of this exchange")
            if (src, dst, key) in self._keys:
                return
            self._keys.add((src, dst, key))
            self.bytes[src, dst] += len(body)
            self.packets[src, dst] += 1
            delay_s = 0.0 if self.delay_s is None else self.delay_s(src, dst)
            ready_s = time.monotonic() + delay_s
            ready_s = max([ready_s, *(one.ready_s for one in self._boxes[dst] if one.src == src)])
            bodies = [body] if self.tamper is None else self.tamper(src, dst, body)
            copies = [each for each in bodies for _ in range(self.repeats)]
            self._boxes[dst] += [_Packet(src, each, key, ready_s) for each in copies]
            self._changed.notify_all()

    def get(self, engine: MemoryEngine, wait_s: float) -> _Packet | None:
        until_s = time.monotonic() + wait_s
        with self._changed:
            while self._here.get(engine.name) is engine:
                now_s = time.monotonic()
                fresh = [one for one in self._boxes[engine.name] if one not in engine.held]
                ready = [one for one in fresh if one.ready_s <= now_s]
                if ready:
                    engine.held.append(ready[0])
                    return ready[0]
                if now_s >= until_s:
                    return None
                self._changed.wait(min([until_s, *(one.ready_s for one in fresh)]) - now_s)
        return None

    def done(self, engine: MemoryEngine, packet: _Packet) -> None:
        with self._changed:
            if packet in self._boxes[engine.name]:
                self._boxes[engine.name].remove(packet)
            if packet in engine.held:
                engine.held.remove(packet)

    def waiting(self, name: str) -> int:
        """The packets for a party that are not done."""
        with self._changed:
            return len(self._boxes[name])


@dataclass(eq=False)
class MemoryDelivery:
    """One packet of an exchange."""

    src: str
    body: bytes
    _engine: MemoryEngine
    _packet: _Packet

    def done(self) -> None:
        self._engine.exchange.done(self._engine, self._packet)

    def working(self) -> None:
        pass


@dataclass(eq=False)
class MemoryEngine(Engine):
    """One party's connection to an exchange. held: what it has pulled and not done."""

    name: str
    exchange: Exchange
    held: list[_Packet] = field(default_factory=list)

    def nodes(self) -> Collection[str]:
        return self.exchange.here()

    def push(self, dst: str, body: bytes, key: str) -> None:
        self.exchange.put(self.name, dst, body, key)

    def pull(self, wait_s: float) -> MemoryDelivery | None:
        packet = self.exchange.get(self, wait_s)
        return None if packet is None else MemoryDelivery(packet.src, packet.body, self, packet)

    def close(self) -> None:
        self.exchange.leave(self)


class MemoryStore:
    """The last commit of a node (``deploy.store.Store``)."""

    def __init__(self) -> None:
        self.data: bytes | None = None

    def load(self) -> bytes | None:
        return self.data

    def save(self, data: bytes) -> None:
        self.data = data
