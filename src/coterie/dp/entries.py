"""A ledger as a party stores it: each kind of release once, with its rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from coterie.dp.ledger import Ledger, Release


class AccountEntry(msgspec.Struct):
    """All releases of one kind.  release: without its round.  rounds: of each, in order; 0 is the set-up."""

    release: Release
    rounds: list[int]


Entries = list[AccountEntry]


def add(entries: Entries, *releases: Release) -> None:
    for one in releases:
        plain: dict[str, Any] = {name: float(value) for name, value in vars(one).items() if isinstance(value, float)}
        kind = replace(one, **{**plain, "round": 0})  # no numbers of numpy
        entry = next((entry for entry in entries if entry.release == kind), None)
        if entry is None:
            entries.append(entry := AccountEntry(kind, []))
        entry.rounds.append(one.round)


def ledger_of(entries: Entries) -> Ledger:
    return Ledger(tuple(replace(entry.release, round=r) for entry in entries for r in entry.rounds))
