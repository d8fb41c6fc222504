"""Figure 3 of "MingledPie": how often a uniform guess among a client's cluster identities is right. No training.

Each point has the closed form E[1/|CI|] for both readings of the threshold T (it counts identities, as the text says,
or false identities, which is what table II fits) and a simulation of algorithm 1 by coins; a few have one in the group,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.identity_coins import coin_sets
from coterie.clustering.identities import MAX_EXPECTED_TRIES, ClusterKeys, identity_set
from coterie.clustering.identity_law import Counts, IdentityLaw
from coterie.privacy.attacks.identity import expected_accuracy
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Item, Row, named
from papers.plots import Panel, heat_maps

CLIENTS = 12_000
"""Simulated by coins: a hundred federations of the paper's size."""
IN_GROUP = 600
"""Simulated in the group, where a set costs some milliseconds."""
RATES = (0.5, 0.25, 0.125, 0.0625)
THRESHOLDS = (2, 3, 4, 5)
CLUSTERS = (5, 6, 7, 8, 9, 10)
COUNTINGS: tuple[Counts, ...] = get_args(Counts)
PRINTED = {(5, 0.5, 2): "30.6; ideal 33.3"}
"""All that the text tells of the figure's numbers, percent, by (k, p, T)."""
GROUPED = {(5, 0.5, 2), (5, 0.25, 2), (10, 0.5, 2)}

Point = tuple[int, float, int]


def law(point: Point, reading: Counts) -> IdentityLaw | None:
    """The law of this (k, p, T), None where no set can have so many clusters."""
    k, p, threshold = point
    try:
        return IdentityLaw(k, p, threshold, reading)
    except UserError:
        return None


def simulated(of: IdentityLaw, clients: int, draw: Callable[[int], bytes], *, in_group: bool) -> float:
    """Mean of 1/|CI| over so many clients, their true clusters in turn."""
    truth = np.arange(clients) % of.clusters
    if in_group:
        keys = ClusterKeys.generate(of.clusters, round(-np.log2(of.p)), draw)
        sets = np.stack([identity_set(keys, int(j), of.threshold, draw, of.counts)[0] for j in truth])
    else:
        sets, _ = coin_sets(of, truth, draw)
    return float((1 / sets.sum(axis=1)).mean())


def measured(points: Sequence[Point], seed: int) -> list[Row]:
    """One row a point and reading, closed form and simulation as fractions."""
    rows: list[Row] = []
    for reading in COUNTINGS:
        for point in points:
            of = law(point, reading)
            row: dict[str, Any] = dict(zip(("k", "p", "T"), point, strict=True)) | {"T counts": reading}
            row |= {"closed": None if of is None else of.guess_accuracy, "coins": None, "group": None}
            if of is not None and of.expected_tries <= MAX_EXPECTED_TRIES:
                draw = rng(seed, "figure 3", f"{point} {reading}").bytes
                row["coins"] = simulated(of, CLIENTS, draw, in_group=False)
                row["group"] = simulated(of, IN_GROUP, draw, in_group=True) if point in GROUPED else None
            rows.append(row)
    return rows


def _table(found: Mapping[str, Sequence[Sequence[Row]]]) -> list[Row]:
    """Percent, the seeds' simulations together, and how many standard errors they are off."""
    return [_row(panel, same) for panel, seeds in found.items() for same in zip(*seeds, strict=True)]


def _row(panel: str, same: Sequence[Row]) -> Row:
    """Of one point and reading, as measured with every seed."""
    first = same[0]
    of = law((first["k"], first["p"], first["T"]), first["T counts"])
    expected = None if of is None else expected_accuracy(of)
    row: dict[str, Any] = {"panel": panel} | {key: first[key] for key in ("k", "p", "T", "T counts")}
    row["closed form %"] = expected and round(100 * first["closed"], 2)
    for kind, clients in (("coins", CLIENTS), ("group", IN_GROUP)):
        row[f"{kind} %"] = row[f"{kind}: off, standard errors"] = None
        if expected is not None and first[kind] is not None:
            mean = float(np.mean([one[kind] for one in same]))
            error = expected.sd / sqrt(clients * len(same))
            row[f"{kind} %"] = round(100 * mean, 2)
            off = round((mean - first["closed"]) / error, 1) + 0.0 if error else 0.0
            row[f"{kind}: off, standard errors"] = off
    row["120 clients: mean of 1/size ± %"] = expected and round(100 * expected.standard_error(120), 2)
    row["120 clients: guesses drawn ± %"] = expected and round(100 * expected.drawn_sd / sqrt(120), 2)
    return {**row, "paper %": PRINTED.get((first["k"], first["p"], first["T"]))}


def _draw(found: Mapping[str, Sequence[Sequence[Row]]], path: Path) -> None:
    """Three maps for either reading; what cannot be is grey."""
    grids = []
    for reading, words in zip(COUNTINGS, ("T counts identities (the text)", "T counts false identities"), strict=True):
        for panel, seeds in found.items():
            x, y = panel.split(" by ")
            own = [row for row in seeds[0] if row["T counts"] == reading]
            across, down = sorted({row[x] for row in own}), sorted({row[y] for row in own})
            values: NDArray[np.float64] = np.full((len(down), len(across)), np.nan)
            for row in own:
                if row["closed"] is not None:
                    values[down.index(row[y]), across.index(row[x])] = 100 * row["closed"]
            fixed = {"p by k": "T = 2", "p by T": "k = 5", "k by T": "p = 0.5"}[panel]
            grids.append(Panel(f"{words}, {fixed}", x, y, across, down, values))
    heat_maps(grids, columns=len(found), title="A uniform guess within the set is right (%), closed form").savefig(path)


_PANELS: Mapping[str, Sequence[Point]] = {
    "p by k": [(k, p, 2) for k in CLUSTERS for p in RATES],
    "p by T": [(5, p, threshold) for threshold in THRESHOLDS for p in RATES],
    "k by T": [(k, 0.5, threshold) for threshold in (*THRESHOLDS, 6, 7, 8) for k in CLUSTERS],
}

ITEMS = named(
    Item(
        "mingledpie/fig3",
        "MingledPie, figure 3: how often a guess within a client's identities is right",
        tuple(Calculation(panel, partial(measured, points)) for panel, points in _PANELS.items()),
        _table,
        _draw,
    )
)
