"""Counters: bytes by role and message, seconds by role and kind of work, and refused, lost and late messages.

A recorder keeps them beside the protocol, and the views.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from coterie.transport.envelope import Envelope, Opened
from coterie.transport.member import Observer, Roles
from coterie.transport.transcript import Seen, Transcript

TOO_LATE = "too late"
_MOST = 300  # characters of what is shown


@dataclass
class Meter:
    """The counters of one round. Keys: roles; ``"role/work"``; ``"role/Message: reason"``.

    Bytes are the weights of messages. ``envelope_bytes``, by role of the sender, come on top and take no virtual time.
    """

    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    message_bytes: Counter[str] = field(default_factory=Counter)
    envelope_bytes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    virtual_seconds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    def moved(self, src: str, dst: str, kind: str, size: int, envelope: int) -> None:
        """Count one message on one leg of its way. Up is what a role sends, and down is what it receives."""
        self.bytes_up[src] += size
        self.bytes_down[dst] += size
        self.envelope_bytes[src] += envelope
        self.message_bytes[f"{src} > {dst} {kind}"] += size

    @contextmanager
    def timed(self, role: str, work: str) -> Iterator[None]:
        """Count the real seconds of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[f"{role}/{work}"] += time.perf_counter() - started  # type: ignore[assignment]

    def spent_virtual(self, role: str, work: str, seconds: float) -> None:
        """Count virtual seconds."""
        self.virtual_seconds[f"{role}/{work}"] += seconds  # type: ignore[assignment]


def shown(text: str) -> str:
    """Words of which another party may have chosen some, for logs and consoles: one line, printable, and not long."""
    short = text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
    return short if short.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


class Recorder(Observer):
    """The ``Observer`` of a simulation: it counts for the meter of this round, and records views."""

    def __init__(self, roles: Roles, transcript: Transcript | None) -> None:
        self.roles, self.transcript = roles, transcript
        self.meter = Meter()

    def read(self, opened: Opened) -> None:
        """Add a message to its recipient's view, in the role that it acts in."""
        if self.transcript is not None:
            e = opened.envelope
            seen = Seen(opened.at_s, e.round, e.src, e.dst, e.kind, e.weight, opened.message)
            name = e.dst if opened.role == self.roles(e.dst)[0] else f"{e.dst} as {opened.role}"
            self.transcript.record(name, opened.role, seen, opened.size)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        """Count a message that was not accepted."""
        self.meter.refused[shown(f"{role}/{envelope.kind:.40}: {reason}")] += 1

    def late(self, party: str) -> None:
        """Count a party that a step did not wait for."""
        self.meter.late.append(party)

    def lost(self, envelope: Envelope, reason: str) -> None:
        """Count a message that did not reach anybody, or that nobody takes any more (``TOO_LATE``)."""
        party = envelope.src if reason == TOO_LATE else envelope.dst
        self.meter.lost[shown(f"{party} {envelope.kind:.40} of round {envelope.round}")] = reason
