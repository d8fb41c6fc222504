"""What a transport must know about devices: how long things take, and which are there. A higher layer provides it."""

from __future__ import annotations

from typing import Protocol

from coterie.protocol.party import Cost


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
