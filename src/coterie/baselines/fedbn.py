"""FedBN: Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021.

FedAvg of all but batch normalisation (algorithm 1): each client keeps its scales, shifts and running statistics.
"""

import coterie.method as fl


@fl.settings
class FedBnConfig(fl.Averaging):
    OWN, FITS = "batch normalisation", "cnn_bn for images of 22 x 22 pixels or more"

    def own_parts(self, spec: fl.ModelSpec) -> tuple[str, ...]:
        return spec.normalisation


SYSTEM = fl.system(
    "fedbn",
    FedBnConfig,
    fl.PartServer,
    fl.PartClient,
    models=fl.whole_models,
    learns={
        "server": "every client's plain model but its batch normalisation, and its number of samples, in every round, "
        "by name",
        "client": "the shared parts of every round that it takes part in",
    },
    releases=fl.telling({fl.Update: (fl.FromTraining("trained shared parts and number of samples"),)}),
    check=fl.check_parts,
)
