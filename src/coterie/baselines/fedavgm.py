"""FedAvgM: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019.

FedAvg whose server keeps a momentum of the clients' mean change: v <- beta v + change, w <- w + eta v (section 4.3).
"""

from typing import Annotated

import coterie.method as fl


@fl.settings
class FedAvgMConfig(fl.Averaging):
    """beta: in [0, 1), how much of the velocity is kept.  server_lr: eta."""

    beta: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.9


class Velocity(fl.Server.State):
    """v: (d,) float64."""

    v: fl.Array = fl.zeros


def momentum(state: Velocity, change: fl.Array, config: FedAvgMConfig) -> fl.Array:
    state.v = config.beta * state.v + change
    return config.server_lr * state.v


SYSTEM = fl.averaging("fedavgm", FedAvgMConfig, server_rule=momentum, keeps=Velocity)
