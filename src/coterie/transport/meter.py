"""Counting: bytes per role and message, real seconds per role and kind of work, what was refused, lost or late."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Meter:
    """The counters of one round. Keys: roles; ``"role/work"``; ``"role/Message: reason"``.

    Bytes are what messages weigh; ``envelope_bytes``, by role of the sender, come on top and take no virtual time.
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
        """Count one message on one leg of its way; up is what a role sends, down what it receives."""
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
