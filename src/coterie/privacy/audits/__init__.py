"""Audits: what the parties of a system find out in a recorded run. A system names its own (``System.audit``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.devices.links import Delays
from coterie.privacy.attacks.result import VERDICTS, Attack, Expected, Result, verdict
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.system import Federation, System
from coterie.training.model import Model
from coterie.transport.transcript import View

__all__ = ["Audit", "Finding", "Meddle", "Recorded", "Samples", "View"]
Meddle = Callable[[Federation, Delays], None]
"""What is done to a run before it begins: to its parties, and to when clients answer."""


@dataclass(frozen=True, eq=False)
class Samples:
    """A client's samples, which score attacks; no attacker has them. x, y: (m, ...) some that it was trained on.

    other_x, other_y: (n, ...) of the same kind that no client was trained on.
    """

    x: Tensor
    y: Tensor
    other_x: Tensor
    other_y: Tensor


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded run as an audit takes it. ``runs/recorded.py`` makes one from memory or from a run's folder.

    options: of the run, resolved.  settings: of its system.  label_counts: (clients, classes) training samples.
    initial: (d,) the public initial weights.  federation: the parties as they were built; read from a folder, they
    hold nothing of the run.  views: of every party.  again(meddle): the same run once more, with these parties changed.
    stopped: the round in which recording ended early, of which the views hold nothing, or None.  lines: of the rounds,
    as they stand in ``metrics.jsonl``.  groups: (clients,) the data's own, where there are some.
    model: what the weights are of.  samples: of a client, by its name, or the public ones of the hub, if it has some.
    drifted: the round before which clients exchanged data, or None. Views and lines hold earlier rounds only, for which
    label_counts, groups and samples are right.
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
    model: Model
    samples: Callable[[str], Samples]
    stopped: int | None = None
    lines: Sequence[Mapping[str, Any]] = ()
    groups: NDArray[np.int64] | None = None
    drifted: int | None = None

    @property
    def mode(self) -> str:
        return str(self.options["mode"])


@dataclass(frozen=True)
class Finding:
    """One attack on one run. name: ``"who: what"``.

    results: of the rounds in which there was something to attack, in order; none only if the attack does not apply.
    why: the reason then.  expected: the closed form of each, or nothing where there is none.  round: of the run,
    in which an attack succeeded that waits for its chance.
    """

    name: str
    results: tuple[Result, ...]
    expected: tuple[Expected, ...] = ()
    round: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if not (self.results or self.why) or len(self.expected) not in (0, len(self.results)):
            raise UserError(f"{self.name}: {len(self.results)} results with {len(self.expected)} closed forms")

    @property
    def leak(self) -> float:
        """Mean over the rounds of ``Result.leak``: 0 for chance, 1 for everything, negative (down to -1) below it."""
        return fmean(self._leaks)

    @property
    def _leaks(self) -> list[float]:
        return [max(-1.0, result.leak) for result in self.results]

    @property
    def error(self) -> float:
        """Standard error of the leak: over the rounds, and at least the spread by chance of a single round.

        Rounds have clients and data in common, so that luck in one of them is luck in all.
        """
        leaks = self._leaks
        over_rounds = stdev(leaks) / len(leaks) ** 0.5 if len(leaks) > 1 else 0.0
        rooms = [abs(result.perfect - result.chance) for result in self.results]
        by_chance = fmean(
            result.chance_sd / room if room else 0.0 for result, room in zip(self.results, rooms, strict=True)
        )
        return max(over_rounds, by_chance)

    def _expected_leak(self) -> float:
        """What theory says of the leak; 0 where it says nothing."""
        if not self.expected:
            return 0.0
        forms = zip(self.results, self.expected, strict=True)
        return fmean(Result(one.metric, form.accuracy, one.chance, one.perfect, one.n).leak for one, form in forms)

    @property
    def verdict(self) -> str:
        """The leak in words. Where a closed form says more than the noise lets the measurement say, its words count."""
        return max(verdict(self.leak, 2 * self.error), verdict(self._expected_leak()), key=VERDICTS.index)

    def row(self) -> dict[str, Any]:
        """Means over the rounds, as numbers; first, last: of these rounds. closed_form: None where there is none."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "leak": self.leak,
            "error": self.error,
            "metric": self.results[0].metric,
            "value": fmean(result.value for result in self.results),
            "first": self.results[0].value,
            "last": self.results[-1].value,
            "chance": fmean(result.chance for result in self.results),
            "perfect": self.results[0].perfect,
            "closed_form": fmean(one.accuracy for one in self.expected) if self.expected else None,
            "clients": self.results[-1].n,
            "rounds": len(self.results),
            "round": self.round,
        }


@dataclass(frozen=True)
class Audit:
    """A system's audit. passive: every attack on one recorded run; no findings where nobody receives what tells.

    active: attacks that repeat the run with a client that deviates, or None.  attacks: as they are listed to a person.
    """

    passive: Callable[[Recorded], list[Finding]]
    active: Callable[[Recorded], list[Finding]] | None = None
    attacks: tuple[Attack, ...] = ()
