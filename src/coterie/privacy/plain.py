"""Attacks on plain updates, for every system: a party receives single clients' models, or their changes, in the clear.

Such a message holds as many floats as one model, or all, have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.affinity import pairwise_distances
from coterie.privacy.attacks.labels import label_shares_by_rows
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.samples import beyond_references, dense_inputs, membership_auc, recovery
from coterie.privacy.audits import Attack, AuditSamples, Finding, Measured, Recorded, applied, attack
from coterie.privacy.measures import alike, by_estimate, profiles
from coterie.protocol.messages import forms
from coterie.training.evaluate import judge_many
from coterie.transport.transcript import Seen, View

Floats = NDArray[Any]
T = TypeVar("T")

NONE_IN_THE_CLEAR = "no party receives a single client's model or update in the clear"
ROUNDS = 10  # at most, in which the slow attacks run: from the first to the last
_NEAR = 0.1  # of a weight: what counts as near to it
_VOTERS = 50  # updates that tell whether all of their kind are models or changes
_REFERENCES = 16  # models of other clients that a client's is compared with, at most
_DRAWS = 8  # of other clients' samples, for what chance gives
_POOL = 10_000  # samples of other clients, about, from which these are drawn


@dataclass(frozen=True, eq=False)
class Updates:
    """What one role received in the clear in one round.  slow: slow attacks run, too.

    clients: (n,) numbers of the senders.  models: (n, d) float32 after training.  steps: (n, d) float64, of training, 0
    at buffers.
    """

    role: str
    round: int
    slow: bool
    clients: list[int]
    models: NDArray[np.float32]
    steps: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Sent:
    """weights: (k, d).  starts: (k', d), from which its sender may have started."""

    seen: Seen
    weights: Floats
    starts: Floats

    def own_step(self, *, change: bool, buffers: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(d,) the model after training and the step from the nearest start; of several, the one that moved furthest.

        change: the weights are changes.
        """
        found = []
        for i, row in enumerate(self.weights.astype(np.float64)):
            far = np.linalg.norm(self.starts - row, axis=1)
            begun = i if len(self.starts) == len(self.weights) else 0 if change else int(far.argmin())
            start = self.starts[begun]
            step = np.where(buffers, 0.0, row if change else row - start)
            found.append((np.where(buffers, row, start + step), step))
        return max(found, key=lambda one: float(np.linalg.norm(one[1])))


def plain_updates(run: Recorded) -> Iterator[Updates]:
    """By role and round; a client's first update in a round counts."""
    by_role: dict[str, dict[int, dict[int, _Sent]]] = {}
    for view in run.views.values():
        for sent in _received(run, view):
            rounds = by_role.setdefault(view.role, {})
            rounds.setdefault(sent.seen.round, {}).setdefault(run.clients.index(sent.seen.src), sent)
    for role, rounds in by_role.items():
        numbers = sorted(rounds)
        slow = some_rounds(numbers)
        by_kind: dict[str, list[_Sent]] = {}
        for one in (one for r in numbers for one in rounds[r].values()):
            by_kind.setdefault(one.seen.kind, []).append(one)
        changes = {kind: _are_changes(sent, run.spec.buffers) for kind, sent in by_kind.items()}
        for r in numbers:
            every = rounds[r]
            found = [one.own_step(change=changes[one.seen.kind], buffers=run.spec.buffers) for one in every.values()]
            models, steps = (np.stack(rows) for rows in zip(*found, strict=True))
            yield Updates(role, r, r in slow, list(every), models.astype(np.float32), steps)


def some_rounds(rounds: Sequence[T]) -> list[T]:
    """At most ``ROUNDS`` of them, from the first to the last."""
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, min(ROUNDS, len(rounds))).round().astype(int)]


def _received(run: Recorded, view: View) -> Iterator[_Sent]:
    party, publics = view.party.partition(" as ")[0], run.federation.common.starts
    known = run.federation.common.roster.by_name
    for seen in view.seen:
        if seen.message is None or seen.src not in run.clients or seen.src == party:
            continue
        if seen.message.SRC not in (fl.ANY, known[seen.src].role):
            continue  # of a client in another role (a leader, say) it is no single model
        weights = models_in(run, seen.message)
        if weights is not None:
            starts = _sent_before(run, party, seen)
            yield _Sent(seen, weights, publics if starts is None else starts)


