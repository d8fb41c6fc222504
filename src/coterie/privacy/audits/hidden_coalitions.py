"""Attacks by parties that work together in a method with hidden groups (``hidden_sums``): what would leak if.

They need an emulated run, whose clients' keys follow from its seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import shared_rows
from coterie.crypto.one_hot import SEED_BYTES, fold, seeds_of
from coterie.privacy.attacks import hidden_groups
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits import Finding, Measured, Recorded, attack, tried
from coterie.privacy.measures import memberships, profiles
from coterie.privacy.views import by_round
from coterie.protocol.errors import UserError
from coterie.protocols.hidden_sums import Counted, HiddenUpdate, RowsSealed, SealRows, Shares, opened_from
from coterie.protocols.sealed_groups import Join, Queries
from coterie.systems.coterie.messages import HELPER, HUB

Floats = NDArray[np.float64]
NO_KEYS = "the keys of a real run's clients follow from no seed: record the run with --crypto emulated"
ANEW = "with foundings above 1 uploads can be whole models, which these attacks do not follow: record with foundings=1"


@dataclass(frozen=True, eq=False)
class Added:
    """What one round has added, which no party sees.  names: of the uploads.  weights: (k,) mu.  groups: (k,).

    updates: (k, d), in steps.  step: mu of an upload on time.  sums: (G, d) the rows' moves, of which a member can tell
    its own group's.
    """

    names: list[str]
    weights: NDArray[np.int64]
    groups: NDArray[np.int64]
    updates: NDArray[np.int32]
    step: int
    sums: NDArray[np.int64]

    def exact(self, group: int) -> Floats:
        """(d,) a row of ``sums`` without noise."""
        own = self.groups == group
        return np.asarray(self.weights[own] @ self.updates[own].astype(np.float64), np.float64)


def added(run: Recorded, hub: str, helper: str) -> list[Added]:
    """The rounds that were added, from both servers' views of an emulated run."""
    uploads = {(seen.src, one.round): one for seen, one in run.views[hub].messages(HiddenUpdate)}
    masked, sealed = by_round(run.views[helper], SealRows), by_round(run.views[hub], RowsSealed)
    party, placed = run.federation.look(helper), by_round(run.views[hub], Queries)
    rounds, before = list[Added](), None
    for r in sorted(masked.keys() & sealed.keys()):
        of, on_time = _counted(run, hub, helper, r)
        opened = [joined(party, *one, uploads[one]) for one in of]
        rows = _rows(run, party, masked[r][hub], sealed[r][helper])
        before = np.zeros_like(rows) if before is None else before
        expected = run.settings.expected(len({name for q in placed if q <= r for name in placed[q]}))
        weights = [shared_rows.upload_weight(r - made, expected, on_time) for _, made in of]
        step = shared_rows.upload_weight(0, expected, on_time)
        groups, updates = zip(*opened, strict=True)
        names = [name for name, _ in of]
        rounds.append(Added(names, np.array(weights), np.array(groups), np.stack(updates), step, rows - before))
        before = rows
    return rounds


def _counted(run: Recorded, hub: str, helper: str, r: int) -> tuple[list[tuple[str, int]], int]:
    """Client and round of each counted upload, and how many were on time."""
    counts, on_time = dict[tuple[str, int], bool](), 0
    answers = (one.flags for _, one in run.views[hub].messages(Counted, r))
    for (_, shares), flags in zip(run.views[helper].messages(Shares, r), answers, strict=False):
        on_time = shares.on_time
        counts |= zip(zip(shares.names.split("\n"), shares.rounds.tolist(), strict=True), map(bool, flags), strict=True)
    return [one for one, counted in counts.items() if counted], on_time


