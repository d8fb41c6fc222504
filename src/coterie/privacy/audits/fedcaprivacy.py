"""What the parties of FedCAPrivacy find out from their views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.signature import FEATURES
from coterie.crypto.sketch import project, unrotate
from coterie.privacy.attacks.blinded_rows import recover, recovery_error, relink, relink_accuracy, relink_by_profiles
from coterie.privacy.audits import Audit, Finding, Measured, Recorded, View, attack
from coterie.privacy.measures import alike, by_estimate, by_memberships, profiles
from coterie.privacy.views import by_round, granted, held_key
from coterie.protocol.errors import CoterieError, UserError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import Received
from coterie.protocols.signatures import DIMENSION, Characterised
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, Upload, round_seed

Rows = NDArray[np.float64]
Unprotect = Callable[[Rows, bytes, int], Rows]
"""Differences (n, m) as the service sees them, the participants' common seed, the round -> differences (n, d) of
weights, which a helping participant can tell; the identity in paper mode.
"""

GUESSED_SEED = bytes(32)
"""The service's, in place of the participants' seed."""
HELPED = "csp with a participant"
SERVER = "business server"


# -- recorded rounds ---------------------------------------------------------------------------------------------------


def csp_rows(view: View, key: Any, round: int) -> tuple[list[int], Rows]:
    """Positions, and the vectors there minus the first, (n, m) float64, as the service sees them: exact, since the
    common mask cancels. m is d, or the length of a sketch.
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
    """phi (n, c) by client, from receipts of clusters' models; empty rows without a model."""
    pairs = [(clients.index(seen.src), int(m.cluster)) for seen, m in view.messages(Received, round)]
    phi = np.zeros((len(clients), 1 + max((k for _, k in pairs), default=0)), np.bool_)
    for i, k in pairs:
        phi[i, k] = True
    return phi


def order(rows: Rows, shown: Mapping[str, Rows]) -> list[str]:
    """The name behind every row of ``csp_rows``.  shown: (m,) by name. Raises UserError for other rows."""
    for first in shown.values():
        names: dict[bytes, list[str]] = defaultdict(list)  # equal vectors share an entry
        for name, values in shown.items():
            names[(values - first).tobytes()].append(name)
        found = [names[row.tobytes()].pop() for row in rows if names[row.tobytes()]]
        if len(found) == len(rows):
            return found
    raise UserError("the vectors that the service opened are not the uploads of this round")


@dataclass(frozen=True, eq=False)
class ServiceRound:
    """One round: what the service sees, and the truth, by both servers' views and a secret key.

    rows: (n, m) of ``csp_rows``.  alone: (n, d) the service's guess.  weights: (n, d) a participant's.  who: (n,) the
    client behind every row.  models: (n, d) as trained.  phi: of ``hub_membership``.
    """

    number: int
    rows: Rows
    alone: Rows
    weights: Rows
    who: NDArray[np.int64]
    models: Rows
    phi: NDArray[np.bool_]


def recorded_rounds(views: Mapping[str, View], clients: Sequence[str], unprotect: Unprotect) -> list[ServiceRound]:
    """The rounds in which the service saw anything."""
    hub, csp = views[HUB], views[CSP]
    key, seed = held_key(csp, SERVICE), granted(views[clients[0]])[f"secret {GROUP}"]
    rounds, uploads = [], by_round(hub, Upload)
    for r in sorted({seen.round for seen, _ in csp.messages(Relayed)}):
        shown, models = _opened(uploads.get(r, {}), key)
        _, rows = csp_rows(csp, key, r)
        names = order(rows, shown)
        true = np.stack([models[name] for name in names])
        if rows.shape == true.shape:  # what was shown is all that was uploaded
            true = unprotect(true, seed, r)
        who = np.array([clients.index(name) for name in names])
        alone = rows if rows.shape == true.shape else unprotect(rows, GUESSED_SEED, r)
        rounds.append(
            ServiceRound(r, rows, alone, unprotect(rows, seed, r), who, true, hub_membership(hub, r, clients))
        )
    return rounds


def _opened(uploads: Mapping[str, Upload], key: Any) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """What the service was to see, and the model."""
    shown, models = {}, {}
    for name, m in uploads.items():
        models[name] = key.decrypt(key.public.from_bytes(m.cipher))
        shown[name] = key.decrypt(key.public.from_bytes(m.sketch)) if m.sketch else models[name]
    return shown, models


def participants_help(protection: str, size: int) -> Unprotect:
    """What a participant, who has the common seed, makes of the service's rows.  size: d of the model.

    It undoes a rotation; of a sketch it gives the shortest models.
    """

    @lru_cache(maxsize=4)
    def inverse(secret: bytes, dim: int) -> Rows:
        return _inverse(size, dim, secret)

    def unprotect(rows: Rows, seed: bytes, r: int) -> Rows:
        secret = round_seed(seed, r)
        if protection == "rotation":
            return np.stack([unrotate(row, secret) for row in rows])
        if protection == "sketch":
            return np.asarray(rows @ inverse(secret, rows.shape[1]))
        return rows

    return unprotect


def _inverse(size: int, dim: int, secret: bytes) -> Rows:
    return np.asarray(np.linalg.pinv(np.stack([project(unit, dim, secret) for unit in np.eye(size)])))


# -- from models and sketches ------------------------------------------------------------------------------------------

_CSP = "cloud service provider"


