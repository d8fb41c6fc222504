"""HACCS whose clusters are those of the nearest leader (Hartigan, "Clustering algorithms", Wiley 1975, ch. 3)."""

from dataclasses import replace

import numpy as np

from coterie.baselines import haccs
from coterie.clustering.histograms import hellinger
from coterie.clustering.labels import Labels, by_first_row


def leaders(distances: np.ndarray, radius: float) -> Labels:
    """(n,) clusters by (n, n) distances: a row farther than the radius from all leaders so far is one, too."""
    chosen: list[int] = []
    for i, row in enumerate(distances):
        if not (row[chosen] <= radius).any():
            chosen.append(i)
    return by_first_row(distances[:, chosen].argmin(axis=1))


class Server(haccs.Server):
    def cluster(self) -> bool:
        names = list(self.state.counts)
        if new := len(names) != len(self.state.clusters):
            found = leaders(hellinger(np.stack(list(self.state.counts.values()))), self.config.radius)
            self.state.clusters = dict(zip(names, found.tolist(), strict=True))
        return new


SYSTEM = replace(haccs.SYSTEM, name="leaders", parties=lambda config: {"server": Server, "client": haccs.Client})
