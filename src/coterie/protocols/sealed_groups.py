"""Groups that no server learns by name, made by two servers from shares of the clients' rows.

    hub     --AskForRow / SharedRow-->   client       its row in shares, sealed to the helper; in it, sealed, the hub's
    hub     --Relayed, OpenRows / RowsRead--> helper  what is sealed, in a secret order; the hub's, in another
    hub     --Step / Stepped-->          helper       the grouping (``shared_groups``), step by step
    hub     --Settle / Settled-->        helper       the group of each position
    hub     --Join / Queries-->          client       its group, sealed to it alone; its queries for both servers
    hub     --Enlist / Done-->           helper       (``hidden_sums``)

A row passes two shuffles (mixes: Chaum, CACM 1981): the hub relays it at a *position*, and the helper gives the hub's
share back at a *place*, so neither server has a share whose name it knows. The helper learns which positions are in one
group; the hub which name is at which position, how many groups there are, and the steps of the grouping at places; a
client its group and the group's weight.

**Newcomers** are placed in batches: a lone one would show the helper its name.

**Which clients' rows are grouped together** is stated in each: a client seals its row for a list of names that has its
own, with a mark for each server (``mark_of``). Each server groups rows whose marks are those of all on the list, by the
same set-up sums; the helper no list that shows what few clients add (``isolates``). docs/systems/coterie_appendix.md
has the arguments.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.marks import MARK_BYTES, add_up, mark
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.shared_rows import KEY_BYTES, PARTS
from coterie.crypto.signing import OVERHEAD_BYTES, OpeningKey, SealingKey, digest
from coterie.protocols.anonymous import Relayed, check_relayed
from coterie.protocols.hidden_settings import renews
from coterie.protocols.hidden_sums import sealed_to
from coterie.protocols.openings import shows_few
from coterie.protocols.shared_groups import (
    FRACTION_BITS,
    Running,
    ServerGroups,
    Shared,
    UnderWay,
    described_length,
    row_share,
)

ENTRY = "entry"
"""The grant: a seed of all clients and the helper, without which nobody can place a row."""
_PLACE = struct.Struct(f"<HHQ{KEY_BYTES}s")  # group, groups, the helper's share of the group's weight, its mask
_OURS = struct.Struct(f"<{SEED_BYTES}s{MARK_BYTES}s")  # of the hub's share of row and weight; the mark for the hub
OURS_BYTES = _OURS.size + OVERHEAD_BYTES
DESCRIBED = struct.Struct(f"<32sB{MARK_BYTES}s{OURS_BYTES}s")  # key for the answer, share of the weight, mark, _OURS
_BETWEEN = "helper", "client"  # the ends of sealed bytes that name no client
_TO_HUB = "client", "hub"


def weight_share(seed: bytes) -> int:
    """SECRET: the hub's share of a client's weight in 16ths, less 1, in bits mod 2. seed: of its share of the row."""
    return int(digest("coterie/weight/1", seed)[0]) % PARTS


def list_as_told(party: Any, names: Collection[str]) -> str:
    """Names of the clients whose rows are grouped, one a line; with one group of all, where they open nothing, a
    digest.
    """
    told = "\n".join(sorted(names))
    return digest("coterie/list of all/1", told).hex() if party.config.clusters == 1 else told


class AskForRow(fl.FromHub, frozen=True):
    """Send your row in shares, to be grouped with those of these clients (``list_as_told``). epoch: how often groups
    were made anew.
    """

    epoch: int
    names: str


class SharedRow(fl.OfRound, frozen=True):
    """sealed: to the helper, its share, a key for the answer, and ``_OURS``."""

    sealed: bytes


class OpenRows(fl.FromHub, frozen=True):
    """All rows of these clients, one name a line, were sent: group them. placing: of newcomers, or -1 - n for founding
    n.
    """

    placing: int
    names: str


class RowsRead(fl.OfRound, frozen=True):
    """positions: (m,), those with a row for this list, ascending; none if their marks do not add up.
    ours: what was sealed to the hub, by place, if all rows are to be grouped.
    """

    positions: fl.Integers
    ours: fl.Bundle


class Step(fl.FromHub, frozen=True):
    """data: what the hub's side of the grouping yields in this step, from 0."""

    number: int
    data: bytes


class Stepped(fl.OfRound, frozen=True):
    ABOUT = ("round", "number")
    number: int
    data: bytes


