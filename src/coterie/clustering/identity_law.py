"""The law of MingledPie's identity sets.

Algorithm 1 puts a client into its true cluster and each of the other k - 1 with probability p, until the set is large
enough: the true cluster and a uniformly random choice of F others, F binomial and conditioned on its minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import UserError

MAX_CLUSTERS = 1024

Counts = Literal["identities", "false_positives"]
"""T counts all of a set (the paper's text), or the false ones only (fits its table II)."""


@dataclass(frozen=True)
class IdentityLaw:
    """p: false positive rate, in (0, 1), before the threshold.  threshold: T, the least number of identities, or of
    false ones (``counts``), among ``clusters`` = k. Raises UserError for what no set can satisfy.
    """

    clusters: int
    p: float
    threshold: int
    counts: Counts = "identities"

    def __post_init__(self) -> None:
        if not _whole(self.clusters) or not 2 <= self.clusters <= MAX_CLUSTERS:
            raise UserError(f"mingling needs a whole number of 2 to {MAX_CLUSTERS} clusters, not {self.clusters!r}")
        if not isinstance(self.p, int | float) or not 0 < self.p < 1:
            raise UserError(f"the false positive rate must lie strictly between 0 and 1, not be {self.p!r}")
        if self.counts not in ("identities", "false_positives"):
            raise UserError(f"the threshold counts 'identities' or 'false_positives', not {self.counts!r}")
        most = self.clusters if self.counts == "identities" else self.clusters - 1
        if not _whole(self.threshold) or not 1 <= self.threshold <= most:
            raise UserError(
                f"with {self.clusters} clusters a threshold of {self.counts.replace('_', ' ')} "
                f"lies in 1 to {most}, not at {self.threshold!r}"
            )
        if self.accepted == 0:
            raise UserError(f"at p = {self.p} no set ever has {self.least} of {self.clusters} clusters: raise p")

    @property
    def least(self) -> int:
        return self.threshold + (self.counts == "false_positives")

    @cached_property
    def accepted(self) -> float:
        """Probability that one try is accepted."""
        return math.fsum(self._unconditioned[self.least - 1 :])

    @property
    def expected_tries(self) -> float:
        return 1 / self.accepted

    @cached_property
    def sizes(self) -> Doubles:
        """(k,): entry c - 1 is Pr(|CI| = c); eq. (10), conditioned on the threshold."""
        sizes = np.array(self._unconditioned)
        sizes[: self.least - 1] = 0
        return sizes / self.accepted

    @property
    def expected_size(self) -> float:
        """E|CI|: how often each model is added."""
        return float(self.sizes @ np.arange(1, self.clusters + 1))

    @property
    def guess_accuracy(self) -> float:
        """E[1/|CI|]: how often a uniform guess within the set is right."""
        return float(self.sizes @ (1 / np.arange(1, self.clusters + 1)))

    def p_correct(self, *, printed: bool = False) -> float:
        """Eq. (9): probability that a given wrong cluster is in the set, which the threshold raises above p.

        printed: the true cluster counts among the false ones, and sets of all k are left out. Raises UserError where it
        is 0 / 0.
        """
        if not printed:
            return (self.expected_size - 1) / (self.clusters - 1)
        if self.least == self.clusters:
            raise UserError("eq. (9) as printed leaves out sets of all clusters, and there are no others here")
        sizes = self.sizes[:-1]
        return float(sizes @ np.arange(1, self.clusters)) / ((self.clusters - 1) * float(sizes.sum()))

    @property
    def bounds(self) -> tuple[float, float]:
        """Theorem 2: 1/k and 1/least, for a uniform guess; a prior breaks the upper one."""
        return 1 / self.clusters, 1 / self.least

    @cached_property
    def _unconditioned(self) -> tuple[float, ...]:
        k, p = self.clusters, self.p
        return tuple(math.comb(k - 1, c - 1) * p ** (c - 1) * (1 - p) ** (k - c) for c in range(1, k + 1))


def _whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
