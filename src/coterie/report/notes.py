"""What a system noted of a round, as ``metrics.jsonl`` has it."""

from __future__ import annotations

import msgspec

from coterie.report.budget import Count
from coterie.report.dealt import Seconds

Members = tuple[tuple[Count, ...] | None, ...]  # of each client, the clusters that it is in


class Sizes(msgspec.Struct, frozen=True):
    """How many clients each cluster has."""

    sizes: tuple[Seconds, ...] | None = None


class Choice(msgspec.Struct, frozen=True):
    """What a cluster chose in a round: which clients, what reward was expected of them, or why it was skipped."""

    chosen: tuple[str, ...] = ()
    mean: float | None = None
    deviation: float | None = None
    skipped: str | None = None


class Event(msgspec.Struct, frozen=True):
    """What happened to clusters: ``merge``, ``split``, ... value: the divergence that decided."""

    kind: str
    clusters: tuple[Count, ...] = ()
    names: tuple[str, ...] = ()
    value: float | None = None


class Notes(msgspec.Struct, frozen=True):
    """What a system noted of a round; every note may be missing.

    selected: the cluster of each selected client.  too_slow: clients that no selection can have.
    """

    clustered: bool | None = None
    clusters: Sizes | None = None
    membership: Members | None = None
    participants: Count | None = None
    skipped: str | None = None
    outliers: dict[str, float] = {}
    too_slow: tuple[str, ...] = ()
    selected: dict[str, Count] | None = None
    choices: dict[str, Choice] = {}
    events: tuple[Event, ...] = ()
