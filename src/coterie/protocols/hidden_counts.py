"""Label counts of hidden groups: each client opens those of its own group, and no server opens any.

    hub     --AskForCounts / HiddenCounts-->  client     its label counts, in one-hot shares (``crypto/one_hot.py``)
    hub     --AddCounts / CountsSealed-->     helper     shares that both count by their tags; the helper's masked rows
    hub     --GroupCounts / Done-->           client     all groups' rows under both servers' masks

Words are x = floor(S n / N): n the label counts, N a power of two that no client's samples reach, S steps, so sums of
fewer than 2^16 samples a client are exact but for noise. A group's sum is formed once: two would differ by some client.
Assumptions are those of ``hidden_sums``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.protocol.core as fl
from coterie.crypto import one_hot, shared_rows
from coterie.crypto.signing import digest
from coterie.protocol import arrays
from coterie.protocols.hidden_sums import OneHot, right_seeds
from coterie.protocols.local_training import counts_labels, label_counts
from coterie.protocols.masked_sums import FEWEST

FINEST = 16
"""A client's counts have at most 2^16 steps."""
SURE = 8.0
"""Standard deviations that noise does not exceed."""


class AskForCounts(fl.FromHub, frozen=True):
    """Send the label counts of your training data in shares."""


class HiddenCounts(OneHot, frozen=True):
    """Of (labels,) words."""


class AddCounts(fl.FromHub, frozen=True):
    """Add the counts of these clients, one name a line. tags: 32 bytes each, by the hub."""

    names: str
    words: fl.Bundle
    checks: bytes
    seeds: fl.Bundle
    tags: bytes


class CountsSealed(fl.OfRound, frozen=True):
    """flags: a byte for each client, 1 if both servers count it.  rows: (G, labels) words under the helper's masks."""

    flags: bytes
    nonce: bytes
    rows: bytes


class GroupCounts(fl.FromHub, frozen=True):
    """rows: (G, labels) under both servers' masks.  nonces: of both.  counted: whether the client's own are in."""

    nonces: bytes
    rows: bytes
    counted: bool


def labels_of(party: Any) -> int:
    return int(party.spec.outputs)


def steps_of(clients: int) -> int:
    """S: a power of two, so that those of so many clients fit words of 32 bits."""
    return 1 << min(FINEST, 29 - clients.bit_length())


def words_of(counts: fl.Integers, largest: float, steps: int) -> fl.Words:
    """(labels,) words. largest: N; more samples are scaled down to it."""
    scale = steps / max(largest, float(counts.sum()))
    return np.asarray(np.floor(counts * scale), np.uint32)


def counts_of(
    total: NDArray[np.int32], own: fl.Integers | None, largest: float, steps: int, weight: int, deviation: float
) -> fl.Integers | None:
    """(labels,) the counts in an opened row; None for a row that no honest clients have made.

    own: the client's counts, if in the sum.  weight: the group's, in 16ths; a client's is at least 1, and two thirds of
    its samples' share of N.  deviation: of the noise, in words.
    """
    slack = SURE * deviation
    least = np.zeros(len(total)) if own is None else words_of(own, largest, steps).astype(np.float64)
    most = 1.5 * weight * steps / shared_rows.PARTS + slack * len(total) ** 0.5
    if (total < least - slack).any() or total.sum(dtype=np.int64) > most:
        return None
    found = np.maximum(np.rint(total * (largest / steps)), 0).astype(np.int64)
    return found if found.any() else None


def _refuse(party: Any) -> None:
    if not party.config.label_counts:
        raise fl.PeerError("label counts, which the settings do not ask for")


def _context(party: Any, name: str, groups: int) -> bytes:
    return digest("coterie/hidden counts/1", party.common.roster.session, name, groups, labels_of(party))


def _deviation(party: Any) -> float:
    clients = len(party.clients)
    return float(party.config.counts_noise(party.config.grid(clients, party.spec)) * steps_of(clients))


# -------------------------------------------------------------------------------------------------------- the clients


class CountsHeld(fl.SecretStruct):
    """SECRET. sent: its counts as sent, in any attempt.  opened: whether it has its group's row.  total: (labels,) its
    group's counts, if possible ones.
    """

    sent: fl.Integers | None = None
    opened: bool = False
    total: fl.Integers | None = None


