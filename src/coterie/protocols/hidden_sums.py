"""Sums of hidden groups: two servers add clients' vectors inside groups that neither of them knows.

    client  --HiddenUpdate--> hub                   one-hot shares of its vector (``crypto/one_hot.py``)
    hub     --Enlist / Done-->     helper           queries of clients that have joined a group
    hub     --Shares / Counted--> helper            its shares, and the tags by which both count the same uploads
    hub     --SealRows / RowsSealed--> helper       each server's rows under its own masks; then both hold equal rows
    hub     --Fetch / Fetched--> helper             half of an answer, sealed to the client
    hub     --GroupRow / Done-->      client        its row, by private information retrieval of two servers

A row is the running sum of one group (``crypto/shared_rows.py``), of which each server holds a share; a client has both
masks of its own group's row alone. Assumes that the servers do not collude; right sums need servers that follow the
protocol, secrecy needs that of neither, as long as no client helps. docs/systems/coterie.md says what coalitions learn.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import coterie.protocol.core as fl
from coterie.crypto import one_hot, shared_rows
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import OVERHEAD_BYTES, SIGNATURE_BYTES, OpeningKey, SealingKey, digest


class OneHot(fl.OfRound, frozen=True):
    """word: cw, (d,) words.  check: cs.  master: of the hub's seeds.  seeds: the helper's, sealed to it and signed."""

    word: bytes
    check: bytes
    master: bytes
    seeds: bytes

    @classmethod
    def of(cls, party: Any, r: int, x: fl.Words, context: bytes, source: fl.Secrets, *bound: int | str) -> Self:
        """A client's words (d,), in its group."""
        row = party.row.placed
        shares = one_hot.shared(x, row.group, row.groups, context, source)
        word = shares.word.tobytes()
        seeds = sealed_to(party, party.helper, shares.seeds, *bound, shares.check, one_hot.word_name(word))
        return cls(r, word, shares.check, shares.master, seeds)

    def fits(self, name: str, words: int, groups: int) -> None:
        """Raises PeerError for wrong lengths."""
        lengths = len(self.word), len(self.check), len(self.master), len(self.seeds)
        sealed = one_hot.SEED_BYTES * groups + OVERHEAD_BYTES + SIGNATURE_BYTES
        if lengths != (4 * words, one_hot.CHECK_BYTES, one_hot.SEED_BYTES, sealed):
            raise fl.PeerError(f"{name}: shares of {', '.join(map(str, lengths))} bytes")


class HiddenUpdate(OneHot, frozen=True):
    """Of an update."""


class Enlist(fl.FromHub, frozen=True):
    """These clients, one name a line, have a group. queries: of each, sealed to the helper and signed."""

    names: str
    queries: fl.Bundle


class Shares(fl.FromHub, frozen=True):
    """Uploads that came in this round. rounds: (n,) that asked for them.  on_time: how many are this round's own.
    words, checks, seeds: as in ``HiddenUpdate``; with one group the names of words alone (``one_hot.word_name``).
    tags: 32 bytes each, by the hub.  coin, proofs: with ``check=norm`` the hub's part of the coin, and of each proof.
    """

    names: str
    rounds: fl.Integers
    on_time: int
    words: fl.Bundle
    checks: bytes
    seeds: fl.Bundle
    tags: bytes
    coin: bytes
    proofs: fl.Bundle


class Counted(fl.OfRound, frozen=True):
    """flags: a byte for each upload, 1 if counted."""

    flags: bytes


class SealRows(fl.FromHub, frozen=True):
    """All uploads were sent. added: names those that are counted (``Adding.name``).  rows: (G, d) words, masked."""

    added: bytes
    nonce: bytes
    rows: bytes


class RowsSealed(fl.OfRound, frozen=True):
    """The helper's masked rows. signature: over the round, both nonces and the sealed rows' names."""

    nonce: bytes
    rows: bytes
    signature: bytes


class Fetch(fl.FromHub, frozen=True):
    client: str


class FetchFirst(fl.FromHub, frozen=True):
    """On the first rows of groups that were made anew."""

    client: str


class Fetched(fl.OfRound, frozen=True):
    """answer: (d,) words, sealed to the client."""

    answer: bytes


