"""Held-out samples: a share of every client's training samples that no training sees, to choose by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.data.partition import Split
from coterie.protocol.errors import UserError

SHARE = 0.2


def hold_out(split: Split, share: float = SHARE) -> Split:
    """The same split with ``share`` of every client's training samples moved to ``held_out``, at random by its seed.

    A client gives round(share * n) of its n samples, at least one, and always keeps one; a client of a single sample
    gives none. What one client gives depends on the seed, its number and its own samples alone.
    Raises UserError for a share outside (0, 1), or a split that has held samples out before.
    """
    if not 0 < share < 1:
        raise UserError(f"the share of held-out samples must lie between 0 and 1, not {share}")
    if split.held_out:
        raise UserError("this split has held samples out already")
    kept, held = [], []
    for client, own in enumerate(split.train):
        count = min(len(own) - 1, max(1, round(share * len(own))))
        source = np.random.default_rng([split.seed, 0x401D, client])
        given = np.zeros(len(own), np.bool_)
        given[source.choice(len(own), count, replace=False)] = True
        kept.append(own[~given])
        held.append(own[given])
    return replace(split, train=tuple(kept), held_out=tuple(held))
