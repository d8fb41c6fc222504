"""FedAvg that includes late updates stale: McMahan et al., AISTATS 2017, given whatever models have come.

    w <- w + step (m - w),   m: mean of all models received, late or not, weighted by samples

A model that is trained from an old w pulls towards that old w. Beside ``fedavg_drop`` it shows what late updates alone
are worth. The protocol and who sees what: ``protocols/late.py``.
"""

from functools import partial

from coterie.protocol.system import Federation, Setting, System
from coterie.protocols import late


def build(config: late.LateTraining, setting: Setting) -> Federation:
    """All models, by samples."""
    mean = partial(late.Mean, of="models", weight=lambda staleness, samples: samples)
    return late.build(config, setting, late.Method("model", mean, config.max_staleness))


SYSTEM = System(
    name="fedavg_stale",
    title="FedAvg, late included",
    citation="McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017",
    config=late.LateTraining,
    build=build,
    models=late.models,
    sees=late.sees("plain model"),
    baseline=True,
    delta=late.DELTA,
)
