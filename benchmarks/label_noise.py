"""How much noise HACCS's clusters stand: the adjusted Rand index of its clusters with planted label sets, by epsilon.

    python -m benchmarks.label_noise digits 20
    python -m benchmarks.label_noise mnist 50 --samples 200

prints, for 2, 5 and 10 label sets, the mean index over seeds 0, 1 and 2 of DBSCAN at the default radius and of OPTICS.
The histograms are the partition's own counts, or with ``--samples`` so many labels of each client, drawn from them.
Nothing is trained.
"""

from __future__ import annotations

import sys
from math import inf

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.baselines.haccs import HaccsConfig
from coterie.clustering.histograms import Density, density_clusters, hellinger
from coterie.dp.laplace import private_counts
from coterie.protocol.randomness import Secrets
from coterie.runs import RunConfig, build

EPSILONS = (inf, 4.0, 1.0, 0.5, 0.1)
SEEDS = (0, 1, 2)


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


def main(data: str, clients: int, samples: int = 0) -> None:
    """Print the table."""
    lines = ["| label sets | clustering | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |"]
    lines.append("| --- | --- |" + " --- |" * len(EPSILONS))
    methods: tuple[Density, ...] = ("dbscan", "optics")
    for sets in (2, 5, 10):
        for method in methods:
            means = [np.mean([index(data, clients, sets, e, method, s, samples) for s in SEEDS]) for e in EPSILONS]
            lines.append(f"| {sets} | {method} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], int(given[1]), int(given[3]) if "--samples" in given else 0)