class Settle(fl.FromHub, frozen=True):
    """Seal the places of all that were grouped."""


class Settled(fl.OfRound, frozen=True):
    """groups: how many.  places: sealed to their clients, in the order of grouping."""

    groups: int
    places: fl.Bundle


class Join(fl.FromHub, frozen=True):
    """Take your place. masks: the hub's, of all rows.  weights: its shares of all groups' weights, 8 bytes each."""

    place: bytes
    masks: bytes
    weights: bytes


class JoinAnew(fl.FromHub, frozen=True):
    """As ``Join``, in groups that were made anew in round ``since``."""

    since: int
    place: bytes
    masks: bytes
    weights: bytes


class Queries(fl.OfRound, frozen=True):
    """theirs: sealed to the helper and signed."""

    ours: bytes
    theirs: bytes


# -------------------------------------------------------------------------------------------------------- the helper


class GroupsFound(fl.SecretStruct):
    """SECRET: of the helper.

    held: sealed rows by position, of ``round``.  opened: keys of those that are being grouped.  placed: key and group
    of those that the round has grouped.
    grouped: lists of clients whose rows were grouped, in any attempt.  given: names of rows whose shares the hub was
    given together, likewise.
    """

    shared: Shared = fl.field(default_factory=Shared)
    round: int = -1
    held: dict[int, bytes] = fl.field(default_factory=dict)
    opened: tuple[bytes, ...] = ()
    under_way: UnderWay | None = None
    placed: tuple[tuple[bytes, int], ...] = ()
    grouped: tuple[frozenset[str], ...] = ()
    given: frozenset[frozenset[bytes]] = frozenset()


