"""Groups from shared rows: two servers learn the steps of the grouping, at places that neither can name.

Both run ``found`` once, on their shares of all clients' rows (``clustering/evidence.py``), and ``place`` for each batch
of newcomers. Only the helper knows the rows' order (``sealed_groups``): the hub knows names but no places; the helper
knows places, but no names. Both learn which of several sums of gains is the greatest (``clustering/correlation.py``).
The order in which clients join is tossed by both once the rows are fixed.

A client's weight is shared in bits, so none can claim more than ``PARTS``, and a group's weight is known to its clients
alone. The key centre deals ``Correlations`` once for every founding that there may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.clustering import correlation
from coterie.clustering.evidence import BONUS, row_length, twisted
from coterie.crypto import two_party
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.shared_rows import PARTS
from coterie.crypto.signing import OpeningKey, SealingKey, digest
from coterie.crypto.two_party import Dealt, Exchange, Sizes
from coterie.protocol.randomness import keystream
from coterie.protocols.key_centre import KEY_CENTRE, DealtKeys, Draw, Grant
from coterie.protocols.masked_sums import FEWEST
from coterie.protocols.signatures import labels

CORRELATIONS = "correlations"
FOUNDERS = 256  # clients that make groups at most; the others are placed in them
MOST = 32  # groups
TOGETHER = 8
"""Clients that are grouped or placed together, at least; of ten or fewer clients three quarters."""
# with fewer the hub, which knows whose rows it relays, would learn groups by name from the steps
PLACINGS = 4  # batches of newcomers, and one more for each FOUNDERS clients
FRACTION_BITS = 15  # of a row's numbers: sums of gains must stay below 2^33
WEIGHT_BITS = (PARTS - 1).bit_length()  # of a weight in 16ths, less 1

FOUNDING = "founding"


@dataclass(frozen=True)
class Correlations(Grant):
    """Correlated randomness of the hub and a helper, for the grouping of these clients.

    role: the helper's.  sealing: the hub's key, since the hub relays all grants unsealed.
    """

    hub: str
    sealing: bytes
    sizes: Sizes
    foundings: int = 1

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        keys = tuple(draw(f"{self.name} {party}").bytes(SEED_BYTES) for party in (0, 1))
        (helper,) = holders
        dealt = [(key_of(keys[0], n), key_of(keys[1], n)) for n in range(self.foundings)]
        corrections = b"".join(two_party.deal(self.sizes, twisted, both) for both in dealt)
        sealed = SealingKey(self.sealing).seal(keys[0], KEY_CENTRE, self.hub, self.name)
        return DealtKeys({self.hub: sealed, helper: keys[1] + corrections})


def key_of(key: bytes, founding: int) -> bytes:
    """SECRET: what a server's key of the first founding gives for another."""
    return digest("coterie/founding/1", key, founding)[:SEED_BYTES] if founding else key


def helpers_key(data: bytes, founding: int, foundings: int) -> bytes:
    """SECRET: of what the helper was dealt, a seed and corrections for one founding."""
    each = (len(data) - SEED_BYTES) // foundings
    at = SEED_BYTES + each * founding
    return key_of(data[:SEED_BYTES], founding) + data[at : at + each]


def sizes_of(config: Any, clients: int, spec: Any) -> Sizes:
    """How much is dealt for a config with ``clusters`` and ``min_cluster``; for one group of all bits alone."""
    if config.clusters == 1:
        return Sizes(clients, 0, 0, 0, 0, WEIGHT_BITS)
    founders, most = min(clients, FOUNDERS), most_groups(config, clients)
    placings = PLACINGS + (clients - 1) // FOUNDERS
    return Sizes(founders, most, row_length(labels(spec)), _first(config, clients, placings), placings, WEIGHT_BITS)


