"""The surroundings of a node: its settings, the interpreter of its effects, and its observers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coterie.deploy.packets import Era
from coterie.protocol.setup_info import Common
from coterie.transport.envelope import Envelope, Keyring, Opened
from coterie.transport.member import Observer

_MOST_KINDS = 64

Scores = Callable[[int], Mapping[str, float]]
"""What a party's owner lets it tell of itself after a round: numbers by name."""


Renew = Callable[[bytes], tuple[Keyring, Common]]
"""Takes a newer plan in, as it came from the hub. Raises PeerError unless it is genuine and newer, or the same."""


@dataclass(frozen=True)
class NodeSettings:
    """The plan's times and limits, equal for all parties.

    patience_s: the deadline of a step that states none, by the machine's clock.  grace_s: how long a party may be
    disconnected before it counts as gone.  retries: how often a round is tried again.  most, most_bytes: of packets of
    one sender that wait.  poll_s: how often a node looks up while nothing comes.
    """

    patience_s: float = 3600.0
    grace_s: float = 60.0
    retries: int = 2
    most: int = 1000
    most_bytes: int = 1 << 31
    poll_s: float = 1.0


class PartyEffects(Protocol):
    """Runs effects of this party (``transport.queues.Effects``)."""

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]: ...


class NodeObserver(Observer):
    """What a node tells its own log, beside its member's reads and refusals. This one does nothing."""

    def dropped(self, src: str, kind: str, reason: str) -> None:
        """A packet was not taken (``packet``), will never be stored (``push``), or the engine fails (``engine``)."""

    def waits(self, why: str) -> None:
        """The engine stores nothing for anybody, so this party waits; ``""``: it goes on."""

    def failed(self, envelope: Envelope, error: BaseException) -> None:
        """A handler has failed with an error that is not for its sender. The message is refused."""

    def began(self, era: Era) -> None:
        """A round or another attempt of it begins, and is committed."""

    def seen(self, party: str) -> None:
        """A genuine packet of this party has come."""

    def present(self, names: Collection[str]) -> None:
        """The engine's answer to who is connected, every second while this party coordinates."""

    def handled(self, envelope: Envelope) -> None:
        """A handler has ended. Its consequences are not yet committed."""

    def committed(self, commit: int, size: int) -> None:
        """The state was stored, in so many bytes."""


@dataclass
class Traffic:
    """A node's counts in this attempt of the round. refused: by kind of message, or "packet", "push", ..."""

    bytes_up: int = 0
    bytes_down: int = 0
    busy_s: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)

    def refuse(self, kind: str) -> None:
        """Count a refusal. Kinds are others' words, so their number is bounded."""
        known = kind in self.refused or len(self.refused) < _MOST_KINDS
        self.refused[kind[:80] if known else "other"] += 1


class Watch(Observer):
    """The observer of a node's member: counts refusals, and tells the node's observer. counts: of this attempt."""

    def __init__(self, observer: NodeObserver, counts: Callable[[], Traffic]) -> None:
        self._observer, self._counts = observer, counts

    def read(self, opened: Opened) -> None:
        self._observer.read(opened)

    def late(self, party: str) -> None:
        self._observer.late(party)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self._counts().refuse(envelope.kind)
        self._observer.refused(envelope, role, reason)