class HelperGroups(ServerGroups):
    """It has ``keys`` with ``CORRELATIONS``, ``rows`` (``HelperRows``), config ``clusters``, and ``running``, made
    again from ``under_way`` after a restart.
    """

    secret: GroupsFound
    number = 1

    @fl.on(Relayed)
    def hold(self, msg: Relayed, src: str) -> None:
        check_relayed(self.party, msg)
        if msg.round != self.secret.round:
            self.secret.round, self.secret.held, self.secret.placed = msg.round, {}, ()
        self.secret.held[msg.position] = msg.cipher

    def lasts(self, secret: GroupsFound) -> None:
        super().lasts(secret)
        self.secret.grouped, self.secret.given, self.secret.under_way = secret.grouped, secret.given, None

    @fl.on(OpenRows, answers=RowsRead)
    def open(self, msg: OpenRows, src: str) -> RowsRead:
        # Rows of exactly the same clients may be grouped again. One that comes again beside fresh ones is none: what
        # the hub gets back would show whose these are.
        secret, one = self.secret, self.party.config.clusters == 1
        first = secret.shared.rows is None
        if (msg.placing == -1) != first or (one and msg.placing < -1):
            raise fl.PeerError(f"placing {msg.placing} with {len(secret.shared.members)} groups")
        held, secret.held = secret.held if msg.round == secret.round else {}, {}
        names = frozenset(msg.names.split("\n"))
        read, ours = self._read(held, secret.shared.epoch + (msg.placing < -1), list_as_told(self.party, names)), []
        sent = {at: digest("coterie/row/1", held[at]) for at in read}
        if (now := frozenset(sent.values())) not in secret.given:
            before = frozenset[bytes]().union(*secret.given)
            read = {at: row for at, row in read.items() if sent[at] not in before}
        if len(read) == len(names):
            if not one and not add_up(row.mark for row in read.values()):
                return RowsRead(msg.round, np.zeros(0, np.int64), fl.bundle([]))
            order = self.party.secrets("order of places", msg.round).permutation(len(read))
            rows = list(read.values())
            secret.given |= {now}
            secret.opened = tuple(row.key for row in rows)
            if one and not first:
                self._place([0] * len(rows))
            else:
                self._prepare(msg, names, order, [rows[at] for at in order])
            ours = [rows[at].ours for at in order]
        return RowsRead(msg.round, np.array(list(read), np.int64), fl.bundle(ours))

    def _read(self, held: Mapping[int, bytes], epoch: int, names: str) -> dict[int, Description]:
        """By position, the rows for this epoch and list, each client's once."""
        read, marks = dict[int, Description](), set[bytes]()
        for at, data in sorted(held.items()):
            one = self._description(data, epoch, names)
            if one is not None and one.mark not in marks:
                read[at] = one
                marks.add(one.mark)
        return read

    def _prepare(self, msg: OpenRows, names: frozenset[str], order: fl.Integers, rows: Sequence[Description]) -> None:
        """Ready to group these rows, by place, unless that would show too much."""
        secret = self.secret
        if len(names) > self.sizes.clients:
            raise fl.PeerError(f"{len(names)} rows; randomness is dealt for {self.sizes.clients}")
        if len(names) < self.fewest():
            raise fl.PeerError(f"{len(names)} rows; of fewer than {self.fewest()} the hub would learn groups by name")
        if isolates(names, secret.grouped, self.fewest()):
            raise fl.PeerError(
                f"beside lists that were grouped before, this one of {len(names)} clients shows what fewer than "
                f"{self.fewest()} of them add: group it when more have come or left"
            )
        self.unbegun(msg.placing)
        self.party.running = None
        shares, weights = np.stack([one.row for one in rows]), bytes(one.weight for one in rows)
        secret.under_way = UnderWay(msg.round, msg.placing, names, self.nonce(msg.round), order, shares, weights)

    @fl.on(Step, answers=Stepped)
    def step(self, msg: Step, src: str) -> Stepped:
        running, now = self._running(), self.secret.under_way
        assert now is not None
        if msg.round != now.round:
            raise fl.PeerError(f"a step in round {msg.round} of a grouping of round {now.round}")
        if msg.number != running.number:
            raise fl.PeerError(f"step {msg.number} of a grouping after step {running.number}")
        if not now.begun:
            self.begin(now.placing)
            self.secret.grouped, now.begun = tuple(dict.fromkeys((*self.secret.grouped, now.names))), True
        answer, self.party.running = running.data, None
        try:
            running.step(msg.data)
        except (fl.PeerError, fl.CryptoError):
            self.secret.under_way = None  # a second try would tell more than the first
            return Stepped(msg.round, msg.number, b"")
        if running.labels is None:
            self.party.running = running
            now.heard.append(msg.data)
        else:
            labels = np.empty(len(now.order), np.int64)
            labels[now.order] = running.labels
            self._place(labels.tolist())
            self.secret.under_way = None
        return Stepped(msg.round, msg.number, answer)

    def _running(self) -> Running:
        now: UnderWay | None = self.secret.under_way
        running: Running | None = self.party.running
        if now is None:
            raise fl.PeerError("no grouping is under way")
        if running is None or running.number != len(now.heard):
            running = Running(self.program(now.placing, now.rows, now.weights, now.nonce))
            for data in now.heard:
                running.step(data)
            self.party.running = running
        return running

    def _place(self, labels: Sequence[int]) -> None:
        secret = self.secret
        secret.placed = (*secret.placed, *zip(secret.opened, labels, strict=True))
        secret.opened = ()

    @fl.on(Settle, answers=Settled)
    def settle(self, msg: Settle, src: str) -> Settled:
        # groups' weights are fixed when groups are made
        secret, rows = self.secret, self.party.rows
        begun = secret.under_way is not None and secret.under_way.begun
        if msg.round != secret.round or not secret.placed or begun:
            raise fl.PeerError(f"places of round {msg.round}; of round {secret.round} {len(secret.placed)} are grouped")
        weights = secret.shared.weights
        assert weights is not None
        if not self.settled:
            rows.found(len(weights), len(secret.placed), msg.round, secret.shared.founding)
        rows.secret.members += len(secret.placed)
        sealed = [
            self._sealed(key, _PLACE.pack(k, len(weights), int(weights[k]), rows.secret.masks[k]))
            for key, k in secret.placed
        ]
        secret.placed = ()
        return Settled(msg.round, len(weights), fl.bundle(sealed))

    def _sealed(self, key: bytes, place: bytes) -> bytes:
        """Random bytes for a key that is none, which costs that client its place."""
        try:
            return SealingKey(key).seal(place, *_BETWEEN)
        except (fl.PeerError, fl.CryptoError):
            return bytes(self.party.secrets("no place", self.secret.round).bytes(len(place) + OVERHEAD_BYTES))

    def _description(self, sealed: bytes, epoch: int, names: str) -> Description | None:
        try:
            key, entry = OpeningKey.load(self.party.own.identity.opening), self.party.keys.own_bytes(ENTRY)
            return opened_description(key, (entry, epoch, names), sealed, described_length(self.party))
        except (fl.PeerError, fl.CryptoError):
            return None


