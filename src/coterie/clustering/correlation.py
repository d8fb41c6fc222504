"""Correlation clustering by comparisons alone: groups with the greatest sum of pairs' gains.

All questions are "is this sum of gains above 0?", so the same steps run in the clear (``in_the_clear``) and on shares
of two servers (``protocols/shared_groups.py``).

Bansal, Blum, Chawla (2004); local search of Elsner, Schudy, Bounding and comparing methods for correlation clustering,
2009.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

SWEEPS = 4
RESTARTS = 3

Block = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A sign, and the rows and columns of the gains that are summed."""
Asked = list[list[Block]]
"""Sums of gains, each of which is compared with 0."""
T = TypeVar("T")
Questions = Generator[Asked, list[bool], T]
Groups = list[tuple[int, ...]]


def labelled(groups: Groups, count: int) -> NDArray[np.int64]:
    """(count,) groups, numbered in the order of their first members."""
    labels = np.empty(count, np.int64)
    for k, members in enumerate(sorted(groups, key=min)):
        labels[list(members)] = k
    return labels


def grouped(orders: Sequence[Sequence[int]], most: int, smallest: int) -> Questions[Groups]:
    """Groups of 0..n-1, the best from these orders of them.

    most: of groups.  smallest: least members of a group, unless there is one group alone.
    """
    found = yield from side_by_side([_searched(order, most) for order in orders])
    best = found[0]
    for other in found[1:]:
        (better,) = yield [_score(other) + _score(best, -1)]
        best = other if better else best
    return (yield from _without_small(best, smallest))


def most_comparisons(clients: int, most: int) -> int:
    """How many sums ``grouped`` asks about at most, from RESTARTS orders."""
    each = (2 * SWEEPS + 2) * clients * most + SWEEPS * most**3
    return RESTARTS * each


def joined(groups: Sequence[tuple[int, ...]], newcomers: Sequence[int]) -> Questions[list[int]]:
    return (yield from side_by_side([_best(_joins(one, groups)) for one in newcomers]))


def in_the_clear(questions: Questions[T], gains: NDArray[np.float64]) -> T:
    """gains: (n, n)."""
    return answered(questions, lambda asked: [bool(value > 0) for value in sums(asked, gains)])


def answered(questions: Questions[T], answer: Callable[[Asked], list[bool]]) -> T:
    try:
        asked = next(questions)
        while True:
            asked = questions.send(answer(asked))
    except StopIteration as end:
        result: T = end.value
        return result


def sums(asked: Asked, gains: NDArray[Any]) -> NDArray[Any]:
    """(len(asked),) the sums, of the dtype of gains (n, n)."""
    totals = np.zeros(len(asked), gains.dtype)
    for at, blocks in enumerate(asked):
        for sign, rows, columns in blocks:
            part = gains[np.ix_(rows, columns)].sum(dtype=gains.dtype)
            totals[at : at + 1] += part if sign > 0 else np.negative(part, dtype=gains.dtype)
    return totals


def side_by_side(searches: Sequence[Questions[T]]) -> Questions[list[T]]:
    """Independent searches, whose questions are asked together."""
    results, asked = dict[int, T](), dict[int, Asked]()

    def step(at: int, answers: list[bool] | None) -> None:
        try:
            asked[at] = next(searches[at]) if answers is None else searches[at].send(answers)
        except StopIteration as end:
            results[at] = end.value

    for at in range(len(searches)):
        step(at, None)
    while asked:
        batch, asked = asked, {}
        answers = yield [one for questions in batch.values() for one in questions]
        for at, questions in batch.items():
            step(at, answers[: len(questions)])
            answers = answers[len(questions) :]
    return [results[at] for at in range(len(searches))]


def _searched(order: Sequence[int], most: int) -> Questions[Groups]:
    groups: Groups = []
    for one in order:
        groups = yield from _placed(one, groups, most)
    for _ in range(SWEEPS):
        before = groups
        restless = yield from side_by_side([_wants_to_move(one, groups) for one in order])
        for one in [one for one, moves in zip(order, restless, strict=True) if moves]:
            groups = yield from _placed(one, _without(one, groups), most)
        groups = yield from _merged(groups)
        if sorted(groups) == sorted(before):
            break
    return groups


def _placed(one: int, groups: Groups, most: int) -> Questions[Groups]:
    if not groups:
        return [(one,)]
    best = yield from _best(_joins(one, groups))
    if len(groups) < most:
        (gains,) = yield [[(1, (one,), groups[best])]]
        if not gains:
            return [*groups, (one,)]
    return [tuple(sorted((*group, one))) if at == best else group for at, group in enumerate(groups)]


def _wants_to_move(one: int, groups: Groups) -> Questions[bool]:
    rest = _without(one, groups)
    own = next(tuple(i for i in group if i != one) for group in groups if one in group)
    if not rest:
        return False
    best = yield from _best(_joins(one, rest))
    if rest[best] == own:
        (stays,) = yield [[(1, (one,), own)]]
        return not stays
    (gains,) = yield [[(1, (one,), rest[best])]]
    return gains or bool(own)


def _merged(groups: Groups) -> Questions[Groups]:
    while len(groups) > 1:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = pairs[(yield from _best([[(1, groups[a], groups[b])] for a, b in pairs]))]
        (gains,) = yield [[(1, groups[a], groups[b])]]
        if not gains:
            break
        both = tuple(sorted(groups[a] + groups[b]))
        groups = [group for at, group in enumerate(groups) if at not in (a, b)] + [both]
    return groups


def _without_small(groups: Groups, smallest: int) -> Questions[Groups]:
    while len(groups) > 1 and len(small := min(groups, key=lambda group: (len(group), group))) < smallest:
        rest = [group for group in groups if group != small]
        chosen = yield from joined(rest, small)
        groups = [
            tuple(sorted((*group, *(one for one, k in zip(small, chosen, strict=True) if k == at))))
            for at, group in enumerate(rest)
        ]
    return groups


def _best(candidates: Sequence[list[Block]]) -> Questions[int]:
    left = list(range(len(candidates)))
    while len(left) > 1:
        pairs = list(zip(left[::2], left[1::2], strict=False))
        wins = yield [candidates[b] + _negative(candidates[a]) for a, b in pairs]
        left = [b if second else a for (a, b), second in zip(pairs, wins, strict=True)] + left[2 * len(pairs) :]
    return left[0]


def _joins(one: int, groups: Sequence[tuple[int, ...]]) -> list[list[Block]]:
    return [[(1, (one,), group)] for group in groups]


def _negative(blocks: list[Block]) -> list[Block]:
    return [(-sign, rows, columns) for sign, rows, columns in blocks]


def _without(one: int, groups: Groups) -> Groups:
    cut = [tuple(i for i in group if i != one) for group in groups]
    return [group for group in cut if group]


def _score(groups: Groups, sign: int = 1) -> list[Block]:
    return [(sign, group, group) for group in groups]
