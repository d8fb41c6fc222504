"""No sum over too few: clusters that are too small are given up before anything is summed over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.spectral import Soft
from coterie.protocol.errors import UserError


def without_small_clusters(soft: Soft, minimum: int) -> NDArray[np.bool_]:
    """phi (n, c) without clusters of fewer than ``minimum`` rows; who loses its last cluster joins the closest other.

    The smallest cluster goes first, and sizes are counted anew, until all that remain are large enough. Given up means
    an empty column; at least one cluster remains, even if all n rows together are fewer than ``minimum``.
    Raises UserError for minimum < 1.
    """
    if minimum < 1:
        raise UserError(f"the smallest cluster must have at least 1 row, not {minimum}")
    phi = soft.membership.copy()
    while True:
        sizes = phi.sum(axis=0)
        kept = np.flatnonzero(sizes)
        small = kept[sizes[kept] < minimum]
        if len(small) == 0 or len(kept) == 1:
            return phi
        gone = small[sizes[small].argmin()]
        phi[:, gone] = False
        others = kept[kept != gone]
        homeless = np.flatnonzero(~phi.any(axis=1))
        phi[homeless, others[soft.closeness[np.ix_(homeless, others)].argmax(axis=1)]] = True
