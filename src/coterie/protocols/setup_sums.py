"""Sums over all clients before round 1, which clients open and no server does.

    hub     --AskForSummand / Summand-->  client       its numbers, in shares
    hub     --Unblind / Unblinded-->      helper       the sum of the helper's shares
    hub     --OpenSum / Done-->           client       the sum, under the clients' masks

A client's numbers x travel as x + m - P(s) to the hub and s to the helper, as words of 64 bits; m follows from the
clients' seed and the client's name, so the hub gets the sum of x under the sum of the m. Each sum is formed once, so
nobody gets two that differ by a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.clustering import evidence
from coterie.clustering.signature import HOLDERS
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.shared_rows import PARTS
from coterie.crypto.signing import digest
from coterie.protocol import arrays
from coterie.protocol.randomness import keystream
from coterie.protocols import signatures
from coterie.protocols.hidden_sums import opened_from, sealed_to, weight_of
from coterie.protocols.masked_sums import FEWEST
from coterie.protocols.signatures import HELD, STATISTICS

CLIENTS = "clients"
"""The grant: a seed of all clients, which no server has."""
SPREAD = 2
"""The third sum: of how far residuals lie apart (``evidence.spread_terms``)."""
FRACTION_BITS = 32  # after the point, of a sum's numbers
LARGEST = 2.0**17  # of a client's term of the spread, so that those of 10,000 clients do not wrap
SIZES = 24  # powers of two that a client's number of samples may reach


class AskForSummand(fl.FromHub, frozen=True):
    number: int


class Summand(fl.OfRound, frozen=True):
    """words: the term under both masks.  seed: of the helper's share, sealed to it and signed."""

    ABOUT = ("round", "number")
    number: int
    words: bytes
    seed: bytes


class Unblind(fl.FromHub, frozen=True):
    """Of these clients' terms, one name a line."""

    number: int
    names: str
    seeds: fl.Bundle


class Unblinded(fl.OfRound, frozen=True):
    ABOUT = ("round", "number")
    number: int
    words: bytes


class OpenSum(fl.FromHub, frozen=True):
    """The sum of these clients' terms, one name a line, under the sum of their masks."""

    number: int
    names: str
    words: bytes


def sums_of(config: Any) -> tuple[int, ...]:
    return (HELD,) if config.clusters == 1 else (HELD, STATISTICS, SPREAD)


def length_of(party: Any, number: int) -> int:
    """In numbers. Raises PeerError for no such sum."""
    if number not in sums_of(party.config):
        raise fl.PeerError(f"there is no sum {number}")
    if number == HELD:  # which labels a client holds, and of what size it is
        return SIZES + (0 if party.config.clusters == 1 else signatures.labels(party.spec))
    return evidence.TERMS if number == SPREAD else signatures.lengths(party.spec)[number]


def _mask(key: bytes, length: int) -> fl.Words64:
    return np.frombuffer(keystream(key, 8 * length), "<u8")


# ---------------------------------------------------------------------------------------------------------- the hub


def summed(hub: Any, names: Sequence[str], number: int) -> fl.Steps[OpenSum]:
    """The hub: the sum of these clients' terms, for ``shown``.

    Raises NoAnswerError for fewer than ``FEWEST``, or without the helper.
    """
    length = length_of(hub, number)
    total, seeds = np.zeros(length, np.uint64), dict[str, bytes]()

    def fold(name: str, term: Summand) -> None:
        np.add(total, arrays.words(term.words, "<u8", length), out=total)
        seeds[name] = term.seed

    requests = dict.fromkeys(names, AskForSummand(0, number))
    yield from fl.for_each(requests, Summand, fold, deadline_s=hub.config.deadline_s)
    if len(seeds) < FEWEST:
        raise fl.NoAnswerError(f"{len(seeds)} of {len(names)} clients sent a term of a sum that needs {FEWEST}")
    told = "\n".join(seeds)
    request = Unblind(0, number, told, fl.bundle(list(seeds.values())))
    shares = yield from fl.ask(hub.helper, request, Unblinded, lambda answer: arrays.words(answer.words, "<u8", length))
    return OpenSum(0, number, told, (total + shares).tobytes())


def shown(hub: Any, total: OpenSum, names: Sequence[str]) -> fl.Steps[tuple[str, ...]]:
    """The hub: show a sum. Returns the clients that have opened it."""
    answers = yield from fl.for_each(dict.fromkeys(names, total), fl.Done, deadline_s=hub.config.deadline_s)
    return tuple(answers.got)


# -------------------------------------------------------------------------------------------------------- the helper


class Unblinding(fl.State):
    """summed: the sums that were formed."""

    summed: frozenset[int] = frozenset()


class HelperSums(fl.Component):
    secret: Unblinding
    LASTS = ("summed",)

    @fl.on(Unblind, answers=Unblinded)
    def unblind(self, msg: Unblind, src: str) -> Unblinded:
        """Once for each number."""
        # sums of two sets would show their difference
        names = msg.names.split("\n")
        if msg.round or msg.number in self.secret.summed or not FEWEST <= len(set(names)) == len(names):
            raise fl.PeerError(f"sum {msg.number} of {len(names)} terms, in round {msg.round}")
        length = length_of(self.party, msg.number)
        total = np.zeros(length, np.uint64)
        for name, sealed in zip(names, fl.unbundle(msg.seeds, len(names)), strict=True):
            total += _mask(opened_from(self.party, name, sealed, "term", msg.number), length)
        self.secret.summed |= {msg.number}
        return Unblinded(msg.round, msg.number, total.tobytes())


