"""The servers' part of sums of hidden groups (``hidden_sums``): each holds one share of every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto import one_hot, shared_rows
from coterie.crypto.roster import signing_key
from coterie.crypto.signing import OVERHEAD_BYTES, SealingKey, digest
from coterie.protocol import arrays
from coterie.protocol.messages import parts_of
from coterie.protocols import hidden_sums as sums
from coterie.protocols.hidden_settings import renews
from coterie.protocols.norm_check import Tossing

BATCH = 16


@dataclass(frozen=True, eq=False)
class Taken:
    """round: that asked for it."""

    name: str
    round: int
    upload: sums.HiddenUpdate


class Adding(fl.State):
    """The uploads that a round has added. on_time: of its own, as the hub says.  of: by client, its round.

    founding: of the groups.
    """

    round: int = 0
    on_time: int = 0
    of: dict[str, int] = fl.field(default_factory=dict)
    founding: int = 0

    def name(self) -> bytes:
        added = (part for one in sorted(self.of.items()) for part in one)
        return digest("coterie/added/1", self.round, self.on_time, *added, *([self.founding] if self.founding else []))


class SealedRows(fl.State, frozen=True):
    """rows: (G, d) that both servers hold, of ``round``. The rest: as in ``GroupRow``."""

    rows: fl.Words
    round: int
    rounds: int
    nonces: bytes
    signature: bytes


class Rows(fl.SecretStruct):
    """SECRET: one server's share of all rows.

    masks: 16 bytes for each group.  totals: (G, d) its share.  since: the round in which groups were made, by which
    founding.  first: the first rows of groups that were made anew.  members: clients with a place.  founders: those of
    them that the groups' weights are of.  added: by round, the name of what its rows were sealed with.
    """

    masks: tuple[bytes, ...] = ()
    totals: fl.Words | None = None
    sealed: SealedRows | None = None
    since: int = 0
    founding: int = 0
    first: SealedRows | None = None
    members: int = 0
    founders: int = 0
    queries: dict[str, bytes] = fl.field(default_factory=dict)
    added: dict[int, bytes] = fl.field(default_factory=dict)


class HelperShare(Rows):
    """SECRET. taken: by round, clients whose upload for it was added.  fresh: (G, d), the sum of ``adding``.
    summed: by round and client, the round that sealed the upload, in any attempt.
    """

    taken: dict[int, frozenset[str]] = fl.field(default_factory=dict)
    summed: dict[int, dict[str, int]] = fl.field(default_factory=dict)
    adding: Adding = fl.field(default_factory=Adding)
    fresh: fl.Words | None = None


class ServerRows(fl.Component):
    """sign: of this server's shares."""

    sign: int
    secret: Any
    LASTS: ClassVar[tuple[str, ...]] = ("added",)  # sums of other uploads in a repeated round would show the difference

    @property
    def groups(self) -> int:
        return len(self.secret.masks)

    @property
    def length(self) -> int:
        return sums.row_words(self.party)

    def found(self, groups: int, founders: int, since: int, founding: int) -> None:
        """Begin with rows of zeros, fresh masks and no queries. since: the round, 0 for the set-up."""
        secret = self.secret
        secret.masks = self.fresh_masks(groups, since)
        secret.totals, secret.sealed, secret.first = self.zeros(), None, None
        secret.queries, secret.members, secret.founders = {}, 0, founders
        secret.since, secret.founding = since, founding

    @property
    def rounds(self) -> int:
        """Added up since groups were made."""
        sealed = self.secret.sealed
        return 0 if sealed is None else int(sealed.rounds)

    @property
    def begins(self) -> bool:
        """Whether the next round adds up whole models, since groups were made anew, or of clients with models."""
        return self.whole and self.secret.first is None

    @property
    def whole(self) -> bool:
        return self.secret.since > 0 or bool(self.party.common.warm)

    def may_add(self, of: int, r: int) -> bool:
        """Whether round r may add an upload of round ``of``: no late one of older groups or whole models."""
        secret = self.secret
        return of == r or not self.whole or (secret.first is not None and of > secret.first.round)

    def fresh_masks(self, groups: int, since: int) -> tuple[bytes, ...]:
        source = self.party.secrets("masks of rows", since)
        return tuple(source.bytes(shared_rows.KEY_BYTES) for _ in range(groups))

    def zeros(self) -> fl.Words:
        return np.zeros((self.groups, self.length), np.uint32)

    def queried(self, client: str, query: bytes) -> None:
        if not shared_rows.is_query(query, self.groups):
            raise fl.PeerError(f"{client}: {len(query)} bytes are no query for {self.groups} groups")
        self.secret.queries[client] = query

    def context(self, name: str, r: int) -> bytes:
        return sums.context_of(self.party, name, r, self.groups, self.secret.since)

    def add_one(self, fresh: fl.Words, adding: Adding, name: str, r: int, seeds: bytes, word: fl.Words) -> None:
        """Raises PeerError for a client's second upload."""
        if name in adding.of:
            raise fl.PeerError(f"two uploads of {name} are counted in round {adding.round}")
        weight = self.weight(adding, adding.round - r)
        one_hot.fold(fresh, seeds, word, self.sign * weight)
        adding.of[name] = r

    def weight(self, adding: Adding, age: int = 0) -> int:
        """Of an upload in its group's row, eq. (2) of ``crypto/shared_rows.py``."""
        # the mean is over the weight of those that made the groups
        return shared_rows.upload_weight(age, self.party.config.expected(self.secret.founders), adding.on_time)

    def masked(self, fresh: fl.Words, adding: Adding) -> tuple[fl.Words, bytes, fl.Words]:
        """Its share with this round's, a fresh nonce, and the share under its masks. Raises PeerError if the round
        has sealed others.
        """
        party, secret, name = self.party, self.secret, adding.name()
        if secret.added.get(adding.round, name) != name:
            raise fl.PeerError(f"round {adding.round} has sealed sums of other uploads: the difference would show some")
        secret.added = {adding.round: name, **{q: one for q, one in secret.added.items() if q + 2 > adding.round}}
        clients = len(party.clients)
        deviation = self.weight(adding) * party.config.noise_on(party.config.grid(clients, party.spec))
        noise = shared_rows.noise(fresh.shape, deviation, party.kept("noise of rows", name, adding.round))
        totals = secret.totals + fresh + noise
        nonce = party.secrets("nonce of rows", adding.round).bytes(shared_rows.NONCE_BYTES)
        return totals, nonce, shared_rows.masked(totals, secret.masks, nonce)

    def keep(self, r: int, totals: fl.Words, sealed: fl.Words, nonces: bytes, signature: bytes) -> None:
        secret, begins = self.secret, self.begins
        secret.totals, secret.sealed = totals, SealedRows(sealed, r, self.rounds + 1, nonces, signature)
        if begins:
            secret.first = secret.sealed

    def shows_few(self, adding: Adding) -> str:
        why: str = self.party.config.shows_few(self.secret.members, len(adding.of), self.groups)
        return why


