"""Sparse uploads with a proof: clipped changes of the model at data-independent places, with Gaussian noise.

    places = shared_set(eligible(spec), k, roster.session, client, number)
    values = mechanism.noised((trained - start)[places], secrets)

Neighbours differ in all data of one client ("replace one client"). The release is against the client's own leader,
which sees it by name, so no sampling of clients helps. The sensitivity is 2 C (docs/privacy_uploads.md).

The places follow from no data: a choice by the data is a release of its own (``selection_release``). Buffers are never
uploaded, since no clip bounds them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

import coterie.protocol.core as fl
from coterie.dp.gaussian import clipped, epsilon, noise_multiplier, noised
from coterie.dp.ledger import Release

UPLOAD = "noisy change of the model"
SELECTION = "choice of the parameters"
_MOST_NORM = 1e6
_ROUNDED = 1 + 2.0**-20  # values travel as float32


@dataclass(frozen=True)
class Standard:
    """The standard mechanism. clip: C, the most L2 norm of an upload.  noise_multiplier: z, std over 2 C. Raises
    UserError for numbers out of range.
    """

    clip: Annotated[float, msgspec.Meta(gt=0, le=_MOST_NORM)]
    noise_multiplier: fl.Positive

    def __post_init__(self) -> None:
        fl.check_bounds(self, "{} of uploads")

    @classmethod
    def within(cls, clip: float, epsilon: float, delta: float, uploads: int) -> Standard:
        """With the least noise by which so many uploads stay within ``epsilon`` at ``delta``. Raises UserError."""
        return cls(clip, noise_multiplier(epsilon, delta, uploads))

    @property
    def sensitivity(self) -> float:
        return 2 * self.clip

    def noised(self, change: ArrayLike, secrets: fl.Secrets) -> fl.Vector:
        """(k,) float32, changes at the chosen places, clipped together to C, plus noise of std z 2 C. Raises
        UserError for NaN and infinity.
        """
        (short,) = clipped(np.asarray(change, np.float64)[None], self.clip)
        return noised(short, self.noise_multiplier, self.sensitivity, secrets.normal).astype(np.float32)

    def longest(self, count: int) -> float:
        """The L2 norm that ``count`` honest values exceed with a chance below exp(-9^2 / 2)."""
        # A Gaussian vector's mean length is at most sqrt(count) sigma, and concentrates (Boucheron, Lugosi and Massart
        # 2013, theorem 5.6).
        return (self.clip + self.sensitivity * self.noise_multiplier * (math.sqrt(count) + 9)) * _ROUNDED

    def release(self, round: int = 0) -> Release:
        return Release(
            UPLOAD, "gaussian", self.noise_multiplier, self.sensitivity, neighbours="replace one client", round=round
        )

    def epsilon(self, delta: float, uploads: int = 1) -> float:
        return epsilon(self.noise_multiplier, delta, uploads)


def selection_release(k: int, epsilon1: float, round: int = 0) -> Release:
    """Of the choice of k places by ``selection.parameters.gumbel_top_k``: k draws of epsilon1 each."""
    # A utility in [0, 1] moves by at most 1, so a draw with probability proportional to exp(epsilon1 u / 2) is
    # epsilon1-DP for the replacement of all data.
    return Release(
        SELECTION, "exponential", neighbours="replace one client", round=round, pure_epsilon=epsilon1, draws=k
    )


@lru_cache(maxsize=16)
def eligible(spec: fl.ModelSpec) -> NDArray[np.int64]:
    """(p,) the places of a model's parameters, ascending, without buffers. Read-only, shared."""
    places = np.flatnonzero(~spec.buffers)
    places.setflags(write=False)
    return places


def shared_set(places: NDArray[np.int64], k: int, session: bytes, client: str, number: int) -> NDArray[np.int64]:
    """(k,) of these places, ascending: a uniformly random set that everybody on the roster can compute.

    session: of the roster.  number: of the client's upload, each with another set. Raises UserError unless 1 <= k <=
    len(places).
    """
    if not 1 <= k <= len(places):
        raise fl.UserError(f"{k} of {len(places)} parameters cannot be chosen")
    text = b"\x1f".join([b"coterie/index set/1", session.hex().encode(), client.encode(), str(number).encode()])
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    order = np.random.Philox(key=key).random_raw(len(places))
    last = np.partition(order, k - 1)[k - 1]
    chosen = order < last
    chosen[np.flatnonzero(order == last)[: k - np.count_nonzero(chosen)]] = True
    return np.asarray(np.sort(places[chosen]), np.int64)
