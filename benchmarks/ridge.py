"""MingledPie's H where it is ill-conditioned: what a ridge costs, and what drawing the identity sets anew would show.

The paper has nothing of it: it takes H for invertible (theorems 3 and 4). ``draws`` is about sets of identities alone,
``ridge`` about training on digits. A bound is what the condition number of H, its columns at length 1, may be at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.identity_coins import coin_sets
from benchmarks.items import main
from coterie.aggregation.mingled import left_inverse, rebuild
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks.identity import expected_accuracy
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Cell, Curve, Item, Row, by_cell, percent, spread
from coterie.runs.config import RunConfig

DRAWS = 500
BOUNDS = (30.0, 100.0)
CASES = {
    f"{clients}/{k}/{p:g}": (clients, k, p)
    for clients, k, p in ((120, 5, 0.5), (120, 8, 0.5), (120, 10, 0.5), (60, 10, 0.5), (60, 10, 0.25))
}
"""Clients, k and p; T = 2 identities, clusters of equal size."""
_MOST_SETS = 200
"""Sets that a client shows; whoever has shown so many is known."""


@dataclass(frozen=True)
class Drawn:
    """Over draws, (draws,) each: conditions, errors of the plain solve, and of the ridge at each bound.

    Errors are RMS over the clusters, in units of the spread of models within a cluster.  held_back: RMS share of a step
    of the exact means that a ridge leaves out.
    """

    condition: NDArray[np.float64]
    plain: NDArray[np.float64]
    ridged: Mapping[float, NDArray[np.float64]]
    held_back: Mapping[float, NDArray[np.float64]]


def rebuild_error(
    member: NDArray[np.bool_], true: NDArray[Any], *, max_condition: float = np.inf
) -> NDArray[np.float64]:
    """(k,): how far a rebuilt model is from the exact mean of its cluster, RMS, where members' models spread by 1.

    member: (N, k) bool, [a in CI_i].  true: (N,) whole, the true cluster of each client.  max_condition: as for
        ``rebuild``, without the effect of a ridge. nan for a cluster without members; infinite for all where H is
        singular.

    With weights of independent noise of standard deviation sigma, ``rebuild_error * sigma`` is the exact standard
    deviation of (rebuilt - exact mean), given the sets.
    """
    member = np.asarray(member)
    n, k = member.shape if member.ndim == 2 else (0, 0)
    one_hot = np.arange(k) == np.asarray(true)[..., None]
    if member.dtype != np.bool_ or one_hot.shape != (n, k) or not one_hot.any(axis=1).all() or not n:
        raise UserError("expected sets (clients, clusters) of bool and the true cluster of each client")
    if not member[one_hot].all():
        raise UserError(f"client {int(np.flatnonzero(~member[one_hot])[0])} is not in the mingled cluster of its own")
    live = one_hot.any(axis=0)
    error = np.where(live, np.inf, np.nan)
    m, z = member[:, member.any(axis=0)].T.astype(np.float64), one_hot[:, live].astype(np.float64)
    h, mean = m @ z, z.T / z.sum(axis=0)[:, None]
    inverse, condition, lam = left_inverse(h, max_condition)
    if lam > 0 or np.isfinite(condition):
        error[live] = np.linalg.norm(inverse @ (m - h @ mean), axis=1)  # of every client's model in every rebuilt one
    return np.asarray(error, dtype=np.float64)


def drawn(clients: int, k: int, p: float, seed: int) -> Drawn:
    """Identity sets of so many clients, again and again."""
    true, law = np.arange(clients) % k, IdentityLaw(k, p, 2)
    one_hot, nothing = np.eye(k)[true], np.zeros((k, k), np.float32)
    found = np.zeros((DRAWS, 2 + 2 * len(BOUNDS)))
    for row, draw in zip(found, range(DRAWS), strict=True):
        sets, _ = coin_sets(law, true, rng(seed, "identity sets", f"{clients} {k} {p}", draw).bytes)
        h = sets.T.astype(np.float64) @ one_hot
        errors, kept = [_rms(rebuild_error(sets, true))], []
        for bound in BOUNDS:
            errors.append(_rms(rebuild_error(sets, true, max_condition=bound)))
            solved = rebuild(h, h, nothing, max_condition=bound)  # of steps of one cluster each: what comes of them
            kept.append(_rms(np.linalg.norm(np.eye(k) - solved.models, axis=1)))
        row[:] = [solved.condition, *errors, *kept]
    condition, plain, *others = found.T
    ridged, held_back = others[: len(BOUNDS)], others[len(BOUNDS) :]
    return Drawn(condition, plain, dict(zip(BOUNDS, ridged, strict=True)), dict(zip(BOUNDS, held_back, strict=True)))


def redrawn(law: IdentityLaw, above: float) -> tuple[float, float]:
    """Were sets drawn anew while the condition is above a bound, as it is with probability ``above``.

    How many sets a client shows on average, and how often their intersection gives its cluster away.
    """
    chances = (1 - above) * above ** np.arange(_MOST_SETS)
    guessed, last = [], 0.0
    for sets in range(1, _MOST_SETS + 1):
        last = expected_accuracy([law] * sets).accuracy if last < 1 - 1e-6 else 1.0
        guessed.append(last)
    return 1 / (1 - above), float(chances @ guessed + 1 - chances.sum())


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _draws_table(found: Mapping[str, Sequence[Drawn]]) -> list[Row]:
    rows: list[Row] = []
    for name, seeds in found.items():
        clients, k, p = CASES[name]
        law = IdentityLaw(k, p, 2)
        condition = np.concatenate([one.condition for one in seeds])
        for bound in BOUNDS:
            over = condition > bound
            sets, guessed = redrawn(law, float(over.mean()))
            rows.append(
                {
                    "clients": clients,
                    "k": k,
                    "p": p,
                    "median condition": round(float(np.median(condition)), 1),
                    "bound": bound,
                    "above it %": round(100 * float(over.mean()), 1),
                    "these: error as they are": _median([one.plain for one in seeds], over),
                    "with a ridge": _median([one.ridged[bound] for one in seeds], over),
                    "held back": _median([one.held_back[bound] for one in seeds], over),
                    "drawn anew: sets shown": round(sets, 2),
                    "cluster guessed %": round(100 * guessed, 1),
                    "of one set %": round(100 * law.guess_accuracy, 1),
                }
            )
    return rows


def _median(seeds: Sequence[NDArray[np.float64]], over: NDArray[np.bool_]) -> float | None:
    return round(float(np.median(np.concatenate(seeds)[over])), 2) if over.any() else None


TRAINED = (10.0, 30.0, 100.0, 1000.0)


def _config(system: str, **settings: Any) -> RunConfig:
    """Ten groups on digits that share some data, from pre-trained models: 60 clients, whose first H is often bad."""
    settings = {"clusters": 10, "start": "pretrained", **settings}
    partition = "labelsets:10,iid=0.3"
    return RunConfig(system, "digits", clients=60, rounds=12, partition=partition, crypto="emulated", settings=settings)


@by_cell
def _ridge_table(name: str, curves: Sequence[Curve]) -> Row:
    accuracies = [[a for a in curve.local_accuracy if a is not None] for curve in curves]
    shown = [_sets_shown(curve) for curve in curves] if name != "ifca" else []
    return {
        "max_condition": name,
        "local %": percent([one[-1] for one in accuracies]),
        "the worst seed %": round(100 * min(one[-1] for one in accuracies), 1),
        "the worst round %": round(100 * min(min(one) for one in accuracies), 1),
        "rounds skipped": sum(len(curve.summary["skipped"]) for curve in curves),
        "sets that a client shows": round(spread(shown)[0], 2) if shown else None,
        "rounds": len(accuracies[0]),
    }


def _sets_shown(curve: Curve) -> float:
    """Different identity sets of a client over the rounds, the mean over the clients."""
    by_client = zip(*(notes["membership"] for notes in curve.notes), strict=True)
    return float(np.mean([len({tuple(own) for own in sets}) for sets in by_client]))


COMMAND = "python -m benchmarks.ridge"
ITEMS: Mapping[str, Item[Any]] = {
    item.name: item
    for item in (
        Item(
            "mingledpie/draws",
            "MingledPie: how often H is ill-conditioned, and what a ridge and a second draw cost",
            tuple(Calculation(name, partial(drawn, *case)) for name, case in CASES.items()),
            _draws_table,
            command=COMMAND,
        ),
        Item(
            "mingledpie/ridge",
            "MingledPie with 10 clusters of 6 clients: bounds on the condition of H",
            (
                *(Cell(f"{bound:g}", _config("mingledpie", max_condition=bound)) for bound in TRAINED),
                Cell("ifca", _config("ifca")),
            ),
            _ridge_table,
            command=COMMAND,
        ),
    )
}


if __name__ == "__main__":
    main(ITEMS)
