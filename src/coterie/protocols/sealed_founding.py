"""The hub's part of groups that no server learns by name (``sealed_groups``): it founds them, and makes them anew.

**Renewal.** When ``TOGETHER`` or more of those with a place have come or left, groups are made anew of all that have a
place, with fresh randomness, shares, keys, masks and queries. It waits until all rows are in, and offers places
(``JoinAnew``) until they are taken. The set-up sums stay: those of other clients would show who differs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import chain, combinations, pairwise

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto.signing import OVERHEAD_BYTES, SIGNATURE_BYTES, OpeningKey
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import Enlist
from coterie.protocols.sealed_groups import (
    DESCRIBED,
    AskForRow,
    Join,
    JoinAnew,
    OpenRows,
    Queries,
    RowsRead,
    Settle,
    Settled,
    SharedRow,
    Step,
    Stepped,
    isolates,
    list_as_told,
    opened_seeds,
    weight_share,
)
from coterie.protocols.setup_sums import OpenSum, shown, summed, sums_of
from coterie.protocols.shared_groups import (
    FOUNDERS,
    TOGETHER,
    Running,
    ServerGroups,
    Shared,
    described_length,
    row_share,
)


class Grouping(fl.State):
    """The hub's state. sums: as sent.  has: clients with all of them.  joined: with a place.  places: sealed, not taken
    yet.
    """

    sums: tuple[OpenSum, ...] = ()
    has: frozenset[str] = frozenset()
    groups: int = 0
    joined: frozenset[str] = frozenset()
    places: dict[str, bytes] = fl.field(default_factory=dict)

    @property
    def members(self) -> frozenset[str]:
        return self.joined | self.places.keys()


MOST_FALSE = 80
"""Refused lists of a run, after which the hub offers no more."""

Batch = tuple[str, ...]


class HubSecret(fl.State):
    """SECRET: of the hub.  batches: for the next founding.  grouped: as at the helper.  refused: members whose rows are
    not grouped beside these lists.  false: the epochs and lists whose marks do not add up, here or by the helper's
    word, in any attempt.
    """

    shared: Shared = fl.field(default_factory=Shared)
    batches: tuple[Batch, ...] = ()
    rows: dict[str, SharedRow] = fl.field(default_factory=dict)
    founders: frozenset[str] = frozenset()
    grouped: tuple[frozenset[str], ...] = ()
    refused: frozenset[str] = frozenset()
    false: frozenset[tuple[int, frozenset[str]]] = frozenset()


class HubGroups(ServerGroups):
    """Its party has ``keys`` with ``CORRELATIONS``, ``rows`` (``HubRows``), and state ``founded``, and ``silent``: by
    client, since which round it has been asked in vain.
    """

    secret: HubSecret
    number = 0

    def lasts(self, secret: HubSecret) -> None:
        super().lasts(secret)
        self.secret.grouped, self.secret.false = secret.grouped, secret.false
        self.secret.rows = {}  # those of the attempt that was dropped would show whose are the fresh ones beside them

    def found(self, names: Sequence[str]) -> fl.Steps[None]:
        """Before round 1: the set-up sums over these clients, and their groups.

        Raises NoAnswerError for fewer than ``FEWEST`` clients, or without the helper.
        """
        names, sums = tuple(names), list[OpenSum]()
        for number in sums_of(self.party.config):
            sums.append((yield from summed(self.party, names, number)))
            names = yield from shown(self.party, sums[-1], names)
        self.party.state.founded = Grouping(tuple(sums), frozenset(names))
        yield from self.place(0, names)
        if not self.party.state.founded.joined:
            raise fl.NoAnswerError(
                f"no client has a group: see the refusals. {len(self.secret.false)} lists had a false mark, of a "
                "client or by the helper's word: leave out clients that you do not trust, or replace the helper"
            )

    def place(self, r: int, names: Sequence[str]) -> fl.Steps[None]:
        """Give these clients a place, as far as possible. Raises NoAnswerError without the helper."""
        hub, founded = self.party, self.party.state.founded
        has = founded.has
        for total in founded.sums:
            late = [name for name in names if name not in founded.has]
            has |= frozenset((yield from shown(hub, fl.changed(total, round=r), late)))
        hub.state.founded = fl.changed(founded, has=has)
        batches = self._batches([name for name in names if name in has])
        yield from self._grouped(r, batches, {}, not founded.groups)

    def renew(self, r: int, left: Set[str]) -> fl.Steps[bool]:
        """Make groups anew, if that is due and all rows are in. Returns whether they are.

        left: clients that no longer answer. Raises NoAnswerError if the helper fails.
        """
        if self.party.config.clusters == 1:
            return False  # who comes is in the group of all
        secret, members = self.secret, self.party.state.founded.members - left
        due = len(members ^ secret.founders) >= TOGETHER and len(members) >= self.fewest() and members != secret.refused
        if not self.unfounded() or not due:
            secret.batches, secret.rows = (), {}
            return False
        if members != frozenset().union(*secret.batches):  # rows say beside whose others they are
            secret.batches, secret.rows = self._batches(members), {}
            if self._isolate(secret.batches):
                secret.batches, secret.refused = (), members
                return False
        yield from self._described(r, secret.batches, secret.rows, secret.shared.epoch + 1)
        if secret.rows.keys() != members:
            return False
        yield from self._grouped(r, secret.batches, secret.rows, True)
        secret.batches, secret.rows = (), {}
        secret.refused = frozenset() if secret.founders == members else members
        return not secret.refused

    def _isolate(self, batches: Sequence[Batch]) -> bool:
        """Whether the helper would refuse one, beside those before it."""
        held = list(self.secret.grouped)
        for batch in map(frozenset, batches):
            if isolates(batch, held, self.fewest()):
                return True
            held.append(batch)
        return False

    def _batches(self, names: Collection[str]) -> tuple[Batch, ...]:
        """In a secret order, the same in every round."""
        # so few different lists are offered
        clients = self.party.clients
        order = [clients[at] for at in self.party.kept("shuffle", b"").permutation(len(clients))]
        order = [name for name in order if name in set(names)]
        count = 1 if self.party.config.clusters == 1 else -(-len(order) // FOUNDERS)
        ends = [len(order) * at // max(count, 1) for at in range(count + 1)]
        return tuple(tuple(order[a:b]) for a, b in pairwise(ends))

    def _described(self, r: int, batches: Sequence[Batch], rows: dict[str, SharedRow], epoch: int) -> fl.Steps[None]:
        """Add to ``rows`` those that these batches lack."""
        sealed = DESCRIBED.size + 8 * described_length(self.party) + OVERHEAD_BYTES

        def fold(name: str, answer: SharedRow) -> None:
            if len(answer.sealed) != sealed:
                raise fl.PeerError(f"{name}: a row of {len(answer.sealed)} bytes; expected {sealed}")
            rows[name] = answer

        requests = dict[str, AskForRow]()
        for batch in batches:
            request = AskForRow(r, epoch, list_as_told(self.party, batch))
            requests |= dict.fromkeys((name for name in batch if name not in rows), request)
        yield from fl.for_each(requests, SharedRow, fold, deadline_s=self.party.config.deadline_s)

    def _grouped(self, r: int, batches: Sequence[Batch], rows: dict[str, SharedRow], anew: bool) -> fl.Steps[None]:
        """Give places to these clients, as far as possible. rows: some of theirs.  anew: in groups that the first batch
        makes."""
        hub, placed = self.party, list[str]()
        left = [(batch, True) for batch in batches]  # and whether to divide it
        while left:
            batch, divides = left.pop(0)
            if not set(batch).isdisjoint(placed):
                continue  # another part of the same list has been grouped
            some, parts = yield from self._join(r, batch, rows, anew and not placed)
            placed += some
            left += [(part, len(parts) == 2) for part in parts if divides]  # halves are divided again
            if anew and hub.state.founded.groups and not placed:
                break  # groups that are made anew leave out nobody
        if not placed:
            return
        if anew:
            self.secret.founders = frozenset(placed)
            hub.state.founded = fl.changed(hub.state.founded, groups=0, joined=frozenset(), places={})
        groups, places = yield from fl.ask(hub.helper, Settle(r), Settled, partial(self._settled, placed))
        if anew:
            hub.rows.found(groups, len(places), r, self.secret.shared.founding)
        hub.rows.secret.members += len(places)
        hub.state.founded = fl.changed(hub.state.founded, groups=groups)
        yield from self._seat(r, places)

    def _join(
        self, r: int, batch: Batch, rows: dict[str, SharedRow], anew: bool
    ) -> fl.Steps[tuple[Batch, tuple[Batch, ...]]]:
        """Group those in this batch whose rows can be read. Returns them, by position; nobody without randomness, or if
        the list would show few.

        rows: some of theirs. If a mark is false, nobody can say whose: then also parts of the list to try, but for
        groups that are made anew.
        """
        secret, one = self.secret, self.party.config.clusters == 1
        epoch = secret.shared.epoch + (anew and self.party.state.founded.groups > 0)
        while len(batch) >= self.fewest():
            names, parts = frozenset(batch), self._parts(batch) if epoch == secret.shared.epoch else ()
            if (epoch, names) in secret.false:
                return (), parts
            if len(secret.false) >= MOST_FALSE or (not one and isolates(names, secret.grouped, self.fewest())):
                break
            yield from self._described(r, [batch], rows, epoch)
            read, placing, told = tuple(name for name in batch if name in rows), None, list_as_told(self.party, batch)
            if read == batch:
                ordered = sorted(batch, key=self.party.clients.index)
                batch = tuple(ordered[at] for at in self.party.secrets("shuffle", r).permutation(len(batch)))
                placing, read, ours = yield from self._relayed(r, batch, rows, anew)
                if placing is not None and read == batch:
                    key = OpeningKey.load(self.party.own.identity.opening)
                    if (seeds := opened_seeds(key, epoch, told, ours, marked=not one)) is not None:
                        secret.grouped = tuple(dict.fromkeys((*secret.grouped, names)))
                        yield from self._steps(r, placing, seeds)
                        return batch, ()
                    read = ()
            for name in batch:  # they are asked again, for a list without the others
                rows.pop(name, None)
            if placing is not None:  # the marks of this list may be known by name now, so it is not offered again
                secret.false |= {(epoch, names)}
                if not read:
                    return (), parts
            batch = tuple(name for name in batch if name in read)
        return (), ()

    def _parts(self, batch: Batch) -> tuple[Batch, ...]:
        """Lists to try if a mark of this list is false."""
        # Both halves. Where these would be small, all but each client, for one liar. Then, for two, all but each two of
        # equal blocks: as large ones as leave enough clients.
        fewest, at = self.fewest(), len(batch) // 2
        if at > fewest:
            return batch[:at], batch[at:]
        out: list[tuple[Batch, ...]] = [((name,),) for name in batch] if len(batch) > fewest else []
        if size := (len(batch) - fewest) // 2:
            out += combinations([batch[k : k + size] for k in range(0, len(batch), size)], 2)
        return tuple(tuple(name for name in batch if name not in chain(*some)) for some in out)

    def _relayed(
        self, r: int, batch: Batch, rows: Mapping[str, SharedRow], anew: bool
    ) -> fl.Steps[tuple[int | None, Batch, tuple[bytes, ...]]]:
        """The first unused placing that the helper lets begin, whose rows it can read, and, by place, what is sealed
        to the hub, if it can read all. None and nobody's if none begins.
        """
        helper = self.party.helper
        yield from fl.post({at: fl.To(helper, Relayed(r, at, rows[name].sealed)) for at, name in enumerate(batch)})
        for placing in self.unfounded() if anew else self.unused():
            request = OpenRows(r, placing, "\n".join(sorted(batch)))
            with suppress(fl.NoAnswerError):
                return placing, *(yield from fl.ask(helper, request, RowsRead, partial(_read, batch)))
        return None, (), ()

    def _steps(self, r: int, placing: int, seeds: Sequence[bytes]) -> fl.Steps[None]:
        if self.party.config.clusters == 1 and placing >= 0:
            return  # there is one group to be in, whose weight is fixed
        self.begin(placing)
        shares = np.stack([row_share(seed, described_length(self.party)) for seed in seeds])
        running = Running(self.program(placing, shares, bytes(map(weight_share, seeds)), self.nonce(r)))
        while running.labels is None:
            step = Step(r, running.number, running.data)
            yield from fl.ask(self.party.helper, step, Stepped, lambda answer: running.step(answer.data))

    def hand_out(self, r: int, names: Sequence[str]) -> fl.Steps[None]:
        places = self.party.state.founded.places
        if some := {name: places[name] for name in names if name in places}:
            yield from self._seat(r, some)

    def _seat(self, r: int, places: Mapping[str, bytes]) -> fl.Steps[None]:
        """Have these clients take their places. Untaken ones in groups that were made anew are kept."""
        hub, since = self.party, self.party.rows.secret.since
        masks, shares = b"".join(hub.rows.secret.masks), self.secret.shared.weights
        assert shares is not None
        weights = shares.tobytes()
        queries = dict[str, bytes]()

        def join(name: str, answer: Queries) -> None:
            if len(answer.theirs) != len(answer.ours) + OVERHEAD_BYTES + SIGNATURE_BYTES:
                raise fl.PeerError(f"{name}: {len(answer.theirs)} bytes of a sealed query")
            hub.rows.queried(name, answer.ours)
            hub.state.silent.pop(name, None)
            queries[name] = answer.theirs

        joins = {
            name: JoinAnew(r, since, place, masks, weights) if since else Join(r, place, masks, weights)
            for name, place in places.items()
        }
        yield from fl.for_each(joins, Queries, join, deadline_s=hub.config.deadline_s)
        if queries:
            ordered = sorted(queries)  # answers may come in the order of positions
            enlist = Enlist(r, "\n".join(ordered), fl.bundle([queries[name] for name in ordered]))
            yield from fl.ask(hub.helper, enlist, fl.Done)
        founded = hub.state.founded
        waiting = {**founded.places, **places} if since else {}
        left = {name: place for name, place in waiting.items() if name not in queries}
        hub.state.founded = fl.changed(founded, joined=founded.joined | frozenset(queries), places=left)

    def _settled(self, order: Sequence[str], answer: Settled) -> tuple[int, dict[str, bytes]]:
        before = self.party.state.founded.groups
        most = len(self.secret.shared.members) or 1
        if not answer.groups == most == (before or most):
            raise fl.PeerError(f"{answer.groups} groups, after {before}")
        return answer.groups, dict(zip(order, fl.unbundle(answer.places, len(order)), strict=True))


def _read(order: Sequence[str], answer: RowsRead) -> tuple[Batch, tuple[bytes, ...]]:
    """Names at the positions that can be opened, and if all can, what is sealed to the hub."""
    where = answer.positions.tolist()
    if where != sorted(set(where)) or not set(where) <= set(range(len(order))):
        raise fl.PeerError(f"positions {where} of {len(order)}")
    ours = fl.unbundle(answer.ours, len(order) if len(where) == len(order) else 0)
    return tuple(order[at] for at in where), tuple(ours)
