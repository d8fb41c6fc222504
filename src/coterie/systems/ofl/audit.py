"""OFL's audit: what the parameter server, one leader, and all leaders but one find out in a recorded run.

Nobody deviates here. ``audit_active.py`` has the attacks of parties that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.labels import label_shares, pair_correlation, selected_by_class, share_correlation
from coterie.privacy.attacks.membership import Losses, membership_auc, upload_membership, uploaded_model
from coterie.privacy.attacks.result import Attack, Result
from coterie.privacy.attacks.selections import label_entropy, rank_correlation
from coterie.privacy.audits import Audit, Finding, Recorded
from coterie.privacy.audits.describing import memberships
from coterie.privacy.audits.measured import Measured, findings, tried
from coterie.privacy.audits.plain import ROUNDS
from coterie.privacy.audits.profiling import alike
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocols.reports import FIELDS, StatusReport
from coterie.systems.ofl.audit_active import active
from coterie.systems.ofl.audit_views import (
    COALITION,
    Heard,
    clusters,
    global_models,
    heard,
    leaders_views,
    pooled,
    reports,
)
from coterie.systems.ofl.messages import HUB, LEADER
from coterie.systems.ofl.sparse import Indices
from coterie.training.evaluate import judge_many

Doubles = NDArray[np.float64]

SCALARS = {
    "fourier": ("energy of high frequencies", "squared norm", "squared distance"),
    "norms": ("squared norm", "dot product"),
}
"""By detection, what is opened of each leader's model."""


def slow(rounds: Sequence[int]) -> list[int]:
    """At most ``ROUNDS`` of these rounds, in which slow attacks run, from the first to the last."""
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, min(ROUNDS, len(rounds))).round().astype(int)]


def _losses(run: Recorded, weights: Vector, client: int) -> tuple[Doubles, Doubles]:
    """A model's losses on a client's training samples, and on others of their kind."""
    samples = run.samples(run.clients[client])
    sides = (samples.x, samples.y), (samples.other_x, samples.other_y)
    own, other = (np.asarray(judge_many(run.model, weights[None], x, y).losses[0], np.float64) for x, y in sides)
    return own, other


# -- the parameter server ----------------------------------------------------------------------------------------------


@findings
def by_server(run: Recorded) -> Iterator[Measured]:
    """The global model, status reports and clusters, all by name."""
    models = global_models(run)
    for r in slow(list(models)):
        own, others = zip(*(_losses(run, models[r], i) for i in range(len(run.clients))), strict=True)
        known = f"{HUB}: samples that were trained on, by loss of the global model"
        yield tried(known, partial(membership_auc, own, others))
    for of_round in reports(run).values():
        yield from by_reports(run, of_round)
    for found in clusters(run).values():
        members = [run.clients.index(name) for name in found]
        yield from memberships(HUB, np.array([*found.values()]), members, run.label_counts, run.groups)


def by_reports(run: Recorded, of_round: Mapping[str, StatusReport]) -> Iterator[Measured]:
    """How many samples clients say they have, and which of them have similar summaries of their last uploads."""
    told = [run.clients.index(name) for name in of_round]
    samples = np.array([report.values[FIELDS.index("samples")] for report in of_round.values()])
    truth = run.label_counts[told].sum(axis=1)
    yield tried(f"{HUB}: number of samples, as reported", partial(rank_correlation, samples, truth, "samples"))
    if not (summed := [i for i, report in enumerate(of_round.values()) if report.update.any()]):
        return  # nobody has uploaded before
    rows = np.stack([report.update for report in of_round.values()])[summed].astype(np.float64)
    who = [told[i] for i in summed]
    if len(who) > 2:
        yield from alike(HUB, "summaries of uploads", rows @ rows.T, who, run.label_counts, run.groups)


@findings
def by_scalars(run: Recorded) -> Iterator[Measured]:
    """What the opened numbers of leaders' models tell of the data of those whom each leader stands for.

    Two or three numbers name no class, so that what they can tell is how varied labels are, how many samples there are,
    and which leaders' data are similar.
    """
    for line in run.lines:
        note = line["notes"]
        opened = {name: row for name, row in note.get("scalars", {}).items() if None not in row}
        if len(opened) < 3:
            continue
        counts, rows = pooled(run, note, list(opened)), np.array([*opened.values()])
        entropy, samples = label_entropy(counts), counts.sum(axis=1)
        for name, column in zip(SCALARS[run.settings.detection], rows.T, strict=True):
            for what, truth, of in (
                ("variety of labels", entropy, "label entropy"),
                ("number of samples", samples, "samples"),
            ):
                score = partial(rank_correlation, column, truth, of)
                yield tried(f"{HUB}: {what} of a cluster, by {name} of its model", score)
        spread = rows.std(axis=0)
        rows = rows / np.where(spread > 0, spread, 1.0)
        near = -np.linalg.norm(rows[:, None] - rows, axis=2)
        yield tried(
            f"{HUB}: which pairs of clusters have similar labels, by the numbers of their models",
            partial(pair_correlation, near, counts),
        )


# -- one leader --------------------------------------------------------------------------------------------------------


