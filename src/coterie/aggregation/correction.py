"""The step of PAFed's aggregator (Miao et al.), sections V-A and V-B.

With the mean m of the updates in time, the late updates v_j and c_j = <m, v_j>, it is alpha_0 m + sum_j beta_j v_j +
gamma m, where beta_j and gamma follow from c_j and |m|^2 alone. Conflicting updates are projected, as in definition 1,
eq. (13), proof 1 and eq. (17); section V-A says the opposite.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.protocol.options import NotNegative, check_bounds


@dataclass(frozen=True)
class Rates:
    """alpha_0, alpha_1, alpha_2 of eq. (17): of updates in time, of late agreeing ones, of late conflicting ones."""

    in_time: NotNegative = 0.8
    agreeing: NotNegative = 0.8
    conflicting: NotNegative = 0.8

    def __post_init__(self) -> None:
        check_bounds(self)

    def scaled(self, factor: float) -> Rates:
        return Rates(factor * self.in_time, factor * self.agreeing, factor * self.conflicting)
