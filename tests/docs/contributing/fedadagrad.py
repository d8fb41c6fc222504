"""FedAdagrad: Reddi et al., "Adaptive federated optimization", ICLR 2021.

FedAvg whose server takes Adagrad's step along the clients' mean change (algorithm 2, l. 9 to 11, beta_1 = 0).
"""

import numpy as np

import coterie.method as fl


@fl.settings
class FedAdagradConfig(fl.Averaging):
    """server_lr: eta.  tau: > 0, the least divisor."""

    server_lr: float = 0.1
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        fl.positive(self, "tau")


class Squares(fl.Server.State):
    """v: the sum of the squares of the clients' mean changes so far, (d,) float64."""

    v: fl.Array = fl.zeros


def adagrad(state: Squares, change: fl.Array, config: FedAdagradConfig) -> fl.Array:
    state.v = state.v + change**2  # l. 10, FedAdagrad
    return config.server_lr * change / (np.sqrt(state.v) + config.tau)  # l. 11


SYSTEM = fl.averaging("fedadagrad", FedAdagradConfig, server_rule=adagrad, keeps=Squares)
