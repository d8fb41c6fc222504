"""Groups that no server learns by name, made by two servers from shares of the clients' rows.

    hub     --AskForRow / SharedRow-->   client       its row in shares: a seed for the hub, the rest for the helper
    hub     --Relayed, OpenRows / RowsRead--> helper      what is sealed, at shuffled positions, and what can be opened
    hub     --Step / Stepped-->          helper       the grouping (``shared_groups``), step by step
    hub     --Settle / Settled-->        helper       the group of each position
    hub     --Join / Queries-->          client       its group, sealed to it alone; its queries for both servers
    hub     --Enlist / Enlisted-->       helper       (``hidden_sums``)

Rows are those of ``clustering/evidence.py``. The helper learns which positions are in one group, and so the sizes. The
hub learns which name is at which position, how many groups there are, and the steps of the grouping at places that it
cannot relate to positions. A client learns its group and the group's weight.

**Newcomers** are placed in batches: a lone one would show the helper its name, as it gets uploads by name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.shared_rows import KEY_BYTES, PARTS
from coterie.crypto.signing import OVERHEAD_BYTES, OpeningKey, SealingKey
from coterie.crypto.two_party import Words64
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.messages import ANY, Bundle, Integers, OfRound, bundle, message, unbundle
from coterie.protocol.party import Component, To, Work, from_hub, on
from coterie.protocol.steps import NoAnswerError, Steps, ask, for_each, post
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import Enlist, Enlisted, sealed_to
from coterie.protocols.setup_sums import OpenSum, shown, summed, sums_of
from coterie.protocols.shared_groups import (
    FOUNDERS,
    FRACTION_BITS,
    Running,
    ServerGroups,
    Shared,
    UnderWay,
    described_length,
    row_share,
)

ENTRY = "entry"
"""The grant: a seed of all clients and the helper, without which nothing can be placed among the signatures."""
_PLACE = struct.Struct(f"<HHI{KEY_BYTES}s")  # group, groups, the group's weight in 16ths, the helper's mask
_DESCRIBED = struct.Struct("<32sB")  # the key for the answer, the client's weight in 16ths
_BETWEEN = "helper", "client"  # the ends of sealed bytes that name no client


@message(src=ANY, dst=ANY)
class AskForRow(OfRound, frozen=True):
    """Send your row in shares."""


@message(src=ANY, dst=ANY)
class SharedRow(OfRound, frozen=True):
    """seed: of the hub's share of the row.  sealed: the other share, and a key for the answer, to the helper."""

    seed: bytes
    sealed: bytes


@message(src=ANY, dst=ANY)
class OpenRows(OfRound, frozen=True):
    """All rows were sent: open them. placing: of newcomers, or -1 for the founding."""

    placing: int


@message(src=ANY, dst=ANY)
class RowsRead(OfRound, frozen=True):
    """positions: (m,), those with a row, ascending."""

    positions: Integers


@message(src=ANY, dst=ANY)
class Step(OfRound, frozen=True):
    """data: what the hub's side of the grouping yields in this step, from 0."""

    number: int
    data: bytes


@message(src=ANY, dst=ANY)
class Stepped(OfRound, frozen=True):
    """The helper's side of the same step."""

    number: int
    data: bytes


@message(src=ANY, dst=ANY)
class Settle(OfRound, frozen=True):
    """Seal the places."""


