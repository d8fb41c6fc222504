"""Mingled clusters to test with: identity sets and coefficients by definition, and the paper's default setting."""

from __future__ import annotations

import numpy as np

MOST = 1e6  # a condition number that ordinary draws stay below


def drawn_sets(true: np.ndarray, k: int, p: float, least: int, rng: np.random.Generator) -> np.ndarray:
    """Alg. 1 by its definition: a coin for every other cluster, all of them again until the set is large enough."""
    sets = np.zeros((len(true), k), dtype=bool)
    for i, b in enumerate(true):
        while sets[i].sum() < least:
            sets[i] = rng.random(k) < p
            sets[i, b] = True
    return sets


def coefficients(sets: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Eq. (6) by its sum."""
    h = np.zeros((sets.shape[1],) * 2, dtype=np.int64)
    for row, b in zip(sets, true, strict=True):
        h[row, b] += 1
    return h


def default_setting(seed: int = 0, d: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N = 120, k = 5, p = .5, T = 2; every client of cluster b holds the model b + 1: H, S, previous models."""
    rng = np.random.default_rng(seed)
    true = rng.permutation(np.arange(120) % 5)
    h = coefficients(drawn_sets(true, 5, 0.5, 2, rng), true)
    return h, h @ np.tile(np.arange(1.0, 6.0)[:, None], d), np.full((5, d), -1.0, np.float32)
