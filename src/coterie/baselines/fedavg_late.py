"""Plain averaging of everything received: what is left of PAFed's server without classes, projection and unit length.

    w <- w + step / n  sum_i (w_i+ - w_i),   n updates received, late or not; w_i: what client i started from

A late *change* is applied where the model is now; unlike a late *model* (``fedavg_stale``) it does not pull back to
where the model was. Every update counts the same, as in PAFed's eq. 11. The protocol and who sees what:
``protocols/late.py``.
"""

from functools import partial

from coterie.protocol.system import Federation, Setting, System
from coterie.protocols import late


def build(config: late.LateTraining, setting: Setting) -> Federation:
    """All changes, equally."""
    mean = partial(late.Mean, of="changes", weight=lambda staleness, samples: 1)
    return late.build(config, setting, late.Method("change", mean, config.max_staleness))


SYSTEM = System(
    name="fedavg_late",
    title="FedAvg+late",
    citation="Konečný et al., Federated optimization, 2016 (updates averaged), with late ones included",
    config=late.LateTraining,
    build=build,
    models=late.models,
    sees=late.sees("plain change of the model"),
    baseline=True,
    delta=late.DELTA,
)
