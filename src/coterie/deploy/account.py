"""A party's own ledger of what it has released of its data, in every attempt, also those given up.

Reported scores are releases without a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.dp.ledger import DELTA, Entries, Release, add, ledger_of
from coterie.protocol.party import Party
from coterie.protocol.system import Federation, System
from coterie.protocols.local_training import told
from coterie.report.ledger import released
from coterie.transport.envelope import Sent


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

    def count(self, entries: Entries, sent: Sequence[Sent], counted_to: int) -> int:
        """Add what these messages release after number counted_to. Returns the newest number."""
        add(entries, *self.new())
        for envelope in (one.envelope for one in sent):
            if envelope.number > counted_to:
                counted_to = envelope.number
                add(entries, *self.releases(self.told.get(envelope.kind, ()), envelope.round))
        return counted_to

    def in_words(self, entries: Entries) -> str:
        if not self.kept:
            return "no epsilon is known, for this system says nothing of what its clients release"
        said = released({"own": self.statement(entries)})
        return said or "nothing was released yet"

    def facts(self, entries: Entries) -> dict[str, Any]:
        """For the log: epsilon by relation and observer, and releases by kind."""
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


def add_scores(entries: Entries, names: Iterable[str], round: int) -> None:
    add(entries, *(Release(f"score {name}", round=round) for name in names))