@message(src=ANY, dst=ANY)
class Settled(OfRound, frozen=True):
    """groups: how many there are.  places: of each opened position, sealed to its client."""

    groups: int
    places: Bundle


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

    joined: the clients with a place.
    """

    sums: tuple[OpenSum, ...] = ()
    has: frozenset[str] = frozenset()
    groups: int = 0
    joined: frozenset[str] = frozenset()


class HubSecret(msgspec.Struct):
    """SECRET: of the hub."""

    shared: Shared = msgspec.field(default_factory=Shared)


class HubGroups(ServerGroups):
    """Steps of the hub, which has ``keys`` with ``CORRELATIONS``, ``rows`` (``HubRows``) and ``state.founded``."""

    Secret = HubSecret
    secret: HubSecret
    number = 0

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
        hub, founded, described = self.party, self.party.state.founded, dict[str, SharedRow]()
        has = founded.has
        for total in founded.sums:
            late = [name for name in names if name not in founded.has]
            has |= frozenset((yield from shown(replace(total, round=r), late, deadline_s)))

        sealed = _DESCRIBED.size + 8 * described_length(hub) + OVERHEAD_BYTES

        def fold(name: str, answer: SharedRow) -> None:
            if (answer.round, len(answer.seed), len(answer.sealed)) != (r, SEED_BYTES, sealed):
                raise PeerError(f"{name}: a row of {len(answer.sealed)} bytes, of round {answer.round} in round {r}")
            described[name] = answer

        asked = {name: AskForRow(r) for name in names if name in has}
        yield from for_each(asked, SharedRow, fold, deadline_s=deadline_s)
        hub.state.founded = replace(founded, has=has)
        order = sorted(described, key=hub.clients.index)
        order = [order[at] for at in hub.secrets("shuffle", r).permutation(len(order))]
        for at in range(0, len(order), FOUNDERS):
            some = order[at : at + FOUNDERS]
            if len(some) >= self.fewest() or hub.config.clusters == 1:
                yield from self._join(r, helper, some, described, deadline_s)

    def _join(
        self, r: int, helper: str, order: Sequence[str], rows: Mapping[str, SharedRow], deadline_s: float | None
    ) -> Steps[None]:
        """Give places to these clients, at positions in this order."""
        hub, founded = self.party, self.party.state.founded
        length, placing = described_length(hub), -1
        if founded.groups and length:
            if (left := self.unused()) is None:
                return  # newcomers wait until groups are made anew
            placing = left
        if length:
            self.begin(placing)
        yield from post({at: To(helper, Relayed(r, at, rows[name].sealed)) for at, name in enumerate(order)})
        order = yield from ask(helper, OpenRows(r, placing), RowsRead, partial(_opened, r, order))
        if length:
            shares = np.stack([row_share(rows[name].seed, length) for name in order])
            running = Running(self.program(placing, shares, self.nonce(r)))
            while running.placed is None:
                step = Step(r, running.number, running.data)
                yield from ask(helper, step, Stepped, partial(_take, r, running))
        groups, places = yield from ask(helper, Settle(r), Settled, partial(self._settled, r, order))
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
        hub.state.founded = replace(founded, groups=groups, joined=founded.joined | frozenset(queries))

    def _settled(self, r: int, order: Sequence[str], answer: Settled) -> tuple[int, dict[str, bytes]]:
        """Places by name. Raises PeerError for impossible numbers of groups and places."""
        before = self.party.state.founded.groups
        most = len(self.secret.shared.members) or 1
        if answer.round != r or not answer.groups == most == (before or most):
            raise PeerError(f"{answer.groups} groups of round {answer.round}, after {before}, in round {r}")
        return answer.groups, dict(zip(order, unbundle(answer.places, len(order)), strict=True))


def _opened(r: int, order: Sequence[str], answer: RowsRead) -> list[str]:
    """Names at the positions that can be opened. Raises PeerError for unsent, repeated or unordered ones."""
    where = answer.positions.tolist()
    if answer.round != r or where != sorted(set(where)) or not where or not set(where) <= set(range(len(order))):
        raise PeerError(f"positions {where} of round {answer.round} in round {r}")
    return [order[at] for at in where]


def _take(r: int, running: Running, answer: Stepped) -> None:
    if (answer.round, answer.number) != (r, running.number):
        raise PeerError(f"step {answer.number} of round {answer.round} in step {running.number} of round {r}")
    running.step(answer.data)


def _of_round(r: int, answer: OfRound) -> None:
    if answer.round != r:
        raise PeerError(f"an answer of round {answer.round} in round {r}")


# -------------------------------------------------------------------------------------------------------- the helper


class GroupsFound(msgspec.Struct):
    """SECRET: of the helper. shared: as the hub's.  weights: of each group, in 16ths.

    held: sealed rows by position, of ``round``.  opened: of it, by position.  under_way: how they are grouped.
    keys: of all that have a place. A row that comes again, beside others, would show what the others add.
    """

    shared: Shared = msgspec.field(default_factory=Shared)
    weights: tuple[int, ...] = ()
    round: int = -1
    held: dict[int, bytes] = msgspec.field(default_factory=dict)
    opened: dict[int, bytes] = msgspec.field(default_factory=dict)
    under_way: UnderWay | None = None
    keys: frozenset[bytes] = frozenset()

    def __repr__(self) -> str:
        return f"<GroupsFound {len(self.weights)}>"


class HelperGroups(ServerGroups):
    """The helper's part. It has ``keys`` with ``CORRELATIONS``, ``rows`` (``HelperRows``), and config ``clusters``.

    Its party has ``running``, a ``Running`` or None, made again from ``under_way`` after a restart.
    """

    Secret = GroupsFound
    secret: GroupsFound
    number = 1

    @on(Relayed)
    def hold(self, msg: Relayed, src: str) -> None:
        from_hub(self.party, msg, src)
        if not 0 <= msg.position < len(self.party.clients):
            raise PeerError(f"position {msg.position} of {len(self.party.clients)}")
        if msg.round != self.secret.round:
            self.secret.round, self.secret.held = msg.round, {}
        self.secret.held[msg.position] = msg.cipher

    @on(OpenRows, answers=RowsRead)
    def open(self, msg: OpenRows, src: str) -> RowsRead:
        """Open what was relayed, and begin to group it. A client counts once, wherever the hub puts it."""
        from_hub(self.party, msg, src)
        secret, held = self.secret, self.secret.held if msg.round == self.secret.round else {}
        secret.held, secret.opened, keys, shares = {}, {}, set[bytes](), list[Words64]()
        for at, data in sorted(held.items()):
            one = self._description(data)
            if one is not None and one.key not in keys | secret.keys:
                secret.opened[at] = _DESCRIBED.pack(one.key, one.weight)
                keys.add(one.key)
                shares.append(one.row)
        if not secret.opened:
            raise PeerError("nobody has sent a row")
        self.party.running, secret.under_way = None, None
        if self.party.config.clusters != 1:
            if len(keys) < self.fewest():
                raise PeerError(f"{len(keys)} rows; of fewer than {self.fewest()} the hub would learn groups by name")
            if (msg.placing >= 0) != bool(secret.weights):
                raise PeerError(f"placing {msg.placing} with {len(secret.weights)} groups")
            self.begin(msg.placing)
            secret.under_way = UnderWay(msg.placing, self.nonce(msg.round), np.stack(shares))
        return RowsRead(msg.round, np.array(list(secret.opened), np.int64))

    @on(Step, answers=Stepped)
    def step(self, msg: Step, src: str) -> Stepped:
        """The next step of the grouping."""
        from_hub(self.party, msg, src)
        running, now = self._running(), self.secret.under_way
        assert now is not None
        if msg.number != running.number:
            raise PeerError(f"step {msg.number} of a grouping after step {running.number}")
        answer, self.party.running = running.data, None  # a step that fails ends the program, which is then made again
        running.step(msg.data)
        self.party.running = running
        now.heard.append(msg.data)
        return Stepped(msg.round, msg.number, answer)

    def _running(self) -> Running:
        """This side of the grouping that is under way. Raises PeerError if none is."""
        now: UnderWay | None = self.secret.under_way
        running: Running | None = self.party.running
        if now is None:
            raise PeerError("no grouping is under way")
        if running is None or running.number != len(now.heard):
            running = Running(self.program(now.placing, now.rows, now.nonce))
            for data in now.heard:
                running.step(data)
            self.party.running = running
        return running

    @on(Settle, answers=Settled)
    def settle(self, msg: Settle, src: str) -> Settled:
        """Seal to each position its place. Groups' weights are fixed when groups are made."""
        from_hub(self.party, msg, src)
        secret, rows = self.secret, self.party.rows
        described = [_DESCRIBED.unpack(data) for data in secret.opened.values()]
        labels = self._labels(len(described))
        if not secret.weights:
            weights = np.bincount(labels, weights=[weight for _, weight in described])
            secret.weights = tuple(int(weight) for weight in weights)
        groups = len(secret.weights)
        if not rows.groups:
            rows.found(groups)
        rows.secret.members += len(labels)
        secret.opened, secret.keys = {}, secret.keys | {key for key, _ in described}
        places = [_PLACE.pack(k, groups, secret.weights[k], rows.secret.masks[k]) for k in labels]
        keys = [SealingKey(key) for key, _ in described]
        return Settled(
            msg.round, groups, bundle([key.seal(one, *_BETWEEN) for key, one in zip(keys, places, strict=True)])
        )

    def _labels(self, count: int) -> list[int]:
        """The group of each opened position. Raises PeerError before they are grouped."""
        if self.party.config.clusters == 1:
            return [0] * count
        placed = self._running().placed
        if placed is None or len(placed[0]) != count or not count:
            raise PeerError("the positions are not grouped")
        self.party.running, self.secret.under_way = None, None
        labels = np.empty(count, np.int64)
        labels[placed[1]] = placed[0]
        return [int(k) for k in labels]

    def _description(self, sealed: bytes) -> Description | None:
        """What a client has sealed, or None for anything else."""
        try:
            key, entry = OpeningKey.load(self.party.own.identity.opening), self.party.keys.own_bytes(ENTRY)
            return opened_description(key, entry, sealed, described_length(self.party))
        except (PeerError, CryptoError):
            return None


