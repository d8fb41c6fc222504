"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Clients train the global model for E_i local epochs; the server averages, weighted by samples (FedCAPrivacy eq. 1, 2).
"""

import coterie.method as fl

SYSTEM = fl.averaging("fedavg", fl.Averaging, described_in=__name__)