class GroupRow(fl.FromHub, frozen=True):
    """Both servers' answers on the rows that they sealed in the round ``sealed_in``. theirs: the helper's, sealed.
    rounds: added up since groups were made; a skipped one seals nothing.

    With one group ``ours`` is the row, and ``theirs`` is empty.
    """

    sealed_in: int
    rounds: int
    nonces: bytes
    row_names: bytes
    signature: bytes
    ours: bytes
    theirs: bytes


# -------------------------------------------------------------------------------------------------------- the clients


def upload_name(client: str, upload: HiddenUpdate, named: bytes = b"") -> bytes:
    """32 bytes that name what both servers get of an upload, but for the hub's seeds. named: its word's name,
    without the word.
    """
    named = named or one_hot.word_name(upload.word)
    return digest("coterie/upload/1", client, upload.round, named, upload.check, upload.seeds)


def numbers_name(x: fl.Words, after: bytes) -> bytes:
    """32 bytes that name words x (d,). after: a name of the rows before them."""
    return digest("coterie/numbers of an upload/2", x.data, after)


class HeldRow(fl.SecretStruct):
    """SECRET. group: of ``groups``; -1 before it has one.  total: the group's weight D, in 16ths.  masks: both
    servers', of its row.
    round, rounds: of the row that it has opened.  opened: names all rows sealed with that.
    since: the round in which its groups were made, 0 for the set-up.  started: it has opened the first row of groups
    that began with whole models.  lost: its place or a row is none that honest servers give.
    """

    group: int = -1
    groups: int = 0
    total: int = 0
    masks: tuple[bytes, bytes] = (b"", b"")
    round: int = 0
    rounds: int = 0
    since: int = 0
    started: bool = True
    lost: bool = False
    opened: bytes = b""


class ClientRow(fl.Component):
    secret: HeldRow

    def join(
        self, group: int, groups: int, total: int, masks: tuple[bytes, bytes], since: int = 0
    ) -> tuple[bytes, bytes]:
        """Take a place in a group. Returns the queries for the hub and for the helper.

        total: the group's weight, in 16ths.  since: the round that made groups anew.
        """
        # with an impossible weight the client keeps its model, in silence: a server can have spoilt one group's, and a
        # refusal would show who is in it
        secret, possible = self.secret, 0 < total <= shared_rows.PARTS * len(self.party.clients)
        if not since or since != secret.since:  # else the answer was lost
            secret.group, secret.groups, secret.total, secret.masks = group, groups, total if possible else 1, masks
            secret.round, secret.since, secret.started = max(since - 1, 0), since, not (since or self.party.common.warm)
            secret.rounds, secret.lost = 0, not possible
        return shared_rows.queries(secret.group, secret.groups, self.party.secrets("query", since))

    @property
    def placed(self) -> HeldRow:
        """Raises PeerError before it has a group."""
        if self.secret.group < 0:
            raise fl.PeerError(f"{self.party.name} has no group yet")
        return self.secret

    def upload(self, x: fl.Words, r: int) -> HiddenUpdate:
        """Words (d,) in shares. Raises PeerError before it has a group."""
        secret, party = self.placed, self.party
        context = context_of(party, party.name, r, secret.groups, secret.since)
        return HiddenUpdate.of(party, r, x, context, party.secrets("seeds of shares", r), "upload", r)

    def has(self, msg: GroupRow) -> bool:
        """Whether it has opened this row. Raises PeerError unless the hub sends it."""
        return (msg.sealed_in, msg.rounds) == (self.secret.round, self.secret.rounds)

    def opened(self, msg: GroupRow) -> NDArray[np.int32]:
        """(d,) the sum of its group since it was made.

        Raises PeerError for an older row than it has, or an unsigned one. With another than the signed it is ``lost``.
        """
        secret, party = self.secret, self.party
        if secret.group < 0 or msg.sealed_in <= secret.round or msg.rounds <= secret.rounds:
            raise fl.PeerError(f"a row of round {msg.sealed_in}, after that of round {secret.round}")
        verify_rows(party, (msg.sealed_in, msg.rounds), msg.nonces, msg.row_names, msg.signature)
        parts = [msg.ours]
        if secret.groups > 1:
            opening, bound = (
                OpeningKey.load(party.own.identity.opening),
                answer_context(party, msg.round, msg.sealed_in),
            )
            parts.append(opening.open(msg.theirs, party.helper, party.name, *bound))
        if len(msg.row_names) != shared_rows.NAME_BYTES * secret.groups or {*map(len, parts)} != {4 * row_words(party)}:
            raise fl.PeerError(f"a row of {len(msg.ours)} bytes among {len(msg.row_names)} bytes of names")
        row = shared_rows.fetched([np.frombuffer(part, "<u4") for part in parts])
        at = shared_rows.NAME_BYTES * secret.group
        if shared_rows.row_names(row[None]) != msg.row_names[at : at + shared_rows.NAME_BYTES]:
            secret.lost = True  # in silence: which answers are wrong may hang on the row that was asked for
        secret.opened = digest("coterie/rows before/1", msg.row_names)
        size = shared_rows.NONCE_BYTES
        nonces = msg.nonces[:size], msg.nonces[size:]
        secret.round, secret.rounds, secret.started = msg.sealed_in, msg.rounds, True
        return shared_rows.unmasked(row, secret.masks, nonces)


