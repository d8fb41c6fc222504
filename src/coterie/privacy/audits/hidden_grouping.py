"""Attacks on a grouping into hidden groups, by its steps and by a planted row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering import evidence
from coterie.clustering.signature import reference
from coterie.privacy.attacks import hidden_groups, labels
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import repeated
from coterie.privacy.audits import Measured, Recorded, attack, tried
from coterie.privacy.audits.hidden_places import compared, found_groups
from coterie.systems.coterie.messages import HELPER, HUB

AGAIN = "helper, if groups were made twice"
PLANTED = "helper with a client, deviating"
REPEATS = 4
"""Times that groups are made again, to see which choices repeat."""
STRENGTH = 1e4
"""A planted row's gain with any other; honest gains are hundreds at most."""


@attack("grouping-steps", HELPER, "other")
def grouping_steps(run: Recorded) -> Iterator[Measured]:
    """Tells samples of unnamed clients from steps and its shares, and links them."""
    groups = found_groups(run, HUB, HELPER)
    counts = run.label_counts[run.numbers(groups.names)]
    draw, smallest = np.random.default_rng(0), run.settings.min_cluster
    again = [compared(groups.gains, int(draw.integers(1 << 62)), groups.most, smallest)[1] for _ in range(REPEATS)]
    sure = hidden_groups.agreement(groups.choices, groups.labels)
    against = np.stack([hidden_groups.surprises(choices, groups.labels) for choices in (groups.choices, *again)])
    linked = hidden_groups.linked(sure, hidden_groups.agreement(again[0], groups.labels), groups.labels)
    told = {"shares of weights": groups.weights.astype(np.float64), "steps": sure}
    for _ in run.lines:  # it knows them in every round
        for by, guess in told.items():
            for what, truth in (("samples", counts.sum(axis=1)), ("label entropy", labels.label_entropy(counts))):
                score = partial(labels.rank_correlation, guess, truth, what)
                yield tried(HELPER, f"{what} of unnamed clients, by {by}", score)
        yield Measured(AGAIN, "re-linked in its group, by steps", linked, topic="identity")
        what = "who most often chose against the groups, where both have one"
        yield tried(AGAIN, what, partial(hidden_groups.found_again, against), topic="identity")


@attack("planted-row", PLANTED, "labels")
def planted_row(run: Recorded) -> Iterator[Measured]:
    """Plants a row that is grouped with all who have a label, and no one else.

    The first client asks for the label that most nearly half of the clients have, by the sums. The helper reads all
    bits, without names. Raises UserError with one group of all.
    """
    if run.settings.clusters == 1:
        raise fl.UserError("with clusters=1 no rows are compared, so none can be planted")
    yield tried(PLANTED, "who has a label of its choice, by a planted row", partial(_read_by_planting, run))


def _read_by_planting(run: Recorded) -> AttackResult:
    name, label = run.clients[0], -1
    holders = (run.label_counts > 0).sum(axis=0)

    def plant(message: fl.Message, effect: fl.Local, honest: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal label
        if effect.name != "residual row":
            return honest
        label = int(np.abs(holders - len(run.clients) / 2).argmin())
        if holders[label] == len(run.clients):
            raise fl.UserError("all clients have all labels, so nothing is left to read")
        kept, total, spread, _ = effect.arguments
        of = evidence.spread(spread, reference(total, kept).kept)
        if not of.tau.any():
            raise fl.UserError("the clients' residuals do not differ, so rows say nothing: there is one group")
        return hidden_groups.planted_row(label, len(holders), of, STRENGTH)

    spoilt = repeated(run, name, {fl.Local: plant})
    groups = found_groups(spoilt, HUB, HELPER)
    gained = hidden_groups.sides(groups.choices, len(groups.names))[groups.names.index(name)]
    others = [at for at, one in enumerate(groups.names) if one != name]
    has = run.label_counts[run.numbers([groups.names[at] for at in others]), label] > 0
    return hidden_groups.bits_read(gained[others] > 0, has, "presence of a label")
