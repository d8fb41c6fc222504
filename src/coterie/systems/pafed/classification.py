"""Which late updates conflict: algorithm 4's weights of eq. (13) under encryption.

``by_minimum`` (mode ``literal``) is algorithm 1's Min() on the ciphertexts; no party learns a sign. With ``by_helper``
the helper opens masked cosines among dummies, and masked sums of both classes. It learns about how many updates
conflict, and sizes up to a factor of 256. With ``signs=hidden`` it learns no sign (docs/systems/pafed.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import coterie.method as fl
from coterie.aggregation.literal import magnitude, plus, product
from coterie.crypto.vector import sum_ciphers
from coterie.systems.pafed.messages import HELPER, SERVICE, Compare, Compared, Invert, Inverted

MASK_BITS = 8
"""A mask of a cosine is 2^u, u uniform in [0, MASK_BITS]."""
MOST_MASK = 1 << MASK_BITS
SUM_MASK_BITS = 3
"""A mask of a sum is 2^-u, u uniform in [0, SUM_MASK_BITS]."""
REFRESHING = 1
_HELPED: Mapping[type, tuple[int, type[Any]]] = {Compare: (2, Compared), Invert: (3, Inverted)}
"""Numbers of the requests to the helper in a round, and their answers."""


def random_mask(source: fl.Secrets, bits: int) -> float:
    u = int.from_bytes(source.bytes(7), "little") / 2.0**56
    return float(2.0 ** (-bits * u))


def cosine_mask(source: fl.Secrets) -> float:
    return MOST_MASK * random_mask(source, MASK_BITS)


def helped(
    hub: Any, r: int, kind: type[Compare | Invert], count: int, ciphers: Sequence[Any], scalars: int, at_most: int
) -> fl.Steps[list[Any]]:
    """The helper's answers. scalars: their number, each at most so many terms."""
    number, reply = _HELPED[kind]
    service, sealed = hub.keys.public(SERVICE), (yield from hub.for_helper(r, number, ciphers))

    def read(answer: Compared | Inverted) -> list[Any]:
        parts, form = fl.unbundle(answer.ciphers, scalars), service.fresh_scalar
        return [service.from_bytes(part, length=1, terms=at_most, blinded=0, form=form) for part in parts]

    request = kind(r, count, fl.bundle([cipher.to_bytes() for cipher in sealed]))
    answers: list[Any] = yield from fl.ask(HELPER, request, reply, read)
    return answers


def by_minimum(dots: list[Any], n: int, iterations: int) -> tuple[list[Any], list[Any]]:
    """Twice n times the weights of eq. (13) by algorithm 1: c/2 + 2n m_d and c/2 - 2n m_d, with m_d about |c| / 4n."""
    agreeing, conflicting = [], []
    for dot in dots:
        y = dot.times_plain(1 / (4 * n), at_most=1)  # l. 1, for a = (c/n + 1) / 2 and b = 1/2
        m = magnitude(y, iterations)  # l. 2 to 5
        half = dot.times_plain(0.5, at_most=n)
        agreeing.append(plus(half, m.times_plain(2.0 * n, at_most=n)))
        conflicting.append(plus(half, m.times_plain(-2.0 * n, at_most=n)))
    return agreeing, conflicting


