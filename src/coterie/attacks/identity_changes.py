"""What a client tells by changing its cluster, although it keeps one set of identities per cluster.

Who: the server of MingledPie, honest but curious. On: the different sets that one client has shown under the same
keys. Theorem 1 of the paper calls comparing them meaningless. They are not the same cluster's, so intersecting them
finds nothing; but *because* they are not, each rules the others' clusters out. A cluster that is in one set
only explains that set and leaves the others all their possibilities; one that several sets share takes a possibility
away from the others. So the clusters in the symmetric difference of two sets are the likelier ones. And the server sees
when the client changed, and when it came back to a cluster that it had been in: the set is the same again.

The gain is small, and exact: `expected_after_change` is its closed form.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.result import Expected
from coterie.clustering.identity_law import IdentityLaw
from coterie.protocol.errors import UserError

MOST_SETS = 16


def change_posterior(sets: NDArray[Any]) -> NDArray[np.float64]:
    """Different sets (m, k) of 0 and 1 of one client -> (m, k): probability that set i was drawn for cluster j.

    All ways to give each set a cluster of its own, a different one each, are equally likely: within a set, what it was
    drawn for is like the others, and all clusters are equally likely beforehand. Ways are counted cluster by
    cluster over the subsets of sets that have theirs (k 2^m steps). Raises UserError for sets that are not all
    different, for more than `MOST_SETS` of them, and where there is no such way.
    """
    joined = np.asarray(sets)
    if joined.ndim != 2 or joined.shape[1] < 2 or not np.isin(joined, (0, 1)).all():
        raise UserError(f"sets must be 0 and 1 for each set and cluster, not {joined.shape} {joined.dtype}")
    m, k = joined.shape
    if not 1 <= m <= MOST_SETS or len(np.unique(joined, axis=0)) != m:
        raise UserError(f"1 to {MOST_SETS} different sets of one client are compared, not these {m}")
    subsets = np.arange(1 << m)
    without = [subsets[subsets >> i & 1 == 0] for i in range(m)]
    before, after = _ways(joined, without), _ways(joined[:, ::-1], without)[::-1]
    total = before[-1][-1]
    if total == 0:
        raise UserError("there are no different clusters for these sets: they are not one client's under one key")
    found = np.zeros((m, k))
    for i, j in np.argwhere(joined):
        found[i, j] = before[j][without[i]] @ after[j + 1][(subsets[-1] ^ 1 << i) ^ without[i]]
    return np.asarray(found / total)


def _ways(joined: NDArray[Any], without: list[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
    """Entry j, (2^m,): in how many ways the first j clusters serve exactly this subset of the sets, one each."""
    m, k = joined.shape
    ways = [np.eye(1, 1 << m)[0]]
    for j in range(k):
        more = ways[-1].copy()
        for i in np.flatnonzero(joined[:, j]):
            more[without[i] | 1 << i] += ways[-1][without[i]]
        ways.append(more)
    return ways


def expected_after_change(law: IdentityLaw) -> Expected:
    """How often the likeliest cluster of a set is right, given one other set that differs, both of this law.

    With sizes a and b and m clusters in common there are ab - m pairs of different clusters, b of them with a cluster
    that is in the first set only and b - 1 with one of the common ones; a given pair of sets belongs to a given
    pair of clusters with probability w_a w_b, w_c = Pr(|CI| = c) / C(k-1, c-1).
    """
    k = law.clusters
    w = [float(law.sizes[c - 1]) / math.comb(k - 1, c - 1) for c in range(1, k + 1)]
    seen, first, second = 0.0, 0.0, 0.0  # probabilities times k(k-1): of two sets, of a hit, of its score squared
    for a in range(1, k + 1):
        for b in range(1, k + 1):
            for m in range(max(0, a + b - k), min(a, b) + 1):
                if a == b == m:
                    continue  # the same set again: no change was seen
                pairs = math.comb(k, a) * math.comb(a, m) * math.comb(k - a, b - m) * w[a - 1] * w[b - 1]
                ways, tied = (b, a - m) if a > m else (b - 1, m)  # with one of the likeliest; how many those are
                seen += pairs * (a * b - m)
                first += pairs * ways
                second += pairs * ways / tied
    if seen == 0:
        raise UserError("all sets of this law are the same: no change can be seen")
    return Expected.of_moments(first / seen, second / seen)
