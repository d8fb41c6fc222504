"""Nodes of a graph as samples of a fixed shape for a graph convolutional network of two layers.

Kipf and Welling (ICLR 2017): with A^ = D^-1/2 (A + I) D^-1/2, A symmetric, D the row sums of A + I,

    H1 = relu(A^ X W1 + b1)        H2 = relu(A^ H1 W2 + b2)

A sample at node v is (rows, f + 1) float32: v itself, its neighbours, zeros. The first f columns are rows of sqrt(f) A^
X, the last is the weight in A^. A client's A^ is of its own subgraph; test nodes are seen in the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.data.dataset import Dataset, Graph, Part
from coterie.data.partition import Split
from coterie.data.tasks import Task, of_clients
from coterie.protocol.arrays import Flags, Floats, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng

MOST_ROWS = 16
"""Of a sample: a node and 15 neighbours. 1.7 % of Cora's nodes have more, of CiteSeer's 0.9 %."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Nodes(Dataset):
    """Samples are neighbourhoods: ``input_shape`` is (rows, f + 1).  inside: (n,) bool, the subgraph in which training
    nodes are seen; None for the whole.
    """

    inside: Mask | None = None

    def inputs(self, indices: ArrayLike | None = None, split: Part = "train") -> Floats:
        """(n, rows, f + 1) float32; test nodes in the whole graph."""
        assert self.graph is not None
        nodes = getattr(self.graph, split)
        nodes = nodes if indices is None else nodes[np.asarray(indices, np.int64)]
        links = adjacency(self.graph, self.inside if split == "train" else None)
        return neighbourhoods(self.graph.x, links, nodes, self.input_shape[0])


def as_nodes(dataset: Dataset) -> Nodes:
    """Neighbourhoods of at most ``MOST_ROWS`` rows. Raises UserError for data without a graph."""
    if dataset.graph is None:
        raise UserError(
            f"model gcn takes nodes of a graph, and {dataset.name} is none: use cora, citeseer or pubmed, or a file of "
            "your own with edges (docs/graphs.md), or another model (coterie list models)"
        )
    neighbours = int(np.diff(adjacency(dataset.graph).indptr).max())
    shape = (1 + min(neighbours, MOST_ROWS - 1), dataset.graph.x.shape[1] + 1)
    return Nodes(**{f.name: getattr(dataset, f.name) for f in fields(dataset)} | {"input_shape": shape})


def adjacency(graph: Graph, inside: Mask | None = None) -> Any:
    """A (n, n) as scipy's CSR: 1 for linked nodes, in both directions, but the diagonal.  inside: (n,) nodes whose
    links are kept.
    """
    from scipy.sparse import csr_array  # slow to import

    edges = graph.edges[:, graph.edges[0] != graph.edges[1]]
    edges = edges if inside is None else edges[:, inside[edges].all(axis=0)]
    rows, columns = np.concatenate([edges, edges[::-1]], axis=1)
    links = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(graph.y), len(graph.y)))
    links.sum_duplicates()
    links.data[:] = 1
    return links


def normalised(links: Any) -> Any:
    """A^ as CSR, float64. A node without links keeps itself."""
    from scipy.sparse import diags_array, eye_array

    with_self = links + eye_array(links.shape[0])
    root = diags_array(1 / np.sqrt(with_self.sum(axis=1)))
    return (root @ with_self @ root).tocsr()


def neighbourhoods(x: Floats, links: Any, nodes: Integers, rows: int) -> Floats:
    """(len(nodes), rows, f + 1).  x: (n, f).  links: ``adjacency``.

    Of more neighbours rows - 1 are drawn (without a seed), weighted by neighbours / drawn: A^ H1 is right in
    expectation, A^ X exact.
    """
    matrix, features = normalised(links), x.shape[1]
    lot = rng(0, "graph", "neighbours").permutation(len(x))
    samples = np.zeros((len(nodes), rows, features + 1), np.float32)
    for sample, node in zip(samples, nodes, strict=True):
        row = slice(matrix.indptr[node], matrix.indptr[node + 1])
        near, weights = matrix.indices[row], matrix.data[row]
        first = np.argsort(np.where(near == node, -1, lot[near]))[:rows]  # the node itself leads
        shown = len(first)
        sample[:shown, :features] = matrix[near[first]] @ x * features**0.5
        sample[:shown, features] = weights[first]
        sample[1:shown, features] *= (len(near) - 1) / max(1, shown - 1)
    return samples


