"""FedProx that drops late updates: Li et al., MLSys 2020; ``fedavg_drop`` with their local objective, eq. 2.

    clients minimise f_i(w) + mu/2 |w - w_received|^2

The protocol and who sees what: ``protocols/late.py``.
"""

from dataclasses import dataclass
from functools import partial

from coterie.protocol.system import Federation, Setting, System
from coterie.protocols import late
from coterie.protocols.local_training import SteppedTraining
from coterie.training.solvers import Proximal


@dataclass(frozen=True)
class FedProxDropConfig(SteppedTraining):
    """mu: weight of the proximal term; 0.01 as in ``fedprox``."""

    mu: float = 0.01

    def solver(self) -> Proximal:
        """SGD on the proximal objective."""
        return Proximal(self.lr, self.batch_size, self.momentum, self.weight_decay, mu=self.mu)


def build(config: FedProxDropConfig, setting: Setting) -> Federation:
    """Models in time, by samples."""
    mean = partial(late.Mean, of="models", weight=lambda staleness, samples: samples)
    return late.build(config, setting, late.Method("model", mean, max_staleness=0))


SYSTEM = System(
    name="fedprox_drop",
    title="FedProx, late dropped",
    citation="Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
    config=FedProxDropConfig,
    build=build,
    models=late.models,
    sees=late.sees("plain model"),
    baseline=True,
    delta=late.DELTA,
)
