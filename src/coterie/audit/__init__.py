"""Audits: what the parties of a system find out in a recorded run. A system names its own (``System.audit``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.result import Attack
from coterie.audit.findings import Finding
from coterie.devices.delays import Delays
from coterie.protocol.effects import Vector
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.system import Federation, System
from coterie.transport.transcript import View

__all__ = ["Audit", "Meddle", "Recorded", "View"]


Meddle = Callable[[Federation, Delays], None]
"""What is done to a run before it begins: to its parties, and to when clients answer."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded run as an audit takes it. ``runs/recorded.py`` makes one from memory or from a run's folder.

    options: of the run, resolved.  settings: of its system.  label_counts: (clients, classes) training samples.
    initial: (d,) the public initial weights.  federation: the parties as they were built; read from a folder, they
    hold nothing of the run.  views: of every party.  again(meddle): the same run once more, with these parties changed.
    stopped: the round in which recording ended early, of which the views hold nothing, or None.  lines: of the rounds,
    as they stand in ``metrics.jsonl``.  groups: (clients,) the data's own, where there are some.
    """

    system: System
    options: Mapping[str, Any]
    settings: Any
    clients: tuple[str, ...]
    label_counts: NDArray[np.int64]
    spec: ModelSpec
    initial: Vector
    federation: Federation
    views: Mapping[str, View]
    again: Callable[[Meddle], Recorded]
    stopped: int | None = None
    lines: Sequence[Mapping[str, Any]] = ()
    groups: NDArray[np.int64] | None = None

    @property
    def mode(self) -> str:
        """Of the run."""
        return str(self.options["mode"])


@dataclass(frozen=True)
class Audit:
    """A system's audit. passive: every attack on one recorded run; no findings where nobody receives what tells.

    active: attacks that repeat the run with a client that deviates, or None.  attacks: as they are listed to a person.
    """

    passive: Callable[[Recorded], list[Finding]]
    active: Callable[[Recorded], list[Finding]] | None = None
    attacks: tuple[Attack, ...] = ()