@dataclass(frozen=True, eq=False)
class Description:
    """A client, at the helper. key: for its answer.  weight: in 16ths.  row: the helper's share, words."""

    key: bytes
    weight: int
    row: Words64


def opened_description(key: OpeningKey, entry: bytes, sealed: bytes, length: int) -> Description:
    """What a client has sealed to the helper. key, entry: the helper's.  length: of a row. Raises PeerError."""
    data = key.open(sealed, *_BETWEEN[::-1], entry)
    if len(data) != _DESCRIBED.size + 8 * length:
        raise PeerError(f"a description of {len(data)} bytes")
    answer, weight = _DESCRIBED.unpack_from(data)
    return Description(answer, min(max(weight, 1), PARTS), np.frombuffer(data, "<u8", offset=_DESCRIBED.size))


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

    @on(AskForRow, answers=SharedRow)
    def describe(self, msg: AskForRow, src: str) -> Work[SharedRow]:
        """Its row in fresh shares, with a fresh key for the answer. Raises PeerError once it has a place."""
        from_hub(self.party, msg, src)
        if self.party.row.secret.group >= 0:
            raise PeerError("it has its place: rows that come again, beside others, show what the others add")
        party, secret, length = self.party, self.secret, described_length(self.party)
        seed = party.secrets("share of a row", msg.round).bytes(SEED_BYTES)
        words = np.zeros(0, np.uint64)
        if length:
            row = yield from party.sums.row()
            words = np.rint(row * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64) - row_share(seed, length)
        key = OpeningKey.generate(party.secrets("key of a place", msg.round).bytes)
        secret.key = key.to_bytes()
        sealing = SealingKey(party.common.roster.by_name[self.helper].sealing_key)
        data = _DESCRIBED.pack(key.public.to_bytes(), party.sums.secret.weight) + words.tobytes()
        return SharedRow(msg.round, seed, sealing.seal(data, *_BETWEEN[::-1], party.keys.own_bytes(ENTRY)))

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
