"""The simulated wire: it times, counts, loses and, under attack, replaces messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

import msgspec

import coterie.protocol.core as fl
from coterie.transport.envelope import Envelope, Numbers, Sent
from coterie.transport.transcript import Seen, ViewRecorder

Instant = tuple[float, int]
"""Virtual seconds, and a count of steps within the same second (superdense time).

A message arrives later than it was sent, if only by a step. So "in order of arrival" respects cause and effect, and
does not depend on how work was batched.
"""

START: Instant = 0.0, 0
GONE = "gone before it could send"
_MAX_STEPS = 1_000_000
_MOST = 1 << 62  # bound of numbers and rounds


def after(instant: Instant, seconds: float) -> Instant:
    later_s = instant[0] + seconds
    return (later_s, 0) if later_s > instant[0] else instant


def arrival(sent: Instant, delay_s: float) -> Instant:
    """The arrival of a message, after its sending. Raises RunError if parties answer each other for ever."""
    if sent[1] >= _MAX_STEPS:
        raise fl.RunError(f"parties answer each other without end at second {sent[0]:g}: give their work a cost")
    return max(after(sent, delay_s), (sent[0], sent[1] + 1))


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """One message under way."""

    envelope: Envelope
    to_role: str
    arrives_s: float = 0.0
    step: int = 0
    ticket: int = 0  # of its bytes in the spool
    due: int = 0  # the round in which it is sent, if after its writing
    genuine: bool = True  # whether it has the key of the message sent, even with a changed payload

    @property
    def arrives(self) -> Instant:
        return self.arrives_s, self.step

    @property
    def order(self) -> tuple[float, int, str, int, int]:
        return self.arrives_s, self.step, self.envelope.src, self.envelope.number, self.ticket


Intercept = Callable[[Envelope, bytes], Sequence[bytes | tuple[Envelope, bytes]]]
"""An active attacker on the wire: given a message, what is delivered instead (nothing if lost).

Each item is bytes, which travel in this message's envelope, or an envelope and bytes, changed or captured before.
"""


class Snapshot(msgspec.Struct):
    """The transport's part of a checkpoint, without the bytes under way (``LocalTransport.frames``)."""

    clock_s: float
    numbers: dict[str, Numbers]
    parcels: list[Parcel]  # a parcel's ticket is the index of its frame
    sizes: list[int]  # of the frames, in bytes
    busy: dict[str, Instant]  # by party, until when
    links: list[tuple[str, str, Instant]]  # when each link's last message arrives

    def check(self, parties: Mapping[str, Any]) -> None:
        """Raises UserError unless a transport of these parties can have made this snapshot."""
        complete = numbered(parties) is not None or len(self.numbers) == len(parties)
        if not complete or not all(name in parties for name in self.numbers):
            has = f"it has {len(self.numbers)} parties, this one has {len(parties)}"
            raise fl.UserError(
                f"the checkpoint is of another federation: {has}; resume with the settings that it was made with"
            )
        ends = [(parcel.envelope.src, parcel.envelope.dst) for parcel in self.parcels]
        ends += [(src, dst) for src, dst, _ in self.links]
        names = {*self.busy, *chain(*ends), *chain(*(numbers.taken for numbers in self.numbers.values()))}
        instants = [(self.clock_s, 0), *self.busy.values(), *(link[2] for link in self.links)]
        instants += [parcel.arrives for parcel in self.parcels]
        counts = [*(step for _, step in instants), *(parcel.due for parcel in self.parcels)]
        counts += [2 * numbers.sent for numbers in self.numbers.values()]  # there is room for those to come
        if not (
            all(name in parties for name in names)
            and {parcel.ticket for parcel in self.parcels} == set(range(len(self.sizes)))
            and all(0 <= s < inf for s, _ in instants)
            and all(0 <= n <= _MOST for n in counts)
        ):
            raise fl.UserError(
                "this federation cannot have sent the messages under way in the checkpoint, so it was changed: "
                "start the run anew"
            )


def numbered(parties: Mapping[str, Any]) -> fl.Names | None:
    names = getattr(parties, "names", None)
    return names if isinstance(names, fl.Names) else None


