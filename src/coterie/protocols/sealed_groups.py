"""Groups that the hub never learns, made by a helper that gets no names.

    hub     --AskForSignature / Signature-->  client       its signature, sealed to the helper
    hub     --Relayed, Divide / Divided-->    helper       signatures at shuffled positions, and the group of each
    hub     --Join / Queries-->               client       its group, sealed to it alone; its queries for both servers
    hub     --Enlist / Enlisted-->            helper       (``hidden_sums``)

Signatures are those of ``clustering/signature.py``, under one mask that all clients know, from ``setup_sums``. The
helper learns which positions are alike, and how many. The hub learns which name is at which position, and how many
groups there are. A client learns its group and the group's weight.

**Newcomers** are placed in batches: a lone one would show the helper its name, as it gets uploads by name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from coterie.clustering.signature import FoundGroups, find_groups, placed, plausible, within_reach
from coterie.crypto.shared_rows import KEY_BYTES, PARTS
from coterie.crypto.signing import OpeningKey, SealingKey
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.messages import ANY, Bundle, Integers, OfRound, bundle, message, unbundle
from coterie.protocol.party import Component, To, Work, from_hub, on
from coterie.protocol.steps import NoAnswerError, Steps, ask, for_each, post
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import Enlist, Enlisted, sealed_to
from coterie.protocols.setup_sums import ROW_BITS, OpenSum, shown, summed, sums_of
from coterie.protocols.signatures import DIMENSION

ENTRY = "entry"
"""The grant: a seed of all clients and the helper, without which nothing can be placed among the signatures."""
TOGETHER = 8
"""Newcomers that are placed together, at least."""
_PLACE = struct.Struct(f"<HHI{KEY_BYTES}s")  # group, groups, the group's weight in 16ths, the helper's mask
_DESCRIBED = struct.Struct("<32sB")  # the key for the answer, the client's weight in 16ths
_BETWEEN = "helper", "client"  # the ends of sealed bytes that name no client

Floats = NDArray[np.float64]


@message(src=ANY, dst=ANY)
class AskForSignature(OfRound, frozen=True):
    """Send your signature."""


@message(src=ANY, dst=ANY)
class Signature(OfRound, frozen=True):
    """A signature, sealed to the helper."""

    sealed: bytes


@message(src=ANY, dst=ANY)
class Divide(OfRound, frozen=True):
    """All signatures were sent: find groups, or place these in the existing ones."""


@message(src=ANY, dst=ANY)
class Divided(OfRound, frozen=True):
    """groups: how many there are.  positions: (m,), those with a signature.  places: of each, sealed to its client.

    why: a reason for fewer groups, or "".
    """

    groups: int
    positions: Integers
    places: Bundle
    why: str


@message(src=ANY, dst=ANY)
class Join(OfRound, frozen=True):
    """Take your place, which the helper has sealed. masks: the hub's, of all rows."""

    place: bytes
    masks: bytes


@message(src=ANY, dst=ANY)
class Queries(OfRound, frozen=True):
    """Which of the sealed rows each server is to add up for the client. theirs: sealed to the helper and signed."""

    ours: bytes
    theirs: bytes


# ---------------------------------------------------------------------------------------------------------- the hub


class Grouping(msgspec.Struct, frozen=True):
    """The hub's state. sums: as sent to clients.  has: the clients that have all sums.  groups: how many there are.

    joined: the clients with a place.  why: a reason for fewer groups, or "".
    """

    sums: tuple[OpenSum, ...] = ()
    has: frozenset[str] = frozenset()
    groups: int = 0
    joined: frozenset[str] = frozenset()
    why: str = ""


