"""Preference profiling: what a party reads off the models that reach it, in the clear or opened with somebody's help.

The second attack of MingledPie's adversary (A2, section III-B): a client's local model tells which labels its data
prefer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from coterie.privacy.attacks.labels import (
    label_shares,
    pair_auc,
    pair_correlation,
    share_correlation,
    telling,
    top_label_hit_rate,
)
from coterie.privacy.audits.measured import Measured, tried
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec


def profiles(who: str, steps: NDArray[Any], label_counts: NDArray[Any], spec: ModelSpec) -> Iterator[Measured]:
    """Label shares and top labels from updates (n, d) of clients whose samples have these labels, (n, classes)."""
    shares = tried(
        f"{who}: label shares", lambda: share_correlation(label_shares(steps, spec), of_classes(label_counts))
    )
    yield shares
    if shares.result is not None:
        yield Measured(f"{who}: top label", top_label_hit_rate(label_shares(steps, spec), label_counts))


def alike(
    who: str, by: str, pairs: NDArray[Any], clients: Any, label_counts: NDArray[Any], groups: NDArray[Any] | None
) -> Iterator[Measured]:
    """Which pairs of these clients (n,) are similar, guessed by (n, n) numbers that grow with similarity.

    label_counts, groups: of all clients, as in ``Recorded``.
    """
    similar = f"{who}: which pairs have similar labels, by {by}"
    yield tried(similar, lambda: pair_correlation(pairs, of_classes(label_counts[clients])))
    if groups is not None and telling(groups[clients]):
        yield Measured(f"{who}: which pairs are of one group, by {by}", pair_auc(pairs, groups[clients]))


def of_classes(label_counts: NDArray[Any]) -> NDArray[Any]:
    """Label counts (n, classes), if there are classes. Raises UserError."""
    if label_counts.shape[1] < 2:
        raise UserError("the data have no classes: the task is regression, or there is a single label")
    return label_counts
