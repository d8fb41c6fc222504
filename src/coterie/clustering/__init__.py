"""Grouping clients: affinities between rows, soft spectral clusters, and when to regroup."""

from coterie.clustering.affinity import (
    Gamma,
    Kernel,
    affinity,
    cross_distances,
    lexicographic_order,
    median_gamma,
    pairwise_distances,
)
from coterie.clustering.agreement import Grouping, grouping
from coterie.clustering.number import count_clusters
from coterie.clustering.schedule import Schedule, clusters_now, expected_events, parse_schedule, sd_events
from coterie.clustering.spectral import (
    Soft,
    canonical_order,
    soft_membership,
    soft_spectral,
    soft_spectral_from_distances,
)

__all__ = [
    "Gamma",
    "Grouping",
    "Kernel",
    "Schedule",
    "Soft",
    "affinity",
    "canonical_order",
    "clusters_now",
    "count_clusters",
    "cross_distances",
    "expected_events",
    "grouping",
    "lexicographic_order",
    "median_gamma",
    "pairwise_distances",
    "parse_schedule",
    "sd_events",
    "soft_membership",
    "soft_spectral",
    "soft_spectral_from_distances",
]
