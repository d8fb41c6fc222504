"""Pads that cancel in a sum: double masking of K. Bonawitz et al., "Practical secure aggregation for privacy-preserving
machine learning", CCS 2017, section 4.

Every two parties u, v agree on a seed s_uv (X25519), and each has a seed b_u of its own. With PRG from a seed to words,

    y_u = x_u + PRG(b_u) + sum over v after u of PRG(s_uv) - sum over v before u of PRG(s_uv)      mod 2^64.

The sum over all u is that of the x_u and the PRG(b_u). Where v sends nothing, its pads with the others (``marks.pad``)
remain, and follow from its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import marks
from coterie.crypto.padded import pad
from coterie.crypto.signing import OpeningKey, SealingKey

Words = NDArray[np.uint64]


def masked(x: Words, own: bytes, key: OpeningKey, name: str, others: Mapping[str, SealingKey], of: bytes) -> Words:
    """y_u. own: b_u.  key: of which each other has the public half.  of: names the sum.

    Raises DecodeError for a key that keeps no secrets.
    """
    return np.asarray(x + pad(own, x) + marks.pad(key, name, others, of, len(x)))


def unmasked(
    total: Words, seeds: Iterable[bytes], gone: Mapping[str, OpeningKey], there: Mapping[str, SealingKey], of: bytes
) -> Words:
    """The sum of x_u over ``there`` from that of y_u. seeds: their b_u.  gone: the keys of those that sent no y."""
    total = total.copy()
    for seed in seeds:
        total -= pad(seed, total)
    for name, key in gone.items():
        total += marks.pad(key, name, there, of, len(total))  # the other half of what is left
    return total
