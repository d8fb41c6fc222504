"""What the parties of Coterie find out from their views, beside ``hidden_coalitions`` and ``hidden_grouping``.

A party "if" something were so is a control: it shows what the protocol, or its noise, hides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.spectral import unit_rows
from coterie.privacy.attacks.labels import label_numbers
from coterie.privacy.audits import Audit, Finding, Measured, Recorded, attack, tried
from coterie.privacy.audits.hidden_coalitions import COALITIONS, coalitions
from coterie.privacy.audits.hidden_grouping import grouping_steps, planted_row
from coterie.privacy.audits.hidden_places import RowShares, row_shares
from coterie.privacy.measures import alike, profiles
from coterie.privacy.views import by_round
from coterie.protocols.hidden_sums import HiddenUpdate
from coterie.protocols.sealed_groups import Queries
from coterie.protocols.setup_sums import Summand
from coterie.systems.coterie.messages import HELPER, HUB

Floats = NDArray[np.float64]


# -- single servers ----------------------------------------------------------------------------------------------------


@attack("hidden-words", HUB, "labels")
def hidden_words(run: Recorded) -> Iterator[Measured]:
    """Reads words of uploads and set-up sums as numbers: labels, and which are alike."""
    terms = dict[str, bytes]()
    for seen, term in run.views[HUB].messages(Summand):
        terms.setdefault(seen.src, term.words)  # of the first sum: who holds which label
    if names := [name for name in run.clients if name in terms]:
        numbers, counts = _numbers([terms[name] for name in names], "<i8"), run.label_counts[run.numbers(names)]
        found = tried(HUB, "label shares, by terms of a sum", lambda: label_numbers(numbers, counts))
        yield from [found] * len(run.lines)  # it has them in every round
    for updates in by_round(run.views[HUB], HiddenUpdate).values():
        names = [name for name in updates if name in run.clients]
        if len(names) > 2:
            words = _numbers([updates[name].word for name in names], "<i4")
            yield from profiles(HUB, words, run.label_counts[run.numbers(names)], run.spec)
            yield from _alike(run, HUB, "uploads", names, words)


@attack("hidden-rows", "hub, or helper", "groups")
def hidden_rows(run: Recorded, rows: Sequence[RowShares]) -> Iterator[Measured]:
    """Reads its shares of rows, and queries, as numbers: which clients are alike.

    The hub's by name, the helper's by position; whose those are takes both views, for the score alone.
    """
    asked = {name: one.ours for of in by_round(run.views[HUB], Queries).values() for name, one in of.items()}
    names = [name for name in run.clients if name in asked]
    for _ in run.lines:  # they have them in every round
        if len(names) > 2:
            bits: Floats = np.stack([np.unpackbits(np.frombuffer(asked[name], np.uint8)) * 2.0 - 1 for name in names])
            yield from _alike(run, HUB, "queries", names, bits)
        for one in rows:
            for who, words in ((HUB, one.ours), (HELPER, one.theirs)):
                yield from _alike(run, who, "rows", one.names, words.view(np.int64).astype(np.float64))


def _numbers(words: Sequence[bytes], kind: str) -> Floats:
    return np.stack([np.frombuffer(one, kind).astype(np.float64) for one in words])


def _alike(run: Recorded, who: str, by: str, names: Sequence[str], numbers: Floats) -> Iterator[Measured]:
    units = unit_rows(numbers)
    yield from alike(run, who, by, units @ units.T, run.numbers(names))


def passive(run: Recorded) -> list[Finding]:
    rows = list(row_shares(run, HUB, HELPER).values())
    return [*hidden_words(run), *hidden_rows(run, rows), *(grouping_steps(run) if rows else ()), *coalitions(run)]


AUDIT = Audit(passive, planted_row, (grouping_steps, *COALITIONS, planted_row))