def joined(helper: Any, name: str, r: int, one: HiddenUpdate) -> tuple[int, NDArray[np.int32]]:
    """A client's group, and its update (d,) in steps, from both servers' seeds. Raises PeerError."""
    seeds = opened_from(helper, name, one.seeds, "upload", r, one.check, sha256(one.word).digest())
    word = np.frombuffer(one.word, "<u4")
    rows = np.zeros((len(seeds) // SEED_BYTES, len(word)), np.uint32)
    fold(rows, seeds_of(one.master, len(rows)), word, 1)
    fold(rows, seeds, word, -1)
    group = int(rows.any(axis=1).argmax())
    return group, rows[group].view(np.int32)


def _rows(run: Recorded, helper: Any, ours: SealRows, theirs: RowsSealed) -> NDArray[np.int64]:
    """(G, d) all groups' rows, as members open them."""
    both = np.frombuffer(ours.rows, "<u4") + np.frombuffer(theirs.rows, "<u4")
    sealed = both.reshape(-1, run.spec.size)
    size, count = shared_rows.KEY_BYTES, len(sealed)
    joins = (one.masks for name in run.clients if name in run.views for _, one in run.views[name].messages(Join))
    known = next(joins)
    hubs = [known[size * k : size * (k + 1)] for k in range(count)]
    masks = zip(hubs, helper.rows.fresh_masks(count, 0), strict=True)
    nonces = ours.nonce, theirs.nonce
    return np.stack([shared_rows.unmasked(row, own, nonces) for row, own in zip(sealed, masks, strict=True)]).astype(
        np.int64
    )


TOGETHER = "hub with helper"
MEMBER, NO_NOISE = "client", "client, if sums had no noise"
WITH_MEMBER = "hub with a member"
COUNTED = "hub, if counts were opened"


@attack("both-servers", TOGETHER, "groups")
def both_servers(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """Adds both servers' shares of single uploads: a control."""
    longest = run.settings.grid(len(run.clients), run.spec).longest
    for one in rounds:
        who = np.array(run.numbers(one.names))
        read = np.linalg.norm(one.updates.astype(np.float64), axis=1) <= longest  # which random words never are
        result = AttackResult("updates read (share)", float(read.mean()), 0.0, 1.0, len(who))
        yield Measured(TOGETHER, "updates, by adding shares", result, topic="models")
        yield from profiles(TOGETHER, one.updates.astype(np.float64), run.label_counts[who], run.spec)
        yield from memberships(run, TOGETHER, one.groups, who)


@attack("opened-counts", COUNTED, "groups")
def opened_counts(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """Regresses counts of groups on names of participants: a control."""
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


@attack("differencing", MEMBER, "models")
def differencing(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """Takes its sums' difference for the update of a member who is away in one."""
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
"""A round, one beside it, and a group of which this member was in the first only."""


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


@attack("sums-by-names", WITH_MEMBER, "groups")
def sums_by_names(run: Recorded, rounds: Sequence[Added]) -> Iterator[Measured]:
    """Regresses a group's sums on names: who is in it, and mean updates."""
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
    """(n,) of each client, -1 if never added."""
    groups = np.full(len(run.clients), -1, np.int64)
    for one in rounds:
        groups[run.numbers(one.names)] = one.groups
    return groups


def _weights(run: Recorded, rounds: Sequence[Added]) -> Floats:
    """(rounds, n) how much of each upload was added, relative to one on time in a full round."""
    weights = np.zeros((len(rounds), len(run.clients)))
    for row, one in zip(weights, rounds, strict=True):
        row[run.numbers(one.names)] = one.weights
    return weights


COALITIONS = both_servers, opened_counts, differencing, sums_by_names


def coalitions(run: Recorded) -> list[Finding]:
    why = NO_KEYS if run.options["crypto"] == "real" else ANEW if run.settings.foundings > 1 else ""
    if why:
        return [Finding(one.adversary, one.name, one.topic, (), why=why) for one in COALITIONS]
    rounds = added(run, HUB, HELPER)
    return [found for one in COALITIONS if rounds for found in one(run, rounds)]