def by_helper(
    hub: Any, r: int, dots: Sequence[Any], n: int, source: fl.Secrets, *, coins: bool
) -> fl.Steps[tuple[list[Any], list[Any], list[Any]]]:
    """[max(c_j, 0)], [min(c_j, 0)] and, with coins, [|c_j|], by the helper's comparison of masked, shuffled cosines.

    dots: [c_j], within +-n. Dummies are other late updates' cosines under random signs and masks; with coins there are
    none.
    """
    # with coins a cosine c_j travels as s_j rho_j c_j, with a fair coin s_j = +-1 that the aggregator alone knows, so
    # all signs are random and dummies would hide nothing
    # masks are at least 1: taking off a smaller one would raise an empty class's noise beyond the helper's threshold
    signs = [1 if source.bytes(1)[0] & 1 else -1 for _ in dots] if coins else [1] * len(dots)
    masks = [sign * cosine_mask(source) for sign in signs]
    masked = [dot.times_plain(mask / n, at_most=MOST_MASK) for dot, mask in zip(dots, masks, strict=True)]
    for _ in range(0 if coins else hub.config.dummies):
        j, sign = source.bytes(2)
        mask = (1 if sign & 1 else -1) * cosine_mask(source)
        masked.append(dots[j % len(dots)].times_plain(mask / n, at_most=MOST_MASK))
    order = [int(i) for i in source.permutation(len(masked))]
    sealed, count = [masked[i].sanitised() for i in order], len(order)
    found = yield from helped(hub, r, Compare, count, sealed, count, MOST_MASK)
    positive = dict(zip(order, found, strict=True))
    agreeing, conflicting, sizes = [], [], []
    for j, (dot, mask) in enumerate(zip(dots, masks, strict=True)):
        part = positive[j].times_plain(n / mask, at_most=n)  # max(c, 0), or min(c, 0) under a negative mask
        rest = plus(dot, positive[j].times_plain(-n / mask, at_most=n))  # eq. (13): the other class
        agreeing.append(part if mask > 0 else rest)
        conflicting.append(rest if mask > 0 else part)
        if coins:
            twice = positive[j].times_plain(2 * n / abs(mask), at_most=2 * n)
            sizes.append(plus(twice, dot if mask < 0 else dot.times_plain(-1.0)))  # |c| = 2 max(c, 0) - c
    return agreeing, conflicting, sizes


def drawn(late: int, decoys: int, source: fl.Secrets) -> list[frozenset[int]]:
    """For each decoy, those that conflict in it."""

    def uniform(count: int) -> int:
        return int(source.permutation(count)[0])

    # the pattern (none conflicts, all do, or some) is uniform over the possible ones, as are number and choice of some
    found = []
    for _ in range(decoys):
        counts = [0, late, 1 + uniform(late - 1)] if late > 1 else [0, late]
        count = counts[uniform(len(counts))]
        found.append(frozenset(int(j) for j in source.permutation(late)[:count]))
    return found


def among_decoys(
    service: Any, real: list[Any], dots: list[Any], sizes: list[Any], n: int, decoys: int, source: fl.Secrets
) -> tuple[list[list[Any]], int]:
    """The set of masked sums (rho_1 n_1, rho_2 n_2, rho_3 |m|^2, rho_4 sum_j w_j c_j) among decoys, at level 0, in
    random order, and the place of the real one.

    dots: [c_j].  sizes: [|c_j|]. |m|^2 has one mask in all: several would show its size.
    """
    late, lowered = len(dots), [x.at_level(0) for x in real]
    squares = [product(dot, dot, at_most=n * n) for dot in dots]

    def total(values: Sequence[Any], members: Iterable[int], unit: float) -> Any:
        factor = random_mask(source, SUM_MASK_BITS) / unit
        parts = [values[j].at_level(1).times_plain(factor, at_most=1) for j in members]
        return sum_ciphers(parts).within(late) if parts else service.encrypt_scalar(0.0, late, 0)

    sets = [lowered]
    for conflicting in drawn(late, decoys, source):
        agreeing = [j for j in range(late) if j not in conflicting]
        n1, n2 = total(sizes, agreeing, n), total(sizes, conflicting, -n)
        sets.append([n1, n2, lowered[2], total(squares, conflicting, n * n)])
    order = [int(i) for i in source.permutation(len(sets))]
    return [sets[i] for i in order], order.index(0)


def delta(decoys: int, epsilon: float, patterns: int = 3) -> float:
    """Of differential privacy, at this epsilon, of the real set's pattern.

    patterns: 2 with one late update, else 3. Raises UserError for numbers out of range.
    """
    # the sum over views of max(0, P(view | a) - e^epsilon P(view | b)), where P(view | a) / P(view | b) = N_a / N_b
    if decoys < 0 or epsilon < 0 or patterns not in (2, 3):
        raise fl.UserError(f"decoys ({decoys}) and epsilon ({epsilon}) are at least 0, patterns ({patterns}) 2 or 3")
    from scipy.stats import binom

    total = 0.0
    for a in range(decoys + 1):
        rest = decoys - a
        for b in range(rest + 1):
            weight = binom.pmf(a, decoys, 1 / patterns) * binom.pmf(b, rest, 1 / (patterns - 1))
            total += float(weight) * max(0.0, 1.0 - math.exp(epsilon) * b / (a + 1))
    return total
