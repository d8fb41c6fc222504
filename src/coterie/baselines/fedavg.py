"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Clients train the global model for E_i local epochs; the server averages, weighted by samples (FedCAPrivacy eq. 1, 2).
The protocol and who sees what: ``protocols/averaging.py``.
"""

from coterie.protocol.system import System
from coterie.protocols import averaging
from coterie.protocols.keeping import own_model

SYSTEM = System(
    name="fedavg",
    title="FedAvg",
    citation="McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017",
    config=averaging.Averaging,
    parties=averaging.parties,
    models=averaging.models,
    own_model=own_model,
    sees=averaging.SEES,
    releases=averaging.RELEASES,
    baseline=True,
)
