"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg whose local objective has a proximal term, mu/2 |w - w_global|^2 (their eq. 2): uneven local work pulls less far
from the global model. The protocol and who sees what: ``protocols/averaging.py``.
"""

from dataclasses import dataclass

from coterie.protocol.system import System
from coterie.protocols import averaging
from coterie.training.solvers import Proximal


@dataclass(frozen=True)
class FedProxConfig(averaging.Averaging):
    """mu: weight of the proximal term; 0.01 in FedCAPrivacy's comparison (table I)."""

    mu: float = 0.01

    def solver(self) -> Proximal:
        """SGD on the proximal objective."""
        return Proximal(self.lr, self.batch_size, self.momentum, self.weight_decay, mu=self.mu)


SYSTEM = System(
    name="fedprox",
    title="FedProx",
    citation="Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
    config=FedProxConfig,
    parties=averaging.parties,
    models=averaging.models,
    sees=averaging.SEES,
    baseline=True,
    audit="coterie.audit.profiling:PLAIN",
)
