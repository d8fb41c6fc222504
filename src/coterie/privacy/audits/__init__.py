"""Audits: what the parties of a system find out in a recorded run (docs/audits.md).

A built-in system's is the module of its name. An attack is a generator of ``Measured`` under ``@attack``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import coterie.method as fl
from coterie.devices.links import Delays
from coterie.privacy.attacks.result import VERDICTS, AttackResult, Expected, verdict
from coterie.training.model import Model
from coterie.transport.transcript import View

__all__ = ["Attack", "Audit", "Delays", "Finding", "Measured", "Meddle", "Recorded", "Samples", "View", "attack"]
Meddle = Callable[[fl.Federation, Delays], None]
"""Changes a run's parties, and when clients answer, before it begins."""
Topic = Literal["models", "identity", "labels", "groups", "samples", "other"]
"""Methods are compared by each topic's best attack."""


@dataclass(frozen=True, eq=False)
class AuditSamples:
    """A client's samples, to score attacks; no attacker has them.  x, y: (m, ...) some that it was trained on.

    other_x, other_y: (n, ...) that no client was trained on.  same_pool: it held these out; test samples may be harder
    or easier.
    """

    x: Tensor
    y: Tensor
    other_x: Tensor
    other_y: Tensor
    same_pool: bool = True


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded run, from memory or a folder (``runs/recorded.py``).

    label_counts: (clients, classes) training samples.  initial: (d,) the public initial weights.  federation: the
    parties as built.  again(meddle): the same run once more, changed.  stopped: the round in which recording ended
    early, which the views lack, or None.  lines: of ``metrics.jsonl``.  groups: (clients,) the data's own, if any.
    samples: of a client, by name, or the hub's public ones.  drifted: the round before which clients exchanged data, or
    None; views and lines then end earlier.
    """

    system: fl.System
    options: Mapping[str, Any]
    settings: Any
    clients: tuple[str, ...]
    label_counts: NDArray[np.int64]
    spec: fl.ModelSpec
    initial: fl.Vector
    federation: fl.Federation
    views: Mapping[str, View]
    again: Callable[[Meddle], Recorded]
    model: Model
    samples: Callable[[str], AuditSamples]
    stopped: int | None = None
    lines: Sequence[Mapping[str, Any]] = ()
    groups: NDArray[np.int64] | None = None
    drifted: int | None = None

    @property
    def mode(self) -> str:
        return str(self.options["mode"])

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """(d,) the coordinates that messages have."""
        hub = self.federation.look(self.federation.hub)
        return np.asarray(getattr(hub, "is_shared", np.ones(self.spec.size, np.bool_)))

    def numbers(self, names: Iterable[str]) -> list[int]:
        """The rows of these clients in ``label_counts``."""
        return [self.clients.index(name) for name in names]


class Measured(NamedTuple):
    """The result of one attack in one round.  who: a role, or colluding parties.  what: they find out.

    result: None where the attack does not apply, and ``why``.  expected: the closed form, if any.  knowing: beside its
    view.  topic: if not the attack's.  round: of success, for an attack that waits.
    """

    who: str
    what: str
    result: AttackResult | None
    expected: Expected | None = None
    knowing: str = ""
    why: str = ""
    topic: Topic | None = None
    round: int | None = None


def tried(who: str, what: str, score: Callable[[], AttackResult], topic: Topic | None = None) -> Measured:
    """A UserError is the reason why the attack does not apply."""
    try:
        return Measured(who, what, score(), topic=topic)
    except fl.UserError as error:
        return Measured(who, what, None, why=str(error), topic=topic)


@dataclass(frozen=True)
class Finding:
    """One attack on one run; other fields as of ``Measured``.

    results: of the rounds with something to attack; none if it does not apply.  expected: the closed form of each, or
    none.  why: it does not apply, or "".
    """

    who: str
    what: str
    topic: Topic
    results: tuple[AttackResult, ...]
    expected: tuple[Expected, ...] = ()
    round: int | None = None
    why: str = ""
    knowing: str = ""

    def __post_init__(self) -> None:
        if not (self.results or self.why) or len(self.expected) not in (0, len(self.results)):
            raise fl.UserError(f"{self.name}: {len(self.results)} results with {len(self.expected)} closed forms")

    @property
    def name(self) -> str:
        return f"{self.who}, knowing {self.knowing}: {self.what}" if self.knowing else f"{self.who}: {self.what}"

    @property
    def leak(self) -> float:
        """Mean over the rounds: 0 for chance, 1 for everything, negative below chance."""
        return fmean(self._leaks)

    @property
    def _leaks(self) -> list[float]:
        return [max(-1.0, result.leak) for result in self.results]

    @property
    def error(self) -> float:
        """Standard error over the rounds, at least the spread by chance of one, since rounds share clients and data; 1
        where chance is perfect in every round, which tells nothing.
        """
        if self.results and not any(result.room for result in self.results):
            return 1.0
        leaks = self._leaks
        over_rounds = stdev(leaks) / len(leaks) ** 0.5 if len(leaks) > 1 else 0.0
        by_chance = fmean(result.chance_sd / abs(result.room) if result.room else 0.0 for result in self.results)
        return max(over_rounds, by_chance)

    def _expected_leak(self) -> float:
        if not self.expected:
            return 0.0
        forms = zip(self.results, self.expected, strict=True)
        return fmean(
            AttackResult(one.metric, form.accuracy, one.chance, one.perfect, one.n).leak for one, form in forms
        )

    @property
    def verdict(self) -> str:
        """The leak in words; the closed form's, where it says more."""
        measured = verdict(self.leak, 2 * self.error, chance_known=self._chance_known)
        return max(measured, verdict(self._expected_leak()), key=VERDICTS.index)

    @property
    def _chance_known(self) -> bool:
        return all(result.chance_known for result in self.results)

    def row(self) -> dict[str, Any]:
        """Means over the rounds; first, last: of these."""
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
            "chance_known": self._chance_known,
            "closed_form": fmean(one.accuracy for one in self.expected) if self.expected else None,
            "clients": self.results[-1].n,
            "rounds": len(self.results),
            "round": self.round,
        }


