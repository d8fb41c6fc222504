"""What a party contributes that has combined the models of others, such as a cluster's leader.

An active attack can replace the named function (``attacks/active``), as it can the result of a training (``Fit``).
"""

from __future__ import annotations

from coterie.protocol.effects import Compute, Vector
from coterie.protocol.party import Work


def contribution(start: Vector, weights: Vector) -> Vector:
    """``weights``: an honest contribution. start: the model that they changed from."""
    return weights


def contributed(start: Vector, weights: Vector) -> Work[Vector]:
    """The model that this party goes on with, (d,): its own ``weights``, unless it is an attacker.

    Call it just before encrypting or sending. start: (d,), what ``weights`` changed from.
    """
    found: Vector = yield Compute(contribution, (start, weights))
    return found