@dataclass(frozen=True, eq=False)
class Description:
    """A client, at the helper.  weight: the helper's share, as ``weight_share``.  ours: what is sealed to the hub.

    mark: of this client for the list, equal in all of its rows for it, so that it counts once.
    """

    key: bytes
    weight: int
    mark: bytes
    ours: bytes
    row: fl.Words64


def opened_description(key: OpeningKey, bound: tuple[bytes, int, str], sealed: bytes, length: int) -> Description:
    """What a client has sealed to the helper. key: the helper's.  bound: the grant ``ENTRY``, the epoch, and the list.

    Raises PeerError for any other row.
    """
    data = key.open(sealed, *_BETWEEN[::-1], *bound)
    if len(data) != DESCRIBED.size + 8 * length:
        raise fl.PeerError(f"a description of {len(data)} bytes")
    answer, weight, mark, ours = DESCRIBED.unpack_from(data)
    return Description(answer, weight % PARTS, mark, ours, np.frombuffer(data, "<u8", offset=DESCRIBED.size))


def opened_seeds(
    key: OpeningKey, epoch: int, names: str, sealed: Sequence[bytes], *, marked: bool
) -> list[bytes] | None:
    """SECRET: seeds of the hub's shares, as clients have sealed them for this list, or None if they are not of all on
    it, by their marks. key: the hub's.

    Not marked, of one group of all: what cannot be read counts as a seed of zeros, which makes its client's weight
    wrong.
    """
    seeds, marks = list[bytes](), set[bytes]()
    for one in sealed:
        try:
            seed, to_hub = _OURS.unpack(key.open(one, *_TO_HUB, epoch, names))
        except (fl.PeerError, fl.CryptoError, struct.error):
            if marked:
                return None
            seed, to_hub = bytes(SEED_BYTES), b""
        seeds.append(seed)
        marks.add(to_hub)
    return None if marked and not (len(marks) == len(sealed) and add_up(marks)) else seeds


# -------------------------------------------------------------------------------------------------------- the clients


class Describing(fl.SecretStruct):
    """SECRET. key: opens its place.  wanted: the epoch of its last row.  epoch: of its place."""

    key: bytes = b""
    wanted: int = 0
    epoch: int = 0


