"""What an observer reads of sums in the views of a method with hidden groups (``hidden_sums``)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import shared_rows
from coterie.crypto.one_hot import SEED_BYTES, fold, seeds_of
from coterie.privacy.audits import Recorded
from coterie.privacy.views import by_round
from coterie.protocols.hidden_sums import Counted, HiddenUpdate, RowsSealed, SealRows, Shares, opened_from
from coterie.protocols.sealed_groups import Join, Queries

Floats = NDArray[np.float64]
NO_KEYS = "the keys of a real run's clients follow from no seed: record the run with --crypto emulated"
ANEW = "groups may be made anew in this run, and sums are followed through one founding: record with foundings=1"


@dataclass(frozen=True, eq=False)
class Added:
    """What one round has added, which no party sees. names: of the uploads.  weights: (k,) mu.  groups: (k,).

    updates: (k, d), in steps.  step: mu of an upload on time.  sums: (G, d) by how much the rows have moved, which a
    member of a group can tell of its own.
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
    """The rounds that were added, from both servers' views of an emulated run, whose keys follow from its seed."""
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
    """Client and round of each upload that both servers count in round r, and how many were on time."""
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
    """(G, d) all groups' rows, as members open them. The helper's masks follow from the seed of an emulated run."""
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
