"""Members of hidden groups, and what they send, from sums by name and from steps of a grouping.

``weights`` (rounds, n): how much of each client's upload a round has added. Steps: ``clustering/correlation.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering import evidence
from coterie.clustering.correlation import Question, Sum
from coterie.clustering.evidence import WIDTH, ResidualSpread, row_length, twisted
from coterie.clustering.signature import FEATURES
from coterie.clustering.spectral import unit_rows
from coterie.privacy.attacks.result import AttackResult, handed_out
from coterie.protocol.errors import UserError

Floats = NDArray[np.float64]
Outcome = tuple[Sum, Sum]
"""A sum of gains, and one that is not greater."""
Choice = tuple[Question, int]
"""A question of the grouping, with the mark that answers it."""
RIDGE = 0.1
ALWAYS = "the same clients were added in all rounds, so that sums do not tell one from another"


def by_names(weights: Floats, sums: Floats, *, alike: bool = False) -> Floats:
    """(n, m) each client's part of sums (rounds, m), by ridge regression of their differences between rounds.

    alike: makes all differences of length 1, since training slows down. Raises UserError if all rounds added the same
    clients.
    """
    varied, change = np.diff(weights, axis=0), np.diff(sums, axis=0)
    if not varied.any():
        raise UserError(ALWAYS)
    if alike:
        change = unit_rows(change)
    inner = varied @ varied.T
    ridge = RIDGE * float(np.trace(inner)) / len(inner) * np.eye(len(inner))
    return np.asarray(varied.T @ np.linalg.solve(inner + ridge, change))


def groups_found(parts: Floats, groups: NDArray[np.int64]) -> AttackResult:
    """Share of clients whose group (n,) is that of their greatest part (n, G). Chance hands the guesses to random
    clients.
    """
    hits = groups[:, None] == parts.argmax(axis=1)
    found, chance, sd = handed_out(hits.astype(np.float64))
    return AttackResult("clients whose group is found (share)", found, chance, 1.0, len(groups), sd)


def members_found(parts: Floats, sums: Floats, member: NDArray[np.bool_]) -> AttackResult:
    """The area under the ROC curve of "a client with a greater part (n, d) along the mean of the sums (rounds, d) is a
    member". Chance: 0.5. Raises UserError unless there are members and others.
    """
    from scipy.stats import rankdata  # slow to import

    n, own = len(member), int(member.sum())
    if not 0 < own < n:
        raise UserError("all clients are of one group")
    along = parts @ unit_rows(sums).mean(axis=0)
    area = (rankdata(along)[member].sum() - own * (own + 1) / 2) / (own * (n - own))
    sd = float(np.sqrt((n + 1) / (12 * own * (n - own))))  # Mann, Whitney
    return AttackResult("AUC for members of the group", float(area), 0.5, 1.0, n, sd)


def update_cosine(guesses: Floats, updates: Sequence[Floats], own: Sequence[int]) -> AttackResult:
    """Mean cosine of guesses (k, d) with their updates ``updates[i][own[i]]``.

    updates: for each guess, (m, d) of the same group and round. Chance: the cosine with the others.
    """
    values, others = [], []
    for guess, rows, at in zip(guesses, updates, own, strict=True):
        cosines = unit_rows(rows) @ unit_rows(guess)
        values.append(cosines[at])
        others += np.delete(cosines, at).tolist()
    if not others:
        raise UserError("there is no other member whose update tells what chance gives")
    sd = float(np.std(others)) / len(values) ** 0.5
    return AttackResult("cosine with the update", float(np.mean(values)), float(np.mean(others)), 1.0, len(values), sd)


def outcomes_of(question: Question, mark: int) -> Iterator[Outcome]:
    """The sum with this mark is the greatest. A mark of several does not say which."""
    greatest = [at for at, one in enumerate(question.marks) if one == mark]
    if len(greatest) == 1:
        yield from ((question.sums[greatest[0]], one) for at, one in enumerate(question.sums) if at != greatest[0])


def sides(choices: Sequence[Choice], n: int) -> Floats:
    """(n, n) in -1 to 1: the share of outcomes for both clients being of one group, less that against."""
    total, count = np.zeros((n, n)), np.zeros((n, n))
    for greater, less in (one for choice in choices for one in outcomes_of(*choice)):
        for sign, blocks in ((1, greater), (-1, less)):
            for rows, columns in blocks:
                where = np.ix_(rows, columns)
                total[where] += sign
                count[where] += 1
    return np.asarray((total + total.T) / np.maximum(count + count.T, 1))


def agreement(choices: Sequence[Choice], labels: NDArray[np.int64]) -> Floats:
    """(n,) how well a client's outcomes agree with the groups (n,) found: the better, the more samples it has."""
    found = sides(choices, len(labels))
    return np.asarray(np.where(labels[:, None] == labels, found, -found).mean(axis=1))


