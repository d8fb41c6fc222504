"""Noise that only a sum must bear: whole numbers on a grid, and a share of Skellam noise from each of several parties.

    numbers = mechanism.on_grid(change, rotation, secrets)       a client's: clipped, rotated, rounded at random
    numbers + mechanism.share(parties, secrets)                  one of the parties that make the sum
    change = mechanism.off_grid(total, terms, rotation)          of the opened sum: the mean change

Neighbours differ in all data of one client, but not in the number of clients. Sums are exact, and so is the proof
(Agarwal, Kairouz, Liu 2021; the grid is of Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for
federated learning with secure aggregation", ICML 2021).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

import coterie.protocol.core as fl
from coterie.dp import skellam
from coterie.dp.gaussian import clipped
from coterie.dp.ledger import Release

SUM = "noisy sum of changes"
STEPS = 4096
"""Of the grid, to the clip."""
_SPREAD = 50.0  # a rotated coordinate is beyond its bound once in 10^21 models
_DEVIATIONS = 12.0

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Distributed:
    """The mechanism of one sum. Raises UserError for numbers out of range.

    clip: C, the most L2 norm of a client's change.  length: p, its coordinates.
    noise_multiplier: z, the standard deviation of the noise that counts over the sensitivity.
    missing: how many parties' shares of noise do not count.
    """

    clip: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    length: Annotated[int, msgspec.Meta(ge=1)]
    noise_multiplier: fl.Positive
    missing: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        fl.check_bounds(self, "{} of a noisy sum")

    @classmethod
    def within(
        cls, clip: float, length: int, epsilon: float, delta: float, releases: int, missing: int = 0
    ) -> Distributed:
        """With the least noise by which so many sums together stay within ``epsilon``. Raises UserError."""
        one = cls(clip, length, 1.0, missing)
        z = skellam.noise_multiplier(epsilon, delta, releases, one.sensitivity, one.sensitivity_l1)
        return cls(clip, length, z, missing)

    @property
    def most(self) -> float:
        """Of a client's numbers in L2."""
        # randomly rounded ones are drawn anew beyond (Kairouz et al.)
        return math.sqrt(STEPS**2 + self.length / 4 + STEPS + math.sqrt(self.length) / 2)

    @property
    def most_each(self) -> int:
        """Of one number of a client, by Hoeffding's bound for random signs."""
        spread = 2 * math.sqrt((math.log(self.length) + _SPREAD) / self.length)
        return math.ceil(STEPS * min(1.0, spread)) + 1

    @property
    def sensitivity(self) -> float:
        """L2, in steps: any client's numbers may become any other's."""
        return 2 * self.most

    @property
    def sensitivity_l1(self) -> float:
        return min(math.sqrt(self.length) * self.sensitivity, self.sensitivity**2)

    def variance(self, parties: int) -> float:
        """Of one of so many shares. Raises UserError if none counts, or can be drawn."""
        if not self.missing < parties:
            raise fl.UserError(
                f"{parties} parties add noise, and the shares of {self.missing} may be missing: nobody's would count"
            )
        return skellam.possible((self.noise_multiplier * self.sensitivity) ** 2 / (parties - self.missing))

    def largest(self, terms: int) -> float:
        """That no number of a sum of so many clients and all shares exceeds."""
        worst = math.sqrt(self.missing + 1) * self.noise_multiplier * self.sensitivity  # if one share counts
        return terms * self.most_each + _DEVIATIONS * worst

    def largest_alone(self, makers: int) -> float:
        return self.most_each + _DEVIATIONS * math.sqrt(self.variance(makers))

    def is_too_long(self, total: ArrayLike, terms: int) -> bool:
        noise = math.sqrt(self.missing + 1) * self.noise_multiplier * self.sensitivity
        return float(np.linalg.norm(total)) > terms * self.most + noise * (math.sqrt(self.length) + _DEVIATIONS)

    # -- what parties do -----------------------------------------------------------------------------------------------

    def on_grid(self, change: ArrayLike, rotation: bytes, secrets: fl.Secrets) -> Integers:
        """(p,) of a client's (p,) change. rotation: public, equal for all terms of a sum. Raises UserError for NaN
        and infinity.
        """
        (short,) = clipped(np.asarray(change, np.float64)[None], self.clip)
        exact = np.clip(self._rotated(short, rotation) * (STEPS / self.clip), -self.most_each + 1, self.most_each - 1)
        below = np.floor(exact)
        while True:
            numbers = below + (secrets.uniform(self.length) < exact - below)
            if numbers @ numbers <= self.most**2:
                return np.asarray(numbers, np.int64)

    def fits(self, numbers: ArrayLike, makers: int = 0) -> bool:
        """Whether an honest client could have made these, p or fewer. makers: clients that add noise, if a share is
        in them.
        """
        values = np.asarray(numbers, np.float64)
        noise = math.sqrt(self.variance(makers)) if makers else 0.0
        length = self.most + noise * (math.sqrt(len(values)) + _DEVIATIONS)
        return (
            len(values) <= self.length
            and bool((np.rint(values) == values).all())
            and float(np.abs(values).max(initial=0.0)) <= self.most_each + _DEVIATIONS * noise
            and float(values @ values) <= length**2
        )

    def share(self, parties: int, secrets: fl.Secrets) -> Integers:
        """(p,) whole numbers, of one of so many parties."""
        return skellam.draw(self.length, self.variance(parties), secrets)

    def off_grid(self, total: ArrayLike, terms: int, rotation: bytes) -> NDArray[np.float64]:
        """(p,) the mean change, from an opened sum (p,). terms: public, of clients."""
        mean = np.asarray(total, np.float64) * (self.clip / STEPS / terms)
        return self._rotated_back(mean, rotation)

    def _rotated(self, values: NDArray[np.float64], rotation: bytes) -> NDArray[np.float64]:
        from scipy.fft import dct

        return np.asarray(dct(values * self._signs(rotation), norm="ortho"))

    def _rotated_back(self, values: NDArray[np.float64], rotation: bytes) -> NDArray[np.float64]:
        from scipy.fft import idct

        return np.asarray(idct(values, norm="ortho"), np.float64) * self._signs(rotation)

    def _signs(self, rotation: bytes) -> NDArray[np.float64]:
        key = int.from_bytes(hashlib.blake2b(rotation, digest_size=16, person=b"coterie rotation").digest(), "little")
        bits = np.frombuffer(np.random.Philox(key=key).random_raw(-(-self.length // 64)).tobytes(), np.uint8)
        return np.asarray(1.0 - 2.0 * np.unpackbits(bits)[: self.length], np.float64)

    # -- what it proves ------------------------------------------------------------------------------------------------

    def release(self, round: int = 0, against: tuple[str, ...] = ()) -> Release:
        return self._release(SUM, self.noise_multiplier, round, against)

    def release_alone(self, what: str, parties: int, round: int = 0, against: tuple[str, ...] = ()) -> Release:
        """A client's own numbers with its own share of noise, as seen by a party that gets them by name."""
        return self._release(what, math.sqrt(self.variance(parties)) / self.sensitivity, round, against)

    def _release(self, what: str, z: float, round: int, against: tuple[str, ...]) -> Release:
        return Release(
            what,
            "skellam",
            z,
            self.sensitivity,
            sensitivity_l1=self.sensitivity_l1,
            neighbours="replace one client",
            round=round,
            against=against,
        )