class ClientGroups(fl.Component):
    """Its party has ``keys`` with ``ENTRY``, ``sums`` (``ClientSums``), ``row`` (``ClientRow``), ``helper``."""

    secret: Describing

    @fl.on(AskForRow, answers=SharedRow)
    def describe(self, msg: AskForRow, src: str) -> fl.Work[SharedRow]:
        """Its row in fresh shares, until it has a place."""
        # then, beside others, it would show what these add
        party, secret, length = self.party, self.secret, described_length(self.party)
        if party.row.secret.group >= 0 and msg.epoch <= secret.epoch:
            raise fl.PeerError("it has its place: rows that come again, beside others, show what the others add")
        beside = party.config.clusters == 1 or party.name in msg.names.split("\n")
        if not 0 <= msg.epoch < party.config.foundings or not beside:
            raise fl.PeerError(f"asked for a row of epoch {msg.epoch}, or beside others alone")
        if not party.sums.secret.weight:
            raise fl.PeerError("asked for a row before the set-up sums, which tell its weight")
        seed = party.secrets("share of a row", msg.round).bytes(SEED_BYTES)
        words = np.zeros(0, np.uint64)
        if length:
            row = yield from party.sums.row()
            words = np.rint(row * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64) - row_share(seed, length)
        key = OpeningKey.generate(party.secrets("key of a place", msg.round).bytes)
        secret.key, secret.wanted = key.to_bytes(), msg.epoch
        sealing = SealingKey(party.common.roster.by_name[self.party.helper].sealing_key)
        weight = (party.sums.secret.weight - 1) ^ weight_share(seed)
        to_hub, to_helper = (mark_of(party, msg.epoch, msg.names, of) for of in (src, self.party.helper))
        hub = SealingKey(party.common.roster.by_name[src].sealing_key)
        ours = hub.seal(_OURS.pack(seed, to_hub), *_TO_HUB, msg.epoch, msg.names)
        data = DESCRIBED.pack(key.public.to_bytes(), weight, to_helper, ours) + words.tobytes()
        bound = party.keys.own_bytes(ENTRY), msg.epoch, msg.names
        return SharedRow(msg.round, sealing.seal(data, *_BETWEEN[::-1], *bound))

    @fl.on(Join, answers=Queries)
    def join(self, msg: Join, src: str) -> Queries:
        if self.party.row.secret.group >= 0:
            raise fl.PeerError("it has its place")
        queries = self._place(msg, 0)
        self.secret.key = b""
        return queries

    @fl.on(JoinAnew, answers=Queries, when=renews)
    def join_anew(self, msg: JoinAnew, src: str) -> Queries:
        # it may come again, if the answer was lost
        if not 0 < msg.since <= msg.round:
            raise fl.PeerError(f"groups of round {msg.since} in round {msg.round}")
        queries = self._place(msg, msg.since)
        self.secret.epoch = self.secret.wanted
        return queries

    def _place(self, msg: Join | JoinAnew, since: int) -> Queries:
        # with a place that cannot be read the client behaves as all others, or a refusal would show its group by name
        if not self.secret.key:
            raise fl.PeerError("a place without a description")
        groups = len(msg.masks) // KEY_BYTES
        if not groups or (len(msg.masks), len(msg.weights)) != (KEY_BYTES * groups, 8 * groups):
            raise fl.PeerError(f"{len(msg.masks)} bytes of masks, and {len(msg.weights)} of weights")
        total, place = 0, self._opened(msg.place, groups)
        group, weight, theirs = place or (0, 0, bytes(KEY_BYTES))
        if place is not None:
            total = (weight + int(np.frombuffer(msg.weights, "<u8")[group])) % 2**64
        ours = msg.masks[KEY_BYTES * group : KEY_BYTES * (group + 1)]
        to_hub, to_helper = self.party.row.join(group, groups, total, (ours, theirs), since)
        return Queries(
            msg.round, to_hub, sealed_to(self.party, self.party.helper, to_helper, "query", msg.round, since)
        )

    def _opened(self, place: bytes, groups: int) -> tuple[int, int, bytes] | None:
        """The group, the helper's share of its weight and its mask; None for nonsense."""
        try:
            data = OpeningKey.load(self.secret.key).open(place, *_BETWEEN)
            group, of, weight, theirs = _PLACE.unpack(data)
        except (fl.PeerError, fl.CryptoError, struct.error):
            return None
        return (group, weight, theirs) if group < groups == of else None


def mark_of(client: Any, epoch: int, told: str, server: str) -> bytes:
    """SECRET: a client's mark for this server, this list as told, this making of groups, and the set-up sums that the
    row follows from. With one group of all, marks only tell rows apart. Raises PeerError for a list with others than
    clients.
    """
    if client.config.clusters == 1:
        once: bytes = client.kept(f"mark of a row, {server}", told.encode(), epoch).bytes(MARK_BYTES)
        return once
    roster, others = client.common.roster, dict[str, SealingKey]()
    for name in {*told.split("\n")} - {client.name}:
        entry = roster.by_name.get(name)
        if entry is None or entry.role != client.role:
            raise fl.PeerError(f"asked for a row beside that of {name!r}, who is no client of this federation")
        others[name] = SealingKey(entry.sealing_key)
    key, sums = OpeningKey.load(client.own.identity.opening), client.sums.fingerprint()
    return mark(key, client.name, others, digest("coterie/list/2", roster.session, epoch, told, server, sums))


def isolates(names: frozenset[str], before: Sequence[frozenset[str]], fewest: int) -> bool:
    """Whether sums and differences of this list's rows and of earlier lists' show what fewer clients than this add.
    The earlier ones alone do not. May err by True.

    Clients of the same earlier lists count alike in each of these sums. Where too few remain by that, all sums are
    tried (``shows_few``).
    """
    inside, outside = Counter[tuple[bool, ...]](), Counter[tuple[bool, ...]]()
    for name in names.union(*before):
        (inside if name in names else outside)[tuple(name in one for one in before)] += 1
    remain = sum(min(count, outside[of]) if any(of) else count for of, count in inside.items())
    return remain < fewest and names not in before and shows_few([*before, names], fewest)
