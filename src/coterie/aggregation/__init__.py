"""Folding models into sums and means, the same in whatever order they arrive."""

from coterie.aggregation.sums import Sum, WeightedMean, cluster_means, cluster_sums, mean_of_clusters

__all__ = ["Sum", "WeightedMean", "cluster_means", "cluster_sums", "mean_of_clusters"]
