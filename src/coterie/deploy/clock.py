"""The clock of a node: the machine's, or a virtual one that all parties of a rehearsal share."""

from __future__ import annotations

import time


class RealClock:
    """Seconds since the plan was signed, by the machine's clock. Within a process it never goes back.

    origin_s: that instant, in seconds since 1970.
    """

    def __init__(self, origin_s: float = 0.0) -> None:
        self._ahead_s = max(0.0, time.time() - origin_s) - time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() + self._ahead_s
