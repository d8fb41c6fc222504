"""What the parties of FedCAPrivacy find out from their views, as numbers.

The first functions turn a recorded view into the arrays that ``coterie.privacy.attacks`` take. ``measure`` runs the
attacks on all rounds of a run and scores them against the truth, which the auditor has and no party does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import pairwise_distances
from coterie.crypto.paillier import SecretKey
from coterie.crypto.sketch import project, unrotate
from coterie.privacy.attacks.blinded_rows import (
    recover,
    recovery_error,
    relink,
    relink_accuracy,
    relink_by_profiles,
)
from coterie.privacy.attacks.result import Attack
from coterie.privacy.audits import Audit, Finding, Recorded, View
from coterie.privacy.audits.measured import Measured, findings
from coterie.privacy.audits.profiling import alike, profiles
from coterie.privacy.audits.received import granted, held_key
from coterie.protocol.model_spec import ModelSpec
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.systems.fedcaprivacy.audit_signature import measure as measure_signatures
from coterie.systems.fedcaprivacy.audit_signature import of_groups
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, Upload
from coterie.systems.fedcaprivacy.participant import round_seed
from coterie.systems.fedcaprivacy.rows import GUESSED_SEED, csp_rows, hub_membership, order

Rows = NDArray[np.float64]
Unprotect = Callable[[Rows, bytes, int], Rows]
"""Differences (n, m) as the service sees them, the participants' common seed, the round -> differences (n, d) of
weights. What a participant can do that helps the service; the identity in paper mode."""


def csp_rounds(view: View) -> list[int]:
    """The rounds in which the service was sent vectors."""
    return sorted({seen.round for seen in view.seen if seen.kind == Relayed.__name__})


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
    key, seed = held_key(csp, SERVICE), granted(views[clients[0]])[f"secret {GROUP}"]
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


def _uploads(hub: View, key: SecretKey, round: int) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """By name: what the service was to see, and the model beside it (the same where there are no sketches)."""
    shown, models = {}, {}
    for seen, m in hub.messages(Upload, round):
        models[seen.src] = key.decrypt(key.public.from_bytes(m.cipher))
        shown[seen.src] = key.decrypt(key.public.from_bytes(m.sketch)) if m.sketch else models[seen.src]
    return shown, models


@findings
def measure(
    rounds: Sequence[Round],
    label_counts: NDArray[Any],
    spec: ModelSpec,
    start: NDArray[Any],
    groups: NDArray[Any] | None = None,
) -> Iterator[Measured]:
    """Every attack on every round (or two consecutive ones), each named ``"who: what"``; needs 3 clients a round.

    label_counts: (clients, classes).  start: (d,) the public initial weights.  groups: (clients,) the data's own, where
    there are some.
    """
    for one in rounds:
        labels = label_counts[one.who]
        yield from alike("csp", "distances", -pairwise_distances(one.rows), one.who, label_counts, groups)
        yield from profiles("csp", one.alone, labels, spec)
        if one.number == 1:
            guess = recover(one.alone, start)
            yield Measured("csp, knowing the start: models of round 1", recovery_error(guess, one.models, start))
        yield from profiles("csp with a participant", one.weights, labels, spec)
        guess = recover(one.weights, one.models[0], position=0)
        yield Measured("csp with a participant: models", recovery_error(guess, one.models, start))
        yield from of_groups(one.phi, label_counts, groups)
    for a, b in pairwise(rounds):
        truth, n = np.array([{i: row for row, i in enumerate(a.who)}.get(i, -1) for i in b.who]), len(a.who)
        if a.rows.shape[1] == b.rows.shape[1]:
            yield Measured("csp: re-linked, by vectors", relink_accuracy(relink(a.rows, b.rows), truth, n))
        linked = relink_by_profiles(pairwise_distances(a.rows), pairwise_distances(b.rows))
        yield Measured("csp: re-linked, by distances", relink_accuracy(linked, truth, n))
        linked = relink(a.weights, b.weights)
        yield Measured("csp with a participant: re-linked", relink_accuracy(linked, truth, n))


def participants_help(protection: str, size: int) -> Unprotect:
    """What a participant, who has the common seed, makes of the service's rows. size: d of the model.

    A rotation it undoes. Of a sketch it gives the shortest models that have it: m equations for d unknowns. With a
    guessed seed it is what the service can try on its own.
    """

    @lru_cache(maxsize=4)
    def inverse(secret: bytes, dim: int) -> Rows:
        projection = np.stack([project(unit, dim, secret) for unit in np.eye(size)])  # (d, m)
        return np.asarray(np.linalg.pinv(projection))

    def unprotect(rows: Rows, seed: bytes, r: int) -> Rows:
        secret = round_seed(seed, r)
        if protection == "rotation":
            return np.stack([unrotate(row, secret) for row in rows])
        if protection == "sketch":
            return np.asarray(rows @ inverse(secret, rows.shape[1]))
        return rows

    return unprotect


def passive(run: Recorded) -> list[Finding]:
    """Every attack on a recorded run."""
    protection = run.settings.protection(run.mode)
    if protection == "signature":
        return measure_signatures(run)
    rounds = recorded_rounds(run.views, run.clients, participants_help(protection, run.spec.size))
    return measure(rounds, run.label_counts, run.spec, run.initial, run.groups)


_CSP = "cloud service provider"
AUDIT = Audit(
    passive,
    attacks=(
        Attack("relink", _CSP, "follows shuffled clients from round to round by their differences from the mean row"),
        Attack(
            "relink-profiles", _CSP, "follows shuffled clients from round to round where only distances are visible"
        ),
        Attack("label-shares", _CSP, "tells which classes a client has more of than others from the last layer's bias"),
        Attack(
            "similar-pairs",
            "business server",
            "tells which participants have similar data from the clusters that they share",
        ),
        Attack("models-from-start", f"{_CSP} knowing the initial model", "recovers all models up to the mean update"),
        Attack("models-from-colluder", f"{_CSP} with one colluding client", "recovers all models exactly"),
    ),
)