class HubGroups(Component):
    """Steps of the hub, which has ``rows`` (``HubRows``) and ``state.founded``."""

    def found(self, helper: str, names: Sequence[str], deadline_s: float | None) -> Steps[None]:
        """Before round 1: the set-up sums over these clients, and their groups.

        Raises NoAnswerError if fewer than ``FEWEST`` clients take part, or without the helper.
        """
        names, sums = tuple(names), list[OpenSum]()
        for number in sums_of(self.party.config):
            sums.append((yield from summed(self.party, helper, names, number, deadline_s)))
            names = yield from shown(sums[-1], names, deadline_s)
        self.party.state.founded = Grouping(tuple(sums), frozenset(names))
        yield from self.place(0, helper, names, deadline_s)
        if not self.party.state.founded.joined:
            raise NoAnswerError("no client has a group: see the refusals")

    def place(self, r: int, helper: str, names: Sequence[str], deadline_s: float | None) -> Steps[None]:
        """In round r: give these clients a place, as far as possible. Raises NoAnswerError without the helper."""
        hub, founded, described = self.party, self.party.state.founded, dict[str, bytes]()
        has = founded.has
        for total in founded.sums:
            late = [name for name in names if name not in founded.has]
            has |= frozenset((yield from shown(replace(total, round=r), late, deadline_s)))

        def fold(name: str, answer: Signature) -> None:
            if answer.round != r:
                raise PeerError(f"{name}: a signature of round {answer.round} in round {r}")
            described[name] = answer.sealed

        asked = {name: AskForSignature(r) for name in names if name in has}
        yield from for_each(asked, Signature, fold, deadline_s=deadline_s)
        hub.state.founded = founded = replace(founded, has=has)
        if len(described) < (TOGETHER if founded.joined else 1):
            return
        order = sorted(described, key=hub.clients.index)
        order = [order[at] for at in hub.secrets("shuffle", r).permutation(len(order))]
        relayed = {at: To(helper, Relayed(r, at, described[name])) for at, name in enumerate(order)}
        yield from post(relayed)
        groups, places, why = yield from ask(helper, Divide(r), Divided, partial(self._divided, r, order))
        if not founded.groups:
            hub.rows.found(groups)
        hub.rows.secret.members += len(places)
        masks = b"".join(hub.rows.secret.masks)
        queries = dict[str, bytes]()

        def join(name: str, answer: Queries) -> None:
            if answer.round != r:
                raise PeerError(f"{name} joins in round {answer.round}, in round {r}")
            hub.rows.queried(name, answer.ours)
            queries[name] = answer.theirs

        joins = {name: Join(r, place, masks) for name, place in places.items()}
        yield from for_each(joins, Queries, join, deadline_s=deadline_s)
        if queries:
            enlist = Enlist(r, "\n".join(queries), bundle(list(queries.values())))
            yield from ask(helper, enlist, Enlisted, partial(_of_round, r))
        joined = founded.joined | frozenset(queries)
        hub.state.founded = replace(founded, groups=groups, joined=joined, why=founded.why or why)

    def _divided(self, r: int, order: Sequence[str], answer: Divided) -> tuple[int, dict[str, bytes], str]:
        """Places by name. Raises PeerError for unsent or repeated positions, and impossible numbers of groups."""
        where, before = answer.positions.tolist(), self.party.state.founded.groups
        if answer.round != r or len(set(where)) < len(where) or not set(where) <= set(range(len(order))):
            raise PeerError(f"positions {where} of round {answer.round} in round {r}")
        if not 1 <= answer.groups <= len(self.party.clients) or (before and answer.groups != before):
            raise PeerError(f"{answer.groups} groups, after {before}")
        places = unbundle(answer.places, len(where))
        return answer.groups, {order[at]: place for at, place in zip(where, places, strict=True)}, answer.why


def _of_round(r: int, answer: OfRound) -> None:
    if answer.round != r:
        raise PeerError(f"an answer of round {answer.round} in round {r}")


# -------------------------------------------------------------------------------------------------------- the helper


