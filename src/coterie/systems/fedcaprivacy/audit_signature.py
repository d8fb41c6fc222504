"""What the parties of FedCAPrivacy find out with descriptor=signature, as numbers: from signatures, and from groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.signature import FEATURES
from coterie.crypto.paillier import SecretKey
from coterie.crypto.sketch import project
from coterie.privacy.attacks.labels import pair_auc, share_correlation, similar_pairs, telling, top_label_hit_rate
from coterie.privacy.audits import Recorded, View
from coterie.privacy.audits.measured import Measured, findings, tried
from coterie.privacy.audits.profiling import alike
from coterie.privacy.audits.received import granted, held_key
from coterie.protocols.anonymous import SERVICE
from coterie.protocols.cluster_sums import Received
from coterie.protocols.signatures import DIMENSION, Characterised
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB
from coterie.systems.fedcaprivacy.participant import round_seed
from coterie.systems.fedcaprivacy.rows import GUESSED_SEED, csp_rows, hub_membership, order

Rows = NDArray[np.float64]


def characterised(hub: View, key: SecretKey) -> dict[str, Rows]:
    """The signatures (2 x DIMENSION,) of before round 1 by name, which takes the hub's view and the service's key."""
    sent = hub.messages(Characterised, 0)
    return {seen.src: key.decrypt(key.public.from_bytes(message.cipher)) for seen, message in sent}


def block_norms(rows: Rows, labels: int, secret: bytes) -> Rows:
    """(n, labels) how long each label's block is, in the shortest signatures that have these projections (n, 2 d).

    The mean row is subtracted first, and the common mask with it. A longer block has more samples of its label.
    """
    size = (labels + 1) * FEATURES
    projection = np.stack([project(unit, DIMENSION, secret) for unit in np.eye(size)])  # (size, DIMENSION)
    inverse = np.linalg.pinv(projection)
    halves = np.split(rows - rows.mean(axis=0), 2, axis=1)
    blocks = [(half @ inverse).reshape(len(rows), labels + 1, FEATURES)[:, :labels] for half in halves]
    return np.asarray(sum(np.square(block).sum(axis=2) for block in blocks))


@findings
def measure(run: Recorded) -> Iterator[Measured]:
    """The attacks of ``audit.measure`` that signatures leave something to, by the same names."""
    views, clients, counts = run.views, run.clients, run.label_counts
    csp, hub = views[CSP], views[HUB]
    key, seed = held_key(csp, SERVICE), granted(views[clients[0]])[f"secret {GROUP}"]
    sent = characterised(hub, key)
    if len(sent) >= 3:
        _, rows = csp_rows(csp, key, 0)
        who = np.array([clients.index(name) for name in order(rows, sent)])
        yield from alike("csp", "distances", -pairwise_distances(rows), who, counts, run.groups)
        labels = counts.shape[1]
        for attacker, secret in (("csp", GUESSED_SEED), ("csp with a participant", round_seed(seed, 0))):
            norms = block_norms(rows, labels, secret)
            shares = tried(f"{attacker}: label shares", partial(share_correlation, norms, counts[who]))
            yield shares
            if shares.result is not None:
                yield Measured(f"{attacker}: top label", top_label_hit_rate(norms, counts[who]))
    for r in sorted({seen.round for seen, _ in hub.messages(Received) if seen.round}):
        yield from of_groups(hub_membership(hub, r, clients), counts, run.groups)


def of_groups(phi: NDArray[np.bool_], counts: NDArray[Any], groups: NDArray[Any] | None) -> Iterator[Measured]:
    """What the business server tells from the clusters of one round, phi (n, c) by client."""
    got = np.flatnonzero(phi.any(axis=1))
    if len(got) >= 3:
        pairs, top = similar_pairs(phi[got]), counts[got].argmax(axis=1)
        yield from alike("business server", "phi", pairs, got, counts, groups)
        if telling(top):
            yield Measured("business server: which pairs have one top label, by phi", pair_auc(pairs, top))
