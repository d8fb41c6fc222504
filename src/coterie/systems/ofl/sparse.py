"""Sparse uploads and downloads as arrays (algorithm 2).

Only parameters travel. A model's buffers (running statistics) stay with their party.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.training.solvers import MOST_WEIGHT, largest


def bits(chosen: fl.Integers, count: int) -> bytes:
    """``count`` bits, those at ``chosen`` set, in whole bytes."""
    mask = np.zeros(count, np.bool_)
    mask[chosen] = True
    return np.packbits(mask).tobytes()


def places_of(data: bytes, count: int) -> fl.Integers:
    """The inverse of ``bits``, ascending. Raises PeerError for another number."""
    if len(data) != (count + 7) // 8:
        raise fl.PeerError(f"{len(data)} bytes for {count} bits")
    mask = np.unpackbits(np.frombuffer(data, np.uint8))
    if mask[count:].any():
        raise fl.PeerError(f"bits beyond the {count} of a model's parameters are set")
    return np.flatnonzero(mask[:count])


def check_sparse(places: NDArray[np.integer], values: fl.Vector, eligible: fl.Flags) -> fl.Integers:
    """The indices, of parameters with one value each. eligible: (d,) which coordinates may be among them. Raises
    PeerError for impossible indices or values.
    """
    found = places.astype(np.int64)
    if len(found) != len(values):
        raise fl.PeerError(f"{len(values)} values for {len(found)} places")
    if len(found) and (found[0] < 0 or found[-1] >= len(eligible) or (np.diff(found) <= 0).any()):
        raise fl.PeerError("places that do not ascend, or lie outside the model")
    if not eligible[found].all():
        raise fl.PeerError("places of buffers, which stay with their party")
    if len(values) and not (beyond := largest(values)) <= MOST_WEIGHT:
        raise fl.PeerError(f"a value of {beyond:.2g}; the largest that is taken is {MOST_WEIGHT:.2g}")
    return found


def spread(places: fl.Integers, values: fl.Vector, count: int) -> fl.Vector:
    """(count,) the values at their places, and 0 elsewhere."""
    whole = np.zeros(count, np.float32)
    whole[places] = values
    return whole


def mixed(model: fl.Vector, places: fl.Integers, values: fl.Vector, size: int) -> fl.Vector:
    """The leader model (d,) after one upload of a cluster with ``size`` members (algorithm 2, l. 20): ``(1 - 1/|C|)
    theta + sel / |C|`` in the uploaded places.
    """
    new = model.astype(np.float64)
    new[places] = (1 - 1 / size) * new[places] + values.astype(np.float64) / size
    return new.astype(np.float32)
