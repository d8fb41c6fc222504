"""FedYogi: Reddi et al., "Adaptive federated optimization", ICLR 2021.

FedAdam with another second moment, which grows as fast and shrinks more slowly (algorithm 2, l. 9 to 11).
"""

import numpy as np

import coterie.method as fl


@fl.settings
class FedYogiConfig(fl.Averaging):
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


def yogi(state: Moments, change: fl.Array, config: FedYogiConfig) -> fl.Array:
    square = change**2
    state.m = config.beta_1 * state.m + (1 - config.beta_1) * change  # l. 9
    state.v = state.v - (1 - config.beta_2) * square * np.sign(state.v - square)  # l. 10, FedYogi
    return config.server_lr * state.m / (np.sqrt(state.v) + config.tau)  # l. 11


SYSTEM = fl.averaging("fedyogi", FedYogiConfig, server_rule=yogi, keeps=Moments, baseline=True)