def subgraphs(graph: Graph, dealt: Sequence[Integers], seed: int) -> list[Mask]:
    """The nodes (n,) of each party's subgraph, disjoint.  dealt: to each. Others join a neighbour's: first those beside
    a dealt one, then those beside these; among several by lot.
    """
    owner = np.full(len(graph.y), -1, np.int64)
    for party, own in enumerate(dealt):
        owner[own] = party
    links = adjacency(graph).tocoo()
    order = rng(seed, "partition", "subgraphs").permutation(links.nnz)
    near, far = links.row[order], links.col[order]
    for _ in range(2):
        reached = (owner[near] >= 0) & (owner[far] < 0)
        joining, first = np.unique(far[reached], return_index=True)
        owner[joining] = owner[near[reached][first]]
    return [owner == party for party in range(len(dealt))]


def in_subgraphs(split: Split, tasks: Sequence[Task]) -> tuple[tuple[Task, ...], Task]:
    """Each client's task, and the hub's (for public data), each in its own subgraph."""
    found = [*of_clients(split, tasks), Task(tasks[0].dataset)]  # public data are of the plain task
    held = split.held_out or (np.empty(0, np.int64),) * split.clients
    dealt = [*map(np.concatenate, zip(split.train, held, strict=True)), split.public]
    for data in dict.fromkeys(task.dataset for task in tasks):
        if isinstance(data, Nodes) and data.graph is not None:
            own = [party for party, task in enumerate(found) if task.dataset is data]
            masks = subgraphs(data.graph, [data.graph.train[dealt[party]] for party in own], split.seed)
            for party, inside in zip(own, masks, strict=True):
                found[party] = replace(found[party], dataset=replace(data, inside=inside))
    return tuple(found[:-1]), found[-1]


SHARE = 0.2
"""Of nodes or edges that a view changes (You et al.)."""

View = Callable[[Graph, Mask, np.random.Generator], Graph]


def drop_nodes(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """A fifth of the nodes lose all edges."""
    return _kept(graph, inside & ~_drawn(inside, draw))


def perturb_edges(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """A fifth of the edges go, as many random ones come."""
    own = _within(graph, inside)
    going = _drawn(own, draw)
    new = draw.choice(np.flatnonzero(inside), (2, int(going.sum())))
    return replace(graph, edges=np.concatenate([graph.edges[:, own & ~going], new], axis=1))


def mask_attributes(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """The features of a fifth of the nodes become zeros."""
    x = graph.x.copy()
    x[_drawn(inside, draw)] = 0
    return replace(graph, x=x)


def walk(graph: Graph, inside: Mask, draw: np.random.Generator) -> Graph:
    """Only edges between the four fifths of the nodes that a random walk reaches first, each by a random edge out of
    those reached, or else at random.
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
    """The training nodes in one view of the subgraph, by lot: You et al. (NeurIPS 2020), table 1, without the
    contrastive loss.
    """
    assert data.graph is not None
    inside = np.ones(len(data.graph.y), bool) if data.inside is None else data.inside
    view = list(VIEWS.values())[int(draw.integers(len(VIEWS)))]
    return replace(data, graph=view(data.graph, inside, draw))


def _kept(graph: Graph, nodes: Mask) -> Graph:
    return replace(graph, edges=graph.edges[:, _within(graph, nodes)])


def _within(graph: Graph, nodes: Mask) -> Mask:
    a, b = graph.edges
    both: Mask = nodes[a] & nodes[b]
    return both


def _drawn(among: Mask, draw: np.random.Generator) -> Flags:
    there = np.flatnonzero(among)
    chosen = np.zeros_like(among)
    chosen[draw.choice(there, round(SHARE * len(there)), replace=False)] = True
    return chosen
