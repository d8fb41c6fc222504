"""Coterie: federated learning among unequal, privacy-aware clients."""

__version__ = "0.1.0"
