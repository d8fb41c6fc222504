"""What the parties of Coterie find out from their views, as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.spectral import unit_rows
from coterie.crypto.one_hot import SEED_BYTES, fold, seeds_of
from coterie.crypto.signing import OpeningKey
from coterie.privacy.audits import Audit, Measured, Recorded, attack
from coterie.privacy.measures import alike, memberships, profiles
from coterie.privacy.views import by_round, granted
from coterie.protocol.errors import PeerError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import HiddenUpdate, opened_from
from coterie.protocols.sealed_groups import ENTRY, SharedRow, opened_description
from coterie.protocols.shared_groups import described_length, row_share
from coterie.systems.coterie.messages import HELPER, HUB

Floats = NDArray[np.float64]
TOGETHER = "hub with helper"
BY_DESIGN = "it knows the groups of positions, by design; no name belongs to a position at the helper"
NO_KEY = "clients' keys are not in a real run's folder, and the helper checks signatures: give --crypto emulated"


@attack("hidden-words", "hub", "labels", "reads uploads' words as numbers, by name: labels, and who is alike")
def hidden_words(run: Recorded) -> Iterator[Measured]:
    for updates in by_round(run.views[HUB], HiddenUpdate).values():
        names = [name for name in updates if name in run.clients]
        if len(names) > 2:
            words = _numbers([updates[name].word for name in names], "<i4")
            yield from profiles(HUB, words, run.label_counts[run.numbers(names)], run.spec)
            yield from _alike(run, HUB, "uploads", names, words)


@attack("hidden-rows", "helper", "groups", "reads each server's shares of rows as numbers: who is alike")
def hidden_rows(run: Recorded) -> Iterator[Measured]:
    """The hub's by name; the helper's by position. Whose those are takes the hub's view, for the score alone."""
    length = described_length(run.federation.look(HUB))
    sent = {one.sealed: (seen.src, one) for seen, one in run.views[HUB].messages(SharedRow)}
    if not length or len(sent) < 3:
        return
    seeds = {name: one.seed for name, one in sent.values()}
    shares = {name: row_share(seed, length).tobytes() for name, seed in seeds.items()}
    key, entry = OpeningKey.load(run.views[HELPER].opening), granted(run.views[HELPER])[f"secret {ENTRY}"]
    theirs = dict[str, bytes]()
    for _, message in run.views[HELPER].messages(Relayed):
        for epoch in range(run.settings.foundings):
            with suppress(PeerError):  # the helper cannot open it either
                row = opened_description(key, entry, epoch, message.cipher, length).row
                theirs[sent[message.cipher][0]] = row.tobytes()
    for _ in by_round(run.views[HUB], HiddenUpdate):  # they have them in every round
        for who, rows in ((HUB, shares), (HELPER, theirs)):
            names = [name for name in rows if name in run.clients]
            yield from _alike(run, who, "rows", names, _numbers([rows[name] for name in names], "<i8"))
        yield Measured(HELPER, "which positions are of one group", None, why=BY_DESIGN)


def _numbers(words: Sequence[bytes], kind: str) -> Floats:
    return np.stack([np.frombuffer(one, kind).astype(np.float64) for one in words])


def _alike(run: Recorded, who: str, by: str, names: Sequence[str], numbers: Floats) -> Iterator[Measured]:
    units = unit_rows(numbers)
    yield from alike(who, by, units @ units.T, np.array(run.numbers(names)), run.label_counts, run.groups)


@attack(
    "both-servers", TOGETHER, "groups", "adds both servers' shares of single uploads: a control, which must succeed"
)
def both_servers(run: Recorded) -> Iterator[Measured]:
    helper = run.federation.look(HELPER)
    for r, updates in by_round(run.views[HUB], HiddenUpdate).items():
        try:
            opened = [_joined(helper, name, r, one) for name, one in updates.items()]
        except PeerError:
            yield Measured(TOGETHER, "which pairs have similar labels, by cluster", None, why=NO_KEY, topic="groups")
            return
        who = np.array(run.numbers(updates))
        yield from profiles(TOGETHER, np.stack([step for _, step in opened]), run.label_counts[who], run.spec)
        groups = np.array([group for group, _ in opened])
        yield from memberships(TOGETHER, groups, who, run.label_counts, run.groups)


def _joined(helper: Any, name: str, r: int, one: HiddenUpdate) -> tuple[int, Floats]:
    """A client's group, and its update (d,) in steps, from both servers' seeds."""
    seeds = opened_from(helper, name, one.seeds, "upload", r, one.check, sha256(one.word).digest())
    word = np.frombuffer(one.word, "<u4")
    rows = np.zeros((len(seeds) // SEED_BYTES, len(word)), np.uint32)
    fold(rows, seeds_of(one.master, len(rows)), word, 1)
    fold(rows, seeds, word, -1)
    group = int(rows.any(axis=1).argmax())
    return group, rows[group].view(np.int32).astype(np.float64)


AUDIT = Audit(
    lambda run: [*hidden_words(run), *hidden_rows(run), *both_servers(run)],
    attacks=(hidden_words, hidden_rows, both_servers),
)
