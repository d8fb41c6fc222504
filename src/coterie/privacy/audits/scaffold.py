"""What SCAFFOLD's server learns from control variates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.audits import Audit, Measured, Recorded, attack
from coterie.privacy.measures import profiles


def variates(run: Recorded) -> Iterator[dict[str, NDArray[np.float64]]]:
    """After each round with changes, all clients' control variates (d,) so far, by name."""
    held: dict[str, NDArray[np.float64]] = {}
    last = 0
    for seen in run.views[run.federation.hub].seen if run.federation.hub in run.views else ():
        message: Any = seen.message
        if getattr(message, "control", None) is not None:
            if last and seen.round > last:
                yield dict(held)
            last = seen.round
            held[seen.src] = held.get(seen.src, np.zeros(run.spec.size)) + message.control
    if held:
        yield held


@attack("control-variates", "server", "labels")
def control_variates(run: Recorded) -> Iterator[Measured]:
    """Reads labels off a client's control variate, the sum of its changes.

    A variate is a mean gradient, and training steps against it.
    """
    for held in variates(run):
        if len(held) > 1:
            labels = run.label_counts[run.numbers(held)]
            for one in profiles(run.federation.hub, -np.stack(list(held.values())), labels, run.spec):
                yield one._replace(what=f"{one.what}, by control variates")


AUDIT = Audit(control_variates)
