"""FedAvg that drops late updates: McMahan et al., AISTATS 2017, as PAFed compares itself with it (table V).

    w <- w + step (m - w),   m: mean of the models that are in time, weighted by samples

With a step of 1 and nobody late it is FedAvg. The protocol and who sees what: ``protocols/late.py``.
"""

from functools import partial

from coterie.protocol.system import Federation, Setting, System
from coterie.protocols import late
from coterie.protocols.local_training import SteppedTraining


def build(config: SteppedTraining, setting: Setting) -> Federation:
    """Models in time, by samples."""
    mean = partial(late.Mean, of="models", weight=lambda staleness, samples: samples)
    return late.build(config, setting, late.Method("model", mean, max_staleness=0))


SYSTEM = System(
    name="fedavg_drop",
    title="FedAvg, late dropped",
    citation="McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017",
    config=SteppedTraining,
    build=build,
    models=late.models,
    sees=late.sees("plain model"),
    baseline=True,
    delta=late.DELTA,
)
