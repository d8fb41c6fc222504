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
from dataclasses import dataclass

import msgspec
import numpy as np

from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.shared_rows import KEY_BYTES, PARTS
from coterie.crypto.signing import Field, OpeningKey, SealingKey
from coterie.crypto.two_party import Words64
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.messages import ANY, Bundle, Integers, OfRound, bundle, message
from coterie.protocol.party import Component, Work, from_hub, on
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_settings import renews
from coterie.protocols.hidden_sums import sealed_to
from coterie.protocols.shared_groups import (
    FRACTION_BITS,
    TOGETHER,
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
DESCRIBED = struct.Struct("<32sB")  # the key for the answer, the client's weight in 16ths
_BETWEEN = "helper", "client"  # the ends of sealed bytes that name no client


@message(src=ANY, dst=ANY)
class AskForRow(OfRound, frozen=True):
    """Send your row in shares."""


@message(src=ANY, dst=ANY)
class AskForRowAnew(OfRound, frozen=True):
    """Send your row in shares, for groups that have been made anew so many times, from 1."""

    epoch: int


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
class OpenRowsAnew(OfRound, frozen=True):
    """All rows of these clients, one name a line, were sent: open them, to make groups anew.

    placing: -1 - n for the randomness of founding n.
    """

    placing: int
    names: str


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
class JoinAnew(OfRound, frozen=True):
    """Take your place in groups that were made anew in the round ``since``. place, masks: as in ``Join``."""

    since: int
    place: bytes
    masks: bytes


@message(src=ANY, dst=ANY)
class Queries(OfRound, frozen=True):
    """Which of the sealed rows each server is to add up for the client. theirs: sealed to the helper and signed."""

    ours: bytes
    theirs: bytes


# -------------------------------------------------------------------------------------------------------- the helper


class GroupsFound(msgspec.Struct):
    """SECRET: of the helper. shared: as the hub's.  weights: of each group, in 16ths.

    held: sealed rows by position, of ``round``.  opened: of it, by position.  under_way: how they are grouped.
    keys: of all that have a place. A row that comes again, beside others, would show what the others add.
    grouped: the clients whose rows made groups anew last, in any attempt.
    """

    shared: Shared = msgspec.field(default_factory=Shared)
    weights: tuple[int, ...] = ()
    round: int = -1
    held: dict[int, bytes] = msgspec.field(default_factory=dict)
    opened: dict[int, bytes] = msgspec.field(default_factory=dict)
    under_way: UnderWay | None = None
    keys: frozenset[bytes] = frozenset()
    grouped: frozenset[str] = frozenset()

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

    def lasts(self, secret: GroupsFound) -> None:
        super().lasts(secret)
        self.secret.grouped, self.secret.under_way = secret.grouped, None

    @on(OpenRows, answers=RowsRead)
    def open(self, msg: OpenRows, src: str) -> RowsRead:
        """Open what was relayed, and begin to group it. A client counts once, wherever the hub puts it."""
        from_hub(self.party, msg, src)
        one = self.party.config.clusters == 1
        if msg.placing < -1 or (one and msg.placing >= 0) or (msg.placing == -1 and self.secret.weights and not one):
            raise PeerError(f"placing {msg.placing} with {len(self.secret.weights)} groups")
        return self._opened(msg, self.secret.shared.epoch)

    @on(OpenRowsAnew, answers=RowsRead, when=renews)
    def open_anew(self, msg: OpenRowsAnew, src: str) -> RowsRead:
        """The same, to make groups anew: not of nearly the same clients as before, in any attempt.

        Rows of exactly the same may be grouped again, since they show nothing of what the others add.
        """
        from_hub(self.party, msg, src)
        secret, names = self.secret, frozenset(msg.names.split("\n"))
        if not secret.weights or msg.placing >= -1 or not names <= frozenset(self.party.clients):
            raise PeerError(f"placing {msg.placing} of {len(names)} clients, with {len(secret.weights)} groups")
        answer = self._opened(msg, secret.shared.epoch + 1)
        unread = len(names) - len(secret.opened)
        changes = [len(names ^ self.party.rows.secret.founders), len(names ^ secret.grouped) or len(self.party.clients)]
        if unread < 0 or min(changes) - unread < TOGETHER:
            raise PeerError(f"{min(changes)} clients have come or left since rows were grouped; {TOGETHER} are needed")
        secret.grouped = names
        return answer

    def _opened(self, msg: OpenRows | OpenRowsAnew, epoch: int) -> RowsRead:
        secret, held = self.secret, self.secret.held if msg.round == self.secret.round else {}
        secret.held, secret.opened, keys, shares = {}, {}, set[bytes](), list[Words64]()
        for at, data in sorted(held.items()):
            one = self._description(data, epoch)
            if one is not None and one.key not in keys | secret.keys:
                secret.opened[at] = DESCRIBED.pack(one.key, one.weight)
                keys.add(one.key)
                shares.append(one.row)
        if not secret.opened:
            raise PeerError("nobody has sent a row")
        self.party.running, secret.under_way = None, None
        if self.party.config.clusters != 1:
            if len(keys) < self.fewest():
                raise PeerError(f"{len(keys)} rows; of fewer than {self.fewest()} the hub would learn groups by name")
            self.begin(msg.placing)
            secret.under_way = UnderWay(msg.round, msg.placing, self.nonce(msg.round), np.stack(shares))
        return RowsRead(msg.round, np.array(list(secret.opened), np.int64))

    @on(Step, answers=Stepped)
    def step(self, msg: Step, src: str) -> Stepped:
        """The next step of the grouping."""
        from_hub(self.party, msg, src)
        running, now = self._running(), self.secret.under_way
        assert now is not None
        if msg.round != now.round:
            raise PeerError(f"a step in round {msg.round} of a grouping of round {now.round}")
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
        described = [DESCRIBED.unpack(data) for data in secret.opened.values()]
        now = secret.under_way
        if now is not None and msg.round != now.round:
            raise PeerError(f"places of round {msg.round} in a grouping of round {now.round}")
        anew = now is not None and now.placing < 0
        labels = self._labels(len(described))
        if anew or not secret.weights:
            weights = np.bincount(labels, weights=[weight for _, weight in described])
            secret.weights = tuple(int(weight) for weight in weights)
        groups = len(secret.weights)
        if anew or not rows.groups:
            rows.secret.founders = secret.grouped
            rows.found(groups, msg.round, secret.shared.founding)
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

    def _description(self, sealed: bytes, epoch: int) -> Description | None:
        """What a client has sealed, or None for anything else."""
        try:
            key, entry = OpeningKey.load(self.party.own.identity.opening), self.party.keys.own_bytes(ENTRY)
            return opened_description(key, entry, epoch, sealed, described_length(self.party))
        except (PeerError, CryptoError):
            return None


@dataclass(frozen=True, eq=False)
class Description:
    """A client, at the helper. key: for its answer.  weight: in 16ths.  row: the helper's share, words."""

    key: bytes
    weight: int
    row: Words64


def opened_description(key: OpeningKey, entry: bytes, epoch: int, sealed: bytes, length: int) -> Description:
    """What a client has sealed to the helper, for the groups of this epoch.

    key, entry: the helper's.  length: of a row. Raises PeerError.
    """
    data = key.open(sealed, *_BETWEEN[::-1], *_bound(entry, epoch))
    if len(data) != DESCRIBED.size + 8 * length:
        raise PeerError(f"a description of {len(data)} bytes")
    answer, weight = DESCRIBED.unpack_from(data)
    return Description(answer, min(max(weight, 1), PARTS), np.frombuffer(data, "<u8", offset=DESCRIBED.size))


# -------------------------------------------------------------------------------------------------------- the clients


def _bound(entry: bytes, epoch: int) -> tuple[Field, ...]:
    """What a sealed description is bound to, besides its ends."""
    return (entry, epoch) if epoch else (entry,)


class Describing(msgspec.Struct):
    """SECRET. key: opens its place.  wanted: the epoch that its last row is for.  epoch: that its place is of."""

    key: bytes = b""
    wanted: int = 0
    epoch: int = 0

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
        return (yield from self._shared(msg.round, 0))

    @on(AskForRowAnew, answers=SharedRow, when=renews)
    def describe_anew(self, msg: AskForRowAnew, src: str) -> Work[SharedRow]:
        """The same, for groups of a later epoch than those that it has a place in. Raises PeerError otherwise."""
        from_hub(self.party, msg, src)
        if not self.secret.epoch < msg.epoch < self.party.config.foundings:
            raise PeerError(f"asked for a row of epoch {msg.epoch}, with a place of epoch {self.secret.epoch}")
        return (yield from self._shared(msg.round, msg.epoch))

    def _shared(self, r: int, epoch: int) -> Work[SharedRow]:
        party, secret, length = self.party, self.secret, described_length(self.party)
        seed = party.secrets("share of a row", r).bytes(SEED_BYTES)
        words = np.zeros(0, np.uint64)
        if length:
            row = yield from party.sums.row()
            words = np.rint(row * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64) - row_share(seed, length)
        key = OpeningKey.generate(party.secrets("key of a place", r).bytes)
        secret.key, secret.wanted = key.to_bytes(), epoch
        sealing = SealingKey(party.common.roster.by_name[self.helper].sealing_key)
        data = DESCRIBED.pack(key.public.to_bytes(), party.sums.secret.weight) + words.tobytes()
        return SharedRow(r, seed, sealing.seal(data, *_BETWEEN[::-1], *_bound(party.keys.own_bytes(ENTRY), epoch)))

    @on(Join, answers=Queries)
    def join(self, msg: Join, src: str) -> Queries:
        """Its group, and its queries. Raises PeerError for a place that the helper has not sealed for it."""
        from_hub(self.party, msg, src)
        queries = self._place(msg, 0)
        self.secret.key = b""
        return queries

    @on(JoinAnew, answers=Queries, when=renews)
    def join_anew(self, msg: JoinAnew, src: str) -> Queries:
        """The same, in groups that were made anew. It may come again, if the answer was lost."""
        from_hub(self.party, msg, src)
        if not 0 < msg.since <= msg.round:
            raise PeerError(f"groups of round {msg.since} in round {msg.round}")
        queries = self._place(msg, msg.since)
        self.secret.epoch = self.secret.wanted
        return queries

    def _place(self, msg: Join | JoinAnew, since: int) -> Queries:
        if not self.secret.key:
            raise PeerError("a place without a description")
        data = OpeningKey.load(self.secret.key).open(msg.place, *_BETWEEN)
        if len(data) != _PLACE.size:
            raise PeerError(f"a place of {len(data)} bytes")
        group, groups, total, theirs = _PLACE.unpack(data)
        if len(msg.masks) != KEY_BYTES * groups:
            raise PeerError(f"{len(msg.masks)} bytes of masks for {groups} groups")
        ours = msg.masks[KEY_BYTES * group : KEY_BYTES * (group + 1)]
        to_hub, to_helper = self.party.row.join(group, groups, total, (ours, theirs), since)
        return Queries(msg.round, to_hub, sealed_to(self.party, self.helper, to_helper, "query", msg.round, since))
