"""Magnitudes of encrypted scalars as polynomials.

Cheon et al., "Numerical method for comparison on homomorphically encrypted numbers", ASIACRYPT 2019, algorithm 1. |x|
is found above 2^-iterations of the public bound only, and nobody can see that it is wrong.
"""

from __future__ import annotations

from typing import Any


def product(x: Any, y: Any, *, at_most: int) -> Any:
    """x times the scalar y, at the lower level, rescaled."""
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level).times(y.at_level(level), at_most=at_most).rescaled()


def plus(x: Any, y: Any) -> Any:
    level = min(x.tally.form.level, y.tally.form.level)
    return x.at_level(level) + y.at_level(level)


def magnitude(y: Any, iterations: int, multiple: Any = None) -> Any:
    """About |y| of an encrypted scalar within +-1, 1 + 2 ``iterations`` levels lower: algorithm 1, lines 2 to 5.

    multiple: c y, for c |y| instead.
    """
    square = product(y, y, at_most=1)  # l. 2
    m = square if multiple is None else product(y, multiple, at_most=1)
    q = square.add_plain([-1.0])
    for left in range(iterations, 0, -1):
        m = product(m, q.times_plain(-0.5, at_most=1).add_plain([1.0]), at_most=1)  # l. 4
        if left > 1:  # l. 5
            q = product(product(q, q, at_most=1), q.add_plain([-3.0]).times_plain(0.25, at_most=1), at_most=1)
    return m
