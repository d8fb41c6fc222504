"""Augmented views of a client's subgraph: the four of You et al. (Graph contrastive learning, NeurIPS 2020), table 1.

OFL makes diverse data sets of clients from graphs "by combining the graph splitting method and contrastive learning" of
that paper. Here a view is more training data: the client's labelled nodes in a randomly changed graph. The contrastive
loss is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coterie.data.dataset import Graph
from coterie.data.neighbourhoods import Mask, Nodes, adjacency

SHARE = 0.2
"""Of nodes or edges that a view changes, as You et al. do."""

View = Callable[[Graph, Mask, np.random.Generator], Graph]


def drop_nodes(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """A fifth of the subgraph's nodes lose all their edges."""
    return _kept(graph, inside & ~_drawn(inside, draw))


def perturb_edges(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """A fifth of the subgraph's edges go, and as many random ones come."""
    own = _within(graph, inside)
    going = _drawn(own, draw)
    new = draw.choice(np.flatnonzero(inside), (2, int(going.sum())))
    return replace(graph, edges=np.concatenate([graph.edges[:, own & ~going], new], axis=1))


def mask_attributes(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """The features of a fifth of the subgraph's nodes become zeros."""
    x = graph.x.copy()
    x[_drawn(inside, draw)] = 0
    return replace(graph, x=x)


def walk(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """Only edges between the four fifths of the subgraph's nodes that a random walk reaches first.

    Each step takes a random edge out of the nodes reached; if there is none, a random node.
    """
    links = adjacency(graph, inside)
    reached, frontier = np.zeros_like(inside), []  # type: Mask, list[int]
    starts = list(draw.permutation(np.flatnonzero(inside)))
    left = int(inside.sum()) - round(SHARE * int(inside.sum()))
    while left:
        node = frontier.pop(int(draw.integers(len(frontier)))) if frontier else starts.pop()
        if not reached[node]:
            reached[node] = True
            left -= 1
            frontier += links.indices[links.indptr[node] : links.indptr[node + 1]].tolist()
    return _kept(graph, reached)


VIEWS: Mapping[str, View] = {
    "drop_nodes": drop_nodes,
    "perturb_edges": perturb_edges,
    "mask_attributes": mask_attributes,
    "walk": walk,
}


def augmented(data: Nodes, draw: np.random.Generator) -> Nodes:
    """The same training nodes in one of the four augmented views of the subgraph, by lot."""
    assert data.graph is not None
    inside = np.ones(len(data.graph.y), bool) if data.inside is None else data.inside
    view = list(VIEWS.values())[int(draw.integers(len(VIEWS)))]
    return replace(data, graph=view(data.graph, inside, draw))


def _kept(graph: Graph, nodes: Mask) -> Graph:
    return replace(graph, edges=graph.edges[:, _within(graph, nodes)])


def _within(graph: Graph, nodes: Mask) -> Mask:
    """(E,) whether both ends of an edge are among the nodes."""
    a, b = graph.edges
    both: Mask = nodes[a] & nodes[b]
    return both


def _drawn(among: Mask, draw: np.random.Generator) -> NDArray[np.bool_]:
    """A fifth of what is True, rounded, drawn without repetition."""
    there = np.flatnonzero(among)
    chosen = np.zeros_like(among)
    chosen[draw.choice(there, round(SHARE * len(there)), replace=False)] = True
    return chosen
