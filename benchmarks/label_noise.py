"""How much noise HACCS's clusters stand: the adjusted Rand index of its clusters with planted label sets, by epsilon.

    python -m benchmarks.label_noise label_noise/digits --seeds 3
    python -m benchmarks.label_noise label_noise/mnist --seeds 3

has, for 2, 5 and 10 label sets, the mean index of DBSCAN at the default radius and of OPTICS. The histograms are the
partition's own counts, on MNIST 200 labels of each client, drawn from them. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.items import crossed, main
from coterie.baselines.haccs import HaccsConfig
from coterie.clustering.histograms import Density, density_clusters, hellinger
from coterie.dp.laplace import private_counts
from coterie.protocol.randomness import Secrets
from coterie.reproductions.study import Item, Row, by_cell, named
from coterie.runs import RunConfig, build

EPSILONS = (inf, 4.0, 1.0, 0.5, 0.1)
METHODS: tuple[Density, ...] = ("dbscan", "optics")


def index(data: str, clients: int, sets: int, epsilon: float, method: Density, seed: int, samples: int = 0) -> float:
    """The adjusted Rand index of one seed."""
    experiment = build(RunConfig("haccs", data, clients=clients, rounds=1, partition=f"labelsets:{sets}", seed=seed))
    counts, groups = experiment.label_counts, experiment.split.groups
    experiment.close()
    source = np.random.default_rng(seed)
    if samples:
        counts = np.stack([source.multinomial(samples, row / row.sum()) for row in counts])
    noisy = np.stack([private_counts(row, epsilon, Secrets(source)) for row in counts])
    found = density_clusters(hellinger(noisy), method, HaccsConfig().radius)
    return float(adjusted_rand_score(groups, found))


def indices(data: str, clients: int, samples: int, sets: float, method: Density, seed: int) -> Row:
    """By epsilon, the index of one seed."""
    return {word(e): index(data, clients, int(sets), e, method, seed, samples) for e in EPSILONS}


def word(epsilon: float) -> str:
    return "no noise" if epsilon == inf else f"ε {epsilon:g}"


def means(name: str, found: Sequence[Row]) -> Row:
    sets, method = name.split("/")
    row = {"label sets": sets, "clustering": method}
    return row | {word(e): f"{np.mean([one[word(e)] for one in found]):.2f}" for e in EPSILONS}


ITEMS = named(
    *(
        Item(
            f"label_noise/{data}",
            f"HACCS: clusters beside planted label sets, by the noise of histograms ({data})",
            crossed(
                partial(indices, data, clients, samples),
                lambda *_, clients=clients, samples=samples: {"clients": clients, "samples drawn": samples},
                (2, 5, 10),
                METHODS,
            ),
            by_cell(means),
            command="python -m benchmarks.label_noise",
        )
        for data, clients, samples in (("digits", 20, 0), ("mnist", 50, 200))
    )
)

if __name__ == "__main__":
    main(ITEMS)
