"""The ledger: what a client has released, by which mechanism, and its epsilon. docs/privacy.md is its page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import msgspec

from coterie.dp.composition import composed
from coterie.protocol.errors import UserError

DELTA = 1e-5
"""Where a system has no setting ``dp_delta``."""

Mechanism = Literal["none", "heuristic", "gaussian", "skellam", "laplace", "exponential"]
"""``none`` sends data without a proof, ``heuristic`` adds noise without one."""
UNPROVED = ("none", "heuristic")
PURE = ("laplace", "exponential")
Neighbours = Literal["replace one sample", "replace one client"]
"""What differs between data that must look alike: one sample of the client, or all that it has."""


@dataclass(frozen=True)
class Release:
    """Something that depends on a client's data and has left its device, once.

    what: in words ("sparsity vector").
    noise_multiplier: of Gaussian and Skellam noise, its standard deviation over the sensitivity.
    sensitivity_l2: the most by which the released vector moves between neighbours, in its own units; None if unbounded.
    sensitivity_l1: the same in L1, of Skellam noise.
    neighbours: the relation of this bound.  round: 0 is the set-up.
    against: who sees it so, such as "server" or "own leader"; nobody named: everybody.
    pure_epsilon: of the Laplace and the exponential mechanism, whose delta is 0.  draws: how many times the mechanism
    was run, with the earlier results known.
    sampled: the probability with which what neighbours differ in was part of a draw, independently of all else. hidden:
    whether nobody that sees the release can tell if it was. Only then does sampling count.
    claimed_epsilon: a publication's claim of a heuristic, which counts for nothing.
    sample: of a release that follows from noisy data, such as a model of DP-SGD, their proof for one sample, of round
    0. Releases of different kinds with the same proof in the same round show the same data.
    Raises UserError for what its mechanism lacks or does not have.
    """

    what: str
    mechanism: Mechanism = "none"
    noise_multiplier: float | None = None
    sensitivity_l2: float | None = None
    neighbours: Neighbours = "replace one sample"
    round: int = 0
    pure_epsilon: float | None = None
    draws: int = 1
    sampled: float = 1.0
    hidden: bool = False
    claimed_epsilon: float | None = None
    sensitivity_l1: float | None = None
    against: tuple[str, ...] = ()
    sample: Release | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(Mechanism) or self.neighbours not in get_args(Neighbours):
            raise UserError(
                f"{self.what}: a release by {self.mechanism!r}, neighbours {self.neighbours!r}: a ledger knows the "
                f"mechanisms {', '.join(get_args(Mechanism))} and the relations {', '.join(get_args(Neighbours))}"
            )
        numbers = self.noise_multiplier, self.sensitivity_l2
        if self.mechanism in UNPROVED:
            if self.noise_multiplier is not None or self.pure_epsilon is not None:
                raise UserError(
                    f"{self.what}: a noise multiplier is of a mechanism with a proof, and {numbers} of none"
                )
        elif self.mechanism in PURE:
            if not _positive(self.pure_epsilon) or self.noise_multiplier is not None:
                raise UserError(
                    f"{self.what}: the {self.mechanism} mechanism has a positive, finite pure_epsilon and no noise "
                    f"multiplier, not {self.pure_epsilon} and {self.noise_multiplier}"
                )
        elif self.pure_epsilon is not None or not all(map(_positive, numbers)):
            raise UserError(f"{self.what}: noise multiplier and sensitivity are positive and finite, not {numbers}")
        if (self.mechanism == "skellam") != _positive(self.sensitivity_l1):
            raise UserError(
                f"{self.what}: Skellam noise, and no other, has an L1 sensitivity, positive and finite, not "
                f"{self.sensitivity_l1} of mechanism {self.mechanism}"
            )
        if (
            self.draws != int(self.draws)
            or self.draws < 1
            or (self.draws > 1 and self.mechanism in (*UNPROVED, "skellam"))
        ):
            raise UserError(
                f"{self.what}: only Gaussians and mechanisms with a pure epsilon have several draws, not {self.draws}"
            )
        if not 0 < self.sampled <= 1 or (self.sampled < 1 and self.mechanism != "gaussian"):
            raise UserError(f"{self.what}: a Gaussian may be sampled with a probability in (0, 1], not {self.sampled}")
        if self.claimed_epsilon is not None and (self.mechanism != "heuristic" or not self.claimed_epsilon > 0):
            raise UserError(f"{self.what}: a claim is a heuristic's, and positive, not {self.claimed_epsilon}")

    @property
    def kind(self) -> tuple[Any, ...]:
        return tuple(value for name, value in vars(self).items() if name != "round")

    def proves(self, neighbours: Neighbours) -> bool:
        """For this relation. What hides a whole client hides each of its samples."""
        return self.mechanism not in UNPROVED and self.neighbours in (neighbours, "replace one client")

    def seen_by(self, observer: str | None) -> bool:
        """By this observer, or one of them all if None."""
        return observer is None or not self.against or observer in self.against


@dataclass(frozen=True)
class Ledger:
    releases: tuple[Release, ...] = ()

    @property
    def observers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for release in self.releases for name in release.against))

    def epsilon(self, delta: float, neighbours: Neighbours = "replace one sample", against: str | None = None) -> float:
        """Of all releases together; 0 of none, infinite if one has no proof for this relation. against: one
        observer, or None for all together.
        """
        seen = tuple(release for release in self.releases if release.seen_by(against))
        ways = {seen}
        if neighbours == "replace one sample":
            ways.add(_by_samples(seen))
        return min(_epsilon(way, delta, neighbours) for way in ways)

    def after(self, *more: Release) -> Ledger:
        return Ledger((*self.releases, *more))

    def further_round(self) -> Ledger:
        last = max((release.round for release in self.releases), default=0)
        return self.after(*(replace(one, round=last + 1) for one in self.releases if one.round == last))

    def of(self, what: str) -> Ledger:
        return Ledger(tuple(release for release in self.releases if release.what == what))

    def statement(self, delta: float = DELTA) -> dict[str, Any]:
        """For ``result.json``. An infinite epsilon is the word "infinite".

        epsilon: by relation, of everything together.  epsilon_after_one_more_round: after another like the last.
        against: by observer and relation; empty if no release names its observers.  releases: by kind, their number,
        first and last round, and the epsilon of this kind alone, also after one more.
        """
        kinds: dict[tuple[Any, ...], list[Release]] = {}
        for release in self.releases:
            kinds.setdefault(release.kind, []).append(release)
        return {
            "delta": delta,
            "epsilon": {relation: stated(self.epsilon(delta, relation)) for relation in get_args(Neighbours)},
            "epsilon_after_one_more_round": {
                relation: stated(self.further_round().epsilon(delta, relation)) for relation in get_args(Neighbours)
            },
            "against": {
                name: {relation: stated(self.epsilon(delta, relation, name)) for relation in get_args(Neighbours)}
                for name in self.observers
            },
            "releases": [_row(Ledger(tuple(kind)), delta) for kind in kinds.values()],
        }


class AccountEntry(msgspec.Struct):
    """All releases of one kind.  release: without its round.  rounds: of each, in order; 0 is the set-up."""

    release: Release
    rounds: list[int]


Entries = list[AccountEntry]
"""A ledger as a party stores it: each kind of release once."""


def add(entries: Entries, *releases: Release) -> None:
    for one in releases:
        plain: dict[str, Any] = {name: float(value) for name, value in vars(one).items() if isinstance(value, float)}
        kind = replace(one, **{**plain, "round": 0})  # no numbers of numpy
        entry = next((entry for entry in entries if entry.release == kind), None)
        if entry is None:
            entries.append(entry := AccountEntry(kind, []))
        entry.rounds.append(one.round)


def ledger_of(entries: Entries) -> Ledger:
    return Ledger(tuple(replace(entry.release, round=r) for entry in entries for r in entry.rounds))


def _by_samples(releases: Sequence[Release]) -> tuple[Release, ...]:
    shown: dict[tuple[Release, int], Counter[tuple[Any, ...]]] = {}
    for one in releases:
        if one.sample is not None:
            shown.setdefault((one.sample, one.round), Counter())[one.kind] += 1
    own = [one for one in releases if one.sample is None]
    return (*own, *(sample for (sample, _), kinds in shown.items() for _ in range(max(kinds.values()))))


def _epsilon(releases: Sequence[Release], delta: float, neighbours: Neighbours) -> float:
    if not all(release.proves(neighbours) for release in releases):
        return math.inf
    gaussian, sampled, pure = Counter[float](), Counter[tuple[float, float]](), Counter[float]()
    skellam = Counter[tuple[float, float, float]]()
    for one in releases:
        if one.sensitivity_l1 is not None and one.sensitivity_l2 is not None and one.noise_multiplier is not None:
            skellam[one.noise_multiplier, one.sensitivity_l2, one.sensitivity_l1] += 1
        elif one.pure_epsilon is not None:
            pure[one.pure_epsilon] += one.draws
        elif one.noise_multiplier is not None and one.hidden and one.sampled < 1:
            sampled[one.noise_multiplier, one.sampled] += one.draws
        elif one.noise_multiplier is not None:
            gaussian[one.noise_multiplier] += one.draws
    return composed(gaussian, sampled, pure, delta, skellam)


def statements(releases: Mapping[str, Sequence[Release]], delta: float = DELTA) -> dict[str, dict[str, Any]]:
    return {name: Ledger(tuple(own)).statement(delta) for name, own in releases.items()}


def _row(kind: Ledger, delta: float) -> dict[str, Any]:
    one, rounds = kind.releases[0], [release.round for release in kind.releases]
    return {
        **{name: value for name, value in asdict(one).items() if name != "round"},
        "against": list(one.against),
        "count": len(rounds),
        "rounds": [min(rounds), max(rounds)],
        "epsilon": stated(kind.epsilon(delta, one.neighbours)),
        "epsilon_after_one_more": stated(kind.after(one).epsilon(delta, one.neighbours)),
    }


def stated(epsilon: float) -> float | str:
    return epsilon if math.isfinite(epsilon) else "infinite"


def _positive(number: float | None) -> bool:
    return number is not None and 0 < number < math.inf
