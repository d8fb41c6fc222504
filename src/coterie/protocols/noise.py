"""Settings of noise on sums (``dp/distributed.py``), and whether a client may send once more."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

import coterie.protocol.core as fl
from coterie.crypto.threshold import Group
from coterie.crypto.threshold_pads import padded_error
from coterie.dp.budget import Budget, Budgeted
from coterie.dp.distributed import Distributed
from coterie.dp.gaussian import noise_multiplier
from coterie.dp.ledger import Ledger, Release
from coterie.dp.uploads import Standard

LITTLE_NOISE = 0.01
"""The default noise, which protects nobody."""
MOST_ERROR = 0.25
"""Of an opened number that is rounded to a whole one."""


@dataclass(frozen=True)
class NoiseSettings(Budgeted):
    """Settings of noise on what clients upload, or on its sum.

    clip: C, the L2 norm to which a client's change is clipped.
    noise: standard deviation of the noise, divided by the sensitivity 2 C; None for what ``epsilon`` asks for, or .01.
    missing: of the parties that add noise to a sum, how many may collude or be left out without harm to the others.
    """

    clip: float = 1.0
    missing: Annotated[int, fl.Meta(ge=0)] = 1

    def standard(self) -> Standard:
        if self.noise is None and self.epsilon is not None:
            return Standard(self.clip, noise_multiplier(self.epsilon, self.dp_delta, self.private_rounds))
        return Standard(self.clip, LITTLE_NOISE if self.noise is None else self.noise)

    def on_sums(self, length: int, *, read_by_makers: bool = False) -> Distributed:
        """Noise on sums of changes of so many coordinates. read_by_makers: who adds noise reads the sum, so its own
        share does not count.
        """
        uncounted = self.missing + read_by_makers
        if self.noise is None and self.epsilon is not None:
            return _within(self.clip, length, self.epsilon, self.dp_delta, self.private_rounds, uncounted)
        return Distributed(self.clip, length, LITTLE_NOISE if self.noise is None else self.noise, uncounted)


@lru_cache(maxsize=64)
def _within(clip: float, length: int, epsilon: float, delta: float, releases: int, missing: int) -> Distributed:
    return Distributed.within(clip, length, epsilon, delta, releases, missing)


@lru_cache(maxsize=4096)
def affords(budget: Budget | None, release: Release, uploads: int) -> bool:
    return budget is None or budget.fits(Ledger((release,) * uploads), release)


@lru_cache(maxsize=4096)
def left(budget: Budget | None, release: Release, uploads: int) -> float:
    return inf if budget is None else budget.left(Ledger((release,) * uploads))


def warn_of_silence(budget: Budget | None, release: Release) -> None:
    if budget is None or affords(budget, release, 0):
        return
    alone = Ledger((release,)).epsilon(budget.delta, budget.neighbours)
    warnings.warn(
        f"epsilon={budget.epsilon:g} allows no upload: a single one with noise={release.noise_multiplier:g} spends "
        f"{alone:,.0f}. No client uploads anything, so nothing is learnt. Leave noise out, and it follows from epsilon",
        fl.CoterieWarning,
        stacklevel=3,
    )


# ---- sums


def rotation(session: bytes, r: int) -> bytes:
    return session + r.to_bytes(8, "little")


def error_of_sums(parameters: str, holders: Sequence[str]) -> float:
    """Stated, of a sum of a vector of each, under joint pads of a key that they hold n-of-n."""
    group = Group(parameters, tuple(holders), 0, emulated=True, summands=len(holders))
    return padded_error(group, dict.fromkeys(group.holders, 1))


def check_sums(mechanism: Distributed, parties: int, who: str, error: float) -> None:
    """Raises UserError for too few parties, or noise too large for the cipher. error: of an opened sum, in steps."""
    if not mechanism.missing < parties:
        raise fl.UserError(
            f"missing: {parties} {who} add noise, as few as there may be in a round, and the shares of "
            f"{mechanism.missing} need not count, a reader's own among them: lower missing"
        )
    mechanism.variance(parties)
    if error > MOST_ERROR:
        raise fl.UserError(
            f"noise={mechanism.noise_multiplier:g} is too large for the cipher: sums would be wrong by {error:.2g} "
            "steps, and must be exact. Raise epsilon, or lower noise"
        )


def mean_change(mechanism: Distributed, opened: ArrayLike, terms: int, rotated: bytes) -> fl.Doubles:
    """(p,) the mean change of an opened sum of so many clients' numbers, (p,) in steps.

    Raises PeerError if no honest parties can have made it.
    """
    exact = np.asarray(opened, np.float64)
    numbers = np.rint(exact)
    if not float(np.abs(numbers - exact).max()) <= MOST_ERROR:
        raise fl.PeerError("the opened sum is not of whole numbers: a vector in it is forged")
    if mechanism.is_too_long(numbers, terms):
        raise fl.PeerError(f"the opened sum is longer than {terms} clipped changes: a vector in it is forged")
    return mechanism.off_grid(numbers, terms, rotated)
