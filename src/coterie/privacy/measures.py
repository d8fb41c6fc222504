"""What a party ``who`` finds out from models, descriptions, clusters and selections, in any system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.privacy.attacks import labels
from coterie.privacy.audits import Measured, Recorded, tried

Array = NDArray[Any]
Doubles = NDArray[np.float64]


def check_classes(label_counts: Array) -> Array:
    """The same counts (n, classes). Raises UserError without classes."""
    if label_counts.shape[1] < 2:
        raise fl.UserError("the data have no classes: the task is regression, or there is a single label")
    return label_counts


def profiles(who: str, steps: Array, label_counts: Array, spec: fl.ModelSpec) -> Iterator[Measured]:
    """Label shares and top labels from updates (n, d), MingledPie's adversary A2 (section III-B). label_counts: (n,
    classes).
    """
    try:
        guess = labels.label_shares(steps, spec)
    except fl.UserError as error:
        yield Measured(who, "label shares", None, why=str(error), topic="labels")
        return
    yield from by_estimate(who, guess, label_counts)


def by_estimate(who: str, guess: Doubles, label_counts: Array) -> Iterator[Measured]:
    """Label shares and top labels, from guesses (n, classes) that grow with label shares."""
    shares = tried(
        who, "label shares", lambda: labels.share_correlation(guess, check_classes(label_counts)), topic="labels"
    )
    yield shares
    if shares.result is not None:
        yield tried(who, "top label", lambda: labels.top_label_hit_rate(guess, label_counts), topic="labels")


def alike(run: Recorded, who: str, by: str, pairs: Array, clients: Any) -> Iterator[Measured]:
    """Which pairs of these clients (n,) are similar, by (n, n) numbers that grow with similarity."""
    counts, similar = run.label_counts[clients], f"which pairs have similar labels, by {by}"
    yield tried(who, similar, lambda: labels.pair_correlation(pairs, check_classes(counts)), topic="groups")
    groups = None if run.groups is None else run.groups[clients]
    if groups is not None and labels.telling(groups):
        same = f"which pairs are of one group, by {by}"
        yield Measured(who, same, labels.pair_auc(pairs, groups), topic="groups")


def by_memberships(run: Recorded, who: str, by: str, phi: Array, clients: Any) -> Iterator[Measured]:
    """``alike``, by clusters phi (n, c) bool; and which pairs share a top label."""
    pairs = labels.similar_pairs(phi)
    yield from alike(run, who, by, pairs, clients)
    top = run.label_counts[clients].argmax(axis=1)
    if labels.telling(top):
        yield Measured(who, f"which pairs have one top label, by {by}", labels.pair_auc(pairs, top), topic="groups")


def memberships(run: Recorded, who: str, clusters: Array, clients: Any) -> Iterator[Measured]:
    """``by_memberships``, for one cluster each (n,)."""
    if len(clients) < 3:
        what = "which pairs have similar labels, by cluster"
        yield Measured(who, what, None, why="there are fewer than 3 clients", topic="groups")
        return
    phi = np.asarray(clusters)[:, None] == np.unique(clusters)
    yield from by_memberships(run, who, "cluster", phi, clients)


def by_variety(who: str, by: str, values: Array, label_counts: Array) -> Measured:
    """The variety of labels, from numbers (n,) that may grow with it."""
    entropy = labels.label_entropy(label_counts)
    return tried(who, f"variety of labels, by {by}", lambda: labels.rank_correlation(values, entropy, "label entropy"))


def by_shares(
    who: str, estimate: Doubles, prior: Array, label_counts: Array, clusters: Array | None = None
) -> Iterator[Measured]:
    """Label shares by name, from estimates (n, classes) of ``attacks/labels.py``.  clusters: (n,) whose mean estimate
    is each client's guess.
    """
    estimate = estimate if clusters is None else labels.by_cluster(estimate, clusters)
    yield tried(who, "label shares", lambda: labels.total_variation(estimate, label_counts, prior))
    yield tried(who, "top label", lambda: labels.top_label_hit_rate(estimate, label_counts))
    yield tried(who, "label shares above average", lambda: labels.share_correlation(estimate, label_counts))
