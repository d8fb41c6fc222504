"""A party's own ledger of what it has released of its data; nobody else has it.

It counts every attempt of a round, also those given up. Reported scores are releases without a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from coterie.dp.ledger import DELTA, Ledger, Release
from coterie.protocol.party import Party
from coterie.protocol.system import Federation, System
from coterie.protocols.local_training import told
from coterie.report.ledger import released
from coterie.transport.envelope import Envelope


class AccountEntry(msgspec.Struct):
    """All releases of one kind. release: without its round.  rounds: of each, in order; 0 is the set-up."""

    release: Release
    rounds: list[int]


Entries = list[AccountEntry]


@dataclass
class Account:
    own: Callable[[], Sequence[Release]] = field(default=lambda: ())
    told: Mapping[str, Sequence[str]] = field(default_factory=dict)
    releases: Callable[[Sequence[str], int], list[Release]] = field(default=lambda words, r: [])
    kept: bool = True
    delta: float = DELTA
    _known: Counter[Release] = field(default_factory=Counter)

    def new(self) -> list[Release]:
        before, self._known = self._known, Counter(self.own())
        return list((self._known - before).elements())

    def by_sending(self, envelope: Envelope) -> list[Release]:
        return self.releases(self.told.get(envelope.kind, ()), envelope.round)

    def in_words(self, entries: Entries) -> str:
        if not self.kept:
            return "no epsilon is known, for this system says nothing of what its clients release"
        said = released({"own": self.statement(entries)})
        return said or "nothing was released yet"

    def facts(self, entries: Entries) -> dict[str, Any]:
        """For the log: epsilon by relation and observer, delta, and releases by kind."""
        counts: Counter[str] = Counter()
        for entry in entries:
            counts[entry.release.what] += len(entry.rounds)
        if not self.kept:
            return {"epsilon": "unknown", "released": dict(counts)}
        said = self.statement(entries)
        return {**{name: said[name] for name in ("epsilon", "against", "delta")}, "released": dict(counts)}

    def statement(self, entries: Entries) -> dict[str, Any]:
        return ledger_of(entries).statement(self.delta)


def account_of(system: System, party: Party, settings: Any) -> Account:
    common = party.common
    if party.name not in common.clients:
        return Account()
    ledger = system.ledger
    alone = Federation({party.name: party}, common.roster.hub, common, lambda name: party, lambda name: party)
    seen = alone.among([party.name])

    def own() -> Sequence[Release]:
        return () if ledger is None else ledger(seen).get(party.name, ())

    def releases(words: Sequence[str], r: int) -> list[Release]:
        return told(settings, party.samples, party.epochs, words, r)

    counted = {kind.__name__: tuple(what) for kind, what in system.counted(settings, common.mode).items()}
    kept = system.ledger is not None or system.releases is not None
    return Account(own, counted, releases, kept, getattr(settings, "dp_delta", DELTA))


def add(entries: Entries, *releases: Release) -> None:
    for one in releases:
        plain: dict[str, Any] = {name: float(value) for name, value in vars(one).items() if isinstance(value, float)}
        kind = replace(one, **{**plain, "round": 0})  # no numbers of numpy
        entry = next((entry for entry in entries if entry.release == kind), None)
        if entry is None:
            entries.append(entry := AccountEntry(kind, []))
        entry.rounds.append(one.round)


def add_scores(entries: Entries, names: Iterable[str], round: int) -> None:
    add(entries, *(Release(f"score {name}", round=round) for name in names))


def ledger_of(entries: Entries) -> Ledger:
    return Ledger(tuple(replace(entry.release, round=r) for entry in entries for r in entry.rounds))
