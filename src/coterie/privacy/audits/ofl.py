"""What OFL's parameter server, one leader, and all leaders but one find out in a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.dp.uploads import Standard
from coterie.privacy.attacks import labels
from coterie.privacy.attacks.noisy_uploads import SPREAD, TRIALS, audit_distributed, audit_heuristic, audit_standard
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.samples import Losses, membership_auc, upload_membership, uploaded_model
from coterie.privacy.audits import Audit, Finding, Measured, Recorded, attack, ofl_views, tried
from coterie.privacy.audits.ofl_active import ACTIVE, COALITION, active
from coterie.privacy.measures import alike, check_classes, memberships
from coterie.privacy.plain import losses, same_pool, some_rounds
from coterie.systems.ofl.messages import HUB, LEADER

Doubles = NDArray[np.float64]
SCALARS = {
    "fourier": ("energy of high frequencies", "squared norm", "squared distance"),
    "norms": ("squared norm", "dot product"),
}
"""By detection, what is opened of each leader's model."""
UNKNOWN = "the places of uploads follow from the run's session, which is not kept: take --crypto emulated"


# -- the parameter server ----------------------------------------------------------------------------------------------


@attack("global-model", HUB, "samples")
def by_global_model(run: Recorded) -> Iterator[Measured]:
    """Tells from losses of the global model which samples were trained on."""
    models = ofl_views.global_models(run)
    for r in some_rounds(list(models)):
        own, others = zip(*(losses(run, models[r], i) for i in range(len(run.clients))), strict=True)
        what = "samples that were trained on, by loss of the global model"
        known = same_pool(run, range(len(run.clients)))
        yield tried(HUB, what, partial(membership_auc, own, others, same_pool=known))


@attack("status-reports", HUB, "other")
def by_reports(run: Recorded) -> Iterator[Measured]:
    """Reads sample counts, and compares summaries of uploads and clusters."""
    for of_round in ofl_views.reports(run).values():
        yield from _by_reports(run, of_round)
    for found in ofl_views.clusters(run).values():
        yield from memberships(run, HUB, np.array([*found.values()]), run.numbers(found))


def _by_reports(run: Recorded, of_round: Mapping[str, Any]) -> Iterator[Measured]:
    reporting = run.numbers(of_round)
    samples = ofl_views.reported_samples(of_round)
    truth = run.label_counts[reporting].sum(axis=1)
    yield tried(HUB, "number of samples, as reported", partial(labels.rank_correlation, samples, truth, "samples"))
    if not (summed := [i for i, report in enumerate(of_round.values()) if report.update.any()]):
        return  # nobody has uploaded before
    rows = np.stack([report.update for report in of_round.values()])[summed].astype(np.float64)
    who = [reporting[i] for i in summed]
    if len(who) > 2:
        yield from alike(run, HUB, "summaries of uploads", rows @ rows.T, who)


@attack("leader-scalars", HUB, "other")
def by_scalars(run: Recorded) -> Iterator[Measured]:
    """Guesses a cluster's variety of labels and size from what detection opens.

    Two or three numbers can also reveal which leaders' data are similar.
    """
    for line in run.lines:
        note = line["notes"]
        opened = {name: row for name, row in note.get("scalars", {}).items() if None not in row}
        if len(opened) < 3:
            continue
        counts, rows = ofl_views.pooled(run, note, list(opened)), np.array([*opened.values()])
        entropy, samples = labels.label_entropy(counts), counts.sum(axis=1)
        for name, column in zip(SCALARS[run.settings.detection], rows.T, strict=True):
            for what, truth, of in (
                ("variety of labels", entropy, "label entropy"),
                ("number of samples", samples, "samples"),
            ):
                score = partial(labels.rank_correlation, column, truth, of)
                yield tried(HUB, f"{what} of a cluster, by {name} of its model", score)
        spread = rows.std(axis=0)
        rows = rows / np.where(spread > 0, spread, 1.0)
        near = -np.linalg.norm(rows[:, None] - rows, axis=2)
        what = "which pairs of clusters have similar labels, by the numbers of their models"
        yield tried(HUB, what, partial(labels.pair_correlation, near, counts), topic="groups")


# -- one leader --------------------------------------------------------------------------------------------------------


@attack("upload-membership", LEADER, "samples")
def by_lowered_losses(run: Recorded, of_round: Mapping[int, Sequence[ofl_views.Heard]]) -> Iterator[Measured]:
    """Tells training samples by the losses that a noisy upload lowers."""
    for r in some_rounds(list(of_round)):
        what = "samples that were trained on, by losses that an upload lowers"
        yield tried(LEADER, what, partial(lowered, run, of_round[r]))


@attack("upload-labels", LEADER, "labels")
def by_values(run: Recorded, of_round: Mapping[int, Sequence[ofl_views.Heard]]) -> Iterator[Measured]:
    """Reads label shares off noisy uploads."""
    for uploads in of_round.values():
        yield tried(LEADER, "label shares, by uploads", partial(within, run, uploads, by_steps, placed=True))