def surprises(choices: Sequence[Choice], labels: NDArray[np.int64]) -> Floats:
    """(n,) how often a client's answer does not follow from its part of the groups (n,) found: where it goes, or may
    go, are fewer of its group than elsewhere.
    """
    found = np.zeros(len(labels))
    for question, mark in choices:
        rows = {row for part in question.sums for block, _ in part for row in block}
        if len(rows) == 1:  # else groups are merged
            (client,) = rows
            others = [[one for _, columns in part for one in columns] for part in question.sums]
            shares = [float(np.mean(labels[group] == labels[client])) if group else 0.0 for group in others]
            chosen = [share for share, one in zip(shares, question.marks, strict=True) if one == mark]
            found[client] += max(chosen) < max(shares)
    return found


def linked(one: Floats, other: Floats, labels: NDArray[np.int64]) -> AttackResult:
    """Share of clients that a second grouping links with the first, by the order of these numbers (n,) within a group,
    equal ones at random. Chance: one in each group.
    """
    from scipy.stats import rankdata  # slow to import

    groups = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    parts = np.zeros((len(groups), 3))
    for part, members in zip(parts, groups, strict=True):
        (first, last), (least, most) = (
            [rankdata(side[members], method) for method in ("min", "max")] for side in (one, other)
        )
        # Client i of the first may have the places first[i] to last[i], and so client j of the second.
        both = np.minimum(last[:, None], most) - np.maximum(first[:, None], least) + 1
        scores = np.maximum(both, 0) / np.outer(last - first + 1, most - least + 1)
        part[:] = np.array(handed_out(scores)) * len(members)
    found, chance = parts[:, :2].sum(axis=0) / len(labels)
    sd = float(np.linalg.norm(parts[:, 2])) / len(labels)
    return AttackResult("clients that are linked (share)", float(found), float(chance), 1.0, len(labels), sd)


def found_again(counts: Floats) -> AttackResult:
    """Whether the client with the greatest count, above 0, is the same in two groupings, over all pairs.

    counts: (groupings, n). Chance draws a client. Raises UserError without such a pair.
    """
    greatest = [(row == row.max()) / (row == row.max()).sum() for row in counts if row.max() > 0]
    same = [float(one @ other) for one, other in combinations(greatest, 2)]
    if not same:
        raise UserError("in no two groupings a choice went against the groups")
    chance = 1 / counts.shape[1]
    sd = (chance * (1 - chance) / len(same)) ** 0.5  # pairs of independent draws are not correlated
    return AttackResult(
        "pairs of groupings in which it is the same (share)", float(np.mean(same)), chance, 1.0, counts.shape[1], sd
    )


def planted_row(label: int, labels: int, of: ResidualSpread, strength: float) -> Floats:
    """(row_length,) a row whose gain with a client's is ``strength`` if it has samples of this label,
    else minus that.
    """
    counts = np.arange(evidence.MOST + 1)
    rows = np.stack(
        [evidence.row(n * np.eye(labels, dtype=np.int64)[label], np.zeros((labels, FEATURES)), of) for n in counts]
    )
    used = np.zeros(row_length(labels), np.bool_)
    own = slice(label * WIDTH, (label + 1) * WIDTH)
    used[own] = np.ptp(rows[:, own], axis=0) > 0
    used[-1] = True  # 1 in every row
    emphasis = np.where(counts == 0, len(counts), 1.0 + len(counts) / np.maximum(counts, 1) ** 2)[:, None] ** 0.5
    wanted = np.where(counts > 0, 1.0, -1.0)[:, None]
    solved = np.linalg.lstsq(rows[:, used] * emphasis, wanted * emphasis, rcond=1e-7)[0][:, 0]
    product = np.zeros(row_length(labels))
    product[used] = strength * solved
    return np.asarray(twisted(product[None])[0], np.float64)


def bits_read(read: NDArray[Any], truth: NDArray[Any], of: str) -> AttackResult:
    """Share of clients' bits (n,) read. Chance hands the readings to random clients. of: what they say."""
    found, chance, sd = handed_out((np.asarray(truth)[:, None] == np.asarray(read)).astype(np.float64))
    return AttackResult(f"{of} read (share)", found, chance, 1.0, len(truth), sd)