def most_groups(config: Any, clients: int) -> int:
    wanted = MOST if config.clusters == "auto" else min(config.clusters, MOST)
    return int(min(wanted, max(min(clients, FOUNDERS) // config.min_cluster + 2, 2)))


def _first(config: Any, clients: int, placing: int) -> int:
    founders, most = min(clients, FOUNDERS), most_groups(config, clients)
    return correlation.most_comparisons(founders, most) + placing * founders * most


class Shared(fl.SecretStruct):
    """SECRET: one server's share.  rows, weights: (groups, length) and (groups,), sums over each group's members.
    epoch: how often they were made anew.  founding: whose randomness made them, from 0.  begun: names of what was begun
    with dealt randomness.
    """

    rows: fl.Words64 | None = None
    weights: fl.Words64 | None = None
    members: tuple[int, ...] = ()
    epoch: int = 0
    founding: int = 0
    begun: frozenset[bytes] = frozenset()


class UnderWay(fl.State):
    """SECRET: a grouping that is under way at the helper, in ``round`` alone, of one attempt, once it has ``begun``.

    names: whose rows.  order: (n,) the position at each place.  rows, weights: its share by place, (n, length) and
    (n,).  heard: the hub's side of all steps so far, for a restarted party.
    """

    round: int
    placing: int
    names: frozenset[str]
    nonce: bytes
    order: fl.Integers
    rows: fl.Words64
    weights: bytes
    begun: bool = False
    heard: list[bytes] = fl.field(default_factory=list)


@dataclass(frozen=True, eq=False)
class SharedGroups:
    """What one server has. groups: places of members.  rows, weights: shares of the groups' sums, (groups, length) and
    (groups,).
    """

    groups: correlation.Groups
    rows: fl.Words64
    weights: fl.Words64


def _used(key: bytes, name: str) -> bytes:
    return digest("coterie/grouping/1", key[:SEED_BYTES], name)


def found(dealt: Dealt, config: Any, rows: fl.Words64, weights: bytes, nonce: bytes) -> Exchange[SharedGroups]:
    """Groups of these clients, of whose rows (n, length) and weights (n,) these are shares; one group without length.
    nonce: 16 random bytes.
    """
    lifted = yield from _weighed(dealt, FOUNDING, weights)
    if not dealt.sizes.length:
        return SharedGroups([tuple(range(len(rows)))], rows[:1], lifted.sum(axis=0, keepdims=True))
    seed = yield from _tossed(nonce)
    gains = yield from two_party.squared(dealt, rows, twisted)
    if dealt.party == 0:
        gains = gains + _bonus(1)
    questions = founding(seed, len(rows), dealt.sizes.groups, config.min_cluster)
    groups = sorted((yield from _answered(dealt, 0, questions, gains)), key=min)
    of_rows, of_weights = (np.stack([one[list(members)].sum(axis=0) for members in groups]) for one in (rows, lifted))
    return SharedGroups(groups, of_rows, of_weights)


def _weighed(dealt: Dealt, name: str, weights: bytes) -> Exchange[fl.Words64]:
    """(n,) a share of weights in 16ths, from bytes whose XOR is a weight less 1."""
    bits = np.frombuffer(weights, np.uint8)[:, None] >> np.arange(WEIGHT_BITS, dtype=np.uint8) & 1
    shares = yield from two_party.lifted(dealt, name, bits.astype(np.uint64))
    powers = 1 << np.arange(WEIGHT_BITS, dtype=np.uint64)
    return np.asarray(shares @ powers + np.uint64(dealt.party == 0))


def founding(seed: int, count: int, most: int, smallest: int) -> correlation.Questions[correlation.Groups]:
    """What is asked about the gains. seed: as tossed.  most: groups."""
    draw = np.random.default_rng(seed)
    orders = [draw.permutation(count).tolist() for _ in range(correlation.RESTARTS)]
    return correlation.grouped(orders, most, smallest)


def gains_of(rows: fl.Words64) -> fl.Words64:
    """(n, n) of rows in the clear (n, length)."""
    return np.asarray(rows @ twisted(rows).T + _bonus(1), np.uint64)


def place(
    dealt: Dealt, config: Any, clients: int, placing: int, rows: fl.Words64, weights: bytes, shared: Shared
) -> Exchange[tuple[list[int], fl.Words64]]:
    """The group at each place of newcomers, of whose rows and weights these are shares.

    Then a share of the weight that each group has of them, (groups,).
    """
    assert shared.rows is not None
    lifted = yield from _weighed(dealt, _name_of(placing), weights)
    gains = yield from two_party.multiplied(dealt, placing, rows, shared.rows, twisted)
    if dealt.party == 0:
        gains = gains + np.array([_bonus(count) for count in shared.members], np.uint64)
    questions = correlation.joined([(k,) for k in range(gains.shape[1])], range(len(gains)))
    labels = yield from _answered(dealt, _first(config, clients, placing), questions, gains)
    sums = np.zeros(gains.shape[1], np.uint64)
    np.add.at(sums, labels, lifted)
    return labels, sums


def _name_of(placing: int) -> str:
    return FOUNDING if placing < 0 else f"placing {placing}"


def _answered(
    dealt: Dealt, used: int, questions: correlation.Questions[correlation.T], gains: fl.Words64
) -> Exchange[correlation.T]:
    try:
        asked = next(questions)
        while True:
            values = [correlation.sums(one, gains) for one in asked]
            marks = yield from two_party.greatest(dealt, used, values, [one.marks for one in asked])
            used += sum(len(one) - 1 for one in values)
            asked = questions.send(marks)
    except StopIteration as end:
        result: correlation.T = end.value
        return result


def _tossed(nonce: bytes) -> Exchange[int]:
    """A number that neither chose: each commits before it sees the other's."""
    commitment = yield digest("coterie/toss/1", nonce)
    other = yield nonce
    if len(other) != SEED_BYTES or digest("coterie/toss/1", other) != commitment or other == nonce:
        raise fl.PeerError("a nonce that was not committed to")
    return int.from_bytes(nonce, "big") ^ int.from_bytes(other, "big")


def _bonus(pairs: int) -> np.uint64:
    return np.uint64(int(BONUS * pairs * 2.0 ** (2 * FRACTION_BITS)))


# --------------------------------------------------------------------------------------------------- at both servers


class ServerGroups(fl.Component):
    """number: 0 at the hub, 1 at the helper. Their parties have ``keys``."""

    number: int
    secret: Any

    def lasts(self, secret: Any) -> None:
        self.secret.shared.begun |= secret.shared.begun

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.party.config, len(self.party.clients), self.party.spec)

    def fewest(self) -> int:
        """Rows that are grouped or placed together, at least."""
        if self.party.config.clusters == 1:
            return 1 if self.settled else FEWEST
        clients = len(self.party.clients)
        return min(TOGETHER, max(FEWEST, clients - clients // 4))

    def key(self, founding: int) -> bytes:
        """SECRET: of the randomness that was dealt for this founding."""
        data: bytes = self.party.keys.own_bytes(CORRELATIONS)
        if self.number == 0:
            own = self.party.own.identity.opening
            return key_of(OpeningKey.load(own).open(data, KEY_CENTRE, self.party.name, CORRELATIONS), founding)
        return helpers_key(data, founding, self.party.config.foundings)

    def founding_of(self, placing: int) -> int:
        """Of a placing; -1 - n is the founding n itself."""
        return -1 - placing if placing < 0 else int(self.secret.shared.founding)

    def begin(self, placing: int) -> None:
        """Use the randomness for a placing or a founding, once. Raises PeerError otherwise."""
        self.secret.shared.begun |= {self.unbegun(placing)}

    def unbegun(self, placing: int) -> bytes:
        """SECRET: this randomness' name. Raises PeerError if it was used, or not dealt."""
        if not 0 <= self.founding_of(placing) < self.party.config.foundings:
            raise fl.PeerError(f"founding {self.founding_of(placing)}; {self.party.config.foundings} were dealt")
        shared, name, sizes, key = (
            self.secret.shared,
            _name_of(placing),
            self.sizes,
            self.key(self.founding_of(placing)),
        )
        used = _used(key, name)
        if used in shared.begun:
            raise fl.PeerError(f"{name} has been begun with this randomness, which must not be used twice: deal anew")
        if name not in sizes.uses:
            raise fl.PeerError(f"nothing is dealt for {name}")
        if len(key) != SEED_BYTES + self.number * two_party.corrections_bytes(sizes):
            raise fl.PeerError(f"{len(key)} bytes of dealt randomness, which is not for these clients")
        return used

    def unused(self) -> list[int]:
        if self.party.config.clusters == 1:
            return [0]  # of which nothing is dealt
        key, begun = self.key(self.secret.shared.founding), self.secret.shared.begun
        return [at for at in range(self.sizes.placings) if _used(key, _name_of(at)) not in begun]

    def unfounded(self) -> list[int]:
        foundings = range(self.party.config.foundings)
        return [-1 - n for n in foundings if _used(self.key(n), FOUNDING) not in self.secret.shared.begun]

    def nonce(self, r: int) -> bytes:
        return bytes(self.party.secrets("order of joining", r).bytes(SEED_BYTES))

    @property
    def settled(self) -> bool:
        """Whether the groups have their rows, and so final weights."""
        rows = self.party.rows
        return bool(rows.groups) and rows.secret.founding == self.secret.shared.founding

    def program(self, placing: int, rows: fl.Words64, weights: bytes, nonce: bytes) -> Exchange[list[int]]:
        """This side of a grouping that has begun: the group at each place.

        rows, weights: (n, length) and (n,), this server's share.
        """
        party, key = self.party, self.key(self.founding_of(placing))
        dealt = Dealt(self.number, self.sizes, key[:SEED_BYTES], key[SEED_BYTES:])
        if placing >= 0:
            clients, shared = len(party.clients), self.secret.shared
            labels, more = yield from place(dealt, party.config, clients, placing, rows, weights, shared)
            if not self.settled:
                self.secret.shared.weights = shared.weights + more
            return labels
        groups = yield from found(dealt, party.config, rows, weights, nonce)
        shared = self.secret.shared
        shared.rows, shared.members = groups.rows, tuple(len(members) for members in groups.groups)
        shared.epoch, shared.founding = shared.epoch + (placing < -1), self.founding_of(placing)
        shared.weights = groups.weights
        labelled: list[int] = correlation.labelled(groups.groups, len(rows)).tolist()
        return labelled


class Running:
    """One side of a grouping so far. data: what the other side gets next.  labels: the result."""

    def __init__(self, program: Exchange[list[int]]) -> None:
        self.program, self.number, self.data = program, 0, next(program)
        self.labels: list[int] | None = None

    def step(self, data: bytes) -> None:
        """Raises PeerError for an impossible step, or one after the last."""
        if self.labels is not None:
            raise fl.PeerError(f"a step after the last of {self.number}")
        try:
            self.data = self.program.send(data)
        except StopIteration as end:
            self.labels = end.value
        self.number += 1


def described_length(party: Any) -> int:
    """Of a row; 0 with one group of all, which may be no classifier."""
    return 0 if party.config.clusters == 1 else row_length(labels(party.spec))


def row_share(seed: bytes, length: int) -> fl.Words64:
    return np.frombuffer(keystream(seed, 8 * length), "<u8")
