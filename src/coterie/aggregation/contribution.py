"""What a party contributes that has combined the models of others, such as a cluster's leader.

An active attack can replace the named function (``attacks/active``).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Compute
from coterie.protocol.party import Work

Floats = TypeVar("Floats", bound=NDArray[np.floating[Any]])


def contribution(start: Floats, weights: Floats) -> Floats:
    """``weights``: an honest contribution. start: the model that they changed from."""
    return weights


def contributed(start: Floats, weights: Floats) -> Work[Floats]:
    """The model (d,) that this party goes on with: ``weights``, unless it is an attacker. Call it just before
    encrypting or sending.
    """
    found: Floats = yield Compute(contribution, (start, weights))
    return found
