"""Closed forms and oracles of what sets tell beyond one set: of a client that changes its cluster, and of sizes that
are estimated from the sets themselves."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from benchmarks.identity_coins import coin_sets
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks import identity
from coterie.protocol.errors import UserError

LAW = IdentityLaw(5, 0.5, 2)


def by_listing(sets: np.ndarray) -> np.ndarray:
    """All ways to give each set a cluster of its own."""
    m, k = sets.shape
    ways = [c for c in itertools.permutations(range(k), m) if all(sets[i, j] for i, j in enumerate(c))]
    return np.array([[sum(c[i] == j for c in ways) / len(ways) for j in range(k)] for i in range(m)])


def test_the_posterior_after_changes_is_that_of_all_ways() -> None:
    source = np.random.default_rng(0)
    compared_sets = 0
    for _ in range(200):
        k = int(source.integers(2, 7))
        m = int(source.integers(1, min(k, 4) + 1))
        sets = (source.random((m, k)) < 0.6).astype(int)
        try:
            posterior = identity.change_posterior(sets)
        except UserError:
            continue
        assert posterior == pytest.approx(by_listing(sets))
        compared_sets += 1
    assert compared_sets > 100


def test_what_is_in_one_set_only_is_likelier() -> None:
    posterior = identity.change_posterior(np.array([[1, 1, 0, 0], [0, 1, 1, 0]]))
    assert posterior.tolist() == pytest.approx(np.array([[2 / 3, 1 / 3, 0, 0], [0, 1 / 3, 2 / 3, 0]]))
    alone = identity.change_posterior(np.array([[0, 1, 1]]))
    assert alone.tolist() == pytest.approx(np.array([[0, 0.5, 0.5]]))


@cache
def law_of_sets(k: int, p: float, least: int) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Sets with the weight that each has for any of its clusters."""
    sets = [s for s in itertools.product((0, 1), repeat=k) if sum(s) >= least]
    weights = [p ** (sum(s) - 1) * (1 - p) ** (k - sum(s)) for s in sets]
    total = sum(w for s, w in zip(sets, weights, strict=True) if s[0])
    return tuple((s, w / total) for s, w in zip(sets, weights, strict=True))


@pytest.mark.parametrize(("k", "p", "least"), [(3, 0.5, 2), (4, 0.5, 2), (4, 0.25, 1)])
def test_the_closed_form_after_a_change_is_that_of_all_pairs(k: int, p: float, least: int) -> None:
    seen, scores = 0.0, np.zeros(3)
    for (a, wa), (b, wb) in itertools.product(law_of_sets(k, p, least), repeat=2):
        if a == b:
            continue
        posterior = by_listing(np.array([a, b]))[0]
        top = posterior >= posterior.max() - 1e-9
        for one, two in itertools.permutations(range(k), 2):
            if a[one] and b[two]:
                score = top[one] / top.sum()
                seen += wa * wb
                scores += wa * wb * np.array([score, score**2, score])
    first, second, drawn = scores / seen
    expected = identity.expected_after_change(IdentityLaw(k, p, least))
    assert expected.accuracy == pytest.approx(first)
    assert (expected.sd, expected.drawn_sd) == pytest.approx(
        (math.sqrt(second - first**2), math.sqrt(drawn - first**2))
    )


def test_what_are_no_sets_of_a_client_is_refused() -> None:
    with pytest.raises(UserError, match="no different clusters"):
        identity.change_posterior(np.array([[1, 0, 0], [0, 0, 0]]))


def test_where_all_sets_are_alike_no_change_is_seen() -> None:
    with pytest.raises(UserError, match="no change can be seen"):
        identity.expected_after_change(IdentityLaw(3, 0.5, 3))


def test_the_closed_form_with_estimated_sizes_is_that_of_many_rounds() -> None:
    """Equal sizes, where the estimates' order is all noise; taking them for given would be 2.4 points off."""
    truth, source, off, naive = np.arange(60) % 5, np.random.default_rng(3), [], []
    for _ in range(40):
        sets, _ = coin_sets(LAW, truth, source.bytes)
        sizes = identity.estimated_sizes(sets, LAW.p_correct())
        result = identity.identity_accuracy(identity.cluster_posterior(sets, sizes), truth, sizes)
        off.append(result.value - identity.expected_by_estimates(LAW, sets, truth).accuracy)
        naive.append(result.value - identity.expected_accuracy(LAW, sizes, np.ones(5)).accuracy)
    assert abs(np.mean(off)) < 3 * np.std(off) / math.sqrt(40)
    assert np.mean(naive) < -3 * np.std(naive) / math.sqrt(40)
