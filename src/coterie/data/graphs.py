"""Citation graphs from an ``.npz`` with the Planetoid split, or the LINQS archives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.dataset import Graph
from coterie.data.formats import Arrays, read_tar
from coterie.protocol.arrays import Array, Floats, Integers
from coterie.protocol.errors import UserError

GRAPH_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape", "edges", "y", "train", "val", "test")


def graph_from_arrays(arrays: Arrays, where: str) -> Graph:
    """Check a graph file's arrays.

    x_indptr, x_indices, x_data, x_shape: the (n, f) features in compressed rows (CSR).  edges: (2, E). y: (n,) classes,
    -1 for none.  train, val, test: node numbers, or masks ``(n,) bool``; val may be missing.
    """
    missing = [key for key in GRAPH_KEYS if key not in arrays and key != "val"]
    if missing:
        raise UserError(f"{where}: arrays {', '.join(missing)} are missing; a graph needs {', '.join(GRAPH_KEYS)}")
    x, edges, y = _dense(arrays, where), arrays["edges"], arrays["y"]
    nodes = len(x)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "ui":
        raise UserError(f"{where}: edges are {edges.dtype} {edges.shape}; they must be integers (2, E)")
    if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
        raise UserError(f"{where}: edges name nodes {edges.min()}..{edges.max()}, but there are {nodes:,} nodes")
    if y.shape != (nodes,) or y.dtype.kind not in "ui" or int(y.min()) < -1:
        raise UserError(
            f"{where}: y is {y.dtype} {y.shape}; it must be {nodes:,} integers, -1 for a node without class"
        )
    y = y.astype(np.int64)
    given = {"val": np.zeros(0, np.int64), **arrays}
    parts = {key: _members(given[key], key, nodes, where) for key in ("train", "val", "test")}
    for key, members in parts.items():
        if key != "val" and not len(members):
            raise UserError(f"{where}: {key} names no node")
        if (y[members] < 0).any():
            raise UserError(f"{where}: {key} names node {members[y[members] < 0][0]}, which has no class")
    together = np.concatenate(list(parts.values()))
    if len(np.unique(together)) != len(together):
        raise UserError(f"{where}: a node is in two of train, val and test, or twice in one")
    return Graph(row_normalised(x), edges.astype(np.int64), y, **parts)


def with_all_labels(graph: Graph) -> Graph:
    """All labelled nodes train but those of test and validation (FastGCN, ICLR 2018)."""
    free = graph.y >= 0
    free[np.concatenate([graph.val, graph.test])] = False
    return replace(graph, train=np.flatnonzero(free).astype(np.int64))


def row_normalised(x: Floats) -> Floats:
    """Rows divided by their sums; a row of zeros stays (Kipf and Welling, ICLR 2017)."""
    sums = x.sum(axis=1, keepdims=True)
    return np.divide(x, np.where(sums > 0, sums, np.float32(1)), dtype=np.float32)


def _dense(arrays: Arrays, where: str) -> Floats:
    from scipy.sparse import csr_matrix

    shape = arrays["x_shape"].reshape(-1)
    if shape.dtype.kind not in "ui" or len(shape) != 2 or shape.min() < 1 or int(shape[0]) * int(shape[1]) > 1 << 30:
        raise UserError(f"{where}: x_shape is {shape.tolist()}; it must be two positive numbers, nodes and features")
    try:
        matrix = csr_matrix((arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)  # indices in range: toarray() trusts them
        x: Floats = matrix.toarray().astype(np.float32)
    except (ValueError, TypeError, IndexError) as exc:
        raise UserError(f"{where}: x_indptr, x_indices, x_data do not form a sparse matrix: {exc}") from exc
    if not np.isfinite(x).all() or x.min() < 0:
        raise UserError(f"{where}: x_data holds NaN, infinity or negative values; word weights are finite and >= 0")
    return x


def _members(part: Array, key: str, nodes: int, where: str) -> Integers:
    if part.dtype == bool and part.shape == (nodes,):
        return np.flatnonzero(part).astype(np.int64)
    if part.ndim != 1 or part.dtype.kind not in "ui" or (part.size and not 0 <= part.min() <= part.max() < nodes):
        raise UserError(f"{where}: {key} must be node numbers 0..{nodes - 1}, or a mask of {nodes:,} booleans")
    return part.astype(np.int64)


def read_linqs(path: Path) -> Graph:
    """``cora.tgz``, ``citeseer.tgz`` or ``Pubmed-Diabetes.tgz`` as LINQS publishes them.

    Not the Planetoid split: the first 20 nodes of every class train; of the rest 1,500, evenly spaced in the file, are
    1,000 test and 500 validation nodes (of fewer all, 2 : 1). Links to missing papers, self-links, directions and
    repetitions are dropped.
    """
    stem = path.name.removesuffix(".tgz")
    if stem == "Pubmed-Diabetes":
        names = (f"{stem}.NODE.paper.tab", f"{stem}.DIRECTED.cites.tab")
        parse: Callable[[list[str], list[str]], tuple[Any, ...]] = _parse_pubmed
    else:
        names = (f"{stem}.content", f"{stem}.cites")
        parse = _parse_content
    files = read_tar(path, names)
    try:
        nodes, links = (files[name].decode("utf-8", "replace").splitlines() for name in names)
        ids, x, labels, pairs = parse(nodes, links)
        number = {paper: i for i, paper in enumerate(ids)}
        known = {(number[a], number[b]) for a, b in pairs if a in number and b in number and a != b}
        edges = np.array(sorted({(min(e), max(e)) for e in known}), dtype=np.int64).reshape(-1, 2).T
        y = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        return Graph(row_normalised(x), edges, y, *_spread_split(y))
    except (ValueError, IndexError) as exc:
        raise UserError(f"{path} is damaged: {exc}; fetch it again") from exc


def _parse_content(nodes: list[str], links: list[str]) -> tuple[Any, ...]:
    """Cora and CiteSeer: ``id <tab> word flags <tab> class`` and ``cited <tab> citing``."""
    ids, words, labels = [], [], []
    for line in nodes:
        paper, rest = line.split("\t", 1)
        flags, label = rest.rsplit("\t", 1)
        ids.append(paper)
        words.append(np.array(flags.encode().split(b"\t"), dtype="S8").astype(np.float32))
        labels.append(label.strip())
    return ids, np.stack(words), labels, [line.strip().split("\t") for line in links if line.strip()]


def _parse_pubmed(nodes: list[str], links: list[str]) -> tuple[Any, ...]:
    """PubMed: a header with the words, then ``id, label=c, word=weight ...``; and ``id, paper:a, |, paper:b``."""
    column = {field.split(":")[1]: i for i, field in enumerate(f for f in nodes[1].split("\t") if "numeric:" in f)}
    papers = [line.split("\t") for line in nodes[2:]]
    x = np.zeros((len(papers), len(column)), dtype=np.float32)
    for row, fields in zip(x, papers, strict=True):
        for field in fields[2:]:
            word, _, weight = field.partition("=")
            if word in column:
                row[column[word]] = float(weight)
    labels = [fields[1].removeprefix("label=") for fields in papers]
    pairs = [[part.strip().removeprefix("paper:") for part in line.split("\t")[1::2]] for line in links[2:]]
    return [fields[0] for fields in papers], x, labels, pairs


def _spread_split(y: Integers) -> tuple[Integers, Integers, Integers]:
    train = np.sort(np.concatenate([np.flatnonzero(y == k)[:20] for k in range(int(y.max()) + 1)])).astype(np.int64)
    rest = np.setdiff1d(np.arange(len(y), dtype=np.int64), train)
    if len(rest) < 2:
        raise ValueError(f"{len(y)} papers leave no test set")
    chosen = rest[np.linspace(0, len(rest) - 1, min(1500, len(rest))).astype(np.int64)]
    is_val = np.arange(len(chosen)) % 3 == 2
    return train, chosen[is_val], chosen[~is_val]
