"""What the local transport moves and keeps: instants, envelopes, jobs and the snapshot between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import msgspec

from coterie.protocol.errors import RunError, UserError

Instant = tuple[float, int]
"""Virtual seconds and a count of what has followed from what within them (superdense time).

A message always arrives later than it was sent: in a later second or, where nothing takes any time, in a later step of
the same one. So "in order of arrival" respects cause and effect, and does not depend on how work was batched.
"""

START: Instant = 0.0, 0
_MAX_STEPS = 1_000_000
_MOST = 1 << 62  # of what is counted: numbers and rounds


def after(instant: Instant, seconds: float) -> Instant:
    """The instant this many seconds later; the same one if no time passes."""
    later_s = instant[0] + seconds
    return (later_s, 0) if later_s > instant[0] else instant


def arrival(sent: Instant, delay_s: float) -> Instant:
    """When something arrives, always after it was sent; raises RunError where messages chase each other forever."""
    if sent[1] >= _MAX_STEPS:
        raise RunError(f"parties answer each other without end at second {sent[0]:g}: give their work a cost")
    return max(after(sent, delay_s), (sent[0], sent[1] + 1))


class Sealer(Protocol):
    """Seals what two parties say to each other through the hub."""

    def seal(self, src: str, dst: str, frame: bytes) -> bytes:
        """Bytes that only ``dst`` can open."""

    def open(self, src: str, dst: str, sealed: bytes) -> bytes:
        """The frame; raises PeerError when it was not sealed by these ends for each other."""


class Effects(Protocol):
    """Runs effects for parties. An element of the result may be a CoterieError, which is raised in its handler."""

    chunk: int

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """The results of ``(party, effect)`` pairs, in their order."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One message under way.

    number: grows with every message of its sender.  answers: the number of the request that it answers, or 0.
    round: of the coordinator's message that led to it.  ticket: finds its bytes.  due: the round in which it is sent,
    if that is a later one than it was written in.
    """

    number: int
    src: str
    dst: str
    kind: str
    answers: int
    round: int
    arrives_s: float
    ticket: int
    sealed: bool = False
    step: int = 0
    due: int = 0

    @property
    def arrives(self) -> Instant:
        """When it arrives."""
        return self.arrives_s, self.step

    @property
    def order(self) -> tuple[float, int, str, int, int]:
        """Sorts messages by arrival; at the same instant by sender, then as they were sent."""
        return self.arrives_s, self.step, self.src, self.number, self.ticket


Intercept = Callable[[Envelope, bytes], Sequence[bytes]]
"""What an active attacker on the wire makes of one message: the frames that are delivered instead (none: lost).

A frame carries its number: one that was captured on the same link earlier arrives under the number it was sent with,
any other under the number of the message that it replaces.
"""


@dataclass(frozen=True)
class Job:
    """A message whose turn it is at its recipient, and when its handler starts and is done."""

    envelope: Envelope
    start: Instant
    done: Instant


class Snapshot(msgspec.Struct):
    """The transport's part of a checkpoint, without the bytes under way (``LocalTransport.frames``).

    The ticket of an envelope is the place of its frame among those. sizes: of the frames, in bytes. numbers: last used,
    by sender. busy: until when, by party. links: when the last message of each link arrives, and the last number
    taken from it.
    """

    clock_s: float
    numbers: dict[str, int]
    envelopes: list[Envelope]
    sizes: list[int]
    busy: dict[str, Instant]
    links: list[tuple[str, str, Instant, int]]

    def check(self, parties: Iterable[str]) -> None:
        """Raises UserError unless a transport of these parties can have made it."""
        known, frames = set(parties), range(len(self.sizes))
        if set(self.numbers) != known:
            raise UserError(
                f"the checkpoint is of another federation: it has {len(self.numbers)} parties, this one has "
                f"{len(known)}; resume with the settings that it was made with"
            )
        names = {*self.busy, *(name for e in self.envelopes for name in (e.src, e.dst))}
        names |= {name for src, dst, *_ in self.links for name in (src, dst)}
        instants = [(self.clock_s, 0), *self.busy.values(), *(link[2] for link in self.links)]
        instants += [envelope.arrives for envelope in self.envelopes]
        counts = [*self.numbers.values(), *(link[3] for link in self.links), *(step for _, step in instants)]
        counts += [n for e in self.envelopes for n in (e.number, e.answers, e.round, e.due)]
        if not (
            names <= known
            and {e.ticket for e in self.envelopes} == set(frames)
            and all(0 <= s < inf for s, _ in instants)
            and all(0 <= n <= _MOST for n in counts)
        ):
            raise UserError(
                "the checkpoint's messages under way are none that this federation can have sent: it was changed; "
                "start the run anew"
            )