class ClientCounts(fl.Component):
    """Its party has ``row`` (``ClientRow``), ``sums`` (``ClientSums``), state ``uploads``, and ``helper``."""

    secret: CountsHeld
    LASTS = ("sent",)

    def __init__(self) -> None:
        super().__init__(counts_labels)

    @fl.on(AskForCounts, answers=HiddenCounts)
    def share(self, msg: AskForCounts, src: str) -> fl.Work[HiddenCounts]:
        _refuse(self.party)
        party, secret, row = self.party, self.secret, self.party.row.placed
        clients = len(party.clients)
        if secret.sent is None:
            if not party.config.affords(party.config.grid(clients, party.spec), len(party.state.uploads)):
                raise fl.PeerError(f"{party.name} has spent its privacy budget, and tells no label counts")
            secret.sent = yield fl.Local(label_counts, (labels_of(party),))
        assert secret.sent is not None
        x = words_of(secret.sent, party.sums.largest, steps_of(clients))
        if row.lost:  # it may be of another group
            x = np.zeros_like(x)
        context = _context(party, party.name, row.groups)
        source = party.secrets("shares of counts", msg.round)
        return HiddenCounts.of(party, msg.round, x, context, source, "counts")

    @fl.on(GroupCounts, answers=fl.Done)
    def open(self, msg: GroupCounts, src: str) -> fl.Done:
        # an impossible row is dropped in silence: a refusal would show who is in the group
        _refuse(self.party)
        party, secret, row = self.party, self.secret, self.party.row.placed
        size = shared_rows.NONCE_BYTES
        rows = arrays.words(msg.rows, "<u4", row.groups, labels_of(party))
        if len(msg.nonces) != 2 * size:
            raise fl.PeerError(f"{len(msg.nonces)} bytes are no two nonces")
        if not secret.opened:  # else its answer was late
            total = shared_rows.unmasked(rows[row.group], row.masks, (msg.nonces[:size], msg.nonces[size:]))
            own = secret.sent if msg.counted else None
            steps, noise = steps_of(len(party.clients)), 2**0.5 * _deviation(party)
            secret.total = counts_of(total, own, party.sums.largest, steps, row.total, noise)
            secret.opened = True
        return fl.Done(msg.round)


# -------------------------------------------------------------------------------------------------------- the servers


class ServerCounts(fl.Component):
    """Its party has ``rows`` (``ServerRows``). sign: of this server's shares."""

    sign: int

    def __init__(self) -> None:
        super().__init__(counts_labels)

    def fresh(self) -> fl.Words:
        return np.zeros((self.party.rows.groups, labels_of(self.party)), np.uint32)

    def shows_few(self, added: int) -> str:
        """Why a sum of so many clients must not be formed, or ""."""
        # whoever is absent, each group has enough in it
        config, rows = self.party.config, self.party.rows
        fewest, clients = max(FEWEST, config.fewest), rows.secret.members
        smallest = min(config.min_cluster, clients) if rows.groups > 1 else clients
        if added >= fewest and clients - added <= smallest - fewest:
            return ""
        return f"label counts of {added} of {clients} clients: a group's sum might be of fewer than {fewest}"

    def sealed(self, r: int, total: fl.Words, names: Collection[str]) -> tuple[bytes, fl.Words]:
        """A nonce, and its share with noise under its masks. names: of the counted."""
        party = self.party
        source = party.kept("noise of counts", digest("coterie/counted/1", *sorted(names)))
        noise = shared_rows.noise(total.shape, _deviation(party), source)
        nonce = party.secrets("nonce of counts", r).bytes(shared_rows.NONCE_BYTES)
        return nonce, shared_rows.masked(total + noise, party.rows.secret.masks, nonce)


class CountsGathered(fl.SecretStruct):
    """SECRET: of the hub. shares: by client.  nonces, rows: of both servers.  counted: clients in the sum.  has: those
    that have opened it.
    """

    shares: dict[str, HiddenCounts] = fl.field(default_factory=dict)
    nonces: bytes = b""
    rows: bytes = b""
    counted: frozenset[str] = frozenset()
    has: frozenset[str] = frozenset()


