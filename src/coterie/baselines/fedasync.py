"""FedAsync: Xie, Koyejo and Gupta, "Asynchronous federated optimization", arXiv 2019 (PAFed's [5]).

    w <- (1 - a) w + a w_i,   a = step (1 + rounds late)^-exponent,   one model after the other

Departures: staleness counts rounds, not server updates; late models are mixed in first, then those in time, each in
order of arrival; all clients of a round start from the model of its beginning. The protocol: ``protocols/late.py``.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np

import coterie.method as fl
from coterie.aggregation.sums import RunningMix
from coterie.protocols import late


@fl.settings
class FedAsyncConfig(late.LateTraining):
    """exponent: >= 0, of the staleness weights; 0.5 in Xie et al.

    server_lr: their alpha, the share of a model in time, in (0, 1]. Where a round mixes in many models of few classes
    each, those that come last decide under a large one.
    """

    server_lr: Annotated[float, fl.Meta(gt=0, le=1)] = 0.2
    exponent: fl.NotNegative = 0.5

    def own_budget(self) -> Mapping[str, str]:
        return {"server_lr": "it is the share of one client's model, not a step towards the mean of all"}


class Mixing:
    """Late models are mixed in before those in time, in whatever order they are taken. All shares are within [0, 1],
    so buffers (running statistics) stay within the clients' range.
    """

    def __init__(self, spec: fl.ModelSpec, weights: fl.Vector, step: float, *, exponent: float) -> None:
        self._weights, self._step, self._exponent = weights, step, exponent
        self._late, self._in_time = RunningMix(len(weights)), RunningMix(len(weights))

    def take(self, values: fl.Vector, staleness: int, samples: int, name: str = "") -> None:
        mixed = self._late if staleness else self._in_time
        mixed.take(values, self._step * float(1 + staleness) ** -self._exponent)

    def result(self) -> fl.Doubles:
        return self._in_time(self._late(self._weights.astype(np.float64)))


class Server(late.LateServer):
    config: FedAsyncConfig

    def aggregate(self, step: float) -> late.Aggregate:
        return Mixing(self.spec, self.state.weights, step, exponent=self.config.exponent)


SYSTEM = fl.system(
    "fedasync",
    FedAsyncConfig,
    Server,
    fl.AveragingClient,
    learns=late.learns("plain model"),
    delta=late.DELTA,
    title="FedAsync",
    citation="Xie, Koyejo and Gupta, Asynchronous federated optimization, 2019",
)
