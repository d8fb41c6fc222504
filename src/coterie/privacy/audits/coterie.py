"""What the parties of Coterie find out from their views, as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.spectral import unit_rows
from coterie.crypto.one_hot import SEED_BYTES, fold, seeds_of
from coterie.crypto.signing import OpeningKey
from coterie.privacy.audits import Audit, Measured, Recorded, attack
from coterie.privacy.measures import alike, memberships, profiles
from coterie.privacy.views import by_round, granted
from coterie.protocol.errors import PeerError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_sums import HiddenUpdate, opened_from
from coterie.protocols.sealed_groups import ENTRY, Signature, described_length, difference, opened_description
from coterie.systems.coterie.messages import HELPER, HUB

Floats = NDArray[np.float64]
TOGETHER = "hub with helper"
NO_KEY = "clients' keys are not in a real run's folder, and the helper checks signatures: give --crypto emulated"


def _words(updates: dict[str, HiddenUpdate]) -> Floats:
    """(n, d) the hub's words, read as numbers."""
    return np.stack([np.frombuffer(one.word, "<u4").view(np.int32).astype(np.float64) for one in updates.values()])


@attack("hidden-words", "hub", "labels", "reads uploads' words as numbers, by name: labels, and who is alike")
def hidden_words(run: Recorded) -> Iterator[Measured]:
    for updates in by_round(run.views[HUB], HiddenUpdate).values():
        names = [name for name in updates if name in run.clients]
        if len(names) > 2:
            words, who = _words({name: updates[name] for name in names}), np.array(run.numbers(names))
            yield from profiles(HUB, words, run.label_counts[who], run.spec)
            yield from alike(HUB, "uploads", unit_rows(words) @ unit_rows(words).T, who, run.label_counts, run.groups)


@attack("hidden-signatures", "helper", "groups", "tells which positions have similar data by their signatures")
def unnamed_signatures(run: Recorded) -> Iterator[Measured]:
    """By position. Whose it is takes the hub's view, for the score alone."""
    length = described_length(run.settings)
    name_of = {message.sealed: seen.src for seen, message in run.views[HUB].messages(Signature)}
    sent = [message.cipher for _, message in run.views[HELPER].messages(Relayed)]
    if not length or len(sent) < 3:
        return
    key = OpeningKey.load(run.views[HELPER].opening)
    entry = granted(run.views[HELPER])[f"secret {ENTRY}"]
    rows, names = list[NDArray[np.uint32]](), list[str]()
    for sealed in sent:
        with suppress(PeerError):  # the helper cannot open it either
            rows.append(opened_description(key, entry, sealed, length).row)
            names.append(name_of[sealed])
    if len(rows) < 3:
        return
    who = np.array(run.numbers(names))
    near = -pairwise_distances(np.stack([difference(row, rows[0]) for row in rows]))
    for _ in by_round(run.views[HUB], HiddenUpdate):  # it knows this in every round
        yield from alike(HELPER, "signatures", near, who, run.label_counts, run.groups)


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
    lambda run: [*hidden_words(run), *unnamed_signatures(run), *both_servers(run)],
    attacks=(hidden_words, unnamed_signatures, both_servers),
)
