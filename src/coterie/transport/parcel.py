"""What the local transport adds to messages: arrival times and places of bytes. No party sees any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

import msgspec

from coterie.protocol.errors import RunError, UserError
from coterie.transport.envelope import Envelope, Numbers

Instant = tuple[float, int]
"""Virtual seconds, and a count of steps within the same second (superdense time).

A message always arrives later than it was sent: in a later second or, if nothing takes any time, in a later step of the
same second. So "in order of arrival" respects cause and effect, and does not depend on how work was batched.
"""

START: Instant = 0.0, 0
_MAX_STEPS = 1_000_000
_MOST = 1 << 62  # bound of numbers and rounds


def after(instant: Instant, seconds: float) -> Instant:
    """The instant this many seconds later, or the same instant if no time passes."""
    later_s = instant[0] + seconds
    return (later_s, 0) if later_s > instant[0] else instant


def arrival(sent: Instant, delay_s: float) -> Instant:
    """The arrival of a message, always after it was sent. Raises RunError if parties answer each other for ever."""
    if sent[1] >= _MAX_STEPS:
        raise RunError(f"parties answer each other without end at second {sent[0]:g}: give their work a cost")
    return max(after(sent, delay_s), (sent[0], sent[1] + 1))


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """One message under way.

    ticket: of its bytes in the spool.  due: the round in which it is sent, if later than the round it was written in.
    to_role: the role that its recipient acts in.  genuine: whether it stands for the message that its envelope names,
    although its payload may have been changed on the way.
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
        return self.arrives_s, self.step

    @property
    def order(self) -> tuple[float, int, str, int, int]:
        """The sorting key: by arrival, then by sender, then in the order of sending."""
        return self.arrives_s, self.step, self.envelope.src, self.envelope.number, self.ticket


Intercept = Callable[[Envelope, bytes], Sequence[bytes | tuple[Envelope, bytes]]]
"""An active attacker on the wire: given one message, what is delivered instead (nothing if it is lost).

Each item is bytes, which travel in this message's envelope, or an envelope and bytes, changed or captured before.
"""


class Snapshot(msgspec.Struct):
    """The transport's part of a checkpoint, without the bytes under way (``LocalTransport.frames``).

    The ticket of a parcel is the index of its frame. sizes: of the frames, in bytes. numbers: by party.
    busy: by party, the instant until which it is busy. links: when the last message of each link arrives.
    """

    clock_s: float
    numbers: dict[str, Numbers]
    parcels: list[Parcel]
    sizes: list[int]
    busy: dict[str, Instant]
    links: list[tuple[str, str, Instant]]

    def check(self, parties: Iterable[str]) -> None:
        """Raises UserError unless a transport of these parties can have made this snapshot."""
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
                "this federation cannot have sent the messages under way in the checkpoint, so it was changed: "
                "start the run anew"
            )
