"""The simulated wire between parties: it times, counts, loses and, under attack, replaces messages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coterie.transport.envelope import Envelope, Sent
from coterie.transport.links import Links
from coterie.transport.mail import Roles
from coterie.transport.meter import Meter
from coterie.transport.parcel import START, Instant, Intercept, Parcel, arrival
from coterie.transport.transcript import Seen, Transcript


class Wire:
    """A star around the hub. A message of a party to itself is on no wire, and takes no time and no bytes."""

    def __init__(self, roles: Roles, hub: str, links: Links, transcript: Transcript | None) -> None:
        self.roles, self.hub, self.links, self.transcript = roles, hub, links, transcript
        self.last: dict[tuple[str, str], Instant] = {}  # arrival on each link: it keeps the order
        self._place = {name: place for place, name in enumerate(roles)}

    def transmit(
        self, sent: Sent, at: Instant, meter: Meter, intercept: Intercept | None
    ) -> tuple[list[tuple[Parcel, bytes]], str | None]:
        """The parcels that arrive for a message, with their frames, and why the message itself is lost, if it is."""
        envelope, frame, to_role = sent
        src, dst, size, hub = envelope.src, envelope.dst, envelope.weight, self.hub
        up_s = 0.0 if src in (hub, dst) else self.links.up_s(src, size)
        down_s = 0.0 if dst in (hub, src) else self.links.down_s(dst, size)
        fate = "ok" if dst in (hub, src) else self.links.fate(dst, envelope.round, self._request(envelope))
        ends, hub_role = (envelope.role, to_role), self.roles[hub][0]
        legs = [] if src == dst else [(ends[0], hub_role), (hub_role, ends[1])] if envelope.sealed else [ends]
        for a, b in legs[:-1] if fate == "offline" else legs:
            meter.moved(a, b, envelope.kind, size, len(msgspec.msgpack.encode(envelope)))
        if envelope.sealed and self.transcript is not None:
            seen = Seen(at[0] + up_s, envelope.round, src, dst, envelope.kind, size, None)
            self.transcript.record(hub, hub_role, seen, 0)
        if fate != "ok":
            return [], fate
        arrives = self.last[src, dst] = max(arrival(at, up_s + down_s), self.last.get((src, dst), START))
        parcel = Parcel(envelope, to_role, *arrives)
        if intercept is None or src == dst:
            return [(parcel, frame)], None
        copies = list(self._replaced(parcel, intercept(envelope, frame)))
        lost = not any(copy.genuine for copy, _ in copies)
        return copies, "lost on the way" if lost else None

    def _replaced(
        self, parcel: Parcel, instead: Sequence[bytes | tuple[Envelope, bytes]]
    ) -> list[tuple[Parcel, bytes]]:
        """What an attacker delivers instead of a message. An unknown recipient gets nothing."""
        copies = []
        for one in instead:
            envelope, frame = (parcel.envelope, one) if isinstance(one, bytes) else one
            if envelope.dst in self.roles:
                genuine = envelope.key == parcel.envelope.key
                copies.append((msgspec.structs.replace(parcel, envelope=envelope, genuine=genuine), frame))
        return copies

    def _request(self, envelope: Envelope) -> int:
        """A number that no other message has, and that does not depend on the order in which handlers run."""
        return envelope.number * len(self._place) + self._place[envelope.src]
