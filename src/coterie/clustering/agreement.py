"""How clients' clusters agree with the groups that their data were dealt in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Agreement:
    """ari: adjusted Rand index against the data's own groups (Hubert and Arabie, 1985); None without groups, or with
    fewer than two clients in clusters.
    clusters: how many have members.  sizes: of those, by number; a client of several counts in each.
    per_client: mean number of clusters of clients that have any, or 0.  without: clients without a cluster.
    """

    ari: float | None
    clusters: int
    per_client: float
    sizes: tuple[int, ...]
    without: int


def grouping(membership: Sequence[Sequence[int]], groups: Sequence[int] | None) -> Agreement:
    """membership: each client's clusters, whose *set* is its label for the adjusted Rand index. Raises UserError
    unless ``groups`` are one a client.
    """
    if groups is not None and len(groups) != len(membership):
        raise UserError(f"clusters of {len(membership)} clients, but groups of {len(groups)}")
    own = [frozenset(clusters) for clusters in membership]
    placed = [i for i, clusters in enumerate(own) if clusters]
    sizes = Counter(number for clusters in own for number in clusters)
    ari = None
    if groups is not None and len(placed) > 1:
        from sklearn.metrics import adjusted_rand_score

        numbered = {clusters: label for label, clusters in enumerate(dict.fromkeys(own))}
        ari = float(adjusted_rand_score([int(groups[i]) for i in placed], [numbered[own[i]] for i in placed]))
    return Agreement(
        ari=ari,
        clusters=len(sizes),
        per_client=sum(len(own[i]) for i in placed) / len(placed) if placed else 0.0,
        sizes=tuple(sizes[number] for number in sorted(sizes)),
        without=len(own) - len(placed),
    )
