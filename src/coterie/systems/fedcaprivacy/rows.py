"""The arrays that attacks take, from recorded views of FedCAPrivacy's parties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.paillier import SecretKey
from coterie.privacy.audits import View
from coterie.protocol.errors import CoterieError, UserError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.cluster_sums import Received

Rows = NDArray[np.float64]

GUESSED_SEED = bytes(32)
"""What the service uses in place of the participants' seed, which it does not have."""


def csp_rows(view: View, key: SecretKey, round: int) -> tuple[list[int], Rows]:
    """What the service sees of a round: positions, and the vectors there minus the first of them, (n, m) float64.

    The mask is common to all, so these differences are exact. m is d, or the length of a sketch.
    """
    opened = {}
    for _, message in view.messages(Relayed, round):
        try:
            opened[message.position] = key.open_blinded(key.public.from_bytes(message.cipher))
        except CoterieError:
            continue  # the service could not open it either
    positions = sorted(opened)
    steps = [opened[j].minus(opened[positions[0]]) for j in positions]
    return positions, np.stack(steps) / 2.0**key.public.layout.lanes.fraction_bits


def hub_membership(view: View, round: int, clients: Sequence[str]) -> NDArray[np.bool_]:
    """phi (n, c) by client, as the business server knows it: from whom it hears that a cluster's model was received.

    A client that got none has an empty row.
    """
    pairs = [(clients.index(seen.src), int(m.cluster)) for seen, m in view.messages(Received, round)]
    phi = np.zeros((len(clients), 1 + max((k for _, k in pairs), default=0)), np.bool_)
    for i, k in pairs:
        phi[i, k] = True
    return phi


def order(rows: Rows, shown: Mapping[str, Rows]) -> list[str]:
    """The name behind every row of ``csp_rows``, by its exact differences from the others'; shown: (m,) by name.

    Raises UserError where the rows are not differences of these vectors.
    """
    for first in shown.values():
        names: dict[bytes, list[str]] = defaultdict(list)  # equal vectors share an entry
        for name, values in shown.items():
            names[(values - first).tobytes()].append(name)
        found = [names[row.tobytes()].pop() for row in rows if names[row.tobytes()]]
        if len(found) == len(rows):
            return found
    raise UserError("the vectors that the service opened are not the uploads of this round")
