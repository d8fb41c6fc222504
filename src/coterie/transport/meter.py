"""Counters: bytes by role and message, seconds by role and kind of work, and refused, lost and late messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Meter:
    """The counters of one round. Keys: roles; ``"role/work"``; ``"role/Message: reason"``.

    Bytes are the weights of messages. ``envelope_bytes``, by role of the sender, are added to these and take no virtual
    time.
    """

    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    message_bytes: Counter[str] = field(default_factory=Counter)
    envelope_bytes: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    virtual_seconds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    def moved(self, src: str, dst: str, kind: str, size: int, envelope: int) -> None:
        """Count one message on one leg of its way. Up is what a role sends, and down is what it receives."""
        self.bytes_up[src] += size
        self.bytes_down[dst] += size
        self.envelope_bytes[src] += envelope
        self.message_bytes[f"{src} > {dst} {kind}"] += size

    def spent(self, role: str, work: str, seconds: float) -> None:
        """Count real seconds."""
        self.seconds[f"{role}/{work}"] += seconds  # type: ignore[assignment]

    def spent_virtual(self, role: str, work: str, seconds: float) -> None:
        """Count virtual seconds."""
        self.virtual_seconds[f"{role}/{work}"] += seconds  # type: ignore[assignment]
