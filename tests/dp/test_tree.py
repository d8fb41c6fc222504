"""Tree aggregation against brute force: all nodes as a matrix, and every sign of a party's summands."""

from __future__ import annotations

from itertools import combinations, count, product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from coterie.dp.tree import charges, grown


def nodes(length: int) -> list[tuple[int, int]]:
    """The complete nodes over rounds 0 to length - 1, as intervals, those of a round by level."""
    every = [(a, a + 2**j) for j in range(length.bit_length()) for a in range(0, length, 2**j) if a + 2**j <= length]
    return sorted(every, key=lambda node: (node[1], node[1] - node[0]))


def matrix(length: int) -> np.ndarray:
    return np.array([[a <= r < b for r in range(length)] for a, b in nodes(length)], np.float64)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 8])
def test_the_charge_is_the_worst_of_all_changes(length: int) -> None:
    tree = matrix(length)
    for parts in (chosen for k in range(1, length + 1) for chosen in combinations(range(length), k)):
        worst = max(float(np.square(tree[:, parts] @ signs).sum()) for signs in product([-1, 1], repeat=len(parts)))
        assert sum(charges([1 + r for r in parts], length)) == worst


def test_trees_add_up_and_one_part_a_tree_is_the_librarys() -> None:
    """A client that is in one round of a tree: dp-accounting has this case, by the largest depth."""
    assert charges([1, 4, 5, 11], 4) == [3, 5, 3, 3]
    assert charges(range(1, 30), 1) == [1] * 29
    for length in (1, 7, 8, 10, 16):
        event = dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, [length])
        ours = dp_accounting.GaussianDpEvent(3.0 / max(charges([r], length)[0] for r in range(1, length + 1)) ** 0.5)
        found = [
            RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
            .compose(one)
            .get_epsilon(1e-5)
            for one in (event, ours)
        ]
        assert found[0] == pytest.approx(found[1])


def noises(length: int) -> list[np.ndarray]:
    """By leaf, the running sum's noise as coefficients of each node's own noise, in the order of ``nodes``."""
    size, number = len(nodes(length)), count()
    estimates, found = np.zeros((length.bit_length(), size)), []
    for leaf in range(1, length + 1):
        estimates = grown(estimates, leaf, lambda: np.eye(size)[next(number)])
        found.append(estimates.sum(axis=0))
    assert next(number) == size, "each node has noise of its own, once"
    return found


def best(node: tuple[int, int], places: dict[tuple[int, int], int]) -> np.ndarray:
    """A node's sum from all nodes below it: least squares by hand, from the top down."""
    own = np.eye(len(places))[places[node]]
    a, b = node
    if b - a == 1:
        return own
    halves = best((a, (a + b) // 2), places) + best(((a + b) // 2, b), places)
    weights = 1 / np.square(own).sum(), 1 / np.square(halves).sum()
    return np.asarray((weights[0] * own + weights[1] * halves) / sum(weights))


@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_a_running_sum_has_the_noise_of_its_complete_subtrees(length: int) -> None:
    """A slow twin, the closed form, and the sums that these noises stand on."""
    places = {node: i for i, node in enumerate(nodes(length))}
    for t, found in enumerate(noises(length), 1):
        bits = [j for j in reversed(range(t.bit_length())) if t >> j & 1]
        starts = np.cumsum([0, *(2**j for j in bits)])
        expected = sum(best((int(a), int(a) + 2**j), places) for a, j in zip(starts, bits, strict=False))
        np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(found @ matrix(length), np.arange(length) < t, atol=1e-12)  # unbiased
        assert np.square(found).sum() == pytest.approx(sum(1 / (2 - 2.0**-j) for j in bits))
        assert np.square(found).sum() <= len(bits), "without the reduction each subtree has its node's noise"
