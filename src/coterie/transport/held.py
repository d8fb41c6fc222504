"""What is sent in a later round than it was written in: delays of an experiment, in rounds (``Links.rounds``)."""

from __future__ import annotations

import msgspec

from coterie.transport.envelope import Envelope
from coterie.transport.spool import Spool


class Held:
    """Messages that wait for their round, in order on every link: nothing overtakes what was written before it."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: list[Envelope] = []

    def due(self, src: str, dst: str) -> int:
        """The round of the last message that waits on this link; 0 if none does."""
        return max((e.due for e in self._waiting if (e.src, e.dst) == (src, dst)), default=0)

    def put(self, envelope: Envelope, frame: bytes, due: int) -> None:
        """Keep a message until round ``due``."""
        self.push(msgspec.structs.replace(envelope, due=due, ticket=self._spool.put(frame)))

    def push(self, envelope: Envelope) -> None:
        """Go on keeping a message whose bytes are in the spool."""
        self._waiting.append(envelope)

    def release(self, round: int) -> list[tuple[Envelope, bytes]]:
        """The messages whose round has come, and their bytes."""
        ready = [e for e in self._waiting if e.due <= round]
        self._waiting = [e for e in self._waiting if e.due > round]
        return [(msgspec.structs.replace(e, due=0), self._spool.take(e.ticket)) for e in ready]

    def waiting(self) -> list[Envelope]:
        """All that waits, as it was written."""
        return list(self._waiting)
