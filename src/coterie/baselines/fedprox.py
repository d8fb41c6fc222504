"""FedProx: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg whose local objective has a proximal term (eq. 2): uneven local work pulls less far from the global model.
"""

import coterie.method as fl


@fl.settings
class FedProxConfig(fl.Averaging):
    """mu: the weight of the proximal term, mu/2 |w - w_global|^2; 0.01 in FedCAPrivacy's comparison (table I)."""

    mu: fl.NotNegative = 0.01


SYSTEM = fl.averaging("fedprox", FedProxConfig, local=fl.Proximal)
