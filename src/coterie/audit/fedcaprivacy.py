"""What the parties of FedCAPrivacy find out from their views, as numbers.

The first functions turn a recorded view into the arrays that ``coterie.attacks`` take. ``measure`` runs the attacks on
all rounds of a run and scores them against the truth, which the auditor has and no party does.

Messages are read by the names of their types and fields, so this knows no system's code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks import (
    Result,
    label_shares,
    pair_auc,
    pair_correlation,
    recover_from_colluder,
    recover_from_start,
    recovery_error,
    relink,
    relink_accuracy,
    relink_by_profiles,
    share_correlation,
    similar_pairs,
    telling,
    top_label_hit_rate,
)
from coterie.clustering import pairwise_distances
from coterie.crypto.paillier import SecretKey, secret_key
from coterie.protocol.errors import CoterieError, UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.transport.transcript import Seen, View

HUB, CSP = "business_server", "csp"

Rows = NDArray[np.float64]
Unprotect = Callable[[Rows, bytes, int], Rows]
"""Differences (n, m) as the service sees them, the participants' common seed, the round -> differences (n, d) of
weights. What a participant can do that helps the service; the identity in paper mode."""

GUESSED_SEED = bytes(32)
"""What the service uses in place of the participants' seed, which it does not have."""


def _messages(view: View, kind: str, round: int) -> Iterator[tuple[Seen, Any]]:
    return ((seen, seen.message) for seen in view.seen if (seen.kind, seen.round) == (kind, round) and seen.message)


def credentials(view: View) -> Any:
    """The keys that a party was given, from its own view; raises UserError where recording began too late."""
    for _, message in _messages(view, "Credentials", 0):
        return message
    raise UserError(f"the view of {view.party} holds no credentials: record from the set-up on")


def csp_rounds(view: View) -> list[int]:
    """The rounds in which the service was sent vectors."""
    return sorted({seen.round for seen in view.seen if seen.kind == "Blinded"})


def csp_rows(view: View, key: SecretKey, round: int) -> tuple[list[int], Rows]:
    """What the service sees of a round: positions, and the vectors there minus the first of them, (n, m) float64.

    The mask is common to all, so these differences are exact. m is d, or the length of a sketch.
    """
    opened = {}
    for _, message in _messages(view, "Blinded", round):
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
    pairs = [(clients.index(seen.src), int(m.cluster)) for seen, m in _messages(view, "Received", round)]
    phi = np.zeros((len(clients), 1 + max((k for _, k in pairs), default=0)), np.bool_)
    for i, k in pairs:
        phi[i, k] = True
    return phi


@dataclass(frozen=True, eq=False)
class Round:
    """One round: what the service sees, and the truth behind it, which takes both servers' views and a secret key.

    rows: (n, m) of ``csp_rows``.  alone: (n, d) differences of models that the service makes of them on its own: the
    rows themselves, or of sketches the shortest models that have them under a guessed seed.  weights: (n, d) what a
    participant makes of them for the service.  who: (n,) the client behind every row.  models: (n, d) what they had
    trained.  phi: of ``hub_membership``.
    """

    number: int
    rows: Rows
    alone: Rows
    weights: Rows
    who: NDArray[np.int64]
    models: Rows
    phi: NDArray[np.bool_]


def recorded_rounds(views: Mapping[str, View], clients: Sequence[str], unprotect: Unprotect) -> list[Round]:
    """All rounds of a recorded run in which the service saw anything."""
    hub, csp = views[HUB], views[CSP]
    key, seed = secret_key(credentials(csp).secret_key), credentials(views[clients[0]]).group_seed
    rounds = []
    for r in csp_rounds(csp):
        shown, models = _uploads(hub, key, r)
        _, rows = csp_rows(csp, key, r)
        names = order(rows, shown)
        true = np.stack([models[name] for name in names])
        if rows.shape == true.shape:  # what was shown is all that was uploaded
            true = unprotect(true, seed, r)
        who = np.array([clients.index(name) for name in names])
        alone = rows if rows.shape == true.shape else unprotect(rows, GUESSED_SEED, r)
        rounds.append(Round(r, rows, alone, unprotect(rows, seed, r), who, true, hub_membership(hub, r, clients)))
    return rounds


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


def _uploads(hub: View, key: SecretKey, round: int) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """By name: what the service was to see, and the model beside it (the same where there are no sketches)."""
    shown, models = {}, {}
    for seen, m in _messages(hub, "Upload", round):
        models[seen.src] = key.decrypt(key.public.from_bytes(m.cipher))
        shown[seen.src] = key.decrypt(key.public.from_bytes(m.sketch)) if m.sketch else models[seen.src]
    return shown, models


def measure(
    rounds: Sequence[Round],
    label_counts: NDArray[Any],
    spec: ModelSpec,
    start: NDArray[Any],
    groups: NDArray[Any] | None = None,
) -> dict[str, list[Result]]:
    """Every attack on every round (or two consecutive ones), as ``"who: what" -> results``; needs 3 clients a round.

    label_counts: (clients, classes).  start: (d,) the public initial weights.  groups: (clients,) the data's own, where
    there are some.
    """
    found: dict[str, list[Result]] = defaultdict(list)
    counts = np.asarray(label_counts)
    for one in rounds:
        labels = counts[one.who]
        far = pairwise_distances(one.rows)
        found["csp: which pairs have similar labels, by distances"].append(pair_correlation(-far, labels))
        if groups is not None and telling(groups[one.who]):
            found["csp: which pairs are of one group, by distances"].append(pair_auc(-far, groups[one.who]))
        estimate = label_shares(one.alone, spec)
        found["csp: label shares"].append(share_correlation(estimate, labels))
        found["csp: top label"].append(top_label_hit_rate(estimate, labels))
        if one.number == 1:
            guess = recover_from_start(one.alone, start)
            found["csp, knowing the start: models of round 1"].append(recovery_error(guess, one.models, start))
        estimate = label_shares(one.weights, spec)
        found["csp with a participant: label shares"].append(share_correlation(estimate, labels))
        found["csp with a participant: top label"].append(top_label_hit_rate(estimate, labels))
        guess = recover_from_colluder(one.weights, 0, one.models[0])
        found["csp with a participant: models"].append(recovery_error(guess, one.models, start))
        got = np.flatnonzero(one.phi.any(axis=1))
        if len(got) >= 3:
            pairs = similar_pairs(one.phi[got])
            found["business server: which pairs have similar labels, by phi"].append(
                pair_correlation(pairs, counts[got])
            )
            if groups is not None and telling(groups[got]):
                found["business server: which pairs are of one group, by phi"].append(pair_auc(pairs, groups[got]))
            top = counts[got].argmax(axis=1)
            if telling(top):
                found["business server: which pairs have one top label, by phi"].append(pair_auc(pairs, top))
    for a, b in pairwise(rounds):
        truth = np.array([{i: row for row, i in enumerate(a.who)}.get(i, -1) for i in b.who])
        if a.rows.shape[1] == b.rows.shape[1]:
            found["csp: re-linked, by vectors"].append(relink_accuracy(relink(a.rows, b.rows), truth, len(a.who)))
        profiles = relink_by_profiles(pairwise_distances(a.rows), pairwise_distances(b.rows))
        found["csp: re-linked, by distances"].append(relink_accuracy(profiles, truth, len(a.who)))
        linked = relink(a.weights, b.weights)
        found["csp with a participant: re-linked"].append(relink_accuracy(linked, truth, len(a.who)))
    return dict(found)