def gather(measured: Iterable[Measured], topic: Topic = "other") -> list[Finding]:
    """In order of first appearance. A finding has closed forms if all its results have."""
    found: dict[tuple[str, str, str], list[Measured]] = {}
    for one in measured:
        found.setdefault((one.who, one.knowing, one.what), []).append(one)
    return [_finding(rows, topic) for rows in found.values()]


def _finding(measured: list[Measured], topic: Topic) -> Finding:
    first = measured[0]
    results = tuple(one.result for one in measured if one.result is not None)
    forms = tuple(one.expected for one in measured if one.expected is not None)
    return Finding(
        first.who,
        first.what,
        first.topic or topic,
        results,
        forms if len(forms) == len(results) else (),
        round=next((one.round for one in measured if one.round), None),
        why=next((one.why for one in measured if one.why), ""),
        knowing=first.knowing,
    )


@dataclass(frozen=True)
class Attack:
    """adversary: its party.  summary: what it does."""

    name: str
    adversary: str
    topic: Topic
    summary: str
    measure: Callable[..., Iterable[Measured]]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Finding]:
        return gather(self.measure(*args, **kwargs), self.topic)


def attack(name: str, adversary: str, topic: Topic) -> Callable[[Callable[..., Iterable[Measured]]], Attack]:
    """Decorates a generator of results: an ``Attack`` stands in its place, whose summary is the first paragraph of the
    generator's docstring.
    """

    def decorate(measure: Callable[..., Iterable[Measured]]) -> Attack:
        first = " ".join((measure.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")
        return Attack(name, adversary, topic, first[:1].lower() + first[1:], measure)

    return decorate


def applied(
    attacks: Sequence[Attack], run: Recorded, subjects: Iterable[Any], none: str
) -> tuple[list[Finding], dict[str, str]]:
    """What each attack finds in these, and why some apply to none; ``none`` without any."""
    measured, reasons, scored, came = list[Measured](), dict[str, str](), set[str](), False
    for subject in subjects:
        came = True
        for one in attacks:
            try:
                found = list(one.measure(run, subject))
            except fl.UserError as error:
                reasons.setdefault(one.name, str(error))
                continue
            results = [each._replace(topic=each.topic or one.topic) for each in found if each.result is not None]
            measured += results
            if results:
                scored.add(one.name)
            elif found:
                reasons.setdefault(one.name, found[0].why)
    if not came:
        return [], {one.name: none for one in attacks}
    return gather(measured), {name: why for name, why in reasons.items() if name not in scored}


@dataclass(frozen=True)
class Audit:
    """passive: every attack on one recorded run; no findings where nobody receives enough.

    active: attacks that repeat the run with a deviating client, or None.  attacks: as listed to a person; a built-in
    audit has those of its file.  noise: rows that test claims of noise, for ``result.json``.
    """

    passive: Callable[[Recorded], list[Finding]]
    active: Callable[[Recorded], list[Finding]] | None = None
    attacks: tuple[Attack, ...] = ()
    noise: Callable[[fl.Federation], Sequence[Mapping[str, Any]]] | None = None


def built_in_audit(system: str) -> Audit | None:
    """None for systems that are not built in, or have none."""
    if system not in {module.name for module in iter_modules(__path__)}:
        return None
    module = import_module(f"{__name__}.{system}")
    every = (one for one in vars(module).values() if isinstance(one, Attack))
    own = (one for one in every if one.measure.__module__ == module.__name__)
    audit: Audit = module.AUDIT
    return replace(audit, attacks=(*own, *audit.attacks))
