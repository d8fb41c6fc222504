"""Baselines that average what clients send, in time or rounds late, with a step of the server towards the mean.

    models:   w <- w + step (m - w),   m: weighted mean of the models
    changes:  w <- w + step m,         m: weighted mean of w_i+ - w_i;   w_i: what client i started from

``_drop``: those in time only. With a step of 1 and no late client ``fedavg_drop`` is FedAvg. ``_stale``: all models
received; one trained from an old w pulls towards that w. ``fedavg_late``: all changes, equally, as in PAFed's eq. 11; a
late change applies to the current model, so it does not pull back. ``fedprox``: clients minimise f_i(w) + mu/2 |w -
w_received|^2 (eq. 2 of Li et al.).

``time_weighted`` stands for PAFed's [11] (Miao et al., "Robust asynchronous federated learning with time-weighted and
stale model aggregation", TDSC 2023). The protocol: ``protocols/late.py``.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import coterie.method as fl
from coterie.protocols import late
from coterie.protocols.averaging import ChangeClient, Sends
from coterie.protocols.local_training import ProximalTraining


@fl.settings
class FedProxStaleConfig(ProximalTraining, late.LateTraining):
    pass


@fl.settings
class TimeWeightedConfig(late.LateTraining):
    """base: > 1; a model that is s rounds late counts base^-s. e/2 in Chen et al."""

    base: Annotated[float, fl.Meta(gt=1, le=fl.LARGEST)] = math.e / 2


def _mean(sends: Sends, weight: Callable[[Any, int, int], float]) -> type[late.LateServer]:
    class Server(late.LateServer):
        def aggregate(self, step: float) -> late.Aggregate:
            return late.Mean(self.spec, self.state.weights, step, of=sends, weight=partial(weight, self.config))

    return Server


def _by_samples(config: Any, staleness: int, samples: int) -> float:
    return samples


def _by_age(config: TimeWeightedConfig, staleness: int, samples: int) -> float:
    return samples * config.base**-staleness


MCMAHAN = "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"
LI = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020"
KONECNY = "Konečný et al., Federated optimization, 2016 (updates averaged), with late ones included"
CHEN = (
    "Chen, Sun and Jin, Communication-efficient federated deep learning with layerwise asynchronous model update and "
    "temporally weighted aggregation, TNNLS 2020"
)

_TABLE: tuple[tuple[str, str, str, type, Sends, Callable[[Any, int, int], float]], ...] = (
    ("fedavg_drop", "FedAvg, late dropped", MCMAHAN, fl.SteppedTraining, "model", _by_samples),
    ("fedavg_late", "FedAvg+late", KONECNY, late.LateTraining, "change", lambda config, staleness, samples: 1),
    ("fedavg_stale", "FedAvg, late included", MCMAHAN, late.LateTraining, "model", _by_samples),
    ("fedprox_drop", "FedProx, late dropped", LI, ProximalTraining, "model", _by_samples),
    ("fedprox_stale", "FedProx, late included", LI, FedProxStaleConfig, "model", _by_samples),
    ("time_weighted", "Time-weighted averaging", CHEN, TimeWeightedConfig, "model", _by_age),
)
"""Name, title, citation, settings, what clients send, its weight in the mean."""

_SENT: Mapping[Sends, str] = {"model": "trained model", "change": "change of the model"}

SYSTEMS: Mapping[str, fl.System] = {
    name: fl.system(
        name,
        config,
        _mean(sends, weight),
        fl.AveragingClient if sends == "model" else ChangeClient,
        learns=late.learns("plain model" if sends == "model" else "plain change of the model"),
        delta=late.DELTA,
        baseline=True,
        title=title,
        citation=citation,
        releases=fl.telling({fl.Update: (fl.FromTraining(f"{_SENT[sends]} and number of samples"),)}),
    )
    for name, title, citation, config, sends, weight in _TABLE
}
