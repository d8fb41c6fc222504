"""FedRep: Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.

    client   h_i <- tau epochs on f_i(phi, .),   then   phi_i <- E_i epochs on f_i(., h_i)     (algorithm 1, l. 8 to 13)
    server   phi <- mean of the phi_i                                                          (l. 15)

All clients share the body phi, and only it is sent. The head h_i, the output layer, stays with its client.

Decided here: the mean is weighted by samples, as in the authors' code; the body gets the epochs of all other methods,
as in their experiments; head and body see the same batches; running statistics belong to the body, and move in both
trainings.
"""

from collections.abc import Mapping

import coterie.method as fl


@fl.settings
class FedRepConfig(fl.Averaging):
    """head_epochs: tau, epochs of the head before those of the body; 10 in the authors' experiments."""

    OWN, FITS = "the output layer", "mlp_small"
    head_epochs: fl.AtLeastOne = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_noise is not None:
            raise fl.UserError("fedrep has no sample_noise: its head's training would go into the body unaccounted")

    def own_parts(self, spec: fl.ModelSpec) -> tuple[str, ...]:
        return spec.head

    def beyond_budget(self) -> Mapping[str, str]:
        return {"head_epochs": "so many epochs train the head before the shared epochs train the body"}


class Client(fl.PartClient):
    # an epoch of the head is little more than a forward pass
    @fl.on(fl.Train, fl.trained_for(lambda client: client.epochs + client.config.head_epochs / 3), answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        head, body = self.spec.head, self.spec.without(self.spec.head).trainable
        first: fl.Fitted = yield self.fit(self.model(msg), msg.round, epochs=self.config.head_epochs, only=head)
        fitted: fl.Fitted = yield self.fit(first.weights, msg.round, only=body)
        return fl.Update(msg.round, msg.spec, self.divide(fitted.weights), fitted.samples)


SYSTEM = fl.system(
    "fedrep",
    FedRepConfig,
    fl.PartServer,
    Client,
    models=fl.whole_models,
    learns={
        "server": "every client's plain body and number of samples in every round, by name; nothing of its head",
        "client": "the shared body of every round that it takes part in",
    },
    releases=fl.telling({fl.Update: (fl.FromTraining("trained body and number of samples"),)}),
    check=fl.check_parts,
)
