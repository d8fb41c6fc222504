"""Baselines that average what clients send, in time or rounds late, with a step of the server towards the mean.

    models:   w <- w + step (m - w),   m: weighted mean of the models
    changes:  w <- w + step m,         m: weighted mean of w_i+ - w_i;   w_i: what client i started from

``_drop``: those in time only. With a step of 1 and nobody late ``fedavg_drop`` is FedAvg. ``_stale``: all models
received; one that is trained from an old w pulls towards that old w. ``fedavg_late``: all changes, equally, as in
PAFed's eq. 11; a late change is applied where the model is now, so it does not pull back. It is what is left of PAFed's
server without classes, projection and unit length. ``fedprox``: clients minimise f_i(w) + mu/2 |w - w_received|^2 (eq.
2 of Li et al.). PAFed compares itself with the two that drop (table V).

``time_weighted`` stands for the time-weighted scheme that PAFed cites as [11] (Miao et al., "Robust asynchronous
federated learning with time-weighted and stale model aggregation", TDSC 2023), which also lets weights fall with the
rounds of delay and whose own formula we have not seen. The protocol and who sees what: ``protocols/late.py``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from coterie.protocol.errors import UserError
from coterie.protocol.system import PartyFactory, System, telling
from coterie.protocols import late
from coterie.protocols.averaging import Sends, Update, models
from coterie.protocols.keeping import own_model
from coterie.protocols.local_training import ProximalTraining, SteppedTraining


@dataclass(frozen=True)
class FedProxStaleConfig(ProximalTraining, late.LateTraining):
    """The proximal term, and the bound on the age of an update."""


@dataclass(frozen=True)
class TimeWeightedConfig(late.LateTraining):
    """base: > 1; a model that is s rounds late counts base^-s. e/2 in Chen et al."""

    base: float = math.e / 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.base < math.inf:
            raise UserError(f"base must be above 1, so that older models count less, not {self.base}")


Weight = Callable[[Any, int, int], float]
"""Of one update in the mean, from the config, the rounds that it is late, and its samples."""


def _by_samples(config: Any, staleness: int, samples: int) -> float:
    return samples


def _by_age(config: TimeWeightedConfig, staleness: int, samples: int) -> float:
    return samples * config.base**-staleness


def _parties(sends: Sends, weight: Weight, config: SteppedTraining) -> Mapping[str, PartyFactory]:
    return late.parties(sends, partial(late.Mean, of=sends, weight=partial(weight, config)))


MCMAHAN = "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"
LI = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020"
KONECNY = "Konečný et al., Federated optimization, 2016 (updates averaged), with late ones included"
CHEN = (
    "Chen, Sun and Jin, Communication-efficient federated deep learning with layerwise asynchronous model update and "
    "temporally weighted aggregation, TNNLS 2020"
)

_TABLE: tuple[tuple[str, str, str, type, Sends, Weight], ...] = (
    ("fedavg_drop", "FedAvg, late dropped", MCMAHAN, SteppedTraining, "model", _by_samples),
    ("fedavg_late", "FedAvg+late", KONECNY, late.LateTraining, "change", lambda config, staleness, samples: 1),
    ("fedavg_stale", "FedAvg, late included", MCMAHAN, late.LateTraining, "model", _by_samples),
    ("fedprox_drop", "FedProx, late dropped", LI, ProximalTraining, "model", _by_samples),
    ("fedprox_stale", "FedProx, late included", LI, FedProxStaleConfig, "model", _by_samples),
    ("time_weighted", "Time-weighted averaging", CHEN, TimeWeightedConfig, "model", _by_age),
)
"""Name, title, citation, settings, what clients send, its weight in the mean."""

_SENT: Mapping[Sends, str] = {"model": "trained model", "change": "change of the model"}

SYSTEMS: Mapping[str, System] = {
    name: System(
        name=name,
        title=title,
        citation=citation,
        config=config,
        parties=partial(_parties, sends, weight),
        models=models,
        own_model=own_model,
        sees=late.sees("plain model" if sends == "model" else "plain change of the model"),
        releases=telling({Update: (f"{_SENT[sends]} and number of samples",)}),
        baseline=True,
        delta=late.DELTA,
    )
    for name, title, citation, config, sends, weight in _TABLE
}