@attack("upload-choices", LEADER, "labels")
def by_choices(run: Recorded, of_round: Mapping[int, Sequence[ofl_views.Heard]]) -> Iterator[Measured]:
    """Reads label shares off which parameters are uploaded, or wanted."""
    for uploads in of_round.values():
        if _placed(uploads):
            what = "label shares, by which parameters are uploaded"
            yield tried(LEADER, what, partial(within, run, uploads, sent, placed=True))
        yield tried(LEADER, "label shares, by which parameters are wanted", partial(within, run, uploads, asked))


FromUploads = Callable[[Sequence[ofl_views.Heard], fl.ModelSpec], Doubles]
"""Uploads of n members -> (n, classes), which grow with label shares."""


def by_steps(uploads: Sequence[ofl_views.Heard], spec: fl.ModelSpec) -> Doubles:
    return labels.label_shares(np.stack([one.step() for one in uploads]), spec)


def sent(uploads: Sequence[ofl_views.Heard], spec: fl.ModelSpec) -> Doubles:
    return labels.selected_by_class(_masks([one.places for one in uploads], spec), spec)


def asked(uploads: Sequence[ofl_views.Heard], spec: fl.ModelSpec) -> Doubles:
    return labels.selected_by_class(_masks([one.wanted for one in uploads], spec), spec)


def _masks(places: Sequence[NDArray[Any] | None], spec: fl.ModelSpec) -> NDArray[np.bool_]:
    found = np.zeros((len(places), spec.size), np.bool_)
    for mask, one in zip(found, places, strict=True):
        mask[one] = True
    return found


def _placed(uploads: Sequence[ofl_views.Heard]) -> list[ofl_views.Heard]:
    return [one for one in uploads if one.places is not None]


def within(
    run: Recorded, uploads: Sequence[ofl_views.Heard], guess: FromUploads, *, placed: bool = False
) -> AttackResult:
    """How well a guess gives label shares among each leader's own members. Raises UserError.

    placed: of the uploads with known places.
    """
    uploads = _placed(uploads) if placed else uploads
    if not uploads:
        raise fl.UserError(UNKNOWN)
    members, leaders = [one.member for one in uploads], np.array([one.leader for one in uploads])
    counts = check_classes(run.label_counts)[members]
    return labels.share_correlation(guess(uploads, run.spec), counts, leaders)


def lowered(run: Recorded, uploads: Sequence[ofl_views.Heard]) -> AttackResult:
    """Membership, of all members whose uploads a leader has read. Raises UserError."""
    trained: list[Losses] = []
    others: list[Losses] = []
    for one in uploads:
        if one.places is not None and one.change is not None:
            after = uploaded_model(one.base, one.places, one.change)
            both = [losses(run, weights, one.member) for weights in (np.asarray(one.base), after)]
            trained.append((both[0][0], both[1][0]))
            others.append((both[0][1], both[1][1]))
    if not trained:
        raise fl.UserError(UNKNOWN)
    return upload_membership(trained, others, same_pool=same_pool(run, [one.member for one in uploads]))


# -- all leaders but one, with the server ------------------------------------------------------------------------------


@attack("subtraction", COALITION, "models")
def by_coalition(run: Recorded) -> Iterator[Measured]:
    """Subtracts its own models from the mean, and has the last leader's.

    It follows unless its model has no weight, so this is stated and no cipher attacked.
    """
    for line in run.lines:
        note = line["notes"]
        if len(of := note.get("s_factors", {})) > 1:
            inside = np.mean([note.get("influence", {}).get(name, 1.0) > 0 for name in of])
            result = AttackResult("leader models that follow (share)", float(inside), 0.0, 1.0, len(of))
            yield Measured(COALITION, "models of the last leader, by subtraction", result)


def passive(run: Recorded) -> list[Finding]:
    """Raises UserError for a record in which no leader has led."""
    if not any(True for _ in ofl_views.leaders_views(run)):
        raise fl.UserError("the record has no leader's view: nobody led, or recording ended before")
    of_round = ofl_views.heard(run)
    return [
        *by_global_model(run),
        *by_reports(run),
        *by_scalars(run),
        *by_values(run, of_round),
        *by_lowered_losses(run, of_round),
        *by_choices(run, of_round),
        *by_coalition(run),
    ]


# -- the noise ---------------------------------------------------------------------------------------------------------

AUDITED = 256
"""Parameters of an audited upload: noise is alike on all."""


def noise(federation: fl.Federation) -> Sequence[Mapping[str, Any]]:
    """A lower bound beside the claim (``attacks/noisy_uploads.py``)."""
    config = federation.look(federation.hub).config
    if config.mechanism != "paper":
        size = min(AUDITED, federation.common.spec.size)
        mechanism = config.uploads(size)
        if isinstance(mechanism, Standard):
            return [audit_standard(mechanism, size, config.dp_delta, trials=TRIALS).row()]
        return [audit_distributed(mechanism, config.dp_delta, trials=TRIALS).row()]
    return [audit_heuristic(delta=config.dp_delta, spread=spread, trials=TRIALS).row() for spread in (SPREAD, inf)]


AUDIT = Audit(passive, active, ACTIVE, noise)
