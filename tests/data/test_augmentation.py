"""Augmented views of a subgraph: what each changes, how much, and that nothing outside of it changes anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_graphs import CLASSES, communities, graph_of

from coterie.data.dataset import Graph, from_graph
from coterie.data.neighbourhoods import SHARE, VIEWS, adjacency, as_nodes, augmented

GRAPH = communities()
INSIDE = np.arange(180) < 100
OWN = INSIDE[GRAPH.edges].all(axis=0)


def view(name: str, seed: int = 0, graph: Graph = GRAPH, inside: np.ndarray = INSIDE) -> Graph:
    return VIEWS[name](graph, inside, np.random.default_rng(seed))


@pytest.mark.parametrize("name", VIEWS)
def test_views_stay_in_the_subgraph_and_follow_their_draw(name: str) -> None:
    seen = view(name)
    assert INSIDE[seen.edges].all() or name == "mask_attributes"
    np.testing.assert_array_equal(seen.x[~INSIDE], GRAPH.x[~INSIDE])
    np.testing.assert_array_equal(seen.train, GRAPH.train)
    np.testing.assert_array_equal(seen.y, GRAPH.y)
    same, other = view(name), view(name, 1)
    assert np.array_equal(seen.edges, same.edges)
    assert np.array_equal(seen.x, same.x)
    assert not (np.array_equal(seen.edges, other.edges) and np.array_equal(seen.x, other.x))


def test_what_each_view_changes() -> None:
    links = adjacency(GRAPH, INSIDE).toarray()
    for name in ("drop_nodes", "walk"):
        left = adjacency(view(name)).toarray()
        kept = np.flatnonzero(left.sum(axis=1))
        np.testing.assert_array_equal(left[np.ix_(kept, kept)], links[np.ix_(kept, kept)])  # all edges between the kept
        assert len(kept) <= 100 * (1 - SHARE)
        assert left.sum() < links.sum()
        np.testing.assert_array_equal(view(name).x, GRAPH.x)
    perturbed = view("perturb_edges")
    assert perturbed.edges.shape[1] == OWN.sum()
    before = {tuple(edge) for edge in GRAPH.edges[:, OWN].T.tolist()}
    stayed = sum(tuple(edge) in before for edge in perturbed.edges.T.tolist())
    assert abs(stayed / OWN.sum() - (1 - SHARE)) < 0.05
    masked = view("mask_attributes")
    zeros = (masked.x == 0).all(axis=1) & (GRAPH.x != 0).any(axis=1)
    assert abs(zeros.sum() - 100 * SHARE) <= 1  # node 0 has no words to lose
    np.testing.assert_array_equal(masked.edges, GRAPH.edges)


def test_a_walk_stays_where_edges_lead() -> None:
    """Of two rings of 40 nodes and 10 single ones: one ring whole, before the walk starts anew."""
    ring = np.stack([np.arange(40), (np.arange(40) + 1) % 40])
    graph = graph_of(90, np.concatenate([ring, ring + 40], axis=1), np.arange(3), np.arange(3, 90))
    for seed in range(10):
        edges = view("walk", seed, graph, np.ones(90, bool)).edges
        sizes = sorted([int((edges[0] < 40).sum()), int((edges[0] >= 40).sum())])
        assert sizes[1] == 40


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_nothing(name: str) -> None:
    """A subgraph of one node, of none, and without edges."""
    bare = graph_of(9, np.empty((2, 0)), np.arange(3), np.arange(3, 9))
    for count in (0, 1, 9):
        seen = view(name, 0, bare, np.arange(9) < count)
        assert seen.edges.shape == (2, 0)


def test_an_augmented_data_set_has_the_same_nodes() -> None:
    data = replace(as_nodes(from_graph("own", GRAPH, classes=CLASSES, source="test")), inside=INSIDE)
    own = np.flatnonzero(INSIDE[GRAPH.train])
    seen = [augmented(data, np.random.default_rng(seed)).inputs(own) for seed in range(12)]
    assert all(one.shape == data.inputs(own).shape for one in seen)
    assert len({one.tobytes() for one in seen}) == 12
