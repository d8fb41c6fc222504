"""What an observer reads in the views of a method with hidden groups: rows, steps of the grouping, and sums."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.correlation import Asked, Groups, answered, labelled, sums
from coterie.crypto import shared_rows
from coterie.crypto.one_hot import SEED_BYTES, fold, seeds_of
from coterie.crypto.signing import OpeningKey
from coterie.crypto.two_party import Dealt, Exchange, Words64
from coterie.privacy.attacks.hidden_groups import Outcome
from coterie.privacy.audits import Recorded
from coterie.privacy.views import by_round, granted
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import Counted, HiddenUpdate, RowsSealed, SealRows, Shares, opened_from
from coterie.protocols.sealed_groups import ENTRY, Join, OpenRows, SharedRow, Step, Stepped, opened_description
from coterie.protocols.shared_groups import (
    CORRELATIONS,
    described_length,
    found,
    founding,
    gains_of,
    row_share,
    sizes_of,
)

T = TypeVar("T")
Floats = NDArray[np.float64]
Steps32 = NDArray[np.int32]
NO_KEYS = "the keys of a real run's clients follow from no seed: record the run with --crypto emulated"


@dataclass(frozen=True, eq=False)
class RowShares:
    """Clients' rows in both servers' shares, (n, length). names: in the order of the helper's positions."""

    names: list[str]
    ours: Words64
    theirs: Words64


def row_shares(run: Recorded, hub: str, helper: str) -> dict[int, RowShares]:
    """By round, the rows that were relayed. Whose a position is takes the hub's view."""
    length = described_length(run.federation.look(hub))
    sent = {one.sealed: (seen.src, one.seed) for seen, one in run.views[hub].messages(SharedRow)}
    if not length or not sent:
        return {}
    key, entry = OpeningKey.load(run.views[helper].opening), granted(run.views[helper])[f"secret {ENTRY}"]
    by_position: dict[int, dict[int, tuple[str, Words64, Words64]]] = {}
    for seen, message in run.views[helper].messages(Relayed):
        with suppress(PeerError):  # the helper cannot open it either
            name, seed = sent[message.cipher]
            row = opened_description(key, entry, message.cipher, length).row
            by_position.setdefault(seen.round, {})[message.position] = name, row_share(seed, length), row
    return {
        r: RowShares(names, np.stack(ours), np.stack(theirs))
        for r, held in by_position.items()
        for names, ours, theirs in [map(list, zip(*(held[at] for at in sorted(held)), strict=True))]
    }


@dataclass(frozen=True, eq=False)
class FoundGroups:
    """The founding, as the helper sees it. names: the client at each place, which it does not know.

    outcomes: of all comparisons, between places.  labels: (n,) the group of each place.  gains: (n, n) of places, which
    nobody knows.
    """

    names: list[str]
    outcomes: list[Outcome]
    labels: NDArray[np.int64]
    gains: Words64


def found_groups(run: Recorded, shares: RowShares, r: int, hub: str, helper: str) -> FoundGroups:
    """The founding of round r, made again from both sides' messages. Raises UserError if there was none."""
    asked = {one.number: one.data for _, one in run.views[helper].messages(Step, r)}
    answers = {one.number: one.data for _, one in run.views[hub].messages(Stepped, r)}
    if not answers:
        raise UserError(f"no groups were made in round {r}")
    key = granted(run.views[helper])[f"secret {CORRELATIONS}"]
    sizes = sizes_of(run.settings, len(run.clients), run.spec)
    dealt = Dealt(1, sizes, key[:SEED_BYTES], key[SEED_BYTES:])
    program = found(dealt, run.settings, shares.theirs, answers[1])
    order = _concluded(program, [asked[number] for number in sorted(asked)]).order
    seed = int.from_bytes(asked[1], "big") ^ int.from_bytes(answers[1], "big")
    gains = gains_of((shares.ours + shares.theirs)[order])
    groups, outcomes = compared(gains, seed, sizes.groups, run.settings.min_cluster)
    return FoundGroups([shares.names[at] for at in order], outcomes, labelled(groups, len(order)), gains)


def compared(gains: Words64, seed: int, most: int, smallest: int) -> tuple[Groups, list[Outcome]]:
    """Groups by these gains (n, n) in an order that the seed tosses, and the outcomes of all comparisons."""
    outcomes = list[Outcome]()

    def answer(asked: Asked) -> list[bool]:
        signs = [bool(value > 0) for value in sums(asked, gains).view(np.int64)]
        outcomes.extend(zip(asked, signs, strict=True))
        return signs

    return answered(founding(seed, len(gains), most, smallest), answer), outcomes


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


