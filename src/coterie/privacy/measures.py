"""What a party finds out from models, descriptions of clients' data, clusters and selections; for any system.

Each function yields results for the party ``who`` that has these arrays. MingledPie's adversary A2 (section III-B)
reads off a client's model which labels its data prefer (``profiles``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.labels import (
    label_shares,
    pair_auc,
    pair_correlation,
    share_correlation,
    similar_pairs,
    telling,
    top_label_hit_rate,
)
from coterie.privacy.attacks.selections import label_entropy, rank_correlation
from coterie.privacy.attacks.sparsity import (
    by_cluster,
    class_means,
    shares_by_nnls,
    total_variation,
    unnamed_total_variation,
)
from coterie.privacy.audits import Measured, tried
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec

Array = NDArray[Any]
Doubles = NDArray[np.float64]


def check_classes(label_counts: Array) -> Array:
    """Label counts (n, classes), if there are classes. Raises UserError."""
    if label_counts.shape[1] < 2:
        raise UserError("the data have no classes: the task is regression, or there is a single label")
    return label_counts


def profiles(who: str, steps: Array, label_counts: Array, spec: ModelSpec) -> Iterator[Measured]:
    """Label shares and top labels from updates (n, d) of clients with these label counts, (n, classes)."""
    try:
        guess = label_shares(steps, spec)
    except UserError as error:
        yield Measured(who, "label shares", None, why=str(error), topic="labels")
        return
    yield from by_estimate(who, guess, label_counts)


def by_estimate(who: str, guess: Doubles, label_counts: Array) -> Iterator[Measured]:
    """Label shares and top labels, from guesses (n, classes) that grow with label shares."""
    shares = tried(who, "label shares", lambda: share_correlation(guess, check_classes(label_counts)), topic="labels")
    yield shares
    if shares.result is not None:
        yield Measured(who, "top label", top_label_hit_rate(guess, label_counts), topic="labels")


def alike(
    who: str, by: str, pairs: Array, clients: Any, label_counts: Array, groups: Array | None
) -> Iterator[Measured]:
    """Which pairs of these clients (n,) are similar, guessed by (n, n) numbers that grow with similarity.

    label_counts, groups: of all clients, as in ``Recorded``.
    """
    similar = f"which pairs have similar labels, by {by}"
    yield tried(who, similar, lambda: pair_correlation(pairs, check_classes(label_counts[clients])), topic="groups")
    if groups is not None and telling(groups[clients]):
        same = f"which pairs are of one group, by {by}"
        yield Measured(who, same, pair_auc(pairs, groups[clients]), topic="groups")


def by_memberships(
    who: str, by: str, phi: Array, clients: Any, label_counts: Array, groups: Array | None
) -> Iterator[Measured]:
    """``alike``, for clients (n,) with these clusters, phi (n, c) bool; and which pairs share a top label."""
    pairs = similar_pairs(phi)
    yield from alike(who, by, pairs, clients, label_counts, groups)
    top = label_counts[clients].argmax(axis=1)
    if telling(top):
        yield Measured(who, f"which pairs have one top label, by {by}", pair_auc(pairs, top), topic="groups")


def memberships(
    who: str, clusters: Array, clients: Any, label_counts: Array, groups: Array | None
) -> Iterator[Measured]:
    """Which of these clients (n,) have similar data, from their clusters (n,); label_counts, groups: of all clients."""
    if len(clients) < 3:
        what = "which pairs have similar labels, by cluster"
        yield Measured(who, what, None, why="there are fewer than 3 clients", topic="groups")
        return
    phi = np.asarray(clusters)[:, None] == np.unique(clusters)
    yield from by_memberships(who, "cluster", phi, clients, label_counts, groups)


def selections(who: str, counts: Array, samples: Array, label_counts: Array) -> Iterator[Measured]:
    """What clients' numbers of selections (n,) reveal: samples (n,), and the variety of labels."""
    yield tried(who, "number of samples, by selections", lambda: rank_correlation(counts, samples, "samples"))
    yield by_variety(who, "selections", counts, label_counts)


def floors(who: str, values: Array, samples: Array, label_counts: Array) -> Iterator[Measured]:
    """What noise floors (n,) reveal of the variety of labels: a floor times the samples (n,) grows with it."""
    yield by_variety(who, "noise floors", np.asarray(values) * samples, label_counts)


def by_variety(who: str, by: str, values: Array, label_counts: Array) -> Measured:
    """The variety of clients' labels, from numbers (n,) that may grow with it."""
    entropy = label_entropy(label_counts)
    return tried(who, f"variety of labels, by {by}", lambda: rank_correlation(values, entropy, "label entropy"))


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """What an attacker knows beforehand from its own labelled samples.

    means: (classes, C) of ``attacks/sparsity.py: class_means``.  prior: (classes,) its samples of each class.
    """

    means: Doubles
    prior: Array

    @classmethod
    def of(cls, vectors: Array, labels: Array, classes: int) -> Auxiliary:
        """From sparsity vectors (m, C) of its samples, made as clients make theirs, and their labels (m,)."""
        return cls(class_means(vectors, labels, classes), np.bincount(labels, minlength=classes))


def vectors_by_name(who: str, vectors: Array, auxiliary: Auxiliary, label_counts: Array) -> Iterator[Measured]:
    """Label shares from named sparsity vectors (n, C) of clients with these label counts (n, classes)."""
    yield from _shares(who, lambda: shares_by_nnls(vectors, auxiliary.means), auxiliary, label_counts)


def vectors_without_names(who: str, vectors: Array, auxiliary: Auxiliary, label_counts: Array) -> Iterator[Measured]:
    """What shuffled sparsity vectors (n, C) reveal of the clients as a whole; label counts in any order."""
    yield tried(
        who,
        "label shares of unnamed clients",
        lambda: unnamed_total_variation(shares_by_nnls(vectors, auxiliary.means), label_counts, auxiliary.prior),
    )


def vectors_and_clusters(
    who: str, vectors: Array, clusters: Array, auxiliary: Auxiliary, label_counts: Array
) -> Iterator[Measured]:
    """Label shares by name, from vectors (n, C) without names, if all clusters (n,) have both vectors and names.

    Rows are in the clients' order for scoring; the guess uses each row's cluster alone.
    """
    yield from _shares(
        who, lambda: by_cluster(shares_by_nnls(vectors, auxiliary.means), clusters), auxiliary, label_counts
    )


def _shares(who: str, guess: Callable[[], Doubles], auxiliary: Auxiliary, label_counts: Array) -> Iterator[Measured]:
    try:
        estimate = guess()
    except UserError as error:
        yield Measured(who, "label shares", None, why=str(error))
        return
    yield tried(who, "label shares", lambda: total_variation(estimate, label_counts, auxiliary.prior))
    yield Measured(who, "top label", top_label_hit_rate(estimate, label_counts))
    yield tried(who, "label shares above average", lambda: share_correlation(estimate, label_counts))
