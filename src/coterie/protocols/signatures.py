"""Groups of clients by their label-residual signatures (``clustering/signature.py``), which no server can open by name.

    hub     --AskForTerm / Term-->  client            twice, a masked sum each: holders of the labels, statistics
    hub     --Total / Received-->   client            (``masked_sums``)
    hub     --Characterise-->       client            then, once the client has both sums
    client  --Characterised-->      hub               its signature, projected and encrypted
    hub     --Relayed, Group-->     helper            all signatures under one mask, shuffled (``anonymous``)
    helper  --Grouped-->            hub               the group at each position

Groups are found once before round 1; the helper places a later client in the nearest one, under the same sums and mask.
A client that lies in its terms can make everybody refuse the sums; if it claims to hold a label several times over, all
clients can read off the mean of a label that one other client holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import coterie.protocol.core as fl
from coterie.clustering import evidence
from coterie.clustering import signature as sig
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.paillier import BlindedVector
from coterie.crypto.sketch import expanded, project
from coterie.crypto.vector import StoredVector
from coterie.protocols.anonymous import SERVICE, KeyedParty, comparable, forget, relay
from coterie.protocols.cluster_sums import receiving_cost
from coterie.protocols.local_training import ask_each
from coterie.protocols.masked_sums import AskForTerm, Term, Total, summed, tell, term

HELD, STATISTICS = 0, 1  # the numbers of the two sums
DIMENSION = 256  # of a projected half


class Characterise(fl.FromHub, frozen=True):
    pass


class Characterised(fl.OfRound, frozen=True):
    """Two half signatures side by side, (2 x DIMENSION,), under the helper's key."""

    cipher: bytes


class Group(fl.FromHub, frozen=True):
    """All signatures are sent: find groups, or place these."""


class Grouped(fl.OfRound, frozen=True):
    """positions: (m,), those that hold a signature.  groups: (m,), of each.  why: a reason for fewer, or ""."""

    positions: fl.Integers
    groups: fl.Integers
    why: str


class Founded(fl.State):
    totals: tuple[Total, ...] = ()
    has: frozenset[str] = frozenset()  # the clients that have both sums
    groups: dict[str, int] = fl.field(default_factory=dict)
    told: bool = False  # whether the helper has groups to place others in; else all are in one
    why: str = ""  # the reason for fewer groups than stood out or were asked for


class GroupingState(fl.State):
    """base: the blinded signature that differences are taken from."""

    base: StoredVector | None = None
    found: sig.FoundGroups | None = None


def labels(spec: fl.ModelSpec) -> int:
    return max((part for part in spec.parts if part.kind == "parameter"), key=lambda part: part.offset).shape[0]


def lengths(spec: fl.ModelSpec) -> dict[int, int]:
    return {HELD: labels(spec), STATISTICS: sig.statistics_size(labels(spec))}


# ---------------------------------------------------------------------------------------------------------- the hub


def found(hub: KeyedParty, clients: Sequence[str], mask_seed: bytes) -> fl.Steps[Founded]:
    """The hub, before round 1: both sums over these clients, and the groups of those that sent a signature.

    Raises NoAnswerError for fewer than three clients, or without the helper.
    """
    size, totals, names = lengths(hub.spec), [], tuple(clients)
    for number in (HELD, STATISTICS):
        total = yield from summed(hub, 0, number, names, size[number])
        names = yield from tell(hub, total, names)
        totals.append(total)
    now = Founded(tuple(totals), frozenset(names))
    now = yield from grouped(hub, 0, now, names, mask_seed)
    if not now.groups:
        return fl.changed(now, groups=dict.fromkeys(clients, 0), why="no client sent a signature: see the refusals")
    return fl.changed(now, told=True)


