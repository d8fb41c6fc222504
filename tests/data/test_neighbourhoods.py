"""The graph convolutional network on neighbourhoods, against a dense twin; subgraphs of clients and views of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import CLASSES, communities, graph_of, save

from coterie.data import deal, load
from coterie.data.dataset import Dataset, Graph, from_graph
from coterie.data.neighbourhoods import (
    MOST_ROWS,
    SHARE,
    VIEWS,
    Nodes,
    adjacency,
    as_nodes,
    augmented,
    in_subgraphs,
    neighbourhoods,
    subgraphs,
)
from coterie.protocol.errors import UserError
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.models import build
from coterie.training.solvers import Sgd


def nodes_of(graph: Graph) -> Nodes:
    return as_nodes(from_graph("own", graph, classes=CLASSES, source="test"))


def twin(graph: Graph, weights: dict[str, torch.Tensor], inside: np.ndarray) -> torch.Tensor:
    """Kipf and Welling's network, its dense layer and the output, of all nodes at once, with dense matrices, (n, 3)."""
    n = len(graph.y)
    links = torch.zeros(n, n, dtype=torch.float64)
    for a, b in graph.edges.T.tolist():
        if inside[a] and inside[b] and a != b:
            links[a, b] = links[b, a] = 1
    links += torch.eye(n, dtype=torch.float64)
    degrees = links.sum(1)
    hat = links / degrees.sqrt()[:, None] / degrees.sqrt()[None]
    x = torch.from_numpy(graph.x).double() * graph.x.shape[1] ** 0.5
    w = list(weights.values())  # weight and bias, in the order of the layers
    h = torch.relu(hat @ (x @ w[0].T) + w[1])
    h = torch.relu(hat @ (h @ w[2].T) + w[3])
    return torch.relu(h @ w[4].T + w[5]) @ w[6].T + w[7]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    """Up to 12 nodes (isolated ones, loops, edges twice and in both directions) and the nodes of a subgraph."""
    n = draw(st.integers(4, 12))
    node = st.integers(0, n - 1)
    edges = np.array(draw(st.lists(st.tuples(node, node), max_size=20)), np.int64).reshape(-1, 2).T
    inside = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    inside[0] = True
    order = np.arange(n)
    return graph_of(n, edges, order[:3], order[3:]), inside


@given(graphs())
def test_forward_and_backward_are_those_of_the_dense_twin(drawn: tuple[Graph, np.ndarray]) -> None:
    graph, inside = drawn
    data = replace(nodes_of(graph), inside=inside)
    model = build("gcn", data.input_shape, CLASSES)
    module = model.module_with(model.initial(0)).double()
    everything = np.ones(len(graph.y), bool)
    for split, seen, own in (("train", inside, graph.train), ("test", everything, graph.test)):
        weights = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
        expected = twin(graph, weights, seen)[own]
        got = module(torch.from_numpy(data.inputs(split=split)).double())
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        labels = torch.from_numpy(graph.y[own])
        ours = torch.autograd.grad(torch.nn.functional.cross_entropy(got, labels), list(module.parameters()))
        theirs = torch.autograd.grad(torch.nn.functional.cross_entropy(expected, labels), list(weights.values()))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_graph_without_edges_is_a_network_without_convolutions() -> None:
    graph = graph_of(9, np.empty((2, 0)), np.arange(6), np.arange(6, 9))
    data = nodes_of(graph)
    assert data.input_shape == (1, 6)
    np.testing.assert_allclose(data.inputs()[:, 0, :5], graph.x[:6] * 5**0.5, rtol=1e-6)
    np.testing.assert_array_equal(data.inputs()[:, 0, 5], 1)
    (own,) = subgraphs(graph, [graph.train], 0)
    np.testing.assert_array_equal(own, np.arange(9) < 6)


