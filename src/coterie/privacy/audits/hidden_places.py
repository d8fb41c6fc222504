"""An observer's reading of the grouping in a method with hidden groups (``sealed_groups``)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.correlation import Groups, Question, answered, chosen, labelled
from coterie.crypto.signing import OpeningKey
from coterie.privacy.attacks.hidden_groups import Choice
from coterie.privacy.audits import Recorded
from coterie.privacy.views import granted
from coterie.protocol.arrays import Words64
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.messages import split
from coterie.protocols.anonymous import Relayed
from coterie.protocols.sealed_groups import (
    ENTRY,
    Description,
    OpenRows,
    RowsRead,
    SharedRow,
    Step,
    Stepped,
    opened_description,
    opened_seeds,
)
from coterie.protocols.shared_groups import described_length, founding, gains_of, row_share, sizes_of

TOSS = 2
"""The step in which both servers show their nonces: after the weights' bits and the commitments."""


@dataclass(frozen=True, eq=False)
class RowShares:
    """Clients' rows in both servers' shares, (n, length). names: by place.

    weights: (n,) the helper's shares of their weights, a byte each.
    """

    names: list[str]
    ours: Words64
    theirs: Words64
    weights: bytes


def row_shares(run: Recorded, hub: str, helper: str) -> dict[int, RowShares]:
    """By round, the rows of its last founding, or else of its first placing."""
    length = described_length(run.federation.look(hub))
    sent = {one.sealed: seen.src for seen, one in run.views[hub].messages(SharedRow)}
    if not length or not sent:
        return {}
    keys = [OpeningKey.load(run.views[server].opening) for server in (hub, helper)]
    entry = granted(run.views[helper])[f"secret {ENTRY}"]
    lists = {(seen.round, one.names): one.placing < 0 for seen, one in run.views[helper].messages(OpenRows)}
    held = dict[bytes, tuple[str, tuple[int, str], Description]]()  # by what is sealed to the hub
    for seen, message in run.views[helper].messages(Relayed):
        for of in product(range(run.settings.foundings), (names for r, names in lists if r == seen.round)):
            with suppress(PeerError):  # of another founding or list, or the helper cannot open it either
                one = opened_description(keys[1], (entry, *of), message.cipher, length)
                held[one.ours] = sent[message.cipher], of, one
    found = dict[int, RowShares]()
    for seen, answer in run.views[hub].messages(RowsRead):
        rows = [held[bytes(one)] for one in split(answer.ours) or ()]
        if not rows:
            continue
        told, (count, names) = [one for _, _, one in rows], rows[0][1]
        seeds = opened_seeds(keys[0], count, names, [one.ours for one in told], marked=True)
        if seeds is not None and (seen.round not in found or lists[seen.round, names]):
            ours, theirs = np.stack([row_share(seed, length) for seed in seeds]), np.stack([one.row for one in told])
            weights = bytes(one.weight for one in told)
            found[seen.round] = RowShares([name for name, _, _ in rows], ours, theirs, weights)
    return found


@dataclass(frozen=True, eq=False)
class PlacesFound:
    """The founding, as the helper sees it.  names: the client at each place, unknown to it.

    choices: between places.  labels: (n,) the group of each.  gains: (n, n), unknown to all.  most: groups that there
    may be.  weights: (n,) the helper's shares.
    """

    names: list[str]
    choices: list[Choice]
    labels: NDArray[np.int64]
    gains: Words64
    most: int
    weights: NDArray[np.int64]


def found_groups(run: Recorded, hub: str, helper: str) -> PlacesFound:
    """The last founding, made again from both sides' messages. Raises UserError without one."""
    made = [seen.round for seen, one in run.views[helper].messages(OpenRows) if one.placing < 0]
    if not made:
        raise UserError("no groups were made")
    r = made[-1]
    shares = row_shares(run, hub, helper)[r]
    asked = {one.number: one.data for _, one in run.views[helper].messages(Step, r)}
    answers = {one.number: one.data for _, one in run.views[hub].messages(Stepped, r)}
    sizes = sizes_of(run.settings, len(run.clients), run.spec)
    seed = int.from_bytes(asked[TOSS], "big") ^ int.from_bytes(answers[TOSS], "big")
    gains = gains_of(shares.ours + shares.theirs)
    groups, choices = compared(gains, seed, sizes.groups, run.settings.min_cluster)
    weights = np.frombuffer(shares.weights, np.uint8).astype(np.int64)
    return PlacesFound(shares.names, choices, labelled(groups, len(gains)), gains, sizes.groups, weights)


def compared(gains: Words64, seed: int, most: int, smallest: int) -> tuple[Groups, list[Choice]]:
    """Groups by these gains (n, n) in an order that the seed tosses, and all choices."""
    choices, signed = list[Choice](), gains.view(np.int64)

    def answer(asked: list[Question]) -> list[int]:
        marks = [chosen(one, signed) for one in asked]
        choices.extend(zip(asked, marks, strict=True))
        return marks

    return answered(founding(seed, len(gains), most, smallest), answer), choices
