"""The simulated wire between parties: it times, counts, loses and, under attack, replaces messages.

A higher layer provides the ``Links``: how long things take on each device, and which devices are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from coterie.protocol.party import Cost
from coterie.transport.envelope import Sent
from coterie.transport.meter import Recorder
from coterie.transport.parcel import START, Instant, Intercept, Parcel, arrival
from coterie.transport.transcript import Seen


class Links(Protocol):
    """Virtual seconds of a party's transfers and work, and whether the party is there at all. Defaults: ``Ideal``."""

    def down_s(self, party: str, size: int) -> float:
        """Seconds until ``size`` bytes sent to this party have arrived."""
        return 0.0

    def up_s(self, party: str, size: int) -> float:
        """Seconds until ``size`` bytes sent by this party have arrived."""
        return 0.0

    def work_s(self, party: str, cost: Cost) -> float:
        """Seconds that this party's device needs for this work."""
        return 0.0

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds the experiment holds back what this party sends for a request of this round.

        It is stated in rounds, since the seconds of a round are not known beforehand. The party is free meanwhile.
        """
        return 0

    def fate(self, party: str, round: int, request: int) -> str:
        """``"ok"``, ``"offline"`` (never receives it) or ``"dropped"`` (fails while working on it)."""
        return "ok"


class Ideal(Links):
    """Links without delays, and parties that are always there."""


class Wire:
    """A star around the hub. A message of a party to itself is on no wire, and takes no time and no bytes.

    parties: the names of all, in a fixed order.
    """

    def __init__(self, parties: Sequence[str], hub: str, links: Links, recorder: Recorder) -> None:
        self.hub, self.links, self.recorder = hub, links, recorder
        self.last: dict[tuple[str, str], Instant] = {}  # arrival on each link: it keeps the order
        self._place = {name: place for place, name in enumerate(parties)}

    def transmit(
        self, sent: Sent, at: Instant, intercept: Intercept | None
    ) -> tuple[list[tuple[Parcel, bytes]], str | None]:
        """The parcels that arrive for a message, with their frames, and why the message itself is lost, if it is."""
        envelope, frame, to_role = sent
        src, dst, size, hub = envelope.src, envelope.dst, envelope.weight, self.hub
        # a number that no other message has, and that does not depend on the order in which handlers run
        request = envelope.number * len(self._place) + self._place[src]
        up_s = 0.0 if src in (hub, dst) else self.links.up_s(src, size)
        down_s = 0.0 if dst in (hub, src) else self.links.down_s(dst, size)
        fate = "ok" if dst in (hub, src) else self.links.fate(dst, envelope.round, request)
        ends, hub_role = (envelope.role, to_role), self.recorder.roles(hub)[0]
        legs = [] if src == dst else [(ends[0], hub_role), (hub_role, ends[1])] if envelope.sealed else [ends]
        for a, b in legs[:-1] if fate == "offline" else legs:
            self.recorder.meter.moved(a, b, envelope.kind, size, len(msgspec.msgpack.encode(envelope)))
        if envelope.sealed and self.recorder.transcript is not None:
            seen = Seen(at[0] + up_s, envelope.round, src, dst, envelope.kind, size, None)
            self.recorder.transcript.record(hub, hub_role, seen, 0)
        if fate != "ok":
            return [], fate
        arrives = self.last[src, dst] = max(arrival(at, up_s + down_s), self.last.get((src, dst), START))
        parcel = Parcel(envelope, to_role, *arrives)
        if intercept is None or src == dst:
            return [(parcel, frame)], None
        copies = []
        for one in intercept(envelope, frame):
            other, data = (envelope, one) if isinstance(one, bytes) else one
            if other.dst in self._place:  # an unknown recipient gets nothing
                genuine = other.key == envelope.key
                copies.append((msgspec.structs.replace(parcel, envelope=other, genuine=genuine), data))
        return copies, None if any(copy.genuine for copy, _ in copies) else "lost on the way"