def grouped(hub: KeyedParty, r: int, founded: Founded, names: Sequence[str], mask_seed: bytes) -> fl.Steps[Founded]:
    """The hub, in round r: its state once these ungrouped clients are placed as far as possible.

    mask_seed: SECRET, of the one mask over all signatures, now and later. Raises NoAnswerError without the helper.
    """
    if founded.groups and not founded.told:
        return fl.changed(founded, groups={**founded.groups, **dict.fromkeys(names, 0)})
    has = founded.has
    for total in founded.totals:
        late = [name for name in names if name not in founded.has]
        has |= frozenset((yield from tell(hub, total, late))) if late else frozenset()
    key, signed = hub.keys.public(SERVICE), dict[str, bytes]()
    mask = key.mask(2 * DIMENSION, expanded(mask_seed, "mask of signatures"))

    def fold(name: str, answer: Characterised) -> None:
        signed[name] = key.from_bytes(answer.cipher, 2 * DIMENSION, terms=1, blinded=0).blind(mask).to_bytes()

    yield from ask_each(hub, [name for name in names if name in has], Characterise(r), Characterised, fold)
    yield from fl.spend(fl.Cost(crypto_s=len(signed) * key.nominal_seconds_encrypt(mask.length)))
    if not signed:
        return fl.changed(founded, has=has)
    order = yield from relay(hub, r, sorted(signed, key=hub.clients.index), signed.__getitem__)
    try:
        new, why = yield from fl.ask(
            hub.helper, Group(r), Grouped, lambda answer: _read(answer, order, len(hub.clients))
        )
    except fl.NoAnswerError:
        yield from forget(hub, r)
        raise
    yield from forget(hub, r)
    return fl.changed(founded, has=has, groups={**founded.groups, **new}, why=founded.why or why)


def _read(answer: Grouped, order: Sequence[str], most: int) -> tuple[dict[str, int], str]:
    where, groups = answer.positions.tolist(), answer.groups.tolist()
    if len(set(where)) < len(where) or not set(where) <= set(range(len(order))):
        raise fl.PeerError(f"positions {where} of {len(order)} signatures")
    if len(groups) != len(where) or not all(0 <= k < most for k in groups):
        raise fl.PeerError(f"groups {groups} of {len(where)} clients")
    return {order[j]: k for j, k in zip(where, groups, strict=True)}, answer.why


# ------------------------------------------------------------------------------------------------------- the helper


def group(
    helper: KeyedParty, msg: Group, opened: Mapping[int, BlindedVector], before: GroupingState
) -> tuple[GroupingState, Grouped]:
    """The helper: groups of these signatures by position, found or existing, and its new state.

    Vectors that can be no signatures are left out; PeerError if most are.
    """
    key, step = helper.keys.public(SERVICE), 2.0 ** -helper.keys.public(SERVICE).layout.lanes.fraction_bits
    if before.base is None or before.found is None:
        differences = comparable(opened)
        positions, rows = list(differences), np.stack([one * step for one in differences.values()])
        honest = sig.plausible(rows)
        if 2 * honest.sum() <= len(opened):
            raise fl.PeerError(f"{len(opened)} signatures, but no majority of them can be some")
        base = opened[positions[int(np.flatnonzero(~rows.any(axis=1))[0])]]
        groups, smallest = helper.config.clusters, helper.config.smallest(helper.common.mode)
        found = sig.find_groups(rows[honest], helper.rng("signs of signatures"), groups, smallest)
        where = np.array(positions, np.int64)[honest]
        return GroupingState(base.stored(), found), Grouped(msg.round, where, found.labels, found.why)
    base, near = key.blinded(before.base), dict[int, fl.Doubles]()
    for j, one in sorted(opened.items()):
        try:
            row = np.asarray(one.minus(base) * step, np.float64)
        except CiphertextError:
            continue
        if sig.within_reach(row, before.found):
            near[j] = row
    if not near:
        raise fl.PeerError(f"{len(opened)} vectors, none of which can be a signature")
    new = sig.placed(np.stack(list(near.values())), before.found)
    return before, Grouped(msg.round, np.array(list(near), np.int64), new, "")


# ------------------------------------------------------------------------------------------------------ the clients


@fl.local("labels held")
def labels_held(own: fl.OwnData, count: int) -> fl.Doubles:
    return (np.bincount(_labels(own, count), minlength=count) > 0).astype(np.float64)


@fl.local("label statistics")
def label_statistics(own: fl.OwnData, kept: fl.Flags, standardised: bool = False) -> fl.Doubles:
    x = evidence.features(own.x) if standardised else sig.mapped(own.x)
    return sig.statistics(x, _labels(own, len(kept)), kept)


