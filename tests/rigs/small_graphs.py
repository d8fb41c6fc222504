"""Small graphs for tests, as files and as objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from coterie.data.dataset import Graph
from coterie.data.graphs import row_normalised

CLASSES = 3


def graph_of(nodes: int, edges: np.ndarray, train: np.ndarray, test: np.ndarray, features: int = 5) -> Graph:
    """Nodes whose words follow their class v mod 3, with these edges (2, E)."""
    rng = np.random.default_rng(nodes)
    y = np.arange(nodes) % CLASSES
    x = rng.integers(0, 2, (nodes, features)) + 2 * (np.arange(features) % CLASSES == y[:, None])
    x[0] = 0  # no words at all
    rest = np.empty(0, np.int64)
    return Graph(row_normalised(x.astype(np.float32)), edges.astype(np.int64), y, train, rest, test)


def save(path: Path, graph: Graph) -> None:
    """The graph as an npz file that ``load`` reads."""
    x = csr_matrix(graph.x)
    parts = {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
    rest = {"edges": graph.edges, "y": graph.y, "train": graph.train, "val": graph.val, "test": graph.test}
    np.savez(path, **parts, **rest)


def communities(nodes: int = 180, degree: int = 3) -> Graph:
    """Edges mostly within a class. A third of the nodes trains, a third tests, a third has no label."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, nodes, nodes * degree // 2)
    b = (a + CLASSES * rng.integers(1, nodes // CLASSES, len(a)) + (rng.random(len(a)) < 0.1)) % nodes
    third = rng.permutation(nodes).reshape(3, -1)
    return graph_of(nodes, np.stack([a, b]), np.sort(third[0]), np.sort(third[1]), features=9)