@attack("relink", _CSP, "identity")
def relinked(rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Follows shuffled clients from round to round by their differences from the mean row."""
    for a, b, truth in _following(rounds):
        n = len(a.who)
        if a.rows.shape[1] == b.rows.shape[1]:
            yield Measured("csp", "re-linked, by vectors", relink_accuracy(relink(a.rows, b.rows), truth, n))
        yield Measured(HELPED, "re-linked", relink_accuracy(relink(a.weights, b.weights), truth, n))


@attack("relink-profiles", _CSP, "identity")
def relinked_by_distances(rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Follows shuffled clients from round to round where only distances are visible."""
    for a, b, truth in _following(rounds):
        linked = relink_by_profiles(pairwise_distances(a.rows), pairwise_distances(b.rows))
        yield Measured("csp", "re-linked, by distances", relink_accuracy(linked, truth, len(a.who)))


def _following(rounds: Sequence[ServiceRound]) -> Iterator[tuple[ServiceRound, ServiceRound, NDArray[np.int64]]]:
    """Consecutive rounds, and by row of the second its client's in the first, or -1."""
    for a, b in pairwise(rounds):
        row_of = {i: row for row, i in enumerate(a.who)}
        yield a, b, np.array([row_of.get(i, -1) for i in b.who])


@attack("label-shares", _CSP, "labels")
def label_shares(run: Recorded, rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Tells which classes a client has more of than others from the last layer's bias."""
    for one in rounds:
        yield from profiles("csp", one.alone, run.label_counts[one.who], run.spec)
        yield from profiles(HELPED, one.weights, run.label_counts[one.who], run.spec)


@attack("similar-rows", _CSP, "groups")
def similar_rows(run: Recorded, rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Tells which participants have similar data from the distances that it clusters by."""
    for one in rounds:
        yield from alike(run, "csp", "distances", -pairwise_distances(one.rows), one.who)


@attack("similar-pairs", SERVER, "groups")
def similar_pairs(run: Recorded, memberships: Sequence[NDArray[np.bool_]]) -> Iterator[Measured]:
    """Tells which participants have similar data from the clusters that they share.

    memberships: by round, phi (n, c) by client.
    """
    for phi in memberships:
        got = np.flatnonzero(phi.any(axis=1))
        if len(got) >= 3:
            yield from by_memberships(run, SERVER, "phi", phi[got], got)


@attack("models-from-start", f"{_CSP} knowing the initial model", "models")
def models_from_start(run: Recorded, rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Recovers all models up to the mean update."""
    for one in rounds:
        if one.number == 1:
            error = recovery_error(recover(one.alone, run.initial), one.models, run.initial)
            yield Measured("csp", "models of round 1", error, knowing="the start")


@attack("models-from-colluder", f"{_CSP} with one colluding client", "models")
def models_from_colluder(run: Recorded, rounds: Sequence[ServiceRound]) -> Iterator[Measured]:
    """Recovers all models exactly."""
    for one in rounds:
        guess = recover(one.weights, one.models[0], position=0)
        yield Measured(HELPED, "models", recovery_error(guess, one.models, run.initial))


# -- from signatures ---------------------------------------------------------------------------------------------------


def characterised(hub: View, key: Any) -> dict[str, Rows]:
    """By name, the signatures (2 x DIMENSION,) of before round 1."""
    sent = by_round(hub, Characterised).get(0, {})
    return {name: key.decrypt(key.public.from_bytes(message.cipher)) for name, message in sent.items()}


def block_norms(rows: Rows, labels: int, secret: bytes) -> Rows:
    """(n, labels) the squared length of each label's block, in the shortest signatures with these projections (n, 2 d),
    less the mean row, for the common mask. Longer blocks have more samples.
    """
    inverse = _inverse((labels + 1) * FEATURES, DIMENSION, secret)
    halves = np.split(rows - rows.mean(axis=0), 2, axis=1)
    blocks = [(half @ inverse).reshape(len(rows), labels + 1, FEATURES)[:, :labels] for half in halves]
    return np.asarray(sum(np.square(block).sum(axis=2) for block in blocks))


@attack("signatures", _CSP, "labels")
def signatures(run: Recorded) -> Iterator[Measured]:
    """Tells label shares and similar data from signatures (descriptor=signature)."""
    csp, hub = run.views[CSP], run.views[HUB]
    key, seed = held_key(csp, SERVICE), granted(run.views[run.clients[0]])[f"secret {GROUP}"]
    sent = characterised(hub, key)
    if len(sent) < 3:
        return
    _, rows = csp_rows(csp, key, 0)
    who = np.array(run.numbers(order(rows, sent)))
    yield from alike(run, "csp", "distances", -pairwise_distances(rows), who)
    counts = run.label_counts
    for attacker, secret in (("csp", GUESSED_SEED), (HELPED, round_seed(seed, 0))):
        norms = block_norms(rows, counts.shape[1], secret)
        yield from by_estimate(attacker, norms, counts[who])


def passive(run: Recorded) -> list[Finding]:
    protection, hub = run.settings.protection(run.mode), run.views[HUB]
    if protection == "signature":
        later = sorted({seen.round for seen, _ in hub.messages(Received) if seen.round})
        return signatures(run) + similar_pairs(run, [hub_membership(hub, r, run.clients) for r in later])
    return by_rounds(run, recorded_rounds(run.views, run.clients, participants_help(protection, run.spec.size)))


def by_rounds(run: Recorded, rounds: Sequence[ServiceRound]) -> list[Finding]:
    return [
        *similar_rows(run, rounds),
        *label_shares(run, rounds),
        *models_from_start(run, rounds),
        *models_from_colluder(run, rounds),
        *similar_pairs(run, [one.phi for one in rounds]),
        *relinked(rounds),
        *relinked_by_distances(rounds),
    ]


AUDIT = Audit(passive)
