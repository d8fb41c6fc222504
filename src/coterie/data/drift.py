"""Drift: some clients pass samples and task on in a cycle, in the middle of a run (docs/partitions.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from coterie.data.partition import Split
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng

T = TypeVar("T")
FIRST = 2
"""The first round before which data may drift."""


@dataclass(frozen=True)
class Drift:
    """share: of the clients, in (0, 1].  round: before which they exchange data, at least 2."""

    share: float
    round: int

    def givers(self, clients: int, seed: int) -> tuple[int, ...]:
        """For every client the one whose data it has from then on, mostly itself: round(share * clients) exchange, in a
        random cycle. Raises UserError for fewer than two.
        """
        count = round(self.share * clients)
        if count < 2:
            raise UserError(
                f"drift={self.share:g}@{self.round}: {self.share:g} of {clients} clients is {count}, and at least two "
                "are needed to exchange data: take a larger share, or more clients"
            )
        order = rng(seed, "partition", "drift").permutation(clients)[:count]
        givers = list(range(clients))
        for taker, giver in zip(order.tolist(), np.roll(order, 1).tolist(), strict=True):
            givers[taker] = giver
        return tuple(givers)


def parse_drift(text: str, rounds: int) -> Drift:
    """``SHARE@ROUND``. Raises UserError for others, and a round after ``rounds``."""
    share, _, number = text.partition("@")
    try:
        found = Drift(float(share), int(number)) if re.fullmatch("[0-9]{1,9}", number) else None
    except ValueError:
        found = None
    if found is None or not 0 < found.share <= 1:
        raise UserError(
            f"drift {text!r}: write SHARE@ROUND, for example 0.2@10: the share of the clients, above 0 and at most 1, "
            "that exchange their data before that round"
        )
    if not FIRST <= found.round <= rounds:
        raise UserError(f"drift {text!r}: the round must lie between {FIRST} and the last one, {rounds}")
    return found


def passed_on(values: Sequence[T], givers: Sequence[int]) -> tuple[T, ...]:
    return tuple(values[giver] for giver in givers)


def drifted(split: Split, givers: Sequence[int]) -> Split:
    """The split after the exchange. Clients keep their names."""
    return replace(
        split,
        train=passed_on(split.train, givers) if split.train else (),
        test=passed_on(split.test, givers) if split.test else (),
        held_out=passed_on(split.held_out, givers) if split.held_out else (),
        groups=None if split.groups is None else split.groups[list(givers)],
    )
