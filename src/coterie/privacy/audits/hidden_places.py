"""What an observer reads of the grouping in the views of a method with hidden groups (``sealed_groups``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.correlation import Groups, Question, answered, chosen, labelled
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import OpeningKey
from coterie.crypto.two_party import Dealt, Exchange, Words64
from coterie.privacy.attacks.hidden_groups import Choice
from coterie.privacy.audits import Recorded
from coterie.privacy.views import granted
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.sealed_groups import ENTRY, OpenRows, SharedRow, Step, Stepped, opened_description
from coterie.protocols.shared_groups import (
    CORRELATIONS,
    described_length,
    found,
    founding,
    gains_of,
    helpers_key,
    row_share,
    sizes_of,
)

T = TypeVar("T")
TOSS = 2
"""The step in which both servers show their nonces: after the weights' bits and the commitments."""


@dataclass(frozen=True, eq=False)
class RowShares:
    """Clients' rows in both servers' shares, (n, length). names: in the order of the helper's positions.

    weights: (n,) the helper's shares of their weights, a byte each.
    """

    names: list[str]
    ours: Words64
    theirs: Words64
    weights: bytes


def row_shares(run: Recorded, hub: str, helper: str) -> dict[int, RowShares]:
    """By round, the rows that were relayed. Whose a position is takes the hub's view."""
    length = described_length(run.federation.look(hub))
    sent = {one.sealed: (seen.src, one.seed) for seen, one in run.views[hub].messages(SharedRow)}
    if not length or not sent:
        return {}
    key, entry = OpeningKey.load(run.views[helper].opening), granted(run.views[helper])[f"secret {ENTRY}"]
    by_position: dict[int, dict[int, tuple[str, Words64, Words64, int]]] = {}
    lists = {r: one.names for (r, one) in ((seen.round, one) for seen, one in run.views[helper].messages(OpenRows))}
    for seen, message in run.views[helper].messages(Relayed):
        name, seed = sent[message.cipher]
        for epoch in range(run.settings.foundings):
            with suppress(PeerError):  # of another founding, or the helper cannot open it either
                one = opened_description(key, (entry, epoch, lists[seen.round]), message.cipher, length)
                told = name, row_share(seed, length), one.row, one.weight
                by_position.setdefault(seen.round, {})[message.position] = told
    return {
        r: RowShares(names, np.stack(ours), np.stack(theirs), bytes(weights))
        for r, held in by_position.items()
        for names, ours, theirs, weights in [map(list, zip(*(held[at] for at in sorted(held)), strict=True))]
    }


@dataclass(frozen=True, eq=False)
class PlacesFound:
    """The founding, as the helper sees it. names: the client at each place, which it does not know.

    choices: between places.  labels: (n,) the group of each place.  gains: (n, n) of places, which
    nobody knows.  most: groups that there may be.  weights: (n,) the helper's shares, of which it knows the places.
    """

    names: list[str]
    choices: list[Choice]
    labels: NDArray[np.int64]
    gains: Words64
    most: int
    weights: NDArray[np.int64]


def found_groups(run: Recorded, hub: str, helper: str) -> PlacesFound:
    """The last founding, made again from both sides' messages. Raises UserError if the views hold none."""
    made = [(seen.round, -1 - one.placing) for seen, one in run.views[helper].messages(OpenRows) if one.placing < 0]
    if not made:
        raise UserError("no groups were made")
    r, number = made[-1]
    shares = row_shares(run, hub, helper)[r]
    asked = {one.number: one.data for _, one in run.views[helper].messages(Step, r)}
    answers = {one.number: one.data for _, one in run.views[hub].messages(Stepped, r)}
    key = helpers_key(granted(run.views[helper])[f"secret {CORRELATIONS}"], number, run.settings.foundings)
    sizes = sizes_of(run.settings, len(run.clients), run.spec)
    dealt = Dealt(1, sizes, key[:SEED_BYTES], key[SEED_BYTES:])
    program = found(dealt, run.settings, shares.theirs, shares.weights, answers[TOSS])
    order = _concluded(program, [asked[number] for number in sorted(asked)]).order
    seed = int.from_bytes(asked[TOSS], "big") ^ int.from_bytes(answers[TOSS], "big")
    gains = gains_of((shares.ours + shares.theirs)[order])
    groups, choices = compared(gains, seed, sizes.groups, run.settings.min_cluster)
    names = [shares.names[at] for at in order]
    weights = np.frombuffer(shares.weights, np.uint8).astype(np.int64)[order]
    return PlacesFound(names, choices, labelled(groups, len(order)), gains, sizes.groups, weights)


def compared(gains: Words64, seed: int, most: int, smallest: int) -> tuple[Groups, list[Choice]]:
    """Groups by these gains (n, n) in an order that the seed tosses, and all choices."""
    choices, signed = list[Choice](), gains.view(np.int64)

    def answer(asked: list[Question]) -> list[int]:
        marks = [chosen(one, signed) for one in asked]
        choices.extend(zip(asked, marks, strict=True))
        return marks

    return answered(founding(seed, len(gains), most, smallest), answer), choices


def _concluded(program: Exchange[T], heard: Sequence[bytes]) -> T:
    """What one side of an exchange returns. heard: the other side's part of each step."""
    next(program)
    try:
        for data in heard:
            program.send(data)
    except StopIteration as end:
        result: T = end.value
        return result
    raise UserError("the views hold no whole grouping: record from the set-up on")
