"""FedAdam: Reddi et al., "Adaptive federated optimization", ICLR 2021.

FedAvg whose server takes Adam's step along the clients' mean change (algorithm 2, l. 9 to 11).
"""

import numpy as np

import coterie.method as fl


@fl.settings
class FedAdamConfig(fl.Averaging):
    """server_lr: eta.  beta_1, beta_2: in [0, 1), how much of the moments is kept.  tau: > 0, the least divisor."""

    server_lr: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        fl.within(self, 0, 1, "beta_1", "beta_2")
        fl.positive(self, "tau")


class Moments(fl.Server.State):
    """m, v: the first and second moment of the clients' mean change, (d,) float64."""

    m: fl.Array = fl.zeros
    v: fl.Array = fl.zeros


def adam(state: Moments, change: fl.Array, config: FedAdamConfig) -> fl.Array:
    state.m = config.beta_1 * state.m + (1 - config.beta_1) * change  # l. 9
    state.v = config.beta_2 * state.v + (1 - config.beta_2) * change**2  # l. 10, FedAdam
    return config.server_lr * state.m / (np.sqrt(state.v) + config.tau)  # l. 11


SYSTEM = fl.averaging("fedadam", FedAdamConfig, server_rule=adam, keeps=Moments, baseline=True)
