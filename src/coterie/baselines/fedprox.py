"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg whose local objective has a proximal term, mu/2 |w - w_global|^2 (their eq. 2): uneven local work pulls less far
from the global model. The protocol and who sees what: ``protocols/averaging.py``.
"""

from dataclasses import dataclass

from coterie.protocol.system import System
from coterie.protocols import averaging
from coterie.protocols.keeping import own_model
from coterie.protocols.local_training import ProximalTraining


@dataclass(frozen=True)
class FedProxConfig(averaging.Averaging, ProximalTraining):
    """Federated averaging with the proximal term."""


SYSTEM = System(
    name="fedprox",
    title="FedProx",
    citation="Li et al., Federated optimization in heterogeneous networks, MLSys 2020",
    config=FedProxConfig,
    parties=averaging.parties,
    models=averaging.models,
    own_model=own_model,
    sees=averaging.SEES,
    releases=averaging.RELEASES,
    baseline=True,
)