def test_of_many_neighbours_some_are_drawn() -> None:
    n, rows = 60, MOST_ROWS
    graph = graph_of(n, np.stack([np.zeros(n - 1), np.arange(1, n)]), np.arange(3), np.arange(3, n))
    links = adjacency(graph)
    sample, leaf = neighbourhoods(graph.x, links, np.array([0, 7]), rows)
    assert (sample[:, -1] > 0).sum() == rows
    hat = 1 / np.sqrt(2 * n)  # from the hub, of degree n with itself, to a leaf, of degree 2
    np.testing.assert_allclose(sample[0, -1], 1 / n, rtol=1e-6)
    np.testing.assert_allclose(sample[1:, -1], hat * (n - 1) / (rows - 1), rtol=1e-6)  # together as heavy as all leaves
    all_leaves = hat * graph.x[1:].sum(axis=0) + graph.x[0] / n
    np.testing.assert_allclose(sample[0, :-1], all_leaves * 5**0.5, rtol=1e-5)  # A^ X is exact
    np.testing.assert_allclose(leaf[:, -1], [1 / 2, hat] + [0] * (rows - 2), rtol=1e-6)
    np.testing.assert_array_equal(leaf[2:], 0)
    np.testing.assert_allclose(leaf[0, :-1], (graph.x[7] / 2 + hat * graph.x[0]) * 5**0.5, rtol=1e-5)
    np.testing.assert_array_equal(sample, neighbourhoods(graph.x, links, np.array([0]), rows)[0])


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "hsu:1", "labels:2", "permute:2"])
def test_a_client_sees_its_own_subgraph_alone(spec: str) -> None:
    graph = communities()
    data = nodes_of(graph)
    split, tasks = deal(spec, data, 4, 7, public=0.1)
    own_tasks, of_hub = in_subgraphs(split, tasks)
    masks = [task.dataset.inside for task in (*own_tasks, of_hub)]
    assert np.sum(masks, axis=0).max() == 1  # no node is in two
    for task, own in zip((*own_tasks, of_hub), (*split.train, split.public), strict=True):
        inside = task.dataset.inside
        assert inside[graph.train[own]].all()
        elsewhere = graph.x.copy()
        elsewhere[~inside] = 9
        changed = replace(task, dataset=replace(task.dataset, graph=replace(graph, x=elsewhere)))
        np.testing.assert_array_equal(changed.inputs(own), task.inputs(own))
        assert not np.array_equal(changed.inputs(split="test"), task.inputs(split="test"))  # the whole graph
        np.testing.assert_array_equal(task.inputs(split="test"), data.inputs(split="test"))
    cut = [
        not np.array_equal(task.inputs(own), data.inputs(own)) for task, own in zip(own_tasks, split.train, strict=True)
    ]
    assert any(cut)
    again, _ = in_subgraphs(split, tasks)
    assert all(np.array_equal(a.dataset.inside, b.dataset.inside) for a, b in zip(again, own_tasks, strict=True))


def test_nodes_of_nobody_join_a_neighbour_in_two_steps() -> None:
    chain = np.stack([np.arange(7), np.arange(1, 8)])  # 0 - 1 - ... - 7; 8 is isolated
    graph = graph_of(9, chain, np.array([0, 7]), np.arange(1, 7))
    a, b = subgraphs(graph, [np.array([0]), np.array([7])], 0)
    np.testing.assert_array_equal(np.flatnonzero(a), [0, 1, 2])
    np.testing.assert_array_equal(np.flatnonzero(b), [5, 6, 7])
    assert [len(own) for own in subgraphs(graph, [], 0)] == []
    star = graph_of(9, np.array([[0, 0], [1, 2]]), np.array([1, 2]), np.array([0]))
    winners = {bool(subgraphs(star, [np.array([1]), np.array([2])], seed)[0][0]) for seed in range(20)}
    assert winners == {True, False}  # by lot


def test_other_models_see_words_alone(tmp_path: Path) -> None:
    graph = communities()
    save(tmp_path / "cora.npz", replace(graph, y=graph.y % 7))
    data = load("cora", tmp_path)
    assert type(data) is Dataset
    assert data.input_shape == (9,)
    with pytest.raises(UserError, match="digits is none: use cora"):
        as_nodes(load("digits"))


def test_all_labels_train_in_the_all_data_sets(tmp_path: Path) -> None:
    graph = communities()
    save(tmp_path / "cora.npz", replace(graph, val=np.setdiff1d(np.arange(180), [*graph.train, *graph.test])[:10]))
    plain, full = load("cora", tmp_path), load("cora_all", tmp_path)
    assert (full.name, len(plain.y_train), len(full.y_train)) == ("cora_all", 60, 110)
    np.testing.assert_array_equal(full.graph.test, plain.graph.test)
    assert set(full.graph.train) >= set(plain.graph.train)
    assert not {*full.graph.val, *full.graph.test} & set(full.graph.train)
    assert "110 training" in full.source
    assert plain.digest != full.digest


def test_all_training_paths_agree() -> None:
    data = nodes_of(communities())
    model = build("gcn", data.input_shape, CLASSES)
    x, y = torch.from_numpy(data.inputs()), torch.from_numpy(data.labels().copy())
    jobs = [Job(model.initial(i), Sgd(0.1, 16), 2, i, x, y) for i in range(2)]
    for a, b in zip(fit_many(model, jobs), fit_many(model, jobs, path="vmap"), strict=True):
        np.testing.assert_allclose(a.weights, b.weights, atol=1e-5)


def test_gcn_refuses_samples_that_are_no_neighbourhoods() -> None:
    for shape in ((9,), (1, 8, 8), (4, 1)):
        with pytest.raises(UserError, match="it needs neighbourhoods"):
            build("gcn", shape, 3)


# -- augmented views: what each changes, how much, and that nothing outside of it changes anything ---------------------


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
