"""FedLC: Zhang et al., "Federated learning with label distribution skew via logits calibration", ICML 2022.

    loss of a sample with label y:   -log exp(f_y - tau n_y^(-1/4)) / sum_c exp(f_c - tau n_c^(-1/4))

FedAvg whose clients lower the logit of a class by a margin, the more the fewer samples of it they have. A client lowers
the last bias by it, trains, and raises it again.

Decided here: the sum is over all classes, so that this is a cross entropy; of a class without a sample n_c is 1/2; the
global model predicts without margins.
"""

import numpy as np

import coterie.method as fl


@fl.settings
class FedLcConfig(fl.Averaging):
    """tau: >= 0, the margin of a class with one sample; with 0 it is FedAvg."""

    tau: fl.NotNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise fl.UserError("fedlc has no weight_decay: it would act on the margins, too; leave it out")
        if self.sample_noise is not None:
            raise fl.UserError("fedlc has no sample_noise: its margins follow from all labels, and get no noise")


def bias_of(spec: fl.ModelSpec) -> fl.Array:
    """(d,) bool, the output layer's bias. Raises UserError for a model without one."""
    names = [part.name for part in spec.parts if part.name in spec.head and len(part.shape) == 1]
    if not names:
        raise fl.UserError("fedlc moves the bias of the output layer, and this model has none: choose another model")
    return spec.of(names)


class Client(fl.Client):
    @fl.on(fl.Train, fl.training, answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        counts = yield fl.Local(fl.label_counts, (self.spec.outputs,))
        margin = np.zeros(self.spec.size, np.float32)
        margin[bias_of(self.spec)] = self.config.tau * np.maximum(counts, 0.5) ** -0.25
        fitted: fl.Fitted = yield self.fit(self.model(msg) - margin, msg.round)
        return fl.Update(msg.round, msg.spec, fitted.weights + margin, fitted.samples)


SYSTEM = fl.system(
    "fedlc",
    FedLcConfig,
    fl.Server,
    Client,
    check=lambda config, common: bias_of(common.spec),
    needs_classes=True,
)
