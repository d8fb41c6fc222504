"""Time-weighted averaging: Chen, Sun and Jin, "Communication-efficient federated deep learning with layerwise
asynchronous model update and temporally weighted aggregation", TNNLS 2020.

    w <- w + step (m - w),   m: mean of all models received, weighted by n_i (e/2)^-(rounds late)

Stands for the time-weighted scheme that PAFed cites as [11] (Miao et al., "Robust asynchronous federated learning with
time-weighted and stale model aggregation", TDSC 2023), which also lets weights fall with the rounds of delay and whose
own formula we have not seen. The protocol and who sees what: ``protocols/late.py``.
"""

import math
from dataclasses import dataclass
from functools import partial

from coterie.protocol.errors import UserError
from coterie.protocol.system import Federation, Setting, System
from coterie.protocols import late


@dataclass(frozen=True)
class TimeWeightedConfig(late.LateTraining):
    """base: > 1; a model that is s rounds late counts base^-s. e/2 in Chen et al."""

    base: float = math.e / 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.base < math.inf:
            raise UserError(f"base must be above 1, so that older models count less, not {self.base}")


def build(config: TimeWeightedConfig, setting: Setting) -> Federation:
    """All models, by samples and age."""
    mean = partial(late.Mean, of="models", weight=lambda staleness, samples: samples * config.base**-staleness)
    return late.build(config, setting, late.Method("model", mean, config.max_staleness))


SYSTEM = System(
    name="time_weighted",
    title="Time-weighted averaging",
    citation="Chen, Sun and Jin, Communication-efficient federated deep learning with layerwise asynchronous model "
    "update and temporally weighted aggregation, TNNLS 2020",
    config=TimeWeightedConfig,
    build=build,
    models=late.models,
    sees=late.sees("plain model"),
    baseline=True,
    delta=late.DELTA,
)