def models_in(run: Recorded, message: fl.Message | None) -> Floats | None:
    """The first array of floats of the size of one model or of all, (k, d). Parts that no message has are the first
    start's.
    """
    starts, shared = run.federation.common.starts, run.shared
    size = int(shared.sum())
    name = None if message is None else model_field(message, size, len(starts))
    if name is None:
        return None
    rows: Floats = np.asarray(getattr(message, name)).reshape(-1, size)
    if shared.all():
        return rows
    whole = np.repeat(starts[:1].astype(rows.dtype), len(rows), axis=0)
    whole[:, shared] = rows
    return whole


def model_field(message: fl.Message, size: int, several: int) -> str | None:
    """The name of the first array of floats of this size, or of ``several``; or None."""
    for name, kind in forms(type(message)).arrays.items():
        values = getattr(message, name)
        if kind.dtype in ("<f4", "<f8") and values is not None and values.size in {size, several * size}:
            return str(name)
    return None


def _sent_before(run: Recorded, party: str, update: Seen) -> Floats | None:
    """The last models that the party had sent to an update's sender by then; None without."""
    asked = getattr(update.message, "round", update.round)
    before: Floats | None = None
    view = run.views.get(update.src)
    for seen in view.seen if view else ():
        if seen.src != party or seen.time_s > update.time_s:
            continue
        r = getattr(seen.message, "round", seen.round)
        models = models_in(run, seen.message) if r <= asked else None
        before = before if models is None else models
    return before


def _are_changes(sent: list[_Sent], buffers: NDArray[np.bool_]) -> bool:
    """Training leaves most weights near the start in a model, near 0 in a change."""
    votes = 0
    for one in sent[:_VOTERS]:
        for row in one.weights:
            start = one.starts[np.linalg.norm(one.starts - row, axis=1).argmin()]
            near = np.where(buffers, 0.0, _NEAR * np.abs(start))
            votes += int((np.abs(row) < near).sum()) - int((np.abs(row - start) < near).sum())
    return votes > 0


# -- the attacks -------------------------------------------------------------------------------------------------------

_BY = "party that receives plain updates"


