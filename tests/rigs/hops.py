"""How many messages of a round wait for each other: what a round costs where each message takes long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from coterie.transport.envelope import Opened, Sent
from coterie.transport.local import LocalTransport


class Hops:
    """Counts on a transport, from now on. A message waits for all that its sender has read in the round before.

    depth: of the round, the number of messages in the longest chain.  kinds: by depth, those messages.
    """

    def __init__(self, transport: LocalTransport) -> None:
        self._sent: dict[Any, int] = {}
        self._read: dict[str, int] = defaultdict(int)
        self.kinds: dict[int, set[str]] = defaultdict(set)
        transmit, read = transport._transmit, transport._recorder.read

        def transmitting(sent: Sent, at: Any) -> None:
            envelope = sent.envelope
            if envelope.src != envelope.dst:
                depth = self._sent[envelope.key] = 1 + self._read[envelope.src]
                self.kinds[depth].add(envelope.kind)
            transmit(sent, at)

        def reading(opened: Opened) -> None:
            dst = opened.envelope.dst
            self._read[dst] = max(self._read[dst], self._sent.get(opened.envelope.key, 0))
            read(opened)

        transport._transmit = transmitting  # type: ignore[method-assign]
        transport._recorder.read = reading  # type: ignore[method-assign]

    def counted(self, act: Callable[[], Any]) -> int:
        """Hops, there and back, of what ``act`` does: half of the messages in the longest chain, rounded up."""
        self._sent.clear()
        self._read.clear()
        self.kinds.clear()
        act()
        return self.last()

    def last(self) -> int:
        """The same of all since ``counted`` was called, or since the beginning."""
        return (max(self.kinds, default=0) + 1) // 2
