"""Clusters beside the data's own groups: the adjusted Rand index by counting pairs, soft clusters, the unplaced."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.agreement import Agreement, grouping
from coterie.protocol.errors import UserError

Clusters = st.lists(st.integers(0, 4), max_size=3)
CLIENTS = st.lists(st.tuples(Clusters, st.integers(0, 3)), max_size=12)


def by_pairs(labels: list[frozenset[int]], groups: list[int]) -> float:
    """Hubert and Arabie, equation 5, one pair of clients at a time."""
    both = same = together = 0
    pairs = list(combinations(range(len(labels)), 2))
    for i, j in pairs:
        same += groups[i] == groups[j]
        together += labels[i] == labels[j]
        both += groups[i] == groups[j] and labels[i] == labels[j]
    if same == together == both:  # the same division, be it into one or into as many as there are clients
        return 1.0
    expected = same * together / len(pairs)
    return (both - expected) / ((same + together) / 2 - expected)


@given(CLIENTS)
def test_the_index_is_that_of_pairs_among_those_who_have_a_cluster(clients: list[tuple[list[int], int]]) -> None:
    found = grouping([own for own, _ in clients], [group for _, group in clients])
    placed = [(frozenset(own), group) for own, group in clients if own]
    assert found.without == len(clients) - len(placed)
    if len(placed) > 1:
        assert found.ari == pytest.approx(by_pairs(*map(list, zip(*placed, strict=True))))
    else:
        assert found.ari is None  # one client agrees with itself, whatever its cluster
    if not placed:
        assert found == Agreement(None, 0, 0.0, (), len(clients))


@given(CLIENTS)
def test_a_client_counts_in_each_of_its_clusters(clients: list[tuple[list[int], int]]) -> None:
    found = grouping([own for own, _ in clients], None)
    sets = [set(own) for own, _ in clients]
    assert found.ari is None
    assert found.sizes == tuple(n for k in range(5) if (n := sum(k in own for own in sets)))
    assert found.clusters == len(found.sizes)
    placed = [own for own in sets if own]
    assert found.per_client == (sum(map(len, placed)) / len(placed) if placed else 0)


def test_soft_clusters_are_labels_as_whole_sets() -> None:
    """Three groups; the last pair sits in both of the others' clusters, and is a division of its own."""
    soft = [[0], [0], [1], [1], [0, 1], [1, 0]]
    assert grouping(soft, [0, 0, 1, 1, 2, 2]) == Agreement(1.0, 2, 8 / 6, (4, 4), 0)
    assert grouping(soft, [0, 0, 1, 1, 0, 1]).ari < 0.5
    assert grouping([[0], [0], [1], [1]], [0, 1, 0, 1]).ari == -0.5  # the least there is


def test_groups_of_other_clients_are_refused() -> None:
    with pytest.raises(UserError, match="clusters of 2 clients, but groups of 3"):
        grouping([[0], [1]], [0, 0, 1])
