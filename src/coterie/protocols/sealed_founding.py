"""The hub's part of groups that no server learns by name (``sealed_groups``): it founds them, and makes them anew.

**Renewal.** When ``TOGETHER`` or more of those with a place have come or left, groups are made anew of all that have a
place: with randomness that was dealt for one founding, fresh shares of rows, keys, masks and queries. Rows are asked
for (``AskForRowAnew``) until all are in, so a founding leaves out nobody but those that left; places are offered
(``JoinAnew``) until they are taken. The set-up sums stay as they are: those of other clients would show who differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import OVERHEAD_BYTES
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import OfRound, bundle, unbundle
from coterie.protocol.party import To
from coterie.protocol.steps import NoAnswerError, Steps, ask, for_each, post
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import Enlist, Enlisted
from coterie.protocols.sealed_groups import (
    DESCRIBED,
    AskForRow,
    AskForRowAnew,
    Join,
    JoinAnew,
    OpenRows,
    OpenRowsAnew,
    Queries,
    RowsRead,
    Settle,
    Settled,
    SharedRow,
    Step,
    Stepped,
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


class Grouping(msgspec.Struct):
    """The hub's state. sums: as sent to clients.  has: the clients that have all sums.  groups: how many there are.

    joined: the clients with a place.  places: that are sealed for clients who have not taken them yet.
    """

    sums: tuple[OpenSum, ...] = ()
    has: frozenset[str] = frozenset()
    groups: int = 0
    joined: frozenset[str] = frozenset()
    places: dict[str, bytes] = msgspec.field(default_factory=dict)

    @property
    def members(self) -> frozenset[str]:
        return self.joined | self.places.keys()


class HubSecret(msgspec.Struct):
    """SECRET: of the hub. rows: for the next founding, so far.  founders: of the last one.  refused: those whose rows
    the helper did not group, since it had grouped those of nearly the same clients.
    """

    shared: Shared = msgspec.field(default_factory=Shared)
    rows: dict[str, SharedRow] = msgspec.field(default_factory=dict)
    founders: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


class HubGroups(ServerGroups):
    """Steps of the hub, which has ``keys`` with ``CORRELATIONS`` and ``rows`` (``HubRows``).

    Its state has ``founded``, and ``silent``: by client, the round since which it has been asked in vain.
    """

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
        hub, founded = self.party, self.party.state.founded
        has = founded.has
        for total in founded.sums:
            late = [name for name in names if name not in founded.has]
            has |= frozenset((yield from shown(replace(total, round=r), late, deadline_s)))
        epoch = self.secret.shared.epoch
        described = yield from self._described(r, [name for name in names if name in has], epoch, deadline_s)
        hub.state.founded = replace(founded, has=has)
        yield from self._grouped(r, helper, described, not founded.groups, deadline_s)

    def renew(self, r: int, helper: str, left: Set[str], deadline_s: float | None) -> Steps[bool]:
        """In round r: make groups anew, if that is due and all rows are in. Returns whether they are.

        left: clients that no longer answer. Raises NoAnswerError if the helper fails once it groups the rows.
        """
        secret, members = self.secret, self.party.state.founded.members - left
        due = len(members ^ secret.founders) >= TOGETHER and len(members) >= self.fewest() and members != secret.refused
        if not self.unfounded() or not due:
            secret.rows = {}
            return False
        secret.rows = {name: row for name, row in secret.rows.items() if name in members}
        lacking = [name for name in self.party.clients if name in members - secret.rows.keys()]
        secret.rows |= yield from self._described(r, lacking, secret.shared.epoch + 1, deadline_s)
        if secret.rows.keys() != members:
            return False
        rows, secret.rows = secret.rows, {}
        yield from self._grouped(r, helper, rows, True, deadline_s)
        secret.refused = frozenset() if secret.founders == members else members
        return not secret.refused

    def _described(
        self, r: int, names: Sequence[str], epoch: int, deadline_s: float | None
    ) -> Steps[dict[str, SharedRow]]:
        """Rows of these clients in shares, for the groups of this epoch."""
        described = dict[str, SharedRow]()
        sealed = DESCRIBED.size + 8 * described_length(self.party) + OVERHEAD_BYTES

        def fold(name: str, answer: SharedRow) -> None:
            if (answer.round, len(answer.seed), len(answer.sealed)) != (r, SEED_BYTES, sealed):
                raise PeerError(f"{name}: a row of {len(answer.sealed)} bytes, of round {answer.round} in round {r}")
            described[name] = answer

        request = AskForRowAnew(r, epoch) if epoch else AskForRow(r)
        yield from for_each(dict.fromkeys(names, request), SharedRow, fold, deadline_s=deadline_s)
        return described

    def _grouped(
        self, r: int, helper: str, described: Mapping[str, SharedRow], anew: bool, deadline_s: float | None
    ) -> Steps[None]:
        """Give places to these clients, as far as possible. anew: in groups that they make."""
        hub = self.party
        order = sorted(described, key=hub.clients.index)
        order = [order[at] for at in hub.secrets("shuffle", r).permutation(len(order))]
        for at in range(0, len(order), FOUNDERS):
            some = order[at : at + FOUNDERS]
            if len(some) >= self.fewest() or hub.config.clusters == 1:
                if not (yield from self._join(r, helper, some, described, anew, deadline_s)):
                    return  # newcomers wait until groups are made anew
                if anew:
                    self.secret.founders, anew = frozenset(order), False

    def _join(
        self,
        r: int,
        helper: str,
        order: Sequence[str],
        rows: Mapping[str, SharedRow],
        anew: bool,
        deadline_s: float | None,
    ) -> Steps[bool]:
        """Give places to these clients, at positions in this order. Returns whether randomness was left for it."""
        hub, length = self.party, described_length(self.party)
        unused = self.unused() if self.party.state.founded.groups and not anew else self.unfounded()
        if not unused:
            return False
        yield from post({at: To(helper, Relayed(r, at, rows[name].sealed)) for at, name in enumerate(order)})
        begun = yield from self._begun(r, helper, order, unused, anew)
        if begun is None:
            return False
        placing, order = begun
        if length:
            self.begin(placing)
            shares = np.stack([row_share(rows[name].seed, length) for name in order])
            running = Running(self.program(placing, shares, self.nonce(r)))
            while running.placed is None:
                step = Step(r, running.number, running.data)
                yield from ask(helper, step, Stepped, partial(_take, r, running))
        if anew:
            hub.state.founded = replace(hub.state.founded, groups=0, joined=frozenset(), places={})
        groups, places = yield from ask(helper, Settle(r), Settled, partial(self._settled, r, order))
        if anew:
            hub.rows.found(groups, r, self.secret.shared.founding)
        hub.rows.secret.members += len(places)
        hub.state.founded = replace(hub.state.founded, groups=groups)
        yield from self._seat(r, helper, places, deadline_s)
        return True

    def _begun(
        self, r: int, helper: str, order: Sequence[str], unused: Sequence[int], anew: bool
    ) -> Steps[tuple[int, list[str]] | None]:
        """The first of these placings that the helper begins with what was relayed, and who is at which position.

        Of an attempt that was dropped the helper remembers what it has begun, and the hub does not. None if it makes no
        groups anew of these clients. Raises NoAnswerError if it does nothing else.
        """
        names, refused = "\n".join(sorted(order)), NoAnswerError("nothing was dealt")
        for placing in unused:
            request = OpenRowsAnew(r, placing, names) if placing < -1 else OpenRows(r, placing)
            try:
                return placing, (yield from ask(helper, request, RowsRead, partial(_opened, r, order)))
            except NoAnswerError as error:
                refused = error
        if unused[0] < -1:
            return None
        raise refused

    def hand_out(self, r: int, helper: str, names: Sequence[str], deadline_s: float | None) -> Steps[None]:
        """Offer these clients the places that they have not taken yet."""
        places = self.party.state.founded.places
        if some := {name: places[name] for name in names if name in places}:
            yield from self._seat(r, helper, some, deadline_s)

    def _seat(self, r: int, helper: str, places: Mapping[str, bytes], deadline_s: float | None) -> Steps[None]:
        """Have these clients take their places. Places in groups that were made anew are kept for those that do not."""
        hub, since = self.party, self.party.rows.secret.since
        masks = b"".join(hub.rows.secret.masks)
        queries = dict[str, bytes]()

        def join(name: str, answer: Queries) -> None:
            if answer.round != r:
                raise PeerError(f"{name} joins in round {answer.round}, in round {r}")
            hub.rows.queried(name, answer.ours)
            hub.state.silent.pop(name, None)
            queries[name] = answer.theirs

        joins = {
            name: JoinAnew(r, since, place, masks) if since else Join(r, place, masks) for name, place in places.items()
        }
        yield from for_each(joins, Queries, join, deadline_s=deadline_s)
        if queries:
            enlist = Enlist(r, "\n".join(queries), bundle(list(queries.values())))
            yield from ask(helper, enlist, Enlisted, partial(_of_round, r))
        founded = hub.state.founded
        waiting = {**founded.places, **places} if since else {}
        left = {name: place for name, place in waiting.items() if name not in queries}
        hub.state.founded = replace(founded, joined=founded.joined | frozenset(queries), places=left)

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
