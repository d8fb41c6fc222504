"""Correlation clustering (Bansal, Blum, Chawla 2004; local search of Elsner, Schudy, Bounding and comparing methods for
correlation clustering, 2009): groups with the greatest sum of pairs' gains.

All questions are "which of these sums of gains is the greatest?", so the same steps run in the clear (``in_the_clear``)
and on shares of two servers (``protocols/shared_groups.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import comb
from typing import TypeVar

import numpy as np

from coterie.protocol.arrays import Array, Doubles, Integers

SWEEPS = 4
RESTARTS = 3

Group = tuple[int, ...]
Groups = list[Group]
Sum = list[tuple[Group, Group]]
"""Blocks of the gains, by their rows and columns, which are summed. A block without rows or columns adds 0."""


@dataclass(frozen=True)
class Question:
    """Which of these sums is the greatest, the first of several? The answer is its mark."""

    sums: list[Sum]
    marks: list[int]


T = TypeVar("T")
Questions = Generator[list[Question], list[int], T]


def labelled(groups: Groups, count: int) -> Integers:
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
    best = yield from _greatest([[(group, group) for group in groups] for groups in found])
    return (yield from _without_small(found[best], smallest))


def most_comparisons(clients: int, most: int) -> int:
    """Of pairs of sums, by ``grouped``, from RESTARTS orders: k - 1 to find the greatest of k."""
    merges = comb(most + 1, 3)  # the pairs of 2 to ``most`` groups
    return RESTARTS * ((2 * SWEEPS + 2) * clients * most + SWEEPS * merges + 1)


def joined(groups: Groups, newcomers: Sequence[int]) -> Questions[list[int]]:
    return (yield from side_by_side([_greatest(_joins(one, groups)) for one in newcomers]))


def in_the_clear(questions: Questions[T], gains: Doubles) -> T:
    return answered(questions, lambda asked: [chosen(one, gains) for one in asked])


def answered(questions: Questions[T], answer: Callable[[list[Question]], list[int]]) -> T:
    try:
        asked = next(questions)
        while True:
            asked = questions.send(answer(asked))
    except StopIteration as end:
        result: T = end.value
        return result


def chosen(question: Question, gains: Array) -> int:
    return question.marks[int(sums(question, gains).argmax())]


def sums(question: Question, gains: Array) -> Array:
    """(k,) its sums, of the dtype of gains (n, n)."""
    totals = np.zeros(len(question.sums), gains.dtype)
    for at, blocks in enumerate(question.sums):
        for rows, columns in blocks:
            totals[at : at + 1] += gains[np.ix_(rows, columns)].sum(dtype=gains.dtype)  # mod 2^64 without a warning
    return totals


def side_by_side(searches: Sequence[Questions[T]]) -> Questions[list[T]]:
    """Independent searches, whose questions are asked together."""
    results, asked = dict[int, T](), dict[int, list[Question]]()

    def step(at: int, answers: list[int] | None) -> None:
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
        stays = yield from side_by_side([_stays(one, groups) for one in order])
        for one in [one for one, stay in zip(order, stays, strict=True) if not stay]:
            groups = yield from _placed(one, _without(one, groups), most)
        groups = yield from _merged(groups)
        if sorted(groups) == sorted(before):
            break
    return groups


def _placed(one: int, groups: Groups, most: int) -> Questions[Groups]:
    """Where it gains most: in a group, or alone, which gains 0."""
    alone: Groups = [()] if len(groups) < most else []
    best = (yield from _greatest(_joins(one, [*alone, *groups]))) - len(alone)
    if best < 0:
        return [*groups, (one,)]
    return [tuple(sorted((*group, one))) if at == best else group for at, group in enumerate(groups)]


def _stays(one: int, groups: Groups) -> Questions[bool]:
    # whether it gains most where it is; where else is not told
    own = next(tuple(i for i in group if i != one) for group in groups if one in group)
    others = [(), *_without(one, groups)]
    (stays,) = yield [Question(_joins(one, others), [int(group == own) for group in others])]
    return bool(stays)


def _merged(groups: Groups) -> Questions[Groups]:
    while len(groups) > 1:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        best = yield from _greatest([[], *([(groups[a], groups[b])] for a, b in pairs)])
        if best == 0:
            break
        a, b = pairs[best - 1]
        both = tuple(sorted(groups[a] + groups[b]))
        groups = [group for at, group in enumerate(groups) if at not in (a, b)] + [both]
    return groups


def _without_small(groups: Groups, smallest: int) -> Questions[Groups]:
    while len(groups) > 1 and len(small := min(groups, key=lambda group: (len(group), group))) < smallest:
        rest = [group for group in groups if group != small]
        places = yield from joined(rest, small)
        groups = [
            tuple(sorted((*group, *(one for one, k in zip(small, places, strict=True) if k == at))))
            for at, group in enumerate(rest)
        ]
    return groups


def _greatest(candidates: list[Sum]) -> Questions[int]:
    if len(candidates) == 1:
        return 0
    (best,) = yield [Question(candidates, list(range(len(candidates))))]
    return best


def _joins(one: int, groups: Groups) -> list[Sum]:
    return [[((one,), group)] for group in groups]


def _without(one: int, groups: Groups) -> Groups:
    cut = [tuple(i for i in group if i != one) for group in groups]
    return [group for group in cut if group]
