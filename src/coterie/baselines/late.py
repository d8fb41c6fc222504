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
from coterie.protocols.averaging import Sends
from coterie.protocols.local_training import ProximalTraining
from coterie.protocols.own_mean import KeepsMean, OwnMean, taken


@fl.settings
class LateConfig(KeepsMean, late.LateTraining):
    pass


@fl.settings
class FedProxDropConfig(KeepsMean, ProximalTraining):
    pass


@fl.settings
class FedProxStaleConfig(KeepsMean, ProximalTraining, late.LateTraining):
    pass


@fl.settings
class TimeWeightedConfig(LateConfig):
    """base: > 1; a model that is s rounds late counts base^-s. e/2 in Chen et al."""

    base: Annotated[float, fl.Meta(gt=1, le=fl.LARGEST)] = math.e / 2


class Client(fl.AveragingClient):
    class State(fl.AveragingClient.State):
        mean: OwnMean | None = None

    config: KeepsMean

    def keep(self, weights: fl.Vector) -> fl.Vector:
        if self.config.ema:
            self.state.mean = taken(self.state.mean, weights, self.config.ema)
        return super().keep(weights)

    def own_model(self) -> fl.Vector:
        return fl.own_model(self) if self.state.mean is None else self.state.mean.mean


class ChangeClient(Client):
    sends = "change"


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
    ("fedavg_drop", "FedAvg, late dropped", MCMAHAN, KeepsMean, "model", _by_samples),
    ("fedavg_late", "FedAvg+late", KONECNY, LateConfig, "change", lambda config, staleness, samples: 1),
    ("fedavg_stale", "FedAvg, late included", MCMAHAN, LateConfig, "model", _by_samples),
    ("fedprox_drop", "FedProx, late dropped", LI, FedProxDropConfig, "model", _by_samples),
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
        Client if sends == "model" else ChangeClient,
        learns=late.learns("plain model" if sends == "model" else "plain change of the model"),
        models=fl.averaged_models,
        own_model=Client.own_model,
        delta=late.DELTA,
        title=title,
        citation=citation,
        releases=fl.telling({fl.Update: (fl.FromTraining(f"{_SENT[sends]} and number of samples"),)}),
    )
    for name, title, citation, config, sends, weight in _TABLE
}
