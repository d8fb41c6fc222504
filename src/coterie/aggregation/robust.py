"""Aggregation that a minority of attackers cannot move far, for the updates of one round, (n, d) changes of the model.

Krum, multi-Krum: Blanchard et al., NeurIPS 2017. Trimmed mean, median: Yin et al., ICML 2018. FLTrust: Cao et al., NDSS
2021. FLAME: Nguyen et al., USENIX Security 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import finite
from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]
_BLOCK = 1 << 16  # coordinates that are sorted at a time


@dataclass(frozen=True, eq=False)
class Robust:
    """mean: (d,) the aggregate.  flagged: (n,) bool, the updates taken for malicious.
    influence: (n,) at least 0, each update's part in it: 0 or 1, the share of its coordinates where a rule chooses in
    each, or its trust.
    """

    mean: Doubles
    influence: Doubles
    flagged: NDArray[np.bool_]


def krum_scores(updates: NDArray[Any], f: int) -> Doubles:
    """(n,) the sum of an update's squared distances to its n - f - 2 nearest others (Blanchard et al., section 4).

    f: how many may be malicious. Raises UserError for fewer than f + 3 updates.
    """
    u = finite(updates, "updates", "n", "d")
    n = len(u)
    if f < 0 or n < f + 3:
        raise UserError(f"Krum against {f} attackers needs at least {max(f, 0) + 3} updates, not {n}")
    squares = np.einsum("ij,ij->i", u, u)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * (u @ u.T), 0.0)
    np.fill_diagonal(distances, np.inf)  # an update is no neighbour of itself
    return np.asarray(np.sort(distances, axis=1)[:, : n - f - 2].sum(axis=1))


def krum(updates: NDArray[Any], f: int) -> Robust:
    """The update with the lowest score, the earliest of equals. Flagged are the f with the highest.

    It withstands f attackers among n > 2 f + 2 (their proposition 1). Raises UserError as ``krum_scores``.
    """
    order = np.argsort(krum_scores(updates, f), kind="stable")
    return _chosen(updates, order[:1], order[len(order) - f :])


def multi_krum(updates: NDArray[Any], f: int, m: int | None = None) -> Robust:
    """The mean of the m updates with the lowest scores, by default n - f. Flagged are all others.

    Raises UserError as ``krum_scores``, and unless 1 <= m <= n - f.
    """
    order = np.argsort(krum_scores(updates, f), kind="stable")
    m = len(order) - f if m is None else m
    if not 1 <= m <= len(order) - f:
        raise UserError(f"multi-Krum chooses from 1 to {len(order) - f} of {len(order)} updates, not {m}")
    return _chosen(updates, order[:m], order[m:])


def trimmed_mean(updates: NDArray[Any], k: int) -> Robust:
    """In every coordinate the mean without the k largest and the k smallest values (Yin et al., definition 2).

    Updates that stay in fewer than half as many coordinates as the median update are flagged. Raises UserError unless 0
    <= 2 k < n.
    """
    u = finite(updates, "updates", "n", "d")
    n, d = u.shape
    if not 0 <= 2 * k < n:
        raise UserError(f"a trimmed mean of {n} updates can leave out from 0 to {(n - 1) // 2} at each end, not {k}")
    mean, stays = np.empty(d), np.zeros(n, np.int64)
    for lo in range(0, d, _BLOCK):
        part = u[:, lo : lo + _BLOCK]
        kept = np.argsort(part, axis=0, kind="stable")[k : n - k]
        mean[lo : lo + _BLOCK] = np.take_along_axis(part, kept, axis=0).mean(axis=0)
        stays += np.bincount(kept.ravel(), minlength=n)
    influence = stays / d
    return Robust(mean, influence, influence < np.median(influence) / 2)


def median(updates: NDArray[Any]) -> Robust:
    """Yin et al., definition 1."""
    return trimmed_mean(updates, (len(finite(updates, "updates", "n", "d")) - 1) // 2)


def fltrust(updates: NDArray[Any], own: NDArray[Any]) -> Robust:
    """The mean of the updates at the length of the server's own, weighted by max(0, cosine with it) (their eq. 2 to 4).

    own: (d,) the server's update. Updates without trust are flagged; without others the aggregate is zero. Raises
    UserError for an impossible own update.
    """
    u, g = finite(updates, "updates", "n", "d"), np.asarray(own, dtype=np.float64)
    if g.shape != u.shape[1:] or not np.isfinite(g).all() or not (length := float(np.linalg.norm(g))):
        raise UserError("FLTrust needs an update of the server's own that is finite, not zero, and of the model's size")
    lengths = np.linalg.norm(u, axis=1)
    to_length = np.divide(length, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    trust = np.maximum(0.0, (u @ g) * to_length / length**2)  # ReLU(cos), their eq. 2
    total = float(trust.sum())
    mean = (trust * to_length) @ u / total if total else np.zeros_like(g)  # their eq. 3 and 4
    return Robust(mean, trust, trust <= 0)


def flame(updates: NDArray[Any], noise: NDArray[Any]) -> Robust:
    """The mean of the admitted updates, clipped to the median length S of all, plus S times the noise (algorithm 1).

    noise: (d,), of the standard deviation lambda. Admitted is HDBSCAN's cluster of angles, of more than half of the
    updates, or all. Raises UserError for fewer than 2 updates.
    """
    from sklearn.cluster import HDBSCAN  # takes a second

    u = finite(updates, "updates", "n", "d")
    if (n := len(u)) < 2:
        raise UserError(f"FLAME compares updates, and needs at least 2, not {n}")
    lengths = np.linalg.norm(u, axis=1)  # l. 10
    unit = u / np.where(lengths > 0, lengths, 1.0)[:, None]
    apart = np.clip(1 - unit @ unit.T, 0.0, 2.0)  # l. 6
    np.fill_diagonal(apart, 0.0)
    # min_samples=1 of the paper does not count the update itself, and scikit-learn does
    found = HDBSCAN(n // 2 + 1, 2, metric="precomputed", allow_single_cluster=True, copy=True).fit(apart)  # l. 7
    admitted = found.labels_ >= 0
    if not admitted.any():
        admitted[:] = True
    s = float(np.median(lengths))  # l. 11
    factor = (
        np.minimum(1.0, np.divide(s, lengths, out=np.ones_like(lengths), where=lengths > 0)) * admitted
    )  # l. 13, 14
    return Robust(factor @ u / admitted.sum() + s * noise, factor, ~admitted)  # l. 16 to 18


def _chosen(updates: NDArray[Any], chosen: NDArray[np.int64], left_out: NDArray[np.int64]) -> Robust:
    u = finite(updates, "updates", "n", "d")
    influence, flagged = np.zeros(len(u)), np.zeros(len(u), np.bool_)
    influence[chosen], flagged[left_out] = 1.0, True
    return Robust(u[np.sort(chosen)].mean(axis=0), influence, flagged)