class HubCounts(ServerCounts):
    secret: CountsGathered
    sign = 1

    def gather(self, r: int, names: Sequence[str]) -> fl.Steps[None]:
        """Ask for missing counts, form the sums once they are of enough, and tell them. Failures are tried again
        later.
        """
        secret = self.secret
        if not self.party.config.label_counts or not self.party.rows.groups:
            return
        if not secret.counted:
            yield from self._told(r, [name for name in names if name not in secret.shares])
            if self.shows_few(len(secret.shares)):
                return
            try:
                yield from fl.ask(self.party.helper, self._request(r), CountsSealed, partial(self._sealed, r))
            except (fl.NoAnswerError, fl.PeerError):
                return
        lacking = [name for name in names if name not in secret.has]
        requests = {name: GroupCounts(r, secret.nonces, secret.rows, name in secret.counted) for name in lacking}
        if requests:
            answers = yield from fl.for_each(requests, fl.Done, deadline_s=self.party.config.deadline_s)
            secret.has |= frozenset(answers.got)

    def _told(self, r: int, names: Sequence[str]) -> fl.Steps[None]:
        def fold(name: str, told: HiddenCounts) -> None:
            told.fits(name, labels_of(self.party), self.party.rows.groups)
            self.secret.shares[name] = told

        if names:
            requests = dict.fromkeys(names, AskForCounts(r))
            yield from fl.for_each(requests, HiddenCounts, fold, deadline_s=self.party.config.deadline_s)

    def _request(self, r: int) -> AddCounts:
        groups, shares = self.party.rows.groups, self.secret.shares
        every = list(shares.values())
        seeds = [one_hot.seeds_of(one.master, groups) for one in every]
        tags = [
            one_hot.tag(_context(self.party, name, groups), own, one.check, one_hot.word_name(one.word))
            for (name, one), own in zip(shares.items(), seeds, strict=True)
        ]
        return AddCounts(
            r,
            "\n".join(shares),
            fl.bundle([one.word for one in every]),
            b"".join(one.check for one in every),
            fl.bundle([one.seeds for one in every]),
            b"".join(tags),
        )

    def _sealed(self, r: int, answer: CountsSealed) -> None:
        secret, total = self.secret, self.fresh()
        theirs = arrays.words(answer.rows, "<u4", *total.shape)
        if (answer.round, len(answer.flags), len(answer.nonce)) != (r, len(secret.shares), shared_rows.NONCE_BYTES):
            raise fl.PeerError(f"{len(answer.flags)} flags of round {answer.round} for {len(secret.shares)} counts")
        counted = [name for name, flag in zip(secret.shares, answer.flags, strict=True) if flag == 1]
        if why := self.shows_few(len(counted)):
            raise fl.PeerError(why)
        for name in counted:
            one = secret.shares[name]
            word = arrays.words(one.word, "<u4", labels_of(self.party))
            one_hot.fold(total, one_hot.seeds_of(one.master, len(total)), word, self.sign)
        nonce, own = self.sealed(r, total, counted)
        secret.nonces, secret.rows = nonce + answer.nonce, (own + theirs).tobytes()
        secret.counted, secret.shares = frozenset(counted), {}


class CountsSummed(fl.SecretStruct):
    """SECRET: of the helper. names: of the summed clients, in any attempt."""

    names: frozenset[str] = frozenset()


class HelperCounts(ServerCounts):
    secret: CountsSummed
    LASTS = ("names",)
    sign = -1

    @fl.on(AddCounts, answers=CountsSealed)
    def add(self, msg: AddCounts, src: str) -> CountsSealed:
        """Add the counts whose tags are equal, always of the same clients, and mask the rows."""
        _refuse(self.party)
        names, wide, long = msg.names.split("\n"), one_hot.CHECK_BYTES, one_hot.TAG_BYTES
        if not len(set(names)) == len(names) == len(msg.checks) / wide == len(msg.tags) / long:
            raise fl.PeerError(f"{len(names)} names, and other numbers of checks and tags, or a name twice")
        words, sealed = fl.unbundle(msg.words, len(names)), fl.unbundle(msg.seeds, len(names))
        total, counted = self.fresh(), dict[int, str]()
        for at, name in enumerate(names):
            check, tag = msg.checks[wide * at : wide * (at + 1)], msg.tags[long * at : long * (at + 1)]
            if (seeds := self._seeds(name, words[at], check, sealed[at], tag)) is not None:
                one_hot.fold(total, seeds, arrays.words(words[at], "<u4", labels_of(self.party)), self.sign)
                counted[at] = name
        added = frozenset(counted.values())
        if why := self.shows_few(len(added)):
            raise fl.PeerError(why)
        if self.secret.names not in (frozenset(), added):
            raise fl.PeerError("counts of other clients were summed: the difference would show some")
        self.secret.names = added
        nonce, rows = self.sealed(msg.round, total, added)
        return CountsSealed(msg.round, bytes(at in counted for at in range(len(names))), nonce, rows.tobytes())

    def _seeds(self, name: str, word: bytes, check: bytes, sealed: bytes, told: bytes) -> bytes | None:
        """SECRET: of the helper's shares; None without a place, or for another tag than the hub's."""
        party, named = self.party, one_hot.word_name(bytes(word))
        if name not in party.rows.secret.queries or len(word) != 4 * labels_of(party):
            return None
        return right_seeds(party, name, sealed, check, named, _context(party, name, party.rows.groups), told, "counts")