@findings
def by_leader(run: Recorded) -> Iterator[Measured]:
    """A leader's members' uploads, by name. Clients are compared within their clusters, since no leader sees others."""
    of_round = heard(run)
    members = f"{LEADER}: samples that were trained on, by losses that an upload lowers"
    by_values = f"{LEADER}: label shares, by uploads"
    lacking = "the places of uploads follow from the run's session, which is not kept: take --crypto emulated"
    timed = set(slow(list(of_round)))
    for r, uploads in of_round.items():
        known = [one for one in uploads if one.places is not None]
        if known:
            yield tried(by_values, partial(within, run, known, by_steps))
            if r in timed:
                yield tried(members, partial(lowered, run, known))
            yield tried(f"{LEADER}: label shares, by which parameters are uploaded", partial(within, run, known, sent))
        else:
            yield from (Measured(name, None, why=lacking) for name in (by_values, members))
        yield tried(f"{LEADER}: label shares, by which parameters are wanted", partial(within, run, uploads, asked))


Guess = Callable[[Sequence[Heard], ModelSpec], Doubles]
"""Uploads of n members -> (n, classes), which grow with label shares."""


def by_steps(uploads: Sequence[Heard], spec: ModelSpec) -> Doubles:
    """A guess from the values."""
    return label_shares(np.stack([one.step() for one in uploads]), spec)


def sent(uploads: Sequence[Heard], spec: ModelSpec) -> Doubles:
    """A guess from what was selected."""
    return selected_by_class(_masks([one.places for one in uploads], spec), spec)


def asked(uploads: Sequence[Heard], spec: ModelSpec) -> Doubles:
    """A guess from the wishes."""
    return selected_by_class(_masks([one.wanted for one in uploads], spec), spec)


def _masks(places: Sequence[Indices | None], spec: ModelSpec) -> NDArray[np.bool_]:
    found = np.zeros((len(places), spec.size), np.bool_)
    for mask, one in zip(found, places, strict=True):
        mask[one] = True
    return found


def within(run: Recorded, uploads: Sequence[Heard], guess: Guess) -> Result:
    """How well a guess tells label shares, each leader's members compared with each other. Raises UserError."""
    members, leaders = [one.member for one in uploads], np.array([one.leader for one in uploads])
    if run.label_counts.shape[1] < 2:
        raise UserError("the data have no classes: the task is regression, or there is a single label")
    return share_correlation(guess(uploads, run.spec), run.label_counts[members], leaders)


def lowered(run: Recorded, uploads: Sequence[Heard]) -> Result:
    """Membership from what uploads have lowered, of all members whose uploads some leader has read."""
    trained: list[Losses] = []
    others: list[Losses] = []
    for one in uploads:
        assert one.places is not None
        assert one.change is not None
        after = uploaded_model(one.base, one.places, one.change)
        both = [_losses(run, weights, one.member) for weights in (np.asarray(one.base), after)]
        trained.append((both[0][0], both[1][0]))
        others.append((both[0][1], both[1][1]))
    return upload_membership(trained, others)


# -- all leaders but one, with the server ------------------------------------------------------------------------------


@findings
def by_coalition(run: Recorded) -> Iterator[Measured]:
    """The last leader's model follows by subtraction: the mean, the weights and all other models are known.

    So this is stated, and no cipher is attacked. Only a model that has no weight in the mean does not follow. The
    record has no leader's own model; ``audit_active.py`` repeats the run and measures how exact the subtraction is.
    """
    for line in run.lines:
        note = line["notes"]
        if len(of := note.get("s_factors", {})) > 1:
            inside = np.mean([note.get("influence", {}).get(name, 1.0) > 0 for name in of])
            yield Measured(
                f"{COALITION}: models of the last leader, by subtraction",
                Result("leader models that follow (share)", float(inside), 0.0, 1.0, len(of)),
            )


def passive(run: Recorded) -> list[Finding]:
    """Every attack on a recorded run. Raises UserError for a record in which no leader has led."""
    if not any(True for _ in leaders_views(run)):
        raise UserError("the record has no leader's view: nobody led, or recording ended before")
    return by_server(run) + by_scalars(run) + by_leader(run) + by_coalition(run)


AUDIT = Audit(
    passive,
    active,
    (
        Attack("global-model", HUB, "tells from losses of the global model which samples were trained on"),
        Attack("status-reports", HUB, "reads sample counts, and compares summaries of uploads and clusters"),
        Attack("leader-scalars", HUB, "guesses a cluster's variety of labels and size from what detection opens"),
        Attack("upload-membership", LEADER, "tells training samples by the losses that a noisy upload lowers"),
        Attack("upload-labels", LEADER, "reads label shares off noisy uploads"),
        Attack("upload-choices", LEADER, "reads label shares off which parameters are uploaded, or wanted"),
        Attack("subtraction", COALITION, "subtracts its own models from the mean, and has the last leader's"),
        Attack(
            "joint-key-theft", "one leader, deviating", "reads the joint key off the model (fails: leaders use pads)"
        ),
        Attack("boasting", "one client, deviating", "reports more than its device has, to lead more often"),
        Attack("forged-leader-model", "one leader, deviating", "sends its change of the model ten times as long"),
    ),
)