class HubRows(ServerRows):
    secret: Rows
    sign = 1

    def add(
        self, r: int, on_time: int, uploads: Sequence[Any], load: Any, tossing: Tossing | None = None
    ) -> fl.Steps[int]:
        """Add the uploads that the helper counts, too, and seal the rows. Returns their number.

        on_time: of round r.  tossing: proofs, if lengths are checked. Raises NoAnswerError without the helper.
        """
        fresh, adding = self.zeros(), Adding(r, on_time, founding=self.secret.founding)
        for at in range(0, len(uploads), BATCH):
            some: list[Taken] = [load(one) for one in uploads[at : at + BATCH]]
            words = [arrays.words(one.upload.word, "<u4", self.length) for one in some]
            seeds = [one_hot.seeds_of(one.upload.master, self.groups) for one in some]
            request = self._shares(r, on_time, some, seeds, words, tossing)
            flags = yield from fl.ask(self.party.helper, request, sums.Counted, partial(_flags, len(some)))
            for one, own, word, flag in zip(some, seeds, words, flags, strict=True):
                if flag:
                    self.add_one(fresh, adding, one.name, one.round, own, word)
        if why := self.shows_few(adding):
            raise fl.NoAnswerError(why)
        totals, nonce, masked = self.masked(fresh, adding)
        seal = sums.SealRows(r, adding.name(), nonce, masked.tobytes())
        yield from fl.ask(self.party.helper, seal, sums.RowsSealed, partial(self._sealed, r, totals, nonce, masked))
        return len(adding.of)

    def _shares(
        self,
        r: int,
        on_time: int,
        some: Sequence[Taken],
        seeds: Sequence[bytes],
        words: Sequence[fl.Words],
        tossing: Tossing | None,
    ) -> sums.Shares:
        coin, proofs = b"", list[bytes]()
        if tossing is not None:
            shares = [one_hot.share(own, word) for own, word in zip(seeds, words, strict=True)]
            uploads = [(one.name, one.round) for one in some]
            coin, proofs = tossing.parts[: one_hot.SEED_BYTES], self.party.norms.told(r, tossing, uploads, shares)
        named = [one_hot.word_name(one.upload.word) for one in some]
        tags = [
            one_hot.tag(self.context(one.name, one.round), own, one.upload.check, word)
            for one, own, word in zip(some, seeds, named, strict=True)
        ]
        return sums.Shares(
            r,
            "\n".join(one.name for one in some),
            np.array([one.round for one in some], np.int64),
            on_time,
            fl.bundle(named if self.groups == 1 else [one.upload.word for one in some]),
            b"".join(one.upload.check for one in some),
            fl.bundle([one.upload.seeds for one in some]),
            b"".join(tags),
            coin,
            fl.bundle(proofs),
        )

    def _sealed(self, r: int, totals: fl.Words, nonce: bytes, own: fl.Words, told: sums.RowsSealed) -> None:
        rows = own + arrays.words(told.rows, "<u4", *own.shape)
        nonces = nonce + told.nonce
        sums.verify_rows(self.party, (r, self.rounds + 1), nonces, shared_rows.row_names(rows), told.signature)
        self.keep(r, totals, rows, nonces, told.signature)

    def give(self, r: int, names: Sequence[str], *, first: bool = False) -> fl.Steps[fl.Answers]:
        """Send these clients the rows that were sealed last, or first. Returns the outcomes."""
        secret, theirs = self.secret, dict[str, bytes]()
        sealed = secret.first if first else secret.sealed
        assert sealed is not None
        names = [name for name in names if name in secret.queries]
        if self.groups > 1:
            fetch = sums.FetchFirst if first else sums.Fetch
            fetches = {name: fl.To(self.party.helper, fetch(r, name)) for name in names}
            yield from fl.for_each(fetches, sums.Fetched, partial(self._half, theirs))
        else:
            theirs = dict.fromkeys(names, b"")
        return (yield from fl.for_each(self._rows(r, sealed, theirs), fl.Done, deadline_s=self.party.config.deadline_s))

    def _half(self, theirs: dict[str, bytes], name: str, answer: sums.Fetched) -> None:
        if len(answer.answer) != 4 * self.length + OVERHEAD_BYTES:
            raise fl.PeerError(f"{len(answer.answer)} bytes for {name}")
        theirs[name] = answer.answer

    def _rows(self, r: int, sealed: SealedRows, theirs: Mapping[str, bytes]) -> Mapping[str, sums.GroupRow]:
        when, signed = (r, sealed.round, sealed.rounds), (sealed.nonces, shared_rows.row_names(sealed.rows))

        def row(ours: fl.Words, half: bytes) -> sums.GroupRow:
            return sums.GroupRow(*when, *signed, sealed.signature, ours.tobytes(), half)

        if self.groups == 1:
            return dict.fromkeys(theirs, row(sealed.rows[0], b""))
        queries = self.secret.queries
        return fl.LazyMapping(
            tuple(theirs), lambda name: row(shared_rows.answer(sealed.rows, queries[name]), theirs[name]), held=1
        )