def founded_in(run: Recorded, helper: str) -> int:
    """The round in which groups were made last. Raises UserError."""
    rounds = [seen.round for seen, one in run.views[helper].messages(OpenRows) if one.placing < 0]
    if not rounds:
        raise UserError("no groups were made")
    return rounds[-1]


@dataclass(frozen=True, eq=False)
class Added:
    """What one round has added, which no party sees. names: of the uploads.  weights: (k,) mu.  groups: (k,).

    updates: (k, d), in steps.  step: mu of an upload on time.  sums: (G, d) by how much the rows have moved, which a
    member of a group can tell of its own.
    """

    names: list[str]
    weights: NDArray[np.int64]
    groups: NDArray[np.int64]
    updates: Steps32
    step: int
    sums: NDArray[np.int64]

    def exact(self, group: int) -> Floats:
        """(d,) a row of ``sums`` without noise."""
        own = self.groups == group
        return np.asarray(self.weights[own] @ self.updates[own].astype(np.float64), np.float64)


def added(run: Recorded, hub: str, helper: str) -> list[Added]:
    """The rounds that were added, from both servers' views of an emulated run, whose keys follow from its seed."""
    uploads = {(seen.src, one.round): one for seen, one in run.views[hub].messages(HiddenUpdate)}
    masked, sealed = by_round(run.views[helper], SealRows), by_round(run.views[hub], RowsSealed)
    party = run.federation.look(helper)
    rounds, before = list[Added](), None
    for r in sorted(masked.keys() & sealed.keys()):
        of, on_time = _counted(run, hub, helper, r)
        opened = [joined(party, *one, uploads[one]) for one in of]
        rows = _rows(run, party, masked[r][hub], sealed[r][helper])
        before = np.zeros_like(rows) if before is None else before
        expected = run.settings.expected(len(run.clients))
        weights = [shared_rows.upload_weight(r - made, expected, on_time) for _, made in of]
        step = shared_rows.upload_weight(0, expected, on_time)
        groups, updates = zip(*opened, strict=True)
        names = [name for name, _ in of]
        rounds.append(Added(names, np.array(weights), np.array(groups), np.stack(updates), step, rows - before))
        before = rows
    return rounds


def _counted(run: Recorded, hub: str, helper: str, r: int) -> tuple[list[tuple[str, int]], int]:
    """Client and round of each upload that both servers count in round r, and how many were on time."""
    counts, on_time = dict[tuple[str, int], bool](), 0
    answers = (one.flags for _, one in run.views[hub].messages(Counted, r))
    for (_, shares), flags in zip(run.views[helper].messages(Shares, r), answers, strict=False):
        on_time = shares.on_time
        counts |= zip(zip(shares.names.split("\n"), shares.rounds.tolist(), strict=True), map(bool, flags), strict=True)
    return [one for one, counted in counts.items() if counted], on_time


def joined(helper: Any, name: str, r: int, one: HiddenUpdate) -> tuple[int, Steps32]:
    """A client's group, and its update (d,) in steps, from both servers' seeds. Raises PeerError."""
    seeds = opened_from(helper, name, one.seeds, "upload", r, one.check, sha256(one.word).digest())
    word = np.frombuffer(one.word, "<u4")
    rows = np.zeros((len(seeds) // SEED_BYTES, len(word)), np.uint32)
    fold(rows, seeds_of(one.master, len(rows)), word, 1)
    fold(rows, seeds, word, -1)
    group = int(rows.any(axis=1).argmax())
    return group, rows[group].view(np.int32)


def _rows(run: Recorded, helper: Any, ours: SealRows, theirs: RowsSealed) -> NDArray[np.int64]:
    """(G, d) all groups' rows, as members open them. The helper's masks follow from the seed of an emulated run."""
    both = np.frombuffer(ours.rows, "<u4") + np.frombuffer(theirs.rows, "<u4")
    sealed = both.reshape(-1, run.spec.size)
    size, count = shared_rows.KEY_BYTES, len(sealed)
    joins = (one.masks for name in run.clients if name in run.views for _, one in run.views[name].messages(Join))
    known = next(joins)
    hubs = [known[size * k : size * (k + 1)] for k in range(count)]
    masks = zip(hubs, helper.rows.fresh_masks(count), strict=True)
    nonces = ours.nonce, theirs.nonce
    return np.stack([shared_rows.unmasked(row, own, nonces) for row, own in zip(sealed, masks, strict=True)]).astype(
        np.int64
    )
