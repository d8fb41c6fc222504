"""What the local transport adds to messages: when they arrive and where their bytes are. No party sees any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from coterie.protocol.errors import RunError, UserError
from coterie.transport.envelope import Envelope
from coterie.transport.numbers import Numbers

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


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """One message under way.

    ticket: finds its bytes.  due: the round in which it is sent, if that is a later one than it was written in.
    to_role: that its recipient acts in.  genuine: whether it stands for the message that its envelope names, though its
    payload may have been changed on the way.
    """

    envelope: Envelope
    to_role: str
    arrives_s: float = 0.0
    step: int = 0
    ticket: int = 0
    due: int = 0
    genuine: bool = True

    @property
    def arrives(self) -> Instant:
        """When it arrives."""
        return self.arrives_s, self.step

    @property
    def order(self) -> tuple[float, int, str, int, int]:
        """Sorts messages by arrival; at the same instant by sender, then as they were sent."""
        return self.arrives_s, self.step, self.envelope.src, self.envelope.number, self.ticket


Intercept = Callable[[Envelope, bytes], Sequence[bytes | tuple[Envelope, bytes]]]
"""What an active attacker on the wire makes of one message: what is delivered instead (nothing: it is lost).

Either bytes, which travel in this message's envelope, or an envelope and bytes: changed ones, or captured before.
"""


@dataclass(frozen=True)
class Job:
    """A message whose turn it is at its recipient, and when its handler starts and is done."""

    parcel: Parcel
    start: Instant
    done: Instant


class Snapshot(msgspec.Struct):
    """The transport's part of a checkpoint, without the bytes under way (``LocalTransport.frames``).

    The ticket of a parcel is the place of its frame among those. sizes: of the frames, in bytes. numbers: by party.
    busy: until when, by party. links: when the last message of each link arrives.
    """

    clock_s: float
    numbers: dict[str, Numbers]
    parcels: list[Parcel]
    sizes: list[int]
    busy: dict[str, Instant]
    links: list[tuple[str, str, Instant]]

    def check(self, parties: Iterable[str]) -> None:
        """Raises UserError unless a transport of these parties can have made it."""
        known, frames = set(parties), range(len(self.sizes))
        if set(self.numbers) != known:
            raise UserError(
                f"the checkpoint is of another federation: it has {len(self.numbers)} parties, this one has "
                f"{len(known)}; resume with the settings that it was made with"
            )
        envelopes = [parcel.envelope for parcel in self.parcels]
        names = {*self.busy, *(name for e in envelopes for name in (e.src, e.dst))}
        names |= {name for src, dst, _ in self.links for name in (src, dst)}
        names |= {name for numbers in self.numbers.values() for name in numbers.taken}
        instants = [(self.clock_s, 0), *self.busy.values(), *(link[2] for link in self.links)]
        instants += [parcel.arrives for parcel in self.parcels]
        counts = [*(step for _, step in instants), *(parcel.due for parcel in self.parcels)]
        counts += [2 * numbers.sent for numbers in self.numbers.values()]  # there is room for those to come
        if not (
            names <= known
            and {parcel.ticket for parcel in self.parcels} == set(frames)
            and all(0 <= s < inf for s, _ in instants)
            and all(0 <= n <= _MOST for n in counts)
        ):
            raise UserError(
                "the checkpoint's messages under way are none that this federation can have sent: it was changed; "
                "start the run anew"
            )
