"""What a client can upload and download with five resources, and which client leads its cluster (OFL;
docs/resources.md).

Eq. (4) is a linear programme in two variables. ``ratios`` looks at every vertex, in exact fractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import inf, isfinite

from coterie.protocol.errors import UserError

KINDS = ("compute", "communication", "data", "availability", "privacy")
"""R of section 3.5, the order of limits and costs."""

Line = tuple[Fraction, Fraction, Fraction]
"""a, b, c of a x + b y <= c."""


@dataclass(frozen=True)
class Limits:
    """L_R of one client in one time step, in any units. Raises UserError for impossible numbers."""

    compute: float
    communication: float
    data: float
    availability: float
    privacy: float = inf

    def __post_init__(self) -> None:
        for kind in KINDS:
            if not getattr(self, kind) >= 0:
                raise UserError(f"the limit of {kind} is {getattr(self, kind)}; it must be a number of at least 0")

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(float(getattr(self, kind)) for kind in KINDS)


@dataclass(frozen=True)
class Costs:
    """C_{R,up} and C_{R,down} of one parameter, in the order of ``KINDS`` and the units of the limits. Raises
    UserError for impossible numbers.
    """

    up: tuple[float, ...]
    down: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("up", self.up), ("down", self.down)):
            if len(values) != len(KINDS) or not all(isfinite(value) and value >= 0 for value in values):
                raise UserError(
                    f"costs {name} are {values}: write {len(KINDS)} finite numbers of at least 0, {', '.join(KINDS)}"
                )


@dataclass(frozen=True)
class Ratios:
    """gamma_up and gamma_down, each 0 or from the floor to 1.  binding: the used-up resources."""

    up: float
    down: float
    binding: tuple[str, ...] = ()


@lru_cache(maxsize=4096)  # devices of one kind have equal limits
def ratios(
    limits: Limits, costs: Costs, size: int, floor: float = 0.0, *, most_up: float = 1.0, most_down: float = 1.0
) -> Ratios:
    """Eq. (4): the shares gamma_up and gamma_down of ``size`` parameters with the largest sum that the limits allow,
    and of these with the smallest difference, which the paper leaves open.

    floor: smaller shares are not worth a message. If resources don't suffice for the floor of both, the client takes
    the larger share alone (downloads, if equal), or none. Raises UserError.
    """
    if size < 1 or not 0 <= floor <= 1:
        raise UserError(f"size must be at least 1 and the floor from 0 to 1, not {size} and {floor}")
    if not (floor <= most_up <= 1 and floor <= most_down <= 1):
        raise UserError(f"a bound on a share lies between the floor {floor} and 1: not {most_up} or {most_down}")
    least, most, zero = Fraction(floor), (Fraction(most_up), Fraction(most_down)), Fraction(0)
    walls = _walls(limits, costs, size)
    lines = list(walls.values())
    if _allowed(lines, least, least):
        x, y = _best(lines, least, most)
    else:
        x = min([most[0], *(c / a for a, _, c in lines if a > 0)])
        y = min([most[1], *(c / b for _, b, c in lines if b > 0)])
        x, y = (x if x >= least else zero), (y if y >= least else zero)
        x, y = (zero, y) if y >= x else (x, zero)
    binding = tuple(kind for kind, (a, b, c) in walls.items() if a * x + b * y == c)
    return Ratios(float(x), float(y), binding)


def _walls(limits: Limits, costs: Costs, size: int) -> dict[str, Line]:
    found = {}
    for kind, limit, up, down in zip(KINDS, limits.values, costs.up, costs.down, strict=True):
        if limit < inf and (up or down):
            found[kind] = (size * Fraction(up), size * Fraction(down), Fraction(limit))
    return found


def _best(lines: list[Line], least: Fraction, bounds: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    one, zero = Fraction(1), Fraction(0)
    box = [(one, zero, bounds[0]), (zero, one, bounds[1]), (-one, zero, -least), (zero, -one, -least)]
    every = lines + box
    corners = [point for pair in combinations(every, 2) for point in _crossing(*pair) if _allowed(every, *point)]
    most = max(x + y for x, y in corners)
    xs = [x for x, y in corners if x + y == most]
    x = min(max(most / 2, min(xs)), max(xs))
    return x, most - x


def _crossing(first: Line, second: Line) -> Iterable[tuple[Fraction, Fraction]]:
    (a, b, c), (d, e, f) = first, second
    if determinant := a * e - b * d:
        yield (c * e - b * f) / determinant, (a * f - c * d) / determinant


def _allowed(lines: Iterable[Line], x: Fraction, y: Fraction) -> bool:
    return all(a * x + b * y <= c for a, b, c in lines)


def score(limits: Limits, costs: Costs, size: int) -> float:
    """How well a client is provided, in [0, 1]: the mean over the resources of h / (1 + h).

    h = L_R / ((C_{R,up} + C_{R,down}) size), whole models that a step would do. The paper gives no formula.
    """
    whole = [(up + down) * size for up, down in zip(costs.up, costs.down, strict=True)]
    shares = (
        1.0 if cost == 0 or limit == inf else limit / (limit + cost)
        for limit, cost in zip(limits.values, whole, strict=True)
    )
    return sum(shares, 0.0) / len(KINDS)


def elected(scores: Mapping[str, float], served: Mapping[str, float], penalty: float = 1.0) -> str:
    """The leader of a cluster: argmax of score / (1 + penalty * terms served) (algorithm 1, l. 12, and section 6.1).

    served: by name, by default 0. Ties: fewer terms, then the order of ``scores``. Raises UserError.
    """
    # with penalty 1 this is D'Hondt's rule: in the long run a client's share of the terms is its share of the scores
    if not scores or not 0 <= penalty < inf or not all(0 <= value < inf for value in scores.values()):
        raise UserError(
            f"an election takes one member or more, finite scores and a penalty of at least 0, not {len(scores)} "
            f"members, penalty {penalty}, scores {dict(scores)}"
        )
    return min(scores, key=lambda name: (-scores[name] / (1 + penalty * served.get(name, 0)), served.get(name, 0)))
