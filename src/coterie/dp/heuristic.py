"""OFL's own mechanism (section 4.2, algorithm 2, l. 11 to 13): a HEURISTIC, not differential privacy.

Selected parameters are grouped by the density of their values. Each gets Laplace noise of scale k Delta_C / epsilon_2,
where Delta_C = 2 max |theta - omega_C| over its cluster with the centroid omega_C, and k is the number of clusters. The
scale follows from the data, not from a bound on neighbours (docs/privacy_uploads.md). It tells how far values are
spread, and equal values get none. The proof of lemma 5.2 assumes that neighbouring data have the same clusters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.protocol.core as fl
from coterie.dp.ledger import Release

HEURISTIC = "heuristic, not differential privacy"
UPLOAD = f"selected parameters with Laplace noise ({HEURISTIC})"
MOST_CLUSTERS = 64


def clusters(values: NDArray[Any], dense: NDArray[Any]) -> NDArray[np.int64]:
    """(n,) the density cluster of each value, numbered in the order of the values.

    dense: (n,) the density at each value (``selection.parameters.density``), whose MOST_CLUSTERS - 1 deepest local
    minima are the borders. Equal values are never parted.
    """
    _check(values, dense)
    order = np.argsort(values)  # equal values have equal densities, so their order doesn't matter
    along = values[order]
    first = np.concatenate([[True], along[1:] != along[:-1]])  # of equal values
    found = np.asarray(dense, np.float64)[order][first]
    number = np.zeros(len(found), np.int64)
    if len(found) > 2:
        left = found[1:-1] < found[:-2]
        right = found[1:-1] <= found[2:]
        minima = np.flatnonzero(left & right) + 1
        deepest = minima[np.argsort(found[minima], kind="stable")[: MOST_CLUSTERS - 1]]
        number[deepest] = 1
    clustered = np.empty(len(order), np.int64)
    clustered[order] = np.cumsum(number)[np.cumsum(first) - 1]
    return clustered


def scales(values: NDArray[Any], dense: NDArray[Any], epsilon2: float) -> NDArray[np.float64]:
    """(n,) of each value's Laplace noise; 0 in a cluster of equal values. Raises UserError unless epsilon2 is
    positive and finite.
    """
    if not 0 < epsilon2 < math.inf:
        raise fl.UserError(f"epsilon_2 is positive and finite, not {epsilon2}")
    number = clusters(values, dense)
    k = int(number.max()) + 1
    doubles = np.asarray(values, np.float64)
    centroids = np.bincount(number, doubles, k) / np.bincount(number, minlength=k)
    apart = np.zeros(k)
    np.maximum.at(apart, number, np.abs(doubles - centroids[number]))
    apart[apart < 1e-12 * np.abs(centroids)] = 0.0  # equal values, but for the rounding of their mean
    return np.asarray(k * 2 * apart[number] / epsilon2)


def perturbed(values: NDArray[Any], dense: NDArray[Any], epsilon2: float, secrets: fl.Secrets) -> fl.Vector:
    """(n,) float32, selected values plus Laplace noise by their density clusters."""
    return (np.asarray(values, np.float64) + scales(values, dense, epsilon2) * laplace(len(values), secrets)).astype(
        np.float32
    )


def laplace(count: int, secrets: fl.Secrets) -> NDArray[np.float64]:
    """(count,) independent numbers with density exp(-|x|) / 2."""
    drawn = np.frombuffer(secrets.bytes(8 * count), "<u8")
    uniform = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(-np.sign(uniform - 0.5) * np.log1p(-2 * np.abs(uniform - 0.5)))


def true_epsilon(ratio: float, delta: float, values: int = 1) -> float:
    """The exact epsilon at ``delta`` of values at the centroid of a cluster that is ``ratio`` = r times wider in
    neighbouring data; infinite for an infinite ratio.

    For one value and r >= 2 it is (r - 1) log((1 - 1/r) / delta) - log r. Raises UserError.
    """
    from scipy.optimize import brentq  # slow to import
    from scipy.special import gammainc, gammaincc

    if not ratio > 1 or not 0 < delta < 1 or values < 1:
        raise fl.UserError(
            f"a ratio exceeds 1, delta lies in (0, 1), and there is a value: not {ratio}, {delta}, {values}"
        )
    if math.isinf(ratio):
        return math.inf
    # Lap(b) against Lap(r b): of m values only the sum s of their distances over b counts, with a gamma distribution.
    # The log likelihood ratio is (1 - 1/r) s - m log r. With t where it is epsilon, delta = P[s > t | r b] - e^epsilon
    # P[s > t | b], and likewise for the narrower side.
    total, share = values * math.log(ratio), 1 - 1 / ratio

    def wider(epsilon: float) -> float:
        t = (epsilon + total) / share
        return float(gammaincc(values, t / ratio) - _times(epsilon, gammaincc(values, t))) - delta

    def narrower(epsilon: float) -> float:
        t = max(0.0, total - epsilon) / share
        return float(gammainc(values, t) - _times(epsilon, gammainc(values, t / ratio))) - delta

    most = (ratio - 1) * (values * 40 + 100) + total
    return max(float(brentq(f, 0.0, most, xtol=1e-9)) if f(0.0) > 0 else 0.0 for f in (wider, narrower))


def _times(epsilon: float, probability: float) -> float:
    return math.exp(min(0.0, epsilon + math.log(probability))) if probability > 0 else 0.0


def claimed(selected: int, epsilon1: float, epsilon2: float) -> float:
    """The paper's total of one upload, section 5.1.1: gamma_up |theta| (epsilon_1 + epsilon_2)."""
    return selected * (epsilon1 + epsilon2)


def release(selected: int, epsilon1: float, epsilon2: float, round: int = 0) -> Release:
    """Of one upload: no proof, and the paper's claim beside it."""
    return Release(
        UPLOAD,
        "heuristic",
        neighbours="replace one client",
        round=round,
        claimed_epsilon=claimed(selected, epsilon1, epsilon2),
    )


def refuse_epsilon(epsilon: float | None) -> None:
    """Raises UserError if a heuristic is asked for an epsilon."""
    if epsilon is not None:
        raise fl.UserError(
            f"epsilon={epsilon} with mechanism=paper: that mechanism is a {HEURISTIC}, so it has no epsilon; take "
            "mechanism=standard (mode hardened), or leave epsilon out"
        )


def _check(values: NDArray[Any], dense: NDArray[Any]) -> None:
    if values.ndim != 1 or not len(values) or values.shape != dense.shape or not np.isfinite(values).all():
        raise fl.UserError(
            f"noise is added to a row of finite values with their densities, not {values.shape}, {dense.shape}"
        )
