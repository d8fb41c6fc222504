"""Transcripts, on which alone attacks and audits work, and each round's counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from coterie.protocol.errors import shown
from coterie.protocol.messages import M, Message
from coterie.transport.envelope import Envelope, Opened
from coterie.transport.member import Observer, Roles

TOO_LATE = "too late"


@dataclass(frozen=True)
class Seen:
    """One message that a party received. ``message`` is None if the hub merely relays it."""

    time_s: float
    round: int
    src: str
    dst: str
    kind: str
    size: int
    message: Message | None


@dataclass
class View:
    """All that one party received. opening: SECRET, a server's key that opens what is sealed to it."""

    party: str
    role: str
    seen: list[Seen] = field(default_factory=list)
    opening: bytes = field(default=b"", repr=False)

    def messages(self, kind: type[M], round: int | None = None) -> Iterator[tuple[Seen, M]]:
        for entry in self.seen:
            if isinstance(entry.message, kind) and round in (None, entry.round):
                yield entry, entry.message

    def kinds(self) -> frozenset[str]:
        return frozenset(entry.kind for entry in self.seen if entry.message is not None)


class Transcript:
    """Records all parties' views until ``limit_bytes`` are held. Then it stops, in round ``stopped_at``.

    views: by party, and by each other role that it acts in, such as ``"client/0 as leader"``.  openings: SECRET, by
    server, the key that opens what is sealed to it.
    """

    def __init__(self, limit_bytes: int, openings: Mapping[str, bytes] | None = None) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self.openings = dict(openings or {})
        self.stopped_at: int | None = None
        self.views: dict[str, View] = {}

    def record(self, party: str, role: str, seen: Seen, held_bytes: int) -> None:
        if self.stopped_at is not None:
            return
        if self.held_bytes + held_bytes > self.limit_bytes:
            self.stopped_at = seen.round
            return
        self.held_bytes += held_bytes
        if party not in self.views:
            self.views[party] = View(party, role, opening=self.openings.get(party, b""))
        self.views[party].seen.append(seen)

    def of_role(self, role: str) -> list[View]:
        return [view for view in self.views.values() if view.role == role]


@dataclass
class Meter:
    """One round's counters. Keys: roles; ``"role/work"``; ``"role/Message: reason"``."""

    bytes_up: Counter[str] = field(default_factory=Counter)  # weights of messages, as in the next two
    bytes_down: Counter[str] = field(default_factory=Counter)
    message_bytes: Counter[str] = field(default_factory=Counter)
    # By role of the sender, on top; they take no virtual time.
    envelope_bytes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    virtual_seconds: Counter[str] = field(default_factory=Counter)
    # Virtual, "type/compute" and "type/radio", of all devices.
    device_seconds: Counter[str] = field(default_factory=Counter)
    device_messages: dict[str, int] = field(default_factory=dict)  # bytes of the largest message of a device type
    refused: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    # By message that the ledger counts, its senders, repeated.
    released: dict[str, list[str]] = field(default_factory=dict)

    def moved(self, src: str, dst: str, kind: str, size: int, envelope: int) -> None:
        self.bytes_up[src] += size
        self.bytes_down[dst] += size
        self.envelope_bytes[src] += envelope
        self.message_bytes[f"{src} > {dst} {kind}"] += size

    @contextmanager
    def timed(self, role: str, work: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[f"{role}/{work}"] += time.perf_counter() - started  # type: ignore[assignment]

    def worked(self, role: str, work: str, device: str, seconds: float) -> None:
        self.virtual_seconds[f"{role}/{work}"] += seconds  # type: ignore[assignment]
        if device:
            self.device_seconds[f"{device}/compute"] += seconds  # type: ignore[assignment]

    def carried(self, device: str, seconds: float, size: int) -> None:
        if device:
            self.device_seconds[f"{device}/radio"] += seconds  # type: ignore[assignment]
            self.device_messages[device] = max(size, self.device_messages.get(device, 0))


class ViewRecorder(Observer):
    def __init__(self, roles: Roles, transcript: Transcript | None, counted: frozenset[str] = frozenset()) -> None:
        self.roles, self.transcript, self.counted = roles, transcript, counted
        self.meter = Meter()

    def read(self, opened: Opened) -> None:
        if self.transcript is not None:
            e = opened.envelope
            seen = Seen(opened.at_s, e.round, e.src, e.dst, e.kind, e.weight, opened.message)
            name = e.dst if opened.role == self.roles(e.dst)[0] else f"{e.dst} as {opened.role}"
            self.transcript.record(name, opened.role, seen, opened.size)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self.meter.refused[shown(f"{role}/{envelope.kind:.40}: {reason}")] += 1

    def left(self, envelope: Envelope) -> None:
        if envelope.kind in self.counted:
            self.meter.released.setdefault(envelope.kind, []).append(envelope.src)

    def late(self, party: str) -> None:
        self.meter.late.append(party)

    def lost(self, envelope: Envelope, reason: str, *, by_sender: bool = False) -> None:
        party = envelope.src if by_sender or reason == TOO_LATE else envelope.dst
        self.meter.lost[shown(f"{party} {envelope.kind:.40} of round {envelope.round}")] = reason
