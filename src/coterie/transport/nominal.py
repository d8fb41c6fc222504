"""The nominal time of a party's next message. The message is opened for that, and not opened again later."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.spool import Spool
from coterie.transport.links import Links
from coterie.transport.mail import Opened
from coterie.transport.member import Member
from coterie.transport.parcel import Parcel


class Nominal:
    """Opens messages for their cost and keeps them until they are handled, as long as they fit into ``room`` bytes."""

    def __init__(self, members: Mapping[str, Member], links: Links, spool: Spool, room: int) -> None:
        self._members, self._links, self._spool, self._room = members, links, spool, room
        self._opened: dict[int, Opened] = {}  # by ticket
        self._held = 0

    def work(self, parcel: Parcel) -> float:
        """Nominal seconds of a party's next message. A message that will be refused takes no time."""
        member = self._members[parcel.envelope.dst]
        if member.numbers.is_old(parcel.envelope):
            return 0.0
        try:
            opened = member.open(parcel.envelope, self._spool.peek(parcel.ticket), parcel.arrives_s)
            cost = member.cost(opened)
        except (PeerError, CryptoError):
            return 0.0
        if self._held + opened.size <= self._room:
            self._opened[parcel.ticket] = opened
            self._held += opened.size
        return self._links.work_s(member.name, cost)

    def take(self, parcel: Parcel, frame: bytes) -> Opened | None:
        """The message that is handled now, or None if its recipient will refuse it."""
        member, opened = self._members[parcel.envelope.dst], self._opened.pop(parcel.ticket, None)
        if opened is not None:
            self._held -= opened.size
        elif not member.numbers.is_old(parcel.envelope):
            try:
                return member.open(parcel.envelope, frame, parcel.arrives_s)
            except PeerError:
                return None
        return opened

    def clear(self) -> None:
        """Hold nothing."""
        self._opened.clear()
        self._held = 0