class Links:
    """Virtual seconds of a party's transfers and work, and its presence; without delays.

    down_s, up_s: of ``size`` bytes sent to the party, and by it.
    """

    def down_s(self, party: str, size: int) -> float:
        return 0.0

    def up_s(self, party: str, size: int) -> float:
        return 0.0

    def work_s(self, party: str, cost: fl.Cost) -> float:
        return 0.0

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds this party's answer is held back. The party is free meanwhile."""
        return 0

    def device(self, party: str) -> str:
        return ""

    def there(self, party: str, round: int, at_s: float) -> bool:
        """Whether this party can receive and send at this second; always, for the hub."""
        return True

    def fate(self, party: str, round: int, request: int) -> str:
        """``"ok"``, ``"offline"`` (never receives it) or ``"dropped"`` (fails while working on it)."""
        return "ok"


def journey(
    links: Links, hub: str, envelope: Envelope, at: Instant, last: Instant, request: int
) -> tuple[float, float, Instant, str]:
    """Seconds to and from the hub of a message, its arrival, and its fate: as ``Links.fate``, or ``GONE``.

    last: when the link's last message arrives, which it does not overtake.
    """
    src, dst, r, size = envelope.src, envelope.dst, envelope.round, envelope.weight
    up_s = 0.0 if src in (hub, dst) else links.up_s(src, size)
    down_s = 0.0 if dst in (hub, src) else links.down_s(dst, size)
    arrives = max(arrival(at, up_s + down_s), last)
    fate = "ok"
    if src not in (hub, dst) and not links.there(src, r, at[0]):
        fate = GONE
    elif dst not in (hub, src):
        fate = links.fate(dst, r, request) if links.there(dst, r, arrives[0]) else "offline"
    return up_s, down_s, arrives, fate


class Wire:
    def __init__(self, parties: Mapping[str, Any], hub: str, links: Links, recorder: ViewRecorder) -> None:
        self.hub, self.links, self.recorder = hub, links, recorder
        self.last: dict[tuple[str, str], Instant] = {}  # arrival on each link: it keeps the order
        self._parties, names = parties, numbered(parties)
        in_order = {} if names else {name: place for place, name in enumerate(parties)}
        self._place: Callable[[str], int] = names.index if names else in_order.__getitem__

    def transmit(
        self, sent: Sent, at: Instant, intercept: Intercept | None
    ) -> tuple[list[tuple[Parcel, bytes]], str | None]:
        """A message's arriving parcels with their frames, and why it is lost, if it is."""
        envelope, frame, to_role = sent
        src, dst, size, hub = envelope.src, envelope.dst, envelope.weight, self.hub
        # a number that no other message has, and that does not depend on the order in which handlers run
        request = envelope.number * len(self._parties) + self._place(src)
        last = self.last.get((src, dst), START)
        up_s, down_s, arrives, fate = journey(self.links, hub, envelope, at, last, request)
        ends, hub_role = (envelope.role, to_role), self.recorder.roles(hub)[0]
        legs = [] if src == dst else [(ends[0], hub_role), (hub_role, ends[1])] if envelope.sealed else [ends]
        moved = {"offline": legs[:-1], GONE: []}.get(fate, legs)
        for a, b in moved:
            self.recorder.meter.moved(a, b, envelope.kind, size, len(msgspec.msgpack.encode(envelope)))
        if moved:
            self.recorder.left(envelope)
        if envelope.sealed and fate != GONE and self.recorder.transcript is not None:
            seen = Seen(at[0] + up_s, envelope.round, src, dst, envelope.kind, size, None)
            self.recorder.transcript.record(hub, hub_role, seen, 0)
        if up_s and fate != GONE:
            self.recorder.meter.carried(self.links.device(src), up_s, size)
        if down_s and fate not in ("offline", GONE):
            self.recorder.meter.carried(self.links.device(dst), down_s, size)
        if fate != "ok":
            return [], fate
        self.last[src, dst] = arrives
        parcel = Parcel(envelope, to_role, *arrives)
        if intercept is None or src == dst:
            return [(parcel, frame)], None
        copies = []
        for one in intercept(envelope, frame):
            other, data = (envelope, one) if isinstance(one, bytes) else one
            if other.dst in self._parties:  # an unknown recipient gets nothing
                genuine = other.key == envelope.key
                copies.append((msgspec.structs.replace(parcel, envelope=other, genuine=genuine), data))
        return copies, None if any(copy.genuine for copy, _ in copies) else "lost on the way"
