"""Identity sets by independent coins of probability p: the distribution of ``clustering/identities.py``, at no cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering import identities
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto.arrays import RandomBytes, drawn


def coin_sets(
    law: IdentityLaw, true_clusters: Any, random_bytes: RandomBytes
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Independent sets for clients of these true clusters (m,): (m, k) bool, and their numbers of tries (m,).

    A coin is 64 random bits below p 2^64: exact for p = 2^-n. Raises UserError as ``identity_set``.
    """
    truth = identities._true_clusters(true_clusters, law)
    sets, tries = np.zeros((len(truth), law.clusters), bool), np.zeros(len(truth), np.int64)
    below = np.uint64(int(law.p * 2**64))
    open_rows = np.arange(len(truth))
    for _ in range(identities._most_tries(law)):
        shape = len(open_rows), law.clusters
        joined = np.frombuffer(drawn(random_bytes, 8 * math.prod(shape)), "<u8").reshape(shape) < below
        joined[np.arange(len(open_rows)), truth[open_rows]] = True
        tries[open_rows] += 1
        enough = joined.sum(axis=1) >= law.least
        sets[open_rows[enough]] = joined[enough]
        open_rows = open_rows[~enough]
        if not open_rows.size:
            return sets, tries
    raise identities._stuck(law)
