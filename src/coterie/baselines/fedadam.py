"""FedAdam and FedYogi: Reddi et al., "Adaptive federated optimization", ICLR 2021.

FedAvg whose server takes Adam's or Yogi's step along the clients' mean change (algorithm 2, l. 9 to 11). Yogi's second
moment grows as fast and shrinks more slowly.
"""

from typing import Annotated

import numpy as np

import coterie.method as fl


@fl.settings
class AdaptiveConfig(fl.Averaging):
    """server_lr: eta.  beta_1, beta_2: in [0, 1), how much of the moments is kept.  tau: > 0, the least divisor."""

    server_lr: float = 0.1
    beta_1: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.9
    beta_2: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.99
    tau: fl.Positive = 1e-3


class Moments(fl.Server.State):
    """The first and second moment of the clients' mean change, (d,) float64."""

    m: fl.Array = fl.zeros
    v: fl.Array = fl.zeros


def adam(state: Moments, change: fl.Array, config: AdaptiveConfig) -> fl.Array:
    state.v = config.beta_2 * state.v + (1 - config.beta_2) * change**2  # l. 10, FedAdam
    return step(state, change, config)


def yogi(state: Moments, change: fl.Array, config: AdaptiveConfig) -> fl.Array:
    square = change**2
    state.v = state.v - (1 - config.beta_2) * square * np.sign(state.v - square)  # l. 10, FedYogi
    return step(state, change, config)


def step(state: Moments, change: fl.Array, config: AdaptiveConfig) -> fl.Array:
    state.m = config.beta_1 * state.m + (1 - config.beta_1) * change  # l. 9
    return config.server_lr * state.m / (np.sqrt(state.v) + config.tau)  # l. 11


SYSTEMS = {
    name: fl.averaging(
        name,
        AdaptiveConfig,
        server_rule=rule,
        keeps=Moments,
        title=title,
        citation="Reddi et al., Adaptive federated optimization, ICLR 2021",
    )
    for name, title, rule in (("fedadam", "FedAdam", adam), ("fedyogi", "FedYogi", yogi))
}
