"""Transcripts: all that every party received, in order. Attacks and audits work on these alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.protocol.messages import M, Message


@dataclass(frozen=True)
class Seen:
    """One message that a party received. ``message`` is None if the party is the hub and merely relays it."""

    time_s: float
    round: int
    src: str
    dst: str
    kind: str
    size: int
    message: Message | None


@dataclass
class View:
    """All that one party received."""

    party: str
    role: str
    seen: list[Seen] = field(default_factory=list)

    def messages(self, kind: type[M], round: int | None = None) -> Iterator[tuple[Seen, M]]:
        """Messages of one type, in order of arrival, of one round or of all."""
        for entry in self.seen:
            if isinstance(entry.message, kind) and round in (None, entry.round):
                yield entry, entry.message

    def kinds(self) -> frozenset[str]:
        """Names of the message types that this party read."""
        return frozenset(entry.kind for entry in self.seen if entry.message is not None)


class Transcript:
    """Records the views of all parties until ``limit_bytes`` are held. Then it stops, in round ``stopped_at``.

    views: by party, and one more for each other role that it acts in, such as ``"client/0 as leader"``.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.stopped_at: int | None = None
        self.views: dict[str, View] = {}

    def record(self, party: str, role: str, seen: Seen, held_bytes: int) -> None:
        """Add to one party's view. held_bytes: how many bytes of it are kept (0 if it is merely relayed)."""
        if self.stopped_at is not None:
            return
        if self.held_bytes + held_bytes > self.limit_bytes:
            self.stopped_at = seen.round
            return
        self.held_bytes += held_bytes
        self.views.setdefault(party, View(party, role)).seen.append(seen)

    def of_role(self, role: str) -> list[View]:
        """The views of all parties of a role."""
        return [view for view in self.views.values() if view.role == role]