@attack("plain-models", _BY, "models")
def _models_and_names(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Reads single clients' models under their names."""
    role, n = updates.role, len(updates.clients)
    yield Measured(role, "models, as they are sent", AttackResult("models read (share)", 1.0, 0.0, 1.0, n))
    if n > 1:
        linked = AttackResult("re-linked clients (share)", 1.0, 1 / n, 1.0, n)
        yield Measured(role, "re-linked, by name", linked, topic="identity")


@attack("plain-label-shares", _BY, "labels")
def _labels(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Tells which classes a client has more of than others."""
    _check_clients(updates, 2)
    yield from profiles(updates.role, updates.steps, run.label_counts[updates.clients], run.spec)


def _check_clients(updates: Updates, least: int) -> None:
    if len(updates.clients) < least:
        raise fl.UserError(f"it compares clients, and no round has plain updates of {least} or more")


@attack("plain-row-lengths", _BY, "labels")
def _row_lengths(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Tells the same from how far each class's row of the last layer moves.

    Where training corrects for the classes' shares, rows tell what the bias does not.
    """
    _check_clients(updates, 2)
    guess = label_shares_by_rows(updates.steps, run.spec)
    for one in by_estimate(updates.role, guess, run.label_counts[updates.clients]):
        yield one._replace(what=f"{one.what}, by row lengths")


@attack("plain-similar-clients", _BY, "groups")
def _alike(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Tells which clients have similar data."""
    _check_clients(updates, 3)
    yield from alike(run, updates.role, "updates", -pairwise_distances(updates.steps), updates.clients)


def losses(run: Recorded, weights: Floats, client: int) -> tuple[Floats, Floats]:
    """``losses_of_many`` of one model (d,)."""
    own, others = losses_of_many(run, weights[None], client)
    return own[0], others[0]


def losses_of_many(run: Recorded, models: Floats, client: int) -> tuple[Floats, Floats]:
    """(k, n) losses of models (k, d) on some of a client's training samples, and on others of their kind."""
    samples = run.samples(run.clients[client])
    sides = (samples.x, samples.y), (samples.other_x, samples.other_y)
    own, others = (np.asarray(judge_many(run.model, models, x, y).losses, np.float64) for x, y in sides)
    return own, others


def same_pool(run: Recorded, clients: Iterable[int]) -> bool:
    """Whether the others' losses are on samples drawn as the training samples are."""
    return all(run.samples(run.clients[i]).same_pool for i in clients)


@attack("membership", _BY, "samples")
def _members(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Tells from losses which samples were trained on."""
    if not updates.slow:
        return
    pairs = (losses(run, weights, i) for i, weights in zip(updates.clients, updates.models, strict=True))
    own, others = zip(*pairs, strict=True)
    result = membership_auc(own, others, same_pool=same_pool(run, updates.clients))
    yield Measured(updates.role, "samples that were trained on, by loss", result)


@attack("membership-likelihood", _BY, "samples")
def _likely_members(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Tells the same by the losses under models of other clients, too."""
    if not updates.slow:
        return
    _check_clients(updates, 3)
    if not run.model.is_classifier:
        raise fl.UserError("it compares confidences in classes, and the model is trained with another loss")
    sides: tuple[list[Floats], list[Floats]] = [], []
    for place, client in enumerate(updates.clients):
        others = np.delete(np.arange(len(updates.clients)), place)[:_REFERENCES]
        models = updates.models[[place, *others]]
        for side, found in zip(sides, losses_of_many(run, models, client), strict=True):
            side.append(beyond_references(found[0], found[1:]))
    result = membership_auc(*sides, same_pool=same_pool(run, updates.clients))
    yield Measured(updates.role, "samples that were trained on, by likelihood ratio", result)


@attack("gradient-inversion", _BY, "samples")
def _inputs(run: Recorded, updates: Updates) -> Iterator[Measured]:
    """Recovers training samples from the step of a dense first layer."""
    if not updates.slow:
        return
    guesses = [dense_inputs(step, run.spec, int(np.prod(run.model.input_shape))) for step in updates.steps]
    pool = _flat_samples(run)
    rng = np.random.default_rng(updates.round)
    drawn = [like_samples(pool, i, run.groups, rng) for i in updates.clients]
    scored = recovery(guesses, *map(list, zip(*drawn, strict=True)))
    yield Measured(updates.role, "samples read off the first layer's step", scored)


def _flat_samples(run: Recorded) -> list[tuple[Floats, Floats]]:
    """(n, f) training samples and labels (n,) or (n, labels), all 0 for regression."""
    same = 0 if run.options["task"] == "regression" else 1
    most = max(_POOL // len(run.clients), 20)
    every: Iterator[AuditSamples] = map(run.samples, run.clients)
    return [(np.asarray(own.x[:most]).reshape(len(own.x[:most]), -1), np.asarray(own.y[:most]) * same) for own in every]


def like_samples(
    pool: list[tuple[Floats, Floats]], client: int, groups: NDArray[Any] | None, rng: np.random.Generator
) -> tuple[Floats, list[Floats], float]:
    """Samples (n, f) of a client, draws of n others with the same labels, and the share that a draw is of these.

    pool: of every client, its samples and labels.  groups: by client; others of its own are preferred. Raises UserError
    where there are none.
    """
    others = [i for i in range(len(pool)) if i != client]
    if groups is not None:
        others = [i for i in others if groups[i] == groups[client]] or others
    x, y = pool[client]
    if not others or not len(x):
        raise fl.UserError("there is no other client, so that no samples of others tell what chance gives")
    other_x, other_y = (np.concatenate([pool[i][part] for i in others]) for part in (0, 1))
    own: list[int] = []
    draws: list[list[int]] = [[] for _ in range(_DRAWS)]
    possible = 0
    codes = np.unique(np.concatenate([y, other_y]), axis=0, return_inverse=True)[1].reshape(-1)
    codes, other_codes = codes[: len(y)], codes[len(y) :]
    for code in np.unique(codes):
        there = np.flatnonzero(other_codes == code)
        mine = np.flatnonzero(codes == code)[: len(there) // 2]
        own += mine.tolist()
        possible += len(there) if len(mine) else 0
        for draw in draws:
            draw += rng.choice(there, len(mine), replace=False).tolist()
    if not own:
        raise fl.UserError("the other clients have too few samples of the same classes to tell what chance gives")
    return x[own], [other_x[draw] for draw in draws], len(own) / possible


ATTACKS: tuple[Attack, ...] = (_models_and_names, _labels, _row_lengths, _alike, _members, _likely_members, _inputs)


def plain_findings(run: Recorded) -> tuple[list[Finding], dict[str, str]]:
    """These attacks' findings, and why some do not apply."""
    return applied(ATTACKS, run, plain_updates(run), NONE_IN_THE_CLEAR)
