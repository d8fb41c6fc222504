"""A client's true cluster, from the sets of clusters that it joins, by MingledPie's server.

Unequal clusters, whose sizes the server can estimate, and fresh sets break the paper's bound 1/T (theorem 2).
Accuracies share ties among the likeliest clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks.result import AttackResult, Expected, real_rows, top_share
from coterie.protocol.errors import UserError

MOST_SETS = 16


def cluster_posterior(
    sets: NDArray[Any], prior: NDArray[Any] | None = None, home_share: float = 1.0
) -> NDArray[np.float64]:
    """Sets (n, k) of one round, or (m, n, k) of several -> (n, k) probabilities that cluster j is client i's true one.

    A repeated set counts once; an empty row is an absent client.  prior: (k,) sizes of the true clusters, by default
    equal.  home_share: probability that a set was drawn for the client's main cluster. Raises UserError for a client
    without a set or a possible cluster.
    """
    from scipy.special import logsumexp  # slow to import

    joined = _sets(sets)
    _, n, k = joined.shape
    weights = _prior(prior, k)
    with np.errstate(divide="ignore"):
        score = np.tile(np.log(weights), (n, 1))
        for r, row in enumerate(joined):
            kept = (joined[:r] == row).all(axis=2).any(axis=0) | ~row.any(axis=1)  # (n,)
            others = row.sum(axis=1, keepdims=True) - row
            likelihood = home_share * row + (1 - home_share) / (k - 1) * others
            score += np.where(kept[:, None], 0.0, np.log(likelihood))
    total = logsumexp(score, axis=1, keepdims=True)
    if lost := np.flatnonzero(~np.isfinite(total)).tolist():
        raise UserError(
            f"no cluster is possible for client {lost[0]} ({len(lost)} in all): either the prior gives all that its "
            "sets have in common size 0, or its cluster changed between the sets: pass a home_share below 1"
        )
    return np.asarray(np.exp(score - total))


def estimated_sizes(sets: NDArray[Any], false_rate: float) -> NDArray[np.float64]:
    """Sets (n, k) of one round -> (k,) float64 estimates of the true clusters' sizes, in clients, at least 1.

    (|G_j| - p_c n) / (1 - p_c).  false_rate: p_c, the public `IdentityLaw.p_correct`, in [0, 1).
    """
    joined = _sets(sets)[0]
    sizes = (joined.sum(axis=0) - false_rate * len(joined)) / (1 - false_rate)
    return np.asarray(np.maximum(sizes, 1.0))


def identity_accuracy(posterior: NDArray[Any], truth: NDArray[Any], prior: NDArray[Any] | None = None) -> AttackResult:
    """Share of the clients whose true cluster (n,) has the largest posterior. Chance: the prior's largest, 1/k without
    a prior.
    """
    posterior = real_rows("posterior", posterior)
    n, k = posterior.shape
    guesses = posterior, np.tile(_prior(prior, k), (n, 1))
    hits, blind = (top_share(guess)[np.arange(n), truth] for guess in guesses)
    sd = math.sqrt(float((blind * (1 - blind)).sum())) / n
    return AttackResult("true cluster guessed (share)", float(hits.mean()), float(blind.mean()), 1.0, n, sd)


def expected_accuracy(
    sets: IdentityLaw | Sequence[IdentityLaw], prior: NDArray[Any] | None = None, shares: NDArray[Any] | None = None
) -> Expected:
    """The closed form of `identity_accuracy` after independent sets of these laws (one law: one set).

    prior: the attacker's belief, not estimated from the sets.  shares: (k,) the truth; by default the prior.
    """
    laws = [sets] if isinstance(sets, IdentityLaw) else list(sets)
    common = common_false(laws)
    k = len(common)
    believed = _prior(prior, k)
    true = believed if shares is None else _prior(shares, k)

    # the false clusters in all sets are i random others; with some clusters above the true one in the prior and others
    # beside it, the guess is correct by 1 / (1 + s) if none of those above and s of those beside are among them
    @cache
    def right(above: int, beside: int) -> tuple[float, float]:
        rest = k - 1 - above - beside
        chances = [
            math.fsum(
                float(common[i]) * (math.comb(beside, s) * math.comb(rest, i - s) / math.comb(k - 1, i))
                for i in range(s, s + rest + 1)
            )
            for s in range(beside + 1)
        ]
        score = [1 / (1 + s) for s in range(beside + 1)]
        return float(np.dot(chances, score)), float(np.dot(chances, np.square(score)))

    ranks = [(int((believed > mine).sum()), int((believed == mine).sum()) - 1) for mine in believed]
    first, second = np.array([right(*rank) for rank in ranks]).T
    sd, drawn_sd = (math.sqrt(max(float(true @ (square - first**2)), 0.0)) for square in (second, first))
    return Expected(float(true @ first), sd, drawn_sd)


def expected_by_estimates(law: IdentityLaw, sets: NDArray[Any], truth: NDArray[Any]) -> Expected:
    """The mean of `identity_accuracy` with `estimated_sizes`, each client's set drawn anew in turn; exact over rounds.

    sets: (n, k), truth: (n,), of one round.
    """
    rows, k = np.asarray(sets).astype(bool), law.clusters

    @cache
    def expected(prior: tuple[float, ...], cluster: int) -> Expected:
        return expected_accuracy(law, np.array(prior), np.eye(k)[cluster])

    each = []
    for i, cluster in enumerate(np.asarray(truth).tolist()):
        joined = rows.copy()
        joined[i] = True
        each.append(expected(tuple(estimated_sizes(joined, law.p_correct()).tolist()), cluster))
    accuracy, variance, drawn = np.mean([(e.accuracy, e.sd**2, e.drawn_sd**2) for e in each], axis=0)
    return Expected(float(accuracy), math.sqrt(variance), math.sqrt(drawn))


def common_false(laws: Sequence[IdentityLaw]) -> NDArray[np.float64]:
    """(k,) the probabilities that i false clusters are in all these independent sets of one client."""
    from scipy.stats import hypergeom  # slow to import

    others = laws[0].clusters - 1
    left: NDArray[np.float64] = laws[0].sizes
    counts = np.arange(others + 1)
    for law in laws[1:]:
        keeps = sum(
            weight * hypergeom.pmf(counts[None, :], others, counts[:, None], f)  # (from i, to i')
            for f, weight in enumerate(law.sizes)
            if weight > 0
        )
        left = np.asarray(left @ keeps)
    return left


def change_posterior(sets: NDArray[Any]) -> NDArray[np.float64]:
    """Different 0/1 sets (m, k) of one client -> (m, k): probability that set i was drawn for cluster j.

    All ways to give each set its own cluster are equally likely, counted in k 2^m steps. Raises UserError where there
    is none.
    """
    joined = np.asarray(sets)
    m, k = joined.shape
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


def expected_after_change(law: IdentityLaw) -> Expected:
    """How often a set's likeliest cluster is correct, given another set that differs, both of this law."""
    # sets of sizes a and b with m common clusters have ab - m pairs of different clusters: b with a cluster of the
    # first set only, b - 1 with a common one; a pair of sets belongs to a pair of clusters with probability w_a w_b,
    # w_c = Pr(|CI| = c) / C(k-1, c-1)
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


def _ways(joined: NDArray[Any], without: list[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
    m, k = joined.shape
    ways = [np.eye(1, 1 << m)[0]]
    for j in range(k):
        more = ways[-1].copy()
        for i in np.flatnonzero(joined[:, j]):
            more[without[i] | 1 << i] += ways[-1][without[i]]
        ways.append(more)
    return ways


def _sets(sets: NDArray[Any]) -> NDArray[np.bool_]:
    array = np.asarray(sets)
    array = array[None] if array.ndim == 2 else array
    if absent := np.flatnonzero(~array.any(axis=(0, 2))).tolist():
        raise UserError(f"client {absent[0]} ({len(absent)} in all) has no identity set: leave it out")
    return array.astype(bool)


def _prior(prior: NDArray[Any] | None, k: int) -> NDArray[np.float64]:
    if prior is None:
        return np.full(k, 1 / k)
    weights = np.asarray(prior, dtype=np.float64)
    return np.asarray(weights / weights.sum())