@fl.local("label residuals")
def label_residuals(own: fl.OwnData, kept: fl.Flags, total: fl.Doubles, seed: int) -> fl.Doubles:
    """(2, (labels + 1) m) of two halves of its samples. Raises PeerError for a total of no data."""
    x, y, to = sig.mapped(own.x), _labels(own, len(kept)), _reference(total, kept)
    first = sig.halves(y, np.random.default_rng(seed))
    return np.stack([sig.signature(x[half], y[half], to) for half in (first, ~first)])


@fl.local("residual spread")
def residual_spread(own: fl.OwnData, kept: fl.Flags, total: fl.Doubles, seed: int) -> fl.Doubles:
    """``evidence.spread_terms``. seed: of the halves. Raises as ``label_residuals``."""
    x, y, to = evidence.features(own.x), _labels(own, len(kept)), _reference(total, kept)
    first = sig.halves(y, np.random.default_rng(seed))
    one, other = (evidence.residuals(x[half], y[half], to) for half in (first, ~first))
    return evidence.spread_terms((one, other), to.kept)


@fl.local("residual row")
def residual_row(own: fl.OwnData, kept: fl.Flags, total: fl.Doubles, spread: fl.Doubles, seed: int) -> fl.Doubles:
    """``evidence.row``. seed: of its basis, which no server has."""
    x, y, to = evidence.features(own.x), _labels(own, len(kept)), _reference(total, kept)
    counts, sums = evidence.residuals(x, y, to)
    return evidence.row(counts, sums @ evidence.basis(seed, to.kept), evidence.spread(spread, to.kept))


def _reference(total: fl.Doubles, kept: fl.Flags) -> sig.Reference:
    try:
        return sig.reference(total, kept)
    except fl.UserError as error:
        raise fl.PeerError(str(error)) from None


def _labels(own: fl.OwnData, count: int) -> fl.Integers:
    y = own.y
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < count):
        raise fl.UserError(
            "descriptor=signature needs one class for each sample: choose descriptor=model for other tasks"
        )
    return np.asarray(y, np.int64)


def contributed(client: KeyedParty, msg: AskForTerm, totals: Mapping[int, fl.Doubles]) -> fl.Work[Term]:
    """A client: its term, of the next sum alone. totals: the sums that it has."""
    if msg.round or msg.number not in (HELD, STATISTICS) or msg.number != len(totals):
        raise fl.PeerError(f"a term of sum {msg.number} in round {msg.round} after the sums {sorted(totals)}")
    if msg.number == HELD:
        values: fl.Doubles = yield fl.Local(labels_held, (labels(client.spec),))
    else:
        values = yield fl.Local(label_statistics, (_kept(totals),))
    return (yield from term(client, msg, values))


def characterised(
    client: KeyedParty, msg: Characterise, totals: Mapping[int, fl.Doubles], secret_seed: bytes
) -> fl.Work[Characterised]:
    """A client: its signature, once it has both sums. secret_seed: 32 bytes, SECRET of all clients."""
    if totals.keys() != {HELD, STATISTICS}:
        raise fl.PeerError(f"asked for a signature after the sums {sorted(totals)}")
    seed = int(client.rng("halves").integers(1 << 62))
    both: fl.Doubles = yield fl.Local(label_residuals, (_kept(totals), totals[STATISTICS], seed))
    shown = np.concatenate([project(half, DIMENSION, secret_seed) for half in both])
    return Characterised(msg.round, (yield fl.Encrypt(client.keys.public(SERVICE), shown)).to_bytes())


def term_cost(client: KeyedParty, msg: AskForTerm) -> fl.Cost:
    length = lengths(client.spec).get(msg.number, 0)
    return fl.Cost(crypto_s=client.keys.public(SERVICE).nominal_seconds_encrypt(length))


def total_cost(client: KeyedParty, msg: Total) -> fl.Cost:
    return receiving_cost(client, lengths(client.spec).get(msg.cluster, 0))


def signature_cost(client: KeyedParty, msg: Characterise) -> fl.Cost:
    return fl.Cost(crypto_s=client.keys.public(SERVICE).nominal_seconds_encrypt(2 * DIMENSION))


def _kept(totals: Mapping[int, fl.Doubles]) -> fl.Flags:
    return np.asarray(np.rint(totals[HELD]) >= sig.HOLDERS)
