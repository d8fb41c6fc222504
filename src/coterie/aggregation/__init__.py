"""Folding models into sums and means, the same in whatever order they arrive."""