@dataclass(frozen=True, eq=False)
class _Good:
    """An upload whose tag is right, at the helper. seeds: SECRET.  named: its word's name."""

    name: str
    upload: sums.HiddenUpdate
    named: bytes
    seeds: bytes
    word: fl.Words


class HelperRows(ServerRows):
    secret: HelperShare
    LASTS = ("summed",)  # sealed once more, with other noise, an upload would be released twice
    sign = -1

    @fl.on(sums.Enlist, answers=fl.Done)
    def enlist(self, msg: sums.Enlist, src: str) -> fl.Done:
        # a query that cannot be read is its client's loss alone
        names = msg.names.split("\n")
        for name, sealed in zip(names, fl.unbundle(msg.queries, len(names)), strict=True):
            with suppress(fl.PeerError, fl.CryptoError):
                self.queried(name, sums.opened_from(self.party, name, sealed, "query", msg.round, self.secret.since))
        return fl.Done(msg.round)

    @fl.on(sums.Shares, answers=sums.Counted)
    def count(self, msg: sums.Shares, src: str) -> sums.Counted:
        secret = self.secret
        if msg.round != secret.adding.round:
            if msg.round <= secret.adding.round:
                raise fl.PeerError(f"uploads of round {msg.round} after those of round {secret.adding.round}")
            secret.adding, secret.fresh = Adding(msg.round, msg.on_time, founding=secret.founding), None
            oldest = msg.round - self.party.config.max_staleness
            secret.taken = {of: names for of, names in secret.taken.items() if of >= oldest}
            secret.summed = {of: names for of, names in secret.summed.items() if of >= oldest}
        if msg.on_time != secret.adding.on_time or not 0 <= msg.on_time <= len(self.party.clients):
            raise fl.PeerError(f"{msg.on_time} uploads on time, after {secret.adding.on_time}")
        names, rounds = msg.names.split("\n"), msg.rounds.tolist()
        wide, tags = one_hot.CHECK_BYTES, one_hot.TAG_BYTES
        if not len(names) == len(rounds) == len(msg.checks) / wide == len(msg.tags) / tags:
            raise fl.PeerError(f"{len(names)} names, {len(rounds)} rounds, and other numbers of checks and tags")
        words, sealed = parts_of(msg.words, len(names)), fl.unbundle(msg.seeds, len(names))
        good: dict[int, _Good] = {}
        for at, (name, r) in enumerate(zip(names, rounds, strict=True)):
            check, told = msg.checks[wide * at : wide * (at + 1)], msg.tags[tags * at : tags * (at + 1)]
            upload = sums.HiddenUpdate(r, b"", check, b"", sealed[at])
            again = any(name == one.name for one in good.values())
            if not again and (found := self._good(msg.round, name, upload, words[at], told)) is not None:
                good[at] = found
        if self.party.config.check == "norm":
            good = self._short(msg, good)
        elif msg.coin or fl.unbundle(msg.proofs, 0):
            raise fl.PeerError("proofs of lengths, which are not checked")
        fresh = self.zeros() if secret.fresh is None else secret.fresh.copy()
        for one in good.values():
            of = one.upload.round
            secret.taken[of] = secret.taken.get(of, frozenset()) | {one.name}
            self.add_one(fresh, secret.adding, one.name, of, one.seeds, one.word)
        secret.fresh = fresh
        return sums.Counted(msg.round, bytes(at in good for at in range(len(names))))

    def _good(self, r: int, name: str, upload: sums.HiddenUpdate, data: memoryview, told: bytes) -> _Good | None:
        """An upload that may be counted, by its tag; else None. data: its word, or with one group the word's name."""
        secret, of = self.secret, upload.round
        if name in secret.adding.of:  # a second upload in a round would count twice for noise
            return None
        late = r - of
        if name not in secret.queries or not 0 <= late <= self.party.config.max_staleness:
            return None
        if name in secret.taken.get(of, ()) or secret.summed.get(of, {}).get(name, r) != r or not self.may_add(of, r):
            return None
        words = None if self.groups == 1 else arrays.words(data, "<u4", self.length)
        named = bytes(data) if words is None else one_hot.word_name(words)
        sealed, context = (upload.seeds, upload.check, named), self.context(name, of)
        if (seeds := sums.right_seeds(self.party, name, *sealed, context, told, "upload", of)) is None:
            return None
        try:
            word = one_hot.no_word(seeds, self.length) if words is None else words
        except fl.CryptoError:
            return None
        return _Good(name, upload, named, seeds, word)

    def _short(self, msg: sums.Shares, good: Mapping[int, _Good]) -> dict[int, _Good]:
        norms = self.party.norms
        coin, told = norms.coin(msg.round, msg.coin), fl.unbundle(msg.proofs, len(msg.names.split("\n")))
        uploads = [
            (one.name, one.upload.round, sums.upload_name(one.name, one.upload, one.named)) for one in good.values()
        ]
        shares = [np.negative(one_hot.share(one.seeds, one.word)) for one in good.values()]
        short = norms.short(coin, uploads, [told[at] for at in good], shares)
        return {at: one for (at, one), holds in zip(good.items(), short, strict=True) if holds}

    @fl.on(sums.SealRows, answers=sums.RowsSealed)
    def seal(self, msg: sums.SealRows, src: str) -> sums.RowsSealed:
        secret = self.secret
        if msg.round != secret.adding.round or secret.fresh is None or len(msg.nonce) != shared_rows.NONCE_BYTES:
            raise fl.PeerError(f"rows of round {msg.round} after uploads of round {secret.adding.round}")
        if msg.added != secret.adding.name():
            raise fl.PeerError(f"the hub has added other uploads in round {msg.round}")
        if why := self.shows_few(secret.adding):
            raise fl.PeerError(why)
        totals, nonce, own = self.masked(secret.fresh, secret.adding)
        rows, nonces = own + arrays.words(msg.rows, "<u4", *own.shape), msg.nonce + nonce
        when = msg.round, self.rounds + 1
        signature = signing_key(self.party.own).sign(*sums.said(self.party, when, nonces, shared_rows.row_names(rows)))
        self.keep(msg.round, totals, rows, nonces, signature)
        for name, of in secret.adding.of.items():
            secret.summed[of] = {**secret.summed.get(of, {}), name: msg.round}
        secret.fresh = None
        return sums.RowsSealed(msg.round, nonce, own.tobytes(), signature)

    @fl.on(sums.Fetch, answers=sums.Fetched)
    def fetch(self, msg: sums.Fetch, src: str) -> sums.Fetched:
        # sealed to the client: the hub would learn the group
        return self._half_for(msg, src, self.secret.sealed)

    @fl.on(sums.FetchFirst, answers=sums.Fetched, when=renews)
    def fetch_first(self, msg: sums.FetchFirst, src: str) -> sums.Fetched:
        return self._half_for(msg, src, self.secret.first)

    def _half_for(self, msg: sums.Fetch | sums.FetchFirst, src: str, sealed: SealedRows | None) -> sums.Fetched:
        secret, entry = self.secret, self.party.common.roster.by_name.get(msg.client)
        if sealed is None or entry is None or msg.client not in secret.queries:
            raise fl.PeerError(f"{msg.client} has asked for no row, or no rows are sealed")
        answer = shared_rows.answer(sealed.rows, secret.queries[msg.client]).tobytes()
        bound = sums.answer_context(self.party, msg.round, sealed.round)
        return sums.Fetched(msg.round, SealingKey(entry.sealing_key).seal(answer, self.party.name, msg.client, *bound))


def _flags(count: int, answer: sums.Counted) -> list[bool]:
    if len(answer.flags) != count:
        raise fl.PeerError(f"{len(answer.flags)} flags for {count} uploads")
    return [flag == 1 for flag in answer.flags]