class GroupsFound(msgspec.Struct):
    """SECRET: of the helper. base: the first masked signature, from which differences are taken.  found: the groups.

    weights: of each group, in 16ths.  held: described clients by position, of ``round``.
    """

    base: NDArray[np.uint32] | None = None
    found: FoundGroups | None = None
    weights: tuple[int, ...] = ()
    round: int = -1
    held: dict[int, bytes] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<GroupsFound {len(self.weights)}>"


class HelperGroups(Component):
    """The helper's part. It has ``rows`` (``HelperRows``), and config ``clusters`` and ``min_cluster``."""

    Secret = GroupsFound
    secret: GroupsFound

    @on(Relayed)
    def hold(self, msg: Relayed, src: str) -> None:
        from_hub(self.party, msg, src)
        if not 0 <= msg.position < len(self.party.clients):
            raise PeerError(f"position {msg.position} of {len(self.party.clients)}")
        if msg.round != self.secret.round:
            self.secret.round, self.secret.held = msg.round, {}
        self.secret.held[msg.position] = msg.cipher

    @on(Divide, answers=Divided)
    def divide(self, msg: Divide, src: str) -> Divided:
        """Find groups, once, and place later clients in them."""
        from_hub(self.party, msg, src)
        secret, held = self.secret, self.secret.held if msg.round == self.secret.round else {}
        opened, keys = dict[int, Description](), set[bytes]()
        for at, data in sorted(held.items()):
            one = self._opened(data)
            if one is not None and one.key not in keys:  # a client is described once, wherever the hub puts it
                opened[at] = one
                keys.add(one.key)
        secret.held = {}
        labels = self._placed(opened) if secret.weights else self._found(opened)
        rows, groups = self.party.rows, len(secret.weights)
        if not rows.groups:
            rows.found(groups)
        rows.secret.members += len(labels)
        places = [_PLACE.pack(k, groups, secret.weights[k], rows.secret.masks[k]) for k in labels.values()]
        sealed = [SealingKey(opened[at].key).seal(one, *_BETWEEN) for at, one in zip(labels, places, strict=True)]
        why = "" if secret.found is None else secret.found.why
        return Divided(msg.round, groups, np.array(list(labels), np.int64), bundle(sealed), why)

    def _opened(self, sealed: bytes) -> Description | None:
        """What a client has sealed, or None for anything else."""
        try:
            key, entry = OpeningKey.load(self.party.own.identity.opening), self.party.keys.own_bytes(ENTRY)
            return opened_description(key, entry, sealed, described_length(self.party.config))
        except (PeerError, CryptoError):
            return None

    def _found(self, opened: Mapping[int, Description]) -> dict[int, int]:
        """Groups by position, of the clients that are described first. Raises PeerError if most are no signatures."""
        secret, config = self.secret, self.party.config
        labels = dict.fromkeys(opened, 0)
        if config.clusters != 1 and opened:
            secret.base = next(iter(opened.values())).row
            rows = np.stack([difference(one.row, secret.base) for one in opened.values()])
            honest = plausible(rows)
            if 2 * honest.sum() <= len(opened):
                raise PeerError(f"{len(opened)} signatures, but no majority of them can be some")
            source = self.party.rng("signs of signatures")
            secret.found = find_groups(rows[honest], source, config.clusters, config.min_cluster)
            where = [at for at, fits in zip(opened, honest, strict=True) if fits]
            labels = dict(zip(where, secret.found.labels.tolist(), strict=True))
        if not labels:
            raise PeerError("nobody has sent a signature")
        weights = np.bincount(list(labels.values()), weights=[opened[at].weight for at in labels])
        secret.weights = tuple(int(weight) for weight in weights)
        return labels

    def _placed(self, opened: Mapping[int, Description]) -> dict[int, int]:
        """Groups by position, of later clients: the nearest of the existing ones. Their weights do not change."""
        found, base = self.secret.found, self.secret.base
        if found is None or base is None:
            return dict.fromkeys(opened, 0)
        rows = {at: difference(one.row, base) for at, one in opened.items()}
        near = {at: row for at, row in rows.items() if within_reach(row, found)}
        return dict(zip(near, placed(np.stack(list(near.values())), found).tolist(), strict=True)) if near else {}