def row_words(party: Any) -> int:
    """One more than the model, where groups may be made anew."""
    return int(party.spec.size) + int(party.config.foundings > 1)


def weight_of(samples: int, most: float) -> int:
    """In 16ths, at least 1: a client's samples over the most that one may have."""
    return min(max(round(shared_rows.PARTS * samples / most), 1), shared_rows.PARTS)


def sealed_to(party: Any, recipient: str, data: bytes, *bound: bytes | int | str) -> bytes:
    """Sealed to one party and signed, for a hub that relays it. bound: must be equal on opening."""
    key = SealingKey(party.common.roster.by_name[recipient].sealing_key)
    bound = (*bound, party.common.roster.session)
    sealed = key.seal(data, party.name, recipient, *bound)
    return signing_key(party.own).sign("sealed", recipient, *bound, sealed) + sealed


def opened_from(party: Any, sender: str, data: bytes, *bound: bytes | int | str) -> bytes:
    """What ``sealed_to`` sealed. Raises PeerError (a SignatureError or SealError)."""
    bound = (*bound, party.common.roster.session)
    signature, sealed = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
    verify_key(party.common, sender).verify(signature, "sealed", party.name, *bound, sealed)
    return OpeningKey.load(party.own.identity.opening).open(sealed, sender, party.name, *bound)


def right_seeds(
    party: Any, name: str, sealed: bytes, check: bytes, named: bytes, context: bytes, tag: bytes, *bound: int | str
) -> bytes | None:
    """SECRET: the helper's seeds of a client's shares; None for others than it sealed, or for another tag than the
    hub's. named: the word's name.
    """
    try:
        seeds = opened_from(party, name, sealed, *bound, check, named)
        right = one_hot.tag(context, seeds, check, named) == tag
    except (fl.PeerError, fl.CryptoError):
        return None
    return seeds if right and len(seeds) == one_hot.SEED_BYTES * party.rows.groups else None


def context_of(party: Any, name: str, r: int, groups: int, since: int) -> bytes:
    """32 bytes that an upload's tag is bound to. r: the round that asked for it.  since: that of the groups."""
    return digest("coterie/hidden sum/1", party.common.roster.session, name, r, groups, since, party.spec.size)


def verify_rows(party: Any, when: tuple[int, int], nonces: bytes, row_names: bytes, signature: bytes) -> None:
    """Raises SignatureError unless the helper has signed these rows. when: ``sealed_in, rounds``."""
    if len(nonces) != 2 * shared_rows.NONCE_BYTES:
        raise fl.PeerError(f"{len(nonces)} bytes are no two nonces")
    verify_key(party.common, party.helper).verify(signature, *said(party, when, nonces, row_names))


def said(party: Any, when: tuple[int, int], nonces: bytes, row_names: bytes) -> tuple[bytes | int | str, ...]:
    return "sealed rows", party.common.roster.session, *when, nonces, row_names


def answer_context(party: Any, r: int, sealed_in: int) -> tuple[bytes | int | str, ...]:
    return "answer", party.common.roster.session, r, sealed_in
