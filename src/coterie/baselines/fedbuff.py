"""FedBuff: Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.

    w <- w + step/K sum_i s(tau_i) (w_i - w_started),    s(tau) = (1 + tau)^-exponent        (algorithm 1, section 3.2)

The server makes a step as soon as its buffer holds K changes. tau counts its steps since the client was sent w.

Decided here, on a clock of rounds: the clients of a round start from one model, and their changes and late ones fill
the buffer by age, then as drawn from the seed; the rest waits for the next round. The protocol: ``protocols/late.py``.
"""

from collections.abc import Sequence

import numpy as np

import coterie.method as fl
from coterie.protocols import late


@fl.settings
class FedBuffConfig(late.BufferedTraining):
    """exponent: >= 0, of the staleness weights; 0.5 in the authors' experiments."""

    exponent: fl.NotNegative = 0.5


class Server(late.BufferServer):
    config: FedBuffConfig

    def moved(self, w: fl.Array, changes: Sequence[late.Buffered], step: float) -> fl.Array:
        mean = late.Mean(self.spec, w, step, of="change", weight=self.weight, over=float(len(changes)))
        for change in changes:
            mean.take(change.values, self.staleness(change), 1)
        return mean.result()

    def weight(self, staleness: int, samples: int) -> float:
        return float(np.power(1.0 + staleness, -self.config.exponent))


SYSTEM = fl.system(
    "fedbuff",
    FedBuffConfig,
    Server,
    fl.ChangeClient,
    learns=late.learns("plain change of the model"),
    delta=late.DELTA,
    releases=fl.telling({fl.Update: (fl.FromTraining("change of the model and number of samples"),)}),
)
