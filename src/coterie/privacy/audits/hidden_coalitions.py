"""Attacks by parties that work together in a method with hidden groups, and controls: what would leak if.

They need an emulated run, whose clients' keys follow from its seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks import hidden_groups
from coterie.privacy.audits import Finding, Measured, Recorded, attack, tried
from coterie.privacy.audits.hidden_rounds import ANEW, NO_KEYS, Added, added
from coterie.privacy.measures import memberships, profiles
from coterie.protocol.errors import UserError
from coterie.systems.coterie.messages import HELPER, HUB

Floats = NDArray[np.float64]
TOGETHER = "hub with helper"
MEMBER, NO_NOISE = "client", "client, if sums had no noise"
WITH_MEMBER = "hub with a member"
COUNTED = "hub, if counts were opened"


@attack("both-servers", TOGETHER, "groups", "adds both servers' shares of single uploads: a control")
def both_servers(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    for one in rounds:
        who = np.array(run.numbers(one.names))
        yield from profiles(TOGETHER, one.updates.astype(np.float64), run.label_counts[who], run.spec)
        yield from memberships(TOGETHER, one.groups, who, run.label_counts, run.groups)


@attack("opened-counts", COUNTED, "groups", "regresses counts of groups on names of participants: a control")
def opened_counts(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """The counts are the observer's: they are never opened."""
    groups = _groups(run, rounds)
    counts = np.stack([np.bincount(one.groups, minlength=len(one.sums)) for one in rounds]).astype(np.float64)
    there = (_weights(run, rounds) > 0).astype(np.float64)
    seen = groups >= 0
    what = "who is in which group, by regression on names"
    yield tried(
        COUNTED,
        what,
        lambda: hidden_groups.groups_found(hidden_groups.by_names(there, counts)[seen], groups[seen]),
    )


@attack("differencing", MEMBER, "models", "takes its sums' difference for the update of a member who is away in one")
def differencing(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """With the sums as they are, and with exact ones."""
    alone = [one for pair in pairwise(rounds) for one in _away(*pair)]
    what = "update of one of its group who was away"
    for who, exact in ((MEMBER, False), (NO_NOISE, True)):
        if not alone:
            why = "in no two rounds one after the other did exactly one member of a group come or go"
            yield Measured(who, what, None, why=why)
            continue
        guesses = np.stack([_difference(*one, exact=exact) for one in alone])
        there, owners = list[Floats](), list[int]()
        for first, _, group, name in alone:
            names = [one for one, k in zip(first.names, first.groups, strict=True) if k == group]
            there.append(first.updates[first.groups == group].astype(np.float64))
            owners.append(names.index(name))
        yield tried(who, what, lambda: hidden_groups.update_cosine(guesses, there, owners))  # noqa: B023
        yield from (
            one._replace(what=f"{one.what} of one of its group who was away")
            for one in profiles(who, guesses, run.label_counts[run.numbers([one[3] for one in alone])], run.spec)
        )


Alone = tuple[Added, Added, int, str]
"""A round, one beside it, and a group of which this member alone was added in the first and not in the second."""


def _away(one: Added, other: Added) -> Iterator[Alone]:
    for group in range(len(one.sums)):
        there = [{n for n, k in zip(each.names, each.groups, strict=True) if k == group} for each in (one, other)]
        if len(there[0] ^ there[1]) == 1 and there[0] & there[1]:
            (name,) = there[0] ^ there[1]
            yield (one, other, group, name) if name in there[0] else (other, one, group, name)


def _difference(first: Added, second: Added, group: int, name: str, *, exact: bool) -> Floats:
    """(d,) what the member adds to the mean of an upload, in steps."""
    sides = [one.exact(group) if exact else one.sums[group].astype(np.float64) for one in (first, second)]
    return np.asarray(sides[0] / first.step - sides[1] / second.step)


@attack("sums-by-names", WITH_MEMBER, "groups", "regresses a group's sums on names: who is in it, and mean updates")
def sums_by_names(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """For each group. By assumption this succeeds in time."""
    groups, weights = _groups(run, rounds), _weights(run, rounds)
    seen = groups >= 0
    means = np.zeros((len(run.clients), run.spec.size))
    for one in rounds:
        means[run.numbers(one.names)] += one.updates
    for group in range(len(rounds[0].sums)):
        sums = np.stack([one.sums[group] for one in rounds]).astype(np.float64)
        member = groups == group
        try:
            parts = hidden_groups.by_names(weights, sums, alike=True)
        except UserError as error:
            yield Measured(WITH_MEMBER, "who is in the group, by regression on names", None, why=str(error))
            return
        yield tried(
            WITH_MEMBER,
            "who is in the group, by regression on names",
            lambda: hidden_groups.members_found(parts[seen], sums, member[seen]),  # noqa: B023
        )
        own = np.flatnonzero(member)
        yield tried(
            WITH_MEMBER,
            "mean updates of members, by regression on names",
            lambda: hidden_groups.update_cosine(parts[own], [means[own]] * len(own), range(len(own))),  # noqa: B023
            topic="models",
        )


def _groups(run: Recorded, rounds: Sequence[Added]) -> NDArray[np.int64]:
    """(n,) of each client, -1 for one whose upload was never added."""
    groups = np.full(len(run.clients), -1, np.int64)
    for one in rounds:
        groups[run.numbers(one.names)] = one.groups
    return groups


def _weights(run: Recorded, rounds: Sequence[Added]) -> Floats:
    """(rounds, n) how much of each client's upload was added, over that of one on time in a full round."""
    weights = np.zeros((len(rounds), len(run.clients)))
    for row, one in zip(weights, rounds, strict=True):
        row[run.numbers(one.names)] = one.weights
    return weights


COALITIONS = both_servers, opened_counts, differencing, sums_by_names


def coalitions(run: Recorded) -> list[Finding]:
    """What all of them find, or why they do not apply."""
    why = NO_KEYS if run.options["crypto"] == "real" else ANEW if run.settings.foundings > 1 else ""
    if why:
        return [Finding(one.adversary, one.name, one.topic, (), why=why) for one in COALITIONS]
    rounds = added(run, HUB, HELPER)
    return [found for one in COALITIONS if rounds for found in one(run, rounds)]
