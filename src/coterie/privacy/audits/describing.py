"""What a party finds out from descriptions of clients' data, from clusters and from selections.

Systems that cluster clients by what these tell of their data, or that select some of them, share these. Each function
yields one result after the other (``audits/measured.py``) for a party that has arrays in its view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.labels import pair_auc, share_correlation, similar_pairs, telling, top_label_hit_rate
from coterie.privacy.attacks.selections import label_entropy, rank_correlation
from coterie.privacy.attacks.sparsity import (
    by_cluster,
    class_means,
    shares_by_nnls,
    total_variation,
    unnamed_total_variation,
)
from coterie.privacy.audits.measured import Measured, tried
from coterie.privacy.audits.profiling import alike
from coterie.protocol.errors import UserError


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """What an attacker knows beforehand of its own labelled samples.

    means: (classes, C) of ``attacks/sparsity.py: class_means``.  prior: (classes,) its samples of each class.
    """

    means: NDArray[np.float64]
    prior: NDArray[Any]

    @classmethod
    def of(cls, vectors: NDArray[Any], labels: NDArray[Any], classes: int) -> Auxiliary:
        """From sparsity vectors (m, C) of its samples, made as clients make theirs, and their labels (m,)."""
        return cls(class_means(vectors, labels, classes), np.bincount(labels, minlength=classes))


def vectors_by_name(
    who: str, vectors: NDArray[Any], auxiliary: Auxiliary, label_counts: NDArray[Any]
) -> Iterator[Measured]:
    """Label shares from sparsity vectors (n, C) whose clients are known, with these label counts (n, classes)."""
    yield from _shares(who, lambda: shares_by_nnls(vectors, auxiliary.means), auxiliary, label_counts)


def vectors_without_names(
    who: str, vectors: NDArray[Any], auxiliary: Auxiliary, label_counts: NDArray[Any]
) -> Iterator[Measured]:
    """What shuffled sparsity vectors (n, C) tell of the clients as a whole; label counts in any order of clients."""
    yield tried(
        f"{who}: label shares of unnamed clients",
        lambda: unnamed_total_variation(shares_by_nnls(vectors, auxiliary.means), label_counts, auxiliary.prior),
    )


def vectors_and_clusters(
    who: str, vectors: NDArray[Any], clusters: NDArray[Any], auxiliary: Auxiliary, label_counts: NDArray[Any]
) -> Iterator[Measured]:
    """Label shares by name, if vectors (n, C) have no names, but all clusters (n,) have both vectors and names.

    Rows are in the order of the clients for scoring; the guess uses each row's cluster alone.
    """
    yield from _shares(
        who, lambda: by_cluster(shares_by_nnls(vectors, auxiliary.means), clusters), auxiliary, label_counts
    )


def memberships(
    who: str, clusters: NDArray[Any], clients: Any, label_counts: NDArray[Any], groups: NDArray[Any] | None
) -> Iterator[Measured]:
    """Which of these clients (n,) have similar data, from their clusters (n,); label_counts, groups: of all clients."""
    if len(clients) < 3:
        yield Measured(
            f"{who}: which pairs have similar labels, by cluster", None, why="there are fewer than 3 clients"
        )
        return
    pairs = similar_pairs(np.asarray(clusters)[:, None] == np.unique(clusters))
    yield from alike(who, "cluster", pairs, clients, label_counts, groups)
    top = label_counts[clients].argmax(axis=1)
    if telling(top):
        yield Measured(f"{who}: which pairs have one top label, by cluster", pair_auc(pairs, top))


def selections(who: str, counts: NDArray[Any], samples: NDArray[Any], label_counts: NDArray[Any]) -> Iterator[Measured]:
    """What it tells of a client how often it was selected, counts (n,): its samples (n,), and how varied they are."""
    yield tried(f"{who}: number of samples, by selections", lambda: rank_correlation(counts, samples, "samples"))
    yield tried(
        f"{who}: variety of labels, by selections",
        lambda: rank_correlation(counts, label_entropy(label_counts), "label entropy"),
    )


def floors(who: str, values: NDArray[Any], samples: NDArray[Any], label_counts: NDArray[Any]) -> Iterator[Measured]:
    """What noise floors (n,) tell of the variety of labels: a floor times the samples (n,) grows with it."""
    yield tried(
        f"{who}: variety of labels, by noise floors",
        lambda: rank_correlation(np.asarray(values) * samples, label_entropy(label_counts), "label entropy"),
    )


def _shares(
    who: str, guess: Callable[[], NDArray[np.float64]], auxiliary: Auxiliary, label_counts: NDArray[Any]
) -> Iterator[Measured]:
    try:
        estimate = guess()
    except UserError as error:
        yield Measured(f"{who}: label shares", None, why=str(error))
        return
    yield tried(f"{who}: label shares", lambda: total_variation(estimate, label_counts, auxiliary.prior))
    yield Measured(f"{who}: top label", top_label_hit_rate(estimate, label_counts))
    yield tried(f"{who}: label shares above average", lambda: share_correlation(estimate, label_counts))
