"""OFL's s-factors (eq. 6) on encrypted scalars, with nothing opened but the sum, for two to four leaders.

All of eq. (6) as polynomials. Extremes are found in rounds of pairs by ``aggregation/literal.py: magnitude``, and 1 /
(largest - least) is Goldschmidt's product. 21 ``levels`` admit two leaders with three iterations, or four with one. No
mode uses it.

**Where it fails.** |x| is found above 2^-iterations of the public bound only, the inverse for spreads above 2^-steps.
Nobody can see that a factor is wrong: docs/detection.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.aggregation.literal import magnitude, plus, product
from coterie.protocol.errors import CapacityError, UserError

ITERATIONS, STEPS = 3, 5
"""Of the magnitude of a difference, and factors of an inverse."""


def levels(leaders: int, iterations: int = ITERATIONS, steps: int = STEPS) -> int:
    rounds = (leaders - 1).bit_length()
    return 1 + rounds * (1 + 2 * iterations) + (rounds - 1) + (steps + 1) + 3


def factors(
    magnitudes: Sequence[Any],
    distances: Sequence[Any],
    bounds: tuple[float, float],
    iterations: int = ITERATIONS,
    steps: int = STEPS,
) -> list[Any]:
    """The encrypted s-factors of eq. (6), within [0, 1] up to the polynomials' errors.

    magnitudes, distances: encrypted scalars of each leader, at least 0.  bounds: public bounds on both for honest
        leaders. Raises UserError for fewer than two leaders, and CapacityError without ``levels``.
    """
    k, have = len(magnitudes), min(x.tally.form.level for x in (*magnitudes, *distances))
    if k < 2 or k != len(distances) or not min(bounds) > 0:
        raise UserError("s-factors compare two leaders at least, each with a magnitude and a distance within a bound")
    if have < (needed := levels(k, iterations, steps)):
        raise CapacityError(
            f"s-factors of {k} leaders under encryption take {needed} levels, {have} are left: take fewer leaders or "
            "iterations, or open the scalars"
        )
    against = _normalised(magnitudes, bounds[0], iterations, steps, sign=-1)
    far = _normalised(distances, bounds[1], iterations, steps, sign=1)
    return [product(m, d, at_most=1).add_plain([1.0]) for m, d in zip(against, far, strict=True)]  # eq. (6)


def weighted(models: Sequence[Any], by: Sequence[Any]) -> tuple[Any, Any]:
    """The encrypted sum of models times s-factors, and its divisor, the sum of s-factors."""
    total = sum_of([product(model, s, at_most=model.terms) for model, s in zip(models, by, strict=True)])
    return total, sum_of(by).at_level(total.tally.form.level)


def sum_of(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = plus(total, value)
    return total


def _normalised(values: Sequence[Any], bound: float, iterations: int, steps: int, *, sign: int) -> list[Any]:
    halves = [x.times_plain(0.5 / bound, at_most=1) for x in values]
    minus = [x.times_plain(-0.5 / bound, at_most=1) for x in values]
    largest, less = _extremes(halves, minus, iterations)  # and minus the least
    inverse = _inverse(plus(largest, less).within(1), steps)
    if sign > 0:
        parts = [plus(half.scale(2), less).within(1) for half in halves]
    else:
        least = less.times_plain(-1.0, at_most=1)
        parts = [plus(half.scale(2), least).within(1) for half in minus]
    return [product(part, inverse, at_most=1) for part in parts]


def _extremes(halves: Sequence[Any], minus: Sequence[Any], iterations: int) -> tuple[Any, Any]:
    high, low = list(zip(halves, minus, strict=True)), list(zip(minus, halves, strict=True))
    while len(high) > 1 or len(low) > 1:
        high, low = (_round(of, iterations, last=len(of) <= 2) for of in (high, low))
    return high[0][0], low[0][0]


def _round(pairs: list[tuple[Any, Any]], iterations: int, *, last: bool) -> list[tuple[Any, Any]]:
    found = []
    for at in range(0, len(pairs) - 1, 2):
        (x, _), (y, minus) = pairs[at], pairs[at + 1]
        half = plus(x, minus).within(1)
        larger = plus(plus(x, y), magnitude(half.scale(2).within(1), iterations, half)).within(1)
        if last:
            found.append((larger, larger))
        else:
            found.append((larger.times_plain(0.5, at_most=1), larger.times_plain(-0.5, at_most=1)))
    return found + (pairs[-1:] if len(pairs) % 2 else [])


def _inverse(x: Any, steps: int) -> Any:
    z = x.times_plain(-1.0, at_most=1).add_plain([1.0]).within(1)
    total = z.add_plain([1.0])
    for i in range(1, steps):
        z = product(z, z, at_most=1)
        total = product(total, z.add_plain([1.0]), at_most=1 << (i + 1))
    return total
