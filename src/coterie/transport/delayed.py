"""Messages that are sent in a later round than they were written in, by an experiment's delays (``Links.rounds``)."""

from __future__ import annotations

import msgspec

from coterie.protocol.spool import Spool
from coterie.transport.parcel import Parcel


class Delayed:
    """Messages that wait for their round. On every link they keep the order in which they were written."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: list[Parcel] = []

    def due(self, src: str, dst: str) -> int:
        """The round of the last message that waits on this link, or 0 if none waits."""
        return max((p.due for p in self._waiting if (p.envelope.src, p.envelope.dst) == (src, dst)), default=0)

    def put(self, parcel: Parcel, frame: bytes, due: int) -> None:
        """Keep a message until round ``due``."""
        self.push(msgspec.structs.replace(parcel, due=due, ticket=self._spool.put(frame)))

    def push(self, parcel: Parcel) -> None:
        """Add a message whose bytes are in the spool already."""
        self._waiting.append(parcel)

    def release(self, round: int) -> list[tuple[Parcel, bytes]]:
        """The messages whose round has come, and their bytes."""
        ready = [p for p in self._waiting if p.due <= round]
        self._waiting = [p for p in self._waiting if p.due > round]
        return [(msgspec.structs.replace(p, due=0), self._spool.take(p.ticket)) for p in ready]

    def waiting(self) -> list[Parcel]:
        """All waiting messages, in the order in which they were written."""
        return list(self._waiting)

    def clear(self) -> None:
        """Forget all messages."""
        self._waiting.clear()
