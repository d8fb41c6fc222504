"""All messages under way: to handlers, to coordinators, and to a later round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from coterie.protocol.party import Party
from coterie.protocol.spool import Spool
from coterie.transport.agenda import Agenda, Leader
from coterie.transport.delayed import Delayed
from coterie.transport.envelope import Envelope
from coterie.transport.parcel import Parcel
from coterie.transport.schedule import Schedule


class Queues:
    """schedule: of the handlers.  agenda: of the hub.  leaders: by name, the parties that coordinate now.
    delayed: messages that are sent in a later round.
    """

    def __init__(self, parties: Mapping[str, Party], hub: str, spool: Spool, work: Callable[[Parcel], float]) -> None:
        self.parties, self.hub, self.spool = parties, hub, spool
        self.schedule = Schedule(parties, work)
        self.delayed = Delayed(spool)
        self.agenda = Agenda()
        self.leaders: dict[str, Leader] = {}

    def push(self, parcel: Parcel, frame: bytes) -> None:
        """Put a message under way."""
        self.route(msgspec.structs.replace(parcel, ticket=self.spool.put(frame)))

    def route(self, parcel: Parcel) -> None:
        """Put a message under way whose bytes are in the spool: to its recipient's coordination, or to a handler."""
        envelope, leader = parcel.envelope, self.leaders.get(parcel.envelope.dst)
        if leader is not None and self.is_for(leader, envelope):
            leader.agenda.push(parcel.arrives, parcel)
        elif self.is_for_hub(envelope):
            self.agenda.push(parcel.arrives, parcel)
        else:
            self.schedule.push(parcel)

    def is_for(self, leader: Leader, envelope: Envelope) -> bool:
        """Whether a message is for a party's coordination, and not for one of its handlers."""
        return envelope.answers in leader.coordination.asked or not self.handles(leader.name, envelope)

    def is_for_hub(self, envelope: Envelope) -> bool:
        """Whether only a round of the hub can take it."""
        return envelope.dst == self.hub and not self.handles(self.hub, envelope)

    def handles(self, name: str, envelope: Envelope) -> bool:
        """Whether a party has a handler for such a message."""
        return any(kind.__name__ == envelope.kind for kind in self.parties[name].handlers)

    def all(self, come: Iterable[Parcel]) -> tuple[list[Parcel], dict[int, int]]:
        """All messages under way, after those in ``come``, and by place a ticket of each frame.

        come: messages that the hub has received and not taken.
        """
        parcels = [*come, *self.agenda.parcels(), *self.schedule.waiting(), *self.delayed.waiting()]
        return parcels, {self.spool.place(parcel.ticket): parcel.ticket for parcel in parcels}

    def clear(self) -> None:
        """Forget all messages. Their bytes stay in the spool."""
        self.schedule.clear()
        self.agenda.clear()
        self.delayed.clear()

    def respooled(self, parcels: Sequence[Parcel], frames: Iterable[bytes]) -> list[Parcel]:
        """These parcels with their bytes in the spool. Before, their tickets are indices of ``frames``."""
        tickets: dict[int, int] = {}
        for place, frame in enumerate(frames):
            tickets |= {i: self.spool.put(frame) for i, parcel in enumerate(parcels) if parcel.ticket == place}
        return [msgspec.structs.replace(parcel, ticket=tickets[i]) for i, parcel in enumerate(parcels)]
