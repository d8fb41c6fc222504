"""Where AIDC's merging starts, on real data: from single devices, or from the dense parts of eq. (5) and (6).

``python -m benchmarks.clustering clustering/starts`` runs it. The fleets and their features are those of
``features.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from benchmarks import features
from coterie.clustering.density import THIRD, radii
from coterie.clustering.divergence import calibrated, modified_divergence
from coterie.clustering.isomorphic import Aidc, cluster
from coterie.reproductions.study import Row
from coterie.runs.intervals import mean_and_interval
from coterie.training.models import build
from coterie.training.sparsity import Extractor

DATA = ("mnist", "fashion_mnist")
DEALT = ("iid", "sets:2", "sets:5", "sets:5:uneven", "sets:10", "pairs", "shares:70")
FROM_PARTS = Aidc(singles_to=0)


@cache
def extracted(data: str, seed: int) -> tuple[features.Ground, NDArray[np.float32]]:
    """A data set, and its private samples in the dense layer of ``mlp``, pre-trained on the public ones."""
    ground = features.ground(data, seed)
    model = build("mlp", ground.private.input_shape, ground.private.classes)
    weights = features.extractor_weights(ground, model, "pretrained", seed)
    return ground, Extractor(model, weights, "dense")(ground.private.inputs())


def started(data: str, dealt: str, seed: int) -> Row:
    """The adjusted Rand index of merging from single devices and from the parts of eq. (5) and (6).

    third: the share of the devices whose radius is their third neighbour's divergence, and not that of eq. (5).
    """
    ground, vectors = extracted(data, seed)
    fleet = features.fleet(dealt, ground.private, seed)
    s, h = features.describe_all([vectors[own] for own in fleet.devices], seed)
    assert fleet.groups is not None
    names = [f"device/{i}" for i in range(len(s))]
    singles, parts_ = (cluster(names, s, h, settings)[0].labels for settings in (Aidc(), FROM_PARTS))
    d, _ = calibrated(modified_divergence(s), h)
    third = np.sort(d, axis=1)[:, THIRD]  # with the device itself
    return {
        "singles": adjusted_rand_score(fleet.groups, singles),
        "parts": adjusted_rand_score(fleet.groups, parts_),
        "same": adjusted_rand_score(singles, parts_) == 1,
        "third": float((radii(d, FROM_PARTS.neighbours) <= third).mean()),
    }


def table(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """A row for each population, over the seeds."""
    rows: list[Row] = []
    for name, seeds in found.items():
        mean, half = mean_and_interval([s["singles"] - s["parts"] for s in seeds])
        row: dict[str, Any] = {"devices": name}
        row |= {f"ARI from {start}": round(fmean(s[start] for s in seeds), 2) for start in ("singles", "parts")}
        row["difference"] = f"{mean:.2f}" + ("" if half is None else f" ± {half:.2f}")
        row["same partition"] = f"{sum(s['same'] for s in seeds)} of {len(seeds)}"
        rows.append({**row, "radius of the third neighbour": round(fmean(s["third"] for s in seeds), 2)})
    return rows
