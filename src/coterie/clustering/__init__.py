"""Grouping clients: affinities between rows, soft spectral clusters, and when to regroup."""