# -------------------------------------------------------------------------------------------------------- the clients


class SumsOpened(fl.SecretStruct):
    """SECRET. totals: the opened sums, by number.  weight: of its samples, in 16ths."""

    totals: dict[int, fl.Doubles] = fl.field(default_factory=dict)
    weight: int = 0


class ClientSums(fl.Component):
    """Its party has ``keys`` with ``CLIENTS``, and ``helper``, its name."""

    secret: SumsOpened

    @fl.on(AskForSummand, answers=Summand)
    def contribute(self, msg: AskForSummand, src: str) -> fl.Work[Summand]:
        totals, party = self.secret.totals, self.party
        if msg.round or msg.number != len(totals):
            raise fl.PeerError(f"a term of sum {msg.number} in round {msg.round} after the sums {sorted(totals)}")
        length_of(party, msg.number)
        values = yield from self._term(msg.number)
        seed = party.secrets(f"share of sum {msg.number}").bytes(SEED_BYTES)
        words = np.rint(values * 2.0**FRACTION_BITS).astype(np.int64).view(np.uint64)
        own = _derived(party.keys.own_bytes(CLIENTS), "term", msg.number, party.name)
        words = words + _mask(own, len(words)) - _mask(seed, len(words))
        sealed = sealed_to(party, party.helper, seed, "term", msg.number)
        return Summand(msg.round, msg.number, words.tobytes(), sealed)

    def _term(self, number: int) -> fl.Work[fl.Doubles]:
        if number == STATISTICS:
            statistics: fl.Doubles = yield fl.Local(signatures.label_statistics, (self.kept(), True))
            return statistics
        if number == SPREAD:
            seed = int(self.party.rng("halves").integers(1 << 62))
            terms: fl.Doubles = yield fl.Local(signatures.residual_spread, (*self._reference(), seed))
            return np.clip(terms, -LARGEST, LARGEST)
        size: fl.Doubles = np.zeros(SIZES)
        size[min(self.party.samples.bit_length(), SIZES - 1)] = 1.0
        if self.party.config.clusters == 1:
            return size
        held: fl.Doubles = yield fl.Local(signatures.labels_held, (signatures.labels(self.party.spec),))
        return np.concatenate([held, size])

    def row(self) -> fl.Work[fl.Doubles]:
        """(row_length,) what it shares for the grouping. Raises PeerError before the sums."""
        totals = self.secret.totals
        if totals.keys() != {HELD, STATISTICS, SPREAD}:
            raise fl.PeerError(f"asked for a row after the sums {sorted(totals)}")
        seed = int.from_bytes(_derived(self.party.keys.own_bytes(CLIENTS), "basis"), "big")
        row: fl.Doubles = yield fl.Local(signatures.residual_row, (*self._reference(), totals[SPREAD], seed))
        return row

    def _reference(self) -> tuple[fl.Flags, fl.Doubles]:
        return self.kept(), self.secret.totals[STATISTICS]

    @property
    def largest(self) -> float:
        """A power of two that no client's samples in the sum ``HELD`` reach."""
        return 2.0 ** int(np.flatnonzero(np.rint(self.secret.totals[HELD][-SIZES:]) > 0).max(initial=0))

    def fingerprint(self) -> bytes:
        """32 bytes, equal at all clients that were shown the same sums."""
        totals = sorted(self.secret.totals.items())
        return digest("coterie/sums/1", *(part for number, total in totals for part in (number, total.tobytes())))

    def kept(self) -> fl.Flags:
        return np.asarray(np.rint(self.secret.totals[HELD][:-SIZES]) >= HOLDERS)

    @fl.on(OpenSum, answers=fl.Done)
    def open_sum(self, msg: OpenSum, src: str) -> fl.Work[fl.Done]:
        totals = self.secret.totals
        length = length_of(self.party, msg.number)
        if msg.number != len(totals):
            raise fl.PeerError(f"sum {msg.number} after the sums {sorted(totals)}")
        seed = self.party.keys.own_bytes(CLIENTS)
        masks = yield fl.Compute(_masks, (seed, msg.number, msg.names, length, self.party.clients))
        words = arrays.words(msg.words, "<u8", length) - masks
        totals[msg.number] = np.asarray(words.view(np.int64) * 2.0**-FRACTION_BITS, np.float64)
        if msg.number == HELD:
            private = self.party.config.epsilon is not None  # the noise is sized for the heaviest client
            self.secret.weight = PARTS if private else weight_of(self.party.samples, self.largest)
        return fl.Done(msg.round)


def _masks(seed: bytes, number: int, told: str, length: int, clients: Sequence[str]) -> fl.Words64:
    """Of the clients told, one name a line. Raises PeerError for too few, and for strangers."""
    names, total = told.split("\n"), np.zeros(length, np.uint64)
    if not FEWEST <= len(set(names)) == len(names) or not set(names) <= set(clients):
        raise fl.PeerError(f"a sum of {len(names)} terms; of fewer than {FEWEST} it shows too much")
    for name in names:
        total += _mask(_derived(seed, "term", number, name), length)
    return total


def _derived(seed: bytes, use: str, *of: int | str) -> bytes:
    """16 bytes that all clients know, and no server. seed: the clients'."""
    return digest(f"coterie/{use}/1", seed, *of)[:SEED_BYTES]
