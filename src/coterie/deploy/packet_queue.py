"""Packets in and out: numbered, sealed and signed, taken once."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.deploy.engine import (
    Delivery,
    Engine,
    EngineError,
    FullError,
    NotAdmittedError,
    OutgoingPacket,
    UndeliverableError,
)
from coterie.deploy.logs import NodeObserver
from coterie.deploy.packets import NewRun, Packet, Traffic, unwrap, wrap
from coterie.deploy.plan import NodeLimits as NodeLimits
from coterie.deploy.store import Numbering
from coterie.protocol.errors import PeerError
from coterie.transport.envelope import Keyring

_STARTS = 1 << 32  # numbers of each start of a node
_LAST_S, _OF_A_SECOND = 1 << 36, 1 << 24  # numbers by the clock: below 2^60, whatever it shows
_WORKING_S = 3.0
_RETRY_S = 0.5
# a recipient is waited for once within so many times ``grace_s``, or it could hold up its senders for ever
_FULL_AGAIN = 10
_TOGETHER = 8 << 20  # bytes of packets that may wait to be pushed


@dataclass(eq=False)
class Arrived:
    src: str
    number: int
    packet: Packet | None
    size: int
    delivery: Delivery


class PacketQueue:
    """first: a packet that has come before.  observer: is told of refused packets and waits.  limits: of one sender's
    waiting packets, and ``grace_s`` for a full recipient.  halted: stopped while the engine failed; pushes nothing
    more, since its recipient would take an earlier packet for a repetition.
    """

    def __init__(
        self,
        engine: Engine,
        keyring: Keyring,
        observer: NodeObserver,
        stopped: threading.Event,
        *,
        first: Delivery | None = None,
        limits: NodeLimits | None = None,
    ) -> None:
        self._first = first
        self.engine, self.keyring, self.name = engine, keyring, engine.name
        self.numbering, self.traffic = Numbering(), Traffic()
        self.held: dict[tuple[str, int], Arrived] = {}
        self.heard_s = time.monotonic()  # when the last packet came
        self.halted = False
        self._leaving: list[OutgoingPacket] = []
        self._leaving_bytes = 0
        self._lost: list[OutgoingPacket] = []
        self._full = dict[str, float]()  # by recipient, since when no more may wait for it
        self._observer, self._stopped = observer, stopped
        self._is_waiting = False
        self.limits = limits or NodeLimits()
        self._sizes: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._closed = threading.Event()

    # -- out ---------------------------------------------------------------------------------------------------------

    def start(self, numbering: Numbering) -> None:
        """A new start of the node, to be committed before anything is sent.

        Its numbers are beyond those of all starts before, even unknown ones after its disk was put back, unless its
        clock was, too.
        """
        self.numbering = numbering
        numbering.starts += 1
        if numbering.starts > 1:
            by_clock = min(int(time.time()), _LAST_S) * _OF_A_SECOND
            numbering.sent = max(numbering.sent + _STARTS, by_clock)

    def wrap(self, dst: str, packet: Packet) -> OutgoingPacket:
        numbered = not isinstance(packet, NewRun)
        self.numbering.sent += numbered
        number = self.numbering.sent if numbered else 0
        body = wrap(self.keyring, self.name, dst, number, packet)
        return OutgoingPacket(dst, f"{self.name}.{number}.{secrets.token_hex(16)}", body)

    def push(self, parcels: Sequence[OutgoingPacket]) -> list[OutgoingPacket]:
        """First those put aside, however long it takes. Returns the lost ones: a packet is lost if it never can be
        stored, if the node is stopped before, or if its recipient is full for ``grace_s``. ``flush`` returns those put
        aside.
        """
        aside, self._leaving, self._leaving_bytes = self._leaving, [], 0
        left, lost = [*aside, *parcels], list[OutgoingPacket]()
        while left and not self.halted:
            again, problems = [], self.engine.push_all(left)
            self._tell(problems)
            for parcel, problem in zip(left, problems, strict=True):
                if problem is None:
                    self.traffic.bytes_up += len(parcel.body)
                    if time.monotonic() >= self._full.get(parcel.dst, math.inf) + _FULL_AGAIN * self.limits.grace_s:
                        del self._full[parcel.dst]
                elif self._gives_up(parcel, problem):
                    lost.append(parcel)
                else:
                    again.append(parcel)
            left = again
            self.halted = bool(left) and self._stopped.wait(_RETRY_S)
        lost += left
        keys = {one.key for one in aside}
        self._lost += [one for one in lost if one.key in keys]
        return [one for one in lost if one.key not in keys]

    def _tell(self, problems: Sequence[EngineError | None]) -> None:
        fails = all(type(one) is EngineError for one in problems)
        if fails != self._is_waiting:
            self._is_waiting = fails
            self._observer.waits(str(problems[0]) if fails else "")

    def _gives_up(self, parcel: OutgoingPacket, problem: EngineError) -> bool:
        never = isinstance(problem, UndeliverableError)
        self.refuse(parcel.dst, "push" if never else "engine", str(problem))
        if isinstance(problem, FullError):
            since_s = self._full.setdefault(parcel.dst, time.monotonic())
            return time.monotonic() >= since_s + self.limits.grace_s
        return never

    def put_aside(self, parcel: OutgoingPacket) -> None:
        """To be pushed with later ones, or by ``flush``."""
        self._leaving.append(parcel)
        self._leaving_bytes += len(parcel.body)
        if self._leaving_bytes > _TOGETHER:
            self.push([])

    def flush(self) -> list[OutgoingPacket]:
        if self._leaving:
            self.push([])
        lost, self._lost = self._lost, []
        return lost

    def send(self, dst: str, packet: Packet) -> bool:
        try:
            return not self.push([self.wrap(dst, packet)])
        except PeerError as error:
            self.refuse(dst, "push", str(error))
            return False

    # -- in ----------------------------------------------------------------------------------------------------------

    def pull(self, wait_s: float) -> Arrived | None:
        """The next genuine, new packet within ``wait_s`` seconds."""
        delivery, self._first = self._first, None
        try:
            delivery = delivery or self.engine.pull(wait_s)
        except NotAdmittedError:
            raise
        except EngineError as error:
            self.refuse(self.name, "engine", str(error))
            self._stopped.wait(min(wait_s, _RETRY_S))
            return None
        if delivery is None:
            return None
        size = len(delivery.body)
        arrived = self._new(delivery, size)
        if arrived is None:
            self.traffic.bytes_down += size
        return arrived

    def took(self, arrived: Arrived) -> None:
        self.traffic.bytes_down += arrived.size

    def _new(self, delivery: Delivery, size: int) -> Arrived | None:
        src = delivery.src
        try:
            number, packet = unwrap(self.keyring, src, self.name, delivery.body)
        except PeerError as error:
            self.refuse(src, "packet", str(error))
            delivery.done()
            return None
        delivery.body, self.heard_s = b"", time.monotonic()
        if (known := self.held.get((src, number))) is not None:
            known.delivery = delivery
            return None
        taken, left_open = self.numbering.taken, self.numbering.open
        if 0 < number <= taken.get(src, 0) and number not in left_open.get(src, ()):
            delivery.done()  # the engine's own repetition, or a replay
            return None
        overtaken = [one for one in left_open.get(src, ()) if one < number and (src, one) not in self.held]
        for one in overtaken:  # packets come in order, so what an earlier start held is done, or was held back
            left_open[src].remove(one)
        arrived = Arrived(src, number, packet, size, delivery)
        if self._counts[src] >= self.limits.most or self._sizes[src] + size > self.limits.most_bytes:
            self.refuse(src, "packet", f"{self._counts[src]} packets of {src} wait already")
            delivery.done()
            return None
        self._hold(arrived)
        return arrived

    def refuse(self, src: str, kind: str, reason: str) -> None:
        self.traffic.refuse(kind)
        self._observer.dropped(src, kind, reason)

    def done(self, arrived: Arrived) -> None:
        self.forget(arrived)
        arrived.delivery.done()

    def forget(self, arrived: Arrived) -> None:
        key = arrived.src, arrived.number
        with self._lock:
            if self.held.pop(key, None) is None:
                return
        self._counts[arrived.src] -= 1
        self._sizes[arrived.src] -= arrived.size
        if key[1] in self.numbering.open.get(key[0], ()):
            self.numbering.open[key[0]].remove(key[1])

    def _hold(self, arrived: Arrived) -> None:
        with self._lock:
            self.held[arrived.src, arrived.number] = arrived
        self._counts[arrived.src] += 1
        self._sizes[arrived.src] += arrived.size
        src, number, numbering = arrived.src, arrived.number, self.numbering
        numbering.taken[src] = max(number, numbering.taken.get(src, 0))
        if number not in (opened := numbering.open.setdefault(src, [])):
            opened.append(number)

    # -- for as long as the node runs --------------------------------------------------------------------------------

    def open(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name=f"{self.name} works", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._closed.wait(_WORKING_S):
            with self._lock:
                held = list(self.held.values())
            for one in held:
                one.delivery.working()

    def close(self) -> None:
        self._closed.set()
        if self._keeper is not None:
            self._keeper.join()
        self.engine.close()