@dataclass(frozen=True, eq=False)
class Description:
    """A client, at the helper. key: for its answer.  weight: in 16ths.  row: its masked signature, words."""

    key: bytes
    weight: int
    row: NDArray[np.uint32]


def opened_description(key: OpeningKey, entry: bytes, sealed: bytes, length: int) -> Description:
    """What a client has sealed to the helper. key, entry: the helper's.  length: of a signature. Raises PeerError."""
    data = key.open(sealed, *_BETWEEN[::-1], entry)
    if len(data) != _DESCRIBED.size + 4 * length:
        raise PeerError(f"a description of {len(data)} bytes")
    answer, weight = _DESCRIBED.unpack_from(data)
    return Description(answer, min(max(weight, 1), PARTS), np.frombuffer(data, "<u4", offset=_DESCRIBED.size))


def described_length(config: Any) -> int:
    """How many numbers describe a client: of two halves of its samples."""
    return 0 if config.clusters == 1 else 2 * DIMENSION


def difference(row: NDArray[np.uint32], base: NDArray[np.uint32]) -> Floats:
    return np.asarray((row - base).view(np.int32) * 2.0**-ROW_BITS)


# -------------------------------------------------------------------------------------------------------- the clients


class Describing(msgspec.Struct):
    """SECRET. key: opens its place."""

    key: bytes = b""

    def __repr__(self) -> str:
        return "<Describing>"


class ClientGroups(Component):
    """A client's part. It has ``keys`` with ``ENTRY``, ``sums`` (``ClientSums``) and ``row`` (``ClientRow``).

    helper: its name.
    """

    Secret = Describing
    secret: Describing

    def __init__(self, helper: str) -> None:
        super().__init__()
        self.helper = helper

    @on(AskForSignature, answers=Signature)
    def describe(self, msg: AskForSignature, src: str) -> Work[Signature]:
        """Its signature under the clients' mask, with a fresh key for the answer, sealed to the helper."""
        from_hub(self.party, msg, src)
        party, secret = self.party, self.secret
        words = np.zeros(described_length(party.config), np.uint32)
        if len(words):
            words = yield from party.sums.signature()
        key = OpeningKey.generate(party.secrets("key of a place", msg.round).bytes)
        secret.key = key.to_bytes()
        sealing = SealingKey(party.common.roster.by_name[self.helper].sealing_key)
        data = _DESCRIBED.pack(key.public.to_bytes(), party.sums.secret.weight) + words.tobytes()
        return Signature(msg.round, sealing.seal(data, *_BETWEEN[::-1], party.keys.own_bytes(ENTRY)))

    @on(Join, answers=Queries)
    def join(self, msg: Join, src: str) -> Queries:
        """Its group, and its queries. Raises PeerError for a place that the helper has not sealed for it."""
        from_hub(self.party, msg, src)
        if not self.secret.key:
            raise PeerError("a place without a description")
        data = OpeningKey.load(self.secret.key).open(msg.place, *_BETWEEN)
        if len(data) != _PLACE.size:
            raise PeerError(f"a place of {len(data)} bytes")
        group, groups, total, theirs = _PLACE.unpack(data)
        if len(msg.masks) != KEY_BYTES * groups:
            raise PeerError(f"{len(msg.masks)} bytes of masks for {groups} groups")
        ours = msg.masks[KEY_BYTES * group : KEY_BYTES * (group + 1)]
        self.secret.key = b""
        to_hub, to_helper = self.party.row.join(group, groups, total, (ours, theirs))
        return Queries(msg.round, to_hub, sealed_to(self.party, self.helper, to_helper, "query", msg.round))
