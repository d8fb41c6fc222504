"""Cluster models out of mingled sums: section IV-B (III) of "MingledPie" (Zhang et al., NDSS 2025).

Client i is truly in cluster b and joins the mingled clusters CI_i, b among them. The server adds up models, ``S_a =
sum_i theta_i [a in CI_i]`` (eq. 5), and one-hot indicators, ``x_ab = sum_i sigma_ib [a in CI_i]`` (eq. 6). If a
cluster's false members stand for all of it, ``S = H theta*`` with ``H = (x_ab)`` (eq. 7), which is solved for theta*.

Shapes everywhere: sums (k, d), coefficients H (k, k), sizes |G_a| (k,), models (k, d) float32. Departures:
docs/systems/mingledpie_appendix.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import PeerError, UserError

TOLERANCE = 0.01
"""Of a decrypted count from a whole number. CKKS is off by some 1e-9 a summand."""

MOST_CONDITION = 1e12
"""The largest bound on a condition number: what float64 solves above it is rounding."""

Floats = NDArray[np.float64]
Models = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """kept: (k,) bool, clusters that keep their previous model.  why: in words; empty where all were rebuilt.
    condition, ridge: of H and lambda, see :func:`rebuild`; infinite where H is singular or absent, and 0 where H was
    solved as it is.
    """

    models: Models
    kept: NDArray[np.bool_]
    condition: float
    why: str
    ridge: float = 0.0

    @property
    def refused(self) -> bool:
        return bool(self.kept.all())


def kept_all(previous: NDArray[Any], why: str, condition: float = np.inf) -> Rebuilt:
    """All clusters keep their previous models (k, d)."""
    models = np.array(previous, dtype=np.float32)
    return Rebuilt(models, np.ones(len(models), dtype=np.bool_), condition, why)


# What a client can tell of decrypted coefficients


def round_counts(coefficients: NDArray[Any]) -> NDArray[np.int64]:
    """As whole numbers, so that a solve does not amplify CKKS's errors. Raises PeerError where one is further than
    ``TOLERANCE`` off.
    """
    x = np.asarray(coefficients)
    if reason := _unwhole(x):
        raise PeerError(f"{reason}, so somebody's encrypted indicator was not one-hot: keep the previous models")
    return np.asarray(np.rint(x), dtype=np.int64)


def implausible(
    coefficients: NDArray[Any], sizes: NDArray[Any], participants: int | None = None, least: int = 1
) -> str:
    """Why honest one-hot indicators can't give these coefficients, or "".

    coefficients: (k, k) real, H before or after rounding.  sizes: (k,), the |G_a| that the server counted.
    participants: clients whose updates were added, if known.  least: identities that every client must have (T).
    """
    x, sizes = np.asarray(coefficients), np.asarray(sizes)
    if x.ndim != 2 or x.shape[0] != x.shape[1] or sizes.shape != x.shape[:1]:
        return f"coefficients of shape {x.shape} and sizes of shape {sizes.shape} do not belong together"
    if reason := _unwhole(x):
        return reason
    if reason := _unwhole(sizes, 0.0):
        return f"among the sizes, {reason}"
    x, sizes, total = np.rint(x), np.rint(sizes), int(np.rint(np.trace(x)))
    true, joined = np.diag(x), x.sum(axis=0)  # members of each true cluster; and in how many sets these are, in all
    found = []
    if (x < 0).any():
        a, b = np.argwhere(x < 0)[0]
        found.append(f"{int(x[a, b])} members of mingled cluster {a} are truly in cluster {b}: a count below 0")
    if (x.sum(axis=1) != sizes).any():
        a = int(np.flatnonzero(x.sum(axis=1) != sizes)[0])
        found.append(f"mingled cluster {a} has {int(sizes[a])} members, but {int(x[a].sum())} by their indicators")
    if (x > true).any():
        a, b = np.argwhere(x > true)[0]
        found.append(
            f"{int(x[a, b])} members of mingled cluster {a} are truly in cluster {b}, but only {int(true[b])} members "
            f"of mingled cluster {b} itself, where all of them must be"
        )
    if (joined < least * true).any():
        b = int(np.flatnonzero(joined < least * true)[0])
        found.append(
            f"the {int(true[b])} clients of cluster {b} are in {int(joined[b])} sets in all, not in {least} each"
        )
    if participants is not None and total != participants:
        found.append(f"{total} clients by the diagonal, but {participants} took part")
    return "; ".join(found)


def _unwhole(x: NDArray[Any], tolerance: float = TOLERANCE) -> str:
    if x.dtype.kind not in "fiu" or not (np.abs(x) < 2**53).all():  # NaN fails too
        return "the counts are not all numbers below 2^53"
    off = np.abs(x - np.rint(x))
    if off.size and off.max() > tolerance:
        worst = np.unravel_index(int(off.argmax()), off.shape)
        return f"count {tuple(int(i) for i in worst)} is {x[worst]:.6g}, no whole number within {tolerance:g}"
    return ""


# Models


def rebuild(
    sums: NDArray[Any], coefficients: NDArray[Any], previous: NDArray[Any], *, max_condition: float, ridge: bool = True
) -> Rebuilt:
    """Eq. (7) solved for the cluster models: ``H theta* = S`` with un-normalised sums.

    previous: for empty clusters.  max_condition: above 1 and up to ``MOST_CONDITION``, of H (2-norm) with its columns
    scaled to length 1; for eq. (11) it is (1 + (k-1) p) / (1-p). Rebuilding adds .02 to .07 of it to a model's error,
    in units of the spread of models within a cluster.
    ridge: for an H of a larger condition. True: minimise ``||H theta - S||^2 + lambda sum_b |h_b|^2 (theta_b -
    previous_b)^2``, h_b the columns of H and lambda the smallest that brings the condition down to ``max_condition``.
    False: keep all models.
    Raises PeerError for sums that are not finite, UserError for arguments that do not fit together.
    """
    sums, previous = _fitting(sums, previous)
    h = np.asarray(coefficients, dtype=np.float64)
    k = len(sums)
    if h.shape != (k, k) or not np.isfinite(h).all() or (h < 0).any():
        raise UserError(f"{k} sums need ({k}, {k}) finite coefficients of at least 0: check their plausibility first")
    if not 1 < max_condition <= MOST_CONDITION:
        raise UserError(f"max_condition is {max_condition}; it must be above 1 and at most {MOST_CONDITION:g}")
    rows, columns = np.asarray(h.any(axis=1)), np.asarray(h.any(axis=0))
    if not columns.any():
        return kept_all(previous, "nobody took part, so all models were kept")
    inverse, condition, lam = left_inverse(h[np.ix_(rows, columns)], max_condition)
    if lam > 0 and not ridge:
        words = f"the coefficients' condition number is {condition:.3g}, above {max_condition:g}"
        return kept_all(previous, f"{words}, so all models were kept", condition)
    solve = np.zeros((len(inverse), k))
    solve[:, rows] = inverse
    solved = solve @ sums
    if lam > 0:  # theta = previous + solve (S - H previous)
        solved += (np.eye(len(solve)) - solve @ h[:, columns]) @ previous[columns]
    return _rebuilt(solved, columns, previous, condition, lam)


def rebuild_literal(
    sums: NDArray[Any], coefficients: NDArray[Any], previous: NDArray[Any], sizes: NDArray[Any], *, max_condition: float
) -> Rebuilt:
    """Alg. 2 as printed: eq. (8) with H in counts, but with the means S_a / |G_a| on its right-hand side. sizes:
    whole numbers. Otherwise as :func:`rebuild` without a ridge.
    """
    sums, previous = _fitting(sums, previous)
    means = sums / np.maximum(_counts(sizes, len(sums)), 1)[:, None]
    return rebuild(means, coefficients, previous, max_condition=max_condition, ridge=False)


def mingled_means(sums: NDArray[Any], sizes: NDArray[Any], previous: NDArray[Any]) -> Rebuilt:
    """The mean model of each *mingled* cluster (table V, 1 + 2), the previous one of an empty cluster. Errors as
    :func:`rebuild`.
    """
    sums, previous = _fitting(sums, previous)
    sizes = _counts(sizes, len(sums))
    some = sizes > 0
    return _rebuilt(sums[some] / sizes[some, None], some, previous, 1.0 if some.any() else np.inf)


def exact_means(
    sums: NDArray[Any], counts: NDArray[Any], previous: NDArray[Any], participants: int | None = None
) -> Rebuilt:
    """The cluster models from sums over the *true* clusters, ``sum_i sigma_ib theta_i``.

    counts: (k,) real, ``sum_i sigma_ib`` as decrypted; impossible ones leave all models as they were, and say so.
    previous: for empty clusters. Errors as :func:`rebuild`.
    """
    sums, previous = _fitting(sums, previous)
    counts = np.asarray(counts)
    if counts.shape != sums.shape[:1]:
        raise UserError(f"sums of shape {sums.shape} and counts of shape {counts.shape} do not belong together")
    if why := implausible(np.diag(counts), np.rint(counts), participants):
        return kept_all(previous, f"{why}, so all models were kept")
    return mingled_means(sums, round_counts(counts), previous)


def _fitting(sums: NDArray[Any], previous: NDArray[Any]) -> tuple[NDArray[Any], Models]:
    sums, previous = np.asarray(sums), np.asarray(previous)
    if sums.ndim != 2 or 0 in sums.shape or previous.shape != sums.shape or sums.dtype.kind not in "fiu":
        raise UserError(
            f"sums of shape {sums.shape} ({sums.dtype}) and previous models of shape {previous.shape} do not belong "
            "together: both must be (clusters, weights)"
        )
    if not np.isfinite(sums).all():
        raise PeerError("the decrypted sums are not finite: somebody's model was broken; keep the previous models")
    return sums, previous.astype(np.float32, copy=False)


def _counts(counts: NDArray[Any], k: int) -> NDArray[np.int64]:
    counts = np.asarray(counts)
    if counts.shape != (k,) or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise UserError(f"{k} sums need as many whole counts of at least 0, not {counts.dtype} of shape {counts.shape}")
    return counts.astype(np.int64)


def left_inverse(live: Floats, max_condition: float) -> tuple[Floats, float, float]:
    """L with L live = 1 (least squares, ridged if needed), the condition of live, and the ridge's lambda.

    live: (rows, columns) without columns of zeros. Its condition, with columns of length 1, is infinite below full
    rank.
    """
    scale = np.linalg.norm(live, axis=0)
    scaled, n = live / scale, len(scale)
    inverse, _, rank, singular = np.linalg.lstsq(scaled, np.eye(len(scaled), dtype=np.float64), rcond=None)
    first, last = float(singular[0]), float(singular[-1]) if rank == n else 0.0
    condition, lam = first / last if last else np.inf, 0.0
    if not condition <= max_condition:
        lam = (first**2 - (max_condition * last) ** 2) / (max_condition**2 - 1)
        ridged = np.vstack([scaled, np.sqrt(lam) * np.eye(n)])
        inverse = np.linalg.lstsq(ridged, np.eye(len(ridged), len(live)), rcond=None)[0]
    return np.asarray(inverse / scale[:, None], dtype=np.float64), condition, lam


def _rebuilt(
    solved: Floats, some: NDArray[np.bool_], previous: Models, condition: float, ridge: float = 0.0
) -> Rebuilt:
    models = previous.copy()
    with np.errstate(over="ignore"):
        models[some] = solved
    if not np.isfinite(models).all():
        return kept_all(previous, "a rebuilt model would not fit in float32, so all models were kept", condition)
    empty = ", ".join(str(b) for b in np.flatnonzero(~some))
    why = f"nobody was in cluster {empty}, so its model was kept" if empty else ""
    return Rebuilt(models, ~some, condition, why, ridge)


# Theory


def ideal_coefficients(sizes: NDArray[Any], rate: float) -> Floats:
    """Eq. (11): (k, k), |G*_b| on the diagonal and rate |G*_b| off it (table V, 1 + 2 + 3).

    sizes: (k,), of the *true* clusters.  rate: the paper's p; alg. 1 really gives the larger p_c (eq. 9).
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or not len(sizes) or not (np.isfinite(sizes) & (sizes >= 0)).all() or not 0 <= rate <= 1:
        raise UserError(f"expected sizes of at least 0 and a rate from 0 to 1, not {sizes} and {rate}")
    return np.asarray(sizes * (rate + (1 - rate) * np.eye(len(sizes))), dtype=np.float64)
