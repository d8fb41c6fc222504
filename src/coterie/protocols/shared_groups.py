"""Groups from shared rows: two servers learn the steps of the grouping, at places that neither can name.

Both run ``found`` once, on their shares of all clients' rows (``clustering/evidence.py``), and ``place`` for each batch
of newcomers. The rows are shuffled first, in an order that only the helper knows, so the hub knows names but no places
in the shuffle; the helper knows places, but no names. What both learn is the outcome of comparisons (``clustering/
correlation.py``): which places are in one group. The order in which clients join is tossed by both once the rows are
fixed.

``Correlations`` is dealt by the key centre. Every part of it is used once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.clustering.correlation import RESTARTS, Groups, Questions, T, grouped, joined, most_comparisons, sums
from coterie.clustering.evidence import BONUS, row_length, twisted
from coterie.crypto import two_party
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import digest
from coterie.crypto.two_party import Dealt, Exchange, Sizes, Words64
from coterie.protocol.errors import PeerError
from coterie.protocols.key_centre import DealtKeys, Draw, Grant
from coterie.protocols.signatures import labels

CORRELATIONS = "correlations"
FOUNDERS = 256  # clients that make groups at most; the others are placed in them
MOST = 32  # groups
PLACINGS = 4  # batches of newcomers, and one more for each FOUNDERS clients
FRACTION_BITS = 18  # of a row's numbers

FOUNDING = "founding"


@dataclass(frozen=True)
class Correlations(Grant):
    """Correlated randomness of the hub and a helper, for the grouping of these clients. role: the helper's."""

    hub: str
    sizes: Sizes

    def deal(self, holders: Sequence[str], draw: Draw, *, emulated: bool) -> DealtKeys:
        keys = tuple(draw(f"{self.name} {party}").bytes(SEED_BYTES) for party in (0, 1))
        (helper,) = holders
        corrections = two_party.deal(self.sizes, twisted, (keys[0], keys[1]))
        return DealtKeys({self.hub: keys[0], helper: keys[1] + corrections})


def sizes_of(config: Any, clients: int, spec: Any) -> Sizes:
    """How much is dealt for a config with ``clusters`` and ``min_cluster``; nothing for one group of all."""
    if config.clusters == 1:
        return Sizes(0, 0, 0, 0, 0)
    founders, most = min(clients, FOUNDERS), most_groups(config, clients)
    placings = PLACINGS + (clients - 1) // FOUNDERS
    return Sizes(founders, most, row_length(labels(spec)), _first(config, clients, placings), placings)


def most_groups(config: Any, clients: int) -> int:
    """Groups that there may be while clients join."""
    wanted = MOST if config.clusters == "auto" else min(config.clusters, MOST)
    return int(min(wanted, max(min(clients, FOUNDERS) // config.min_cluster + 2, 2)))


def _first(config: Any, clients: int, placing: int) -> int:
    """The number of the first comparison of a placing."""
    founders, most = min(clients, FOUNDERS), most_groups(config, clients)
    return most_comparisons(founders, most) + placing * founders * most


class Shared(msgspec.Struct):
    """SECRET: one server's share. rows: (groups, length), sums over each group's members.  members: of each group.

    begun: names of what has been begun with the dealt randomness, bound to it.
    """

    rows: Words64 | None = None
    members: tuple[int, ...] = ()
    begun: frozenset[bytes] = frozenset()

    def __repr__(self) -> str:
        return f"<Shared rows of {len(self.members)} groups>"


@dataclass(frozen=True, eq=False)
class Found:
    """What one server has of a grouping. groups: places of members.  order: at party 1, the row at each place."""

    groups: Groups
    order: NDArray[np.int64]
    rows: Words64


def begin(shared: Shared, key: bytes, sizes: Sizes, name: str, party: int) -> Dealt:
    """This party's randomness for a part of that name, once. Raises PeerError the second time, and if none is dealt."""
    used = digest("coterie/grouping/1", key[:SEED_BYTES], name)
    if used in shared.begun:
        raise PeerError(f"{name} has been begun with this randomness, which must not be used twice: deal anew")
    if name not in sizes.shuffles():
        raise PeerError(f"nothing is dealt for {name}")
    if len(key) != SEED_BYTES + party * two_party.corrections_bytes(sizes):
        raise PeerError(f"{len(key)} bytes of dealt randomness, which is not for these clients")
    shared.begun |= {used}
    return Dealt(party, sizes, key[:SEED_BYTES], key[SEED_BYTES:])


def found(dealt: Dealt, config: Any, rows: Words64, nonce: bytes) -> Exchange[Found]:
    """Groups of these clients, of whose rows this is a share (n, length). nonce: 16 random bytes."""
    seed = yield from _tossed(nonce)
    rows, order = yield from two_party.shuffled(dealt, FOUNDING, rows)
    gains = yield from two_party.squared(dealt, rows, twisted)
    if dealt.party == 0:
        gains = gains + _bonus(1)
    draw, count = np.random.default_rng(seed), len(rows)
    orders = [draw.permutation(count).tolist() for _ in range(RESTARTS)]
    questions = grouped(orders, dealt.sizes.groups, config.min_cluster)
    groups = sorted((yield from _answered(dealt, 0, questions, gains)), key=min)
    return Found(groups, order, np.stack([rows[list(members)].sum(axis=0, dtype=np.uint64) for members in groups]))


def place(
    dealt: Dealt, config: Any, clients: int, placing: int, rows: Words64, shared: Shared
) -> Exchange[tuple[list[int], NDArray[np.int64]]]:
    """The group at each place of a shuffle of newcomers, of whose rows this is a share; and that order at party 1."""
    assert shared.rows is not None
    gains = yield from two_party.multiplied(dealt, placing, rows, shared.rows, twisted)
    if dealt.party == 0:
        gains = gains + np.array([_bonus(count) for count in shared.members], np.uint64)
    gains, order = yield from two_party.shuffled(dealt, placing_name(placing), gains)
    questions = joined([(k,) for k in range(gains.shape[1])], range(len(gains)))
    return (yield from _answered(dealt, _first(config, clients, placing), questions, gains)), order


def placing_name(placing: int) -> str:
    return f"placing {placing}"


def _answered(dealt: Dealt, used: int, questions: Questions[T], gains: Words64) -> Exchange[T]:
    try:
        asked = next(questions)
        while True:
            signs = yield from two_party.above_zero(dealt, used, sums(asked, gains))
            used += len(asked)
            asked = questions.send(signs)
    except StopIteration as end:
        result: T = end.value
        return result


def _tossed(nonce: bytes) -> Exchange[int]:
    """A number that neither chose: each commits to its nonce before it sees the other's."""
    commitment = yield digest("coterie/toss/1", nonce)
    other = yield nonce
    if len(other) != SEED_BYTES or digest("coterie/toss/1", other) != commitment or other == nonce:
        raise PeerError("a nonce that was not committed to")
    return int.from_bytes(nonce, "big") ^ int.from_bytes(other, "big")


def _bonus(pairs: int) -> np.uint64:
    return np.uint64(int(BONUS * pairs * 2.0 ** (2 * FRACTION_BITS)))
