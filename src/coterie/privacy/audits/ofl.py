"""What OFL's parameter server, one leader, and all leaders but one find out in a recorded run.

An active attack repeats the run, by the same seed, with one deviating client or with its leaders observed. Real keys
and ciphers are fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.aggregation.contribution import contribution
from coterie.crypto.roster import check_signed
from coterie.devices.resources import Status
from coterie.dp.uploads import Standard, eligible, shared_set
from coterie.privacy.attacks import labels
from coterie.privacy.attacks.active.deviations import moved as lengthened
from coterie.privacy.attacks.joint_key import LeaderThief
from coterie.privacy.attacks.key_in_sum import key_agreement
from coterie.privacy.attacks.membership import Losses, membership_auc, upload_membership, uploaded_model
from coterie.privacy.attacks.noisy_uploads import SPREAD, audit_distributed, audit_heuristic, audit_standard
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import repeated, wrap
from coterie.privacy.audits import Audit, Delays, Finding, Measured, Recorded, View, attack, tried
from coterie.privacy.measures import alike, check_classes, memberships, profiles
from coterie.privacy.plain import losses, same_pool, some_rounds
from coterie.privacy.views import check_real
from coterie.protocols.reports import FIELDS, StatusReport
from coterie.systems.ofl.messages import HUB, LEADER, MODEL, Lead, Led, Spread, Upload, named
from coterie.systems.ofl.sparse import Indices, places_of

Doubles = NDArray[np.float64]
COALITION = "all leaders but one, with the server"
ONE_LEADER = "one leader, deviating"
"""The same words for all runs, so that findings of several seeds are one row."""
BOAST = 10.0
"""How many times its device's speed a boasting client reports."""
LENGTHS = (10.0, -10.0)
"""How many times its change of the global model a forging leader sends; backwards, if it is negative."""
SCALARS = {
    "fourier": ("energy of high frequencies", "squared norm", "squared distance"),
    "norms": ("squared norm", "dot product"),
}
"""By detection, what is opened of each leader's model."""
UNKNOWN = "the places of uploads follow from the run's session, which is not kept: take --crypto emulated"


# -- what the record holds, by round -----------------------------------------------------------------------------------


class Heard(NamedTuple):
    """An upload that a leader has read. round: of the upload.  member: its client's number.  leader: its number.

    places, change: (k,) where and by how much it differs from the server's model ``base`` (d,); None where the places
    are not known.  wanted: (w,) the parameters that the member wants to download.
    """

    round: int
    member: int
    leader: int
    base: fl.Vector
    places: Indices | None
    change: Doubles | None
    wanted: Indices

    def step(self) -> Doubles:
        """(d,) the change; 0 at what was not uploaded."""
        found = np.zeros(len(self.base))
        found[self.places] = self.change
        return found


def leaders_views(run: Recorded) -> Iterator[tuple[int, View]]:
    """The views of clients as leaders, with their clients' numbers."""
    for view in run.views.values():
        if view.role == LEADER:
            yield run.clients.index(view.party.partition(" as ")[0]), view


def heard(run: Recorded) -> dict[int, list[Heard]]:
    """By round, the uploads that leaders have read, without empty, late or relayed ones.

    A leader assumes that a member began with the server's model of that round. It knows this exactly only of a member
    that downloads everything.
    """
    found: dict[int, list[Heard]] = {}
    for leader, view in leaders_views(run):
        model, bases = run.initial, dict[int, fl.Vector]()
        for seen in view.seen:
            message: Any = seen.message
            if isinstance(message, Lead | Spread) and message.weights is not None:
                model = np.asarray(message.weights)
            if isinstance(message, Lead):
                bases[message.round] = model
            if isinstance(message, Upload) and len(message.values) and message.round == seen.round:
                one = _heard(run, seen.src, leader, message, bases[message.round])
                found.setdefault(message.round, []).append(one)
    return dict(sorted(found.items()))


def _heard(run: Recorded, src: str, leader: int, upload: Upload, base: fl.Vector) -> Heard:
    every = eligible(run.spec)
    places = uploaded_places(run, src, upload)
    values = upload.values.astype(np.float64)
    change = None if places is None else values if run.settings.mechanism == "standard" else values - base[places]
    wanted = every[places_of(upload.wanted, len(every))]
    return Heard(upload.round, run.clients.index(src), leader, base, places, change, wanted)


def uploaded_places(run: Recorded, src: str, upload: Upload) -> Indices | None:
    """Where an upload's values belong.

    Public places follow from the run's session, which a folder with real keys does not keep: None then, but for uploads
    of the whole model.
    """
    if upload.places is not None:
        return upload.places.astype(np.int64)
    every, common = eligible(run.spec), run.federation.common
    if len(upload.values) < len(every):
        try:
            check_signed(common, src, upload)
        except (fl.PeerError, fl.CryptoError):
            return None
    return shared_set(every, len(upload.values), common.roster.session, src, upload.round)


def reports(run: Recorded) -> dict[int, dict[str, StatusReport]]:
    """By round and client, the status reports that leaders have sent on to the server."""
    found: dict[int, dict[str, StatusReport]] = {}
    for seen, led in run.views.get(HUB, View(HUB, HUB)).messages(Led):
        parts = [fl.codec.decode(data, StatusReport) for data in fl.unbundle(led.reports, len(led.rounds))]
        found.setdefault(seen.round, {}).update({one.client: one for one in parts})
    return found


def global_models(run: Recorded) -> dict[int, fl.Vector]:
    """By round, the global model that the server made."""
    return {spread.round: spread.weights for _, view in leaders_views(run) for _, spread in view.messages(Spread)}


def clusters(run: Recorded) -> dict[int, dict[str, int]]:
    """By round, the cluster of each client, as the server told the leaders."""
    found: dict[int, dict[str, int]] = {}
    for _, view in leaders_views(run):
        for seen, lead in view.messages(Lead):
            of = dict.fromkeys(named(lead.members, len(lead.counted)), lead.cluster)
            found.setdefault(seen.round, {}).update(of)
    return dict(sorted(found.items()))


def pooled(run: Recorded, note: Mapping[str, Any], leaders: Sequence[str]) -> NDArray[np.int64]:
    """(n, classes) label counts of the clients that each of these leaders represented in this round."""
    members = [run.numbers(note["stands_for"][leader]) for leader in leaders]
    return np.stack([run.label_counts[of].sum(axis=0) for of in members])


# -- the parameter server ----------------------------------------------------------------------------------------------


@attack("global-model", HUB, "samples", "tells from losses of the global model which samples were trained on")
def by_global_model(run: Recorded) -> Iterator[Measured]:
    models = global_models(run)
    for r in some_rounds(list(models)):
        own, others = zip(*(losses(run, models[r], i) for i in range(len(run.clients))), strict=True)
        what = "samples that were trained on, by loss of the global model"
        known = same_pool(run, range(len(run.clients)))
        yield tried(HUB, what, partial(membership_auc, own, others, same_pool=known))


@attack("status-reports", HUB, "other", "reads sample counts, and compares summaries of uploads and clusters")
def by_reports(run: Recorded) -> Iterator[Measured]:
    for of_round in reports(run).values():
        yield from _by_reports(run, of_round)
    for found in clusters(run).values():
        members = run.numbers(found)
        yield from memberships(HUB, np.array([*found.values()]), members, run.label_counts, run.groups)


def _by_reports(run: Recorded, of_round: Mapping[str, StatusReport]) -> Iterator[Measured]:
    """Clients' reported numbers of samples, and which of them have similar summaries of their last uploads."""
    reporting = run.numbers(of_round)
    samples = np.array([report.values[FIELDS.index("samples")] for report in of_round.values()])
    truth = run.label_counts[reporting].sum(axis=1)
    yield tried(HUB, "number of samples, as reported", partial(labels.rank_correlation, samples, truth, "samples"))
    if not (summed := [i for i, report in enumerate(of_round.values()) if report.update.any()]):
        return  # nobody has uploaded before
    rows = np.stack([report.update for report in of_round.values()])[summed].astype(np.float64)
    who = [reporting[i] for i in summed]
    if len(who) > 2:
        yield from alike(HUB, "summaries of uploads", rows @ rows.T, who, run.label_counts, run.groups)


@attack("leader-scalars", HUB, "other", "guesses a cluster's variety of labels and size from what detection opens")
def by_scalars(run: Recorded) -> Iterator[Measured]:
    """What the opened numbers of leaders' models reveal of the clients that each leader represents.

    Two or three numbers name no class. They can reveal the variety of labels, the number of samples, and which leaders'
    data are similar.
    """
    for line in run.lines:
        note = line["notes"]
        opened = {name: row for name, row in note.get("scalars", {}).items() if None not in row}
        if len(opened) < 3:
            continue
        counts, rows = pooled(run, note, list(opened)), np.array([*opened.values()])
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


@attack("upload-membership", LEADER, "samples", "tells training samples by the losses that a noisy upload lowers")
def by_lowered_losses(run: Recorded, of_round: Mapping[int, Sequence[Heard]]) -> Iterator[Measured]:
    for r in some_rounds(list(of_round)):
        what = "samples that were trained on, by losses that an upload lowers"
        yield tried(LEADER, what, partial(lowered, run, of_round[r]))


@attack("upload-labels", LEADER, "labels", "reads label shares off noisy uploads")
def by_values(run: Recorded, of_round: Mapping[int, Sequence[Heard]]) -> Iterator[Measured]:
    for uploads in of_round.values():
        yield tried(LEADER, "label shares, by uploads", partial(within, run, uploads, by_steps, placed=True))


@attack("upload-choices", LEADER, "labels", "reads label shares off which parameters are uploaded, or wanted")
def by_choices(run: Recorded, of_round: Mapping[int, Sequence[Heard]]) -> Iterator[Measured]:
    for uploads in of_round.values():
        if _placed(uploads):
            what = "label shares, by which parameters are uploaded"
            yield tried(LEADER, what, partial(within, run, uploads, sent, placed=True))
        yield tried(LEADER, "label shares, by which parameters are wanted", partial(within, run, uploads, asked))


FromUploads = Callable[[Sequence[Heard], fl.ModelSpec], Doubles]
"""Uploads of n members -> (n, classes), which grow with label shares."""


def by_steps(uploads: Sequence[Heard], spec: fl.ModelSpec) -> Doubles:
    """A guess from the values."""
    return labels.label_shares(np.stack([one.step() for one in uploads]), spec)


def sent(uploads: Sequence[Heard], spec: fl.ModelSpec) -> Doubles:
    """A guess from what was selected."""
    return labels.selected_by_class(_masks([one.places for one in uploads], spec), spec)


def asked(uploads: Sequence[Heard], spec: fl.ModelSpec) -> Doubles:
    """A guess from the wishes."""
    return labels.selected_by_class(_masks([one.wanted for one in uploads], spec), spec)


def _masks(places: Sequence[Indices | None], spec: fl.ModelSpec) -> NDArray[np.bool_]:
    found = np.zeros((len(places), spec.size), np.bool_)
    for mask, one in zip(found, places, strict=True):
        mask[one] = True
    return found


def _placed(uploads: Sequence[Heard]) -> list[Heard]:
    return [one for one in uploads if one.places is not None]


def within(run: Recorded, uploads: Sequence[Heard], guess: FromUploads, *, placed: bool = False) -> AttackResult:
    """How well a guess gives label shares among each leader's members, since no leader sees others. Raises UserError.

    placed: of the uploads whose places are known.
    """
    uploads = _placed(uploads) if placed else uploads
    if not uploads:
        raise fl.UserError(UNKNOWN)
    members, leaders = [one.member for one in uploads], np.array([one.leader for one in uploads])
    counts = check_classes(run.label_counts)[members]
    return labels.share_correlation(guess(uploads, run.spec), counts, leaders)


def lowered(run: Recorded, uploads: Sequence[Heard]) -> AttackResult:
    """Membership from what uploads have lowered, of all members whose uploads a leader has read. Raises UserError."""
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


@attack("subtraction", COALITION, "models", "subtracts its own models from the mean, and has the last leader's")
def by_coalition(run: Recorded) -> Iterator[Measured]:
    """The last leader's model follows by subtraction, but for a model without weight in the mean.

    So this is stated, and no cipher is attacked. ``subtracting`` repeats the run and measures how exact it is.
    """
    for line in run.lines:
        note = line["notes"]
        if len(of := note.get("s_factors", {})) > 1:
            inside = np.mean([note.get("influence", {}).get(name, 1.0) > 0 for name in of])
            result = AttackResult("leader models that follow (share)", float(inside), 0.0, 1.0, len(of))
            yield Measured(COALITION, "models of the last leader, by subtraction", result)


def passive(run: Recorded) -> list[Finding]:
    """Every attack on a recorded run. Raises UserError for a record in which no leader has led."""
    if not any(True for _ in leaders_views(run)):
        raise fl.UserError("the record has no leader's view: nobody led, or recording ended before")
    of_round = heard(run)
    return [
        *by_global_model(run),
        *by_reports(run),
        *by_scalars(run),
        *by_values(run, of_round),
        *by_lowered_losses(run, of_round),
        *by_choices(run, of_round),
        *by_coalition(run),
    ]


# -- parties that deviate ----------------------------------------------------------------------------------------------


def active(run: Recorded) -> list[Finding]:
    """All of them. Raises UserError for a run of fewer than 3 rounds, or in which nobody led."""
    if len(run.lines) < 3:
        raise fl.UserError("what a client that deviates does shows later: repeat the run with 3 rounds or more")
    if not terms(run):
        raise fl.UserError("nobody led in this run, so there is no leader to deviate")
    return [*subtracting(run), *stealing(run), *boasting(run), *forging(run)]


def terms(run: Recorded) -> Counter[str]:
    """In how many rounds each client led."""
    return Counter(name for line in run.lines for name in line["notes"]["leaders"].values())


def most_often(run: Recorded) -> str:
    """The client that led in the most rounds; on a tie, the first."""
    led = terms(run)
    return max(run.clients, key=lambda name: led[name])


# -- the joint key -----------------------------------------------------------------------------------------------------


@attack("joint-key-theft", ONE_LEADER, "other", "reads the joint key off the model (fails: leaders use pads)")
def stealing(run: Recorded) -> Iterator[Measured]:
    """How much of the leaders' joint key the client that led most often reads."""
    client, thieves = most_often(run), list[LeaderThief]()

    def meddle(federation: fl.Federation, delays: Delays) -> None:
        parties = {one: federation.alter(one) for one in run.clients}
        thieves.append(LeaderThief(parties[client], parties, MODEL))
        wrap(parties[client], thieves[0].between)

    def score() -> AttackResult:
        check_real(run)
        run.again(meddle)
        thief = thieves[0]
        if thief.guess is None or thief.secret is None:
            raise fl.UserError(f"{client} led in no two rounds with a global model between: take more rounds")
        return key_agreement(thief.guess, thief.secret)

    found = tried(ONE_LEADER, "the joint key", score)
    yield found._replace(round=thieves[0].round) if found.result else found


# -- status reports ----------------------------------------------------------------------------------------------------


@attack("boasting", "one client, deviating", "other", "reports more than its device has, to lead more often")
def boasting(run: Recorded) -> Iterator[Measured]:
    """The client that led least reports ``BOAST`` times its device's speed, and constant presence.

    Chance is how often it led honestly, with the spread of elections by lot.
    """
    led = terms(run)
    name = min(run.clients, key=lambda one: led[one])

    def more(message: fl.Message, effect: fl.Local, result: Any) -> Any:
        return boasted(result, float(effect.arguments[1])) if isinstance(result, Status) else result

    lied = repeated(run, name, {fl.Local: more})
    before, after = (terms(one)[name] / len(one.lines) for one in (run, lied))
    elections = sum(line["notes"]["reclustered"] for line in lied.lines) or 1
    fair = sum(led.values()) / len(run.lines) / len(run.clients)
    by_chance = float(np.sqrt(fair * (1 - fair) / elections))
    result = AttackResult("rounds in which it leads (share)", after, before, 1.0, 1, by_chance)
    yield Measured("one client, deviating", "leads, for a device that it does not have", result)


def boasted(status: Status, step_s: float) -> Status:
    """A device this many times as fast, always available."""
    faster = {
        name: BOAST * getattr(status, name)
        for name in ("compute_flops_per_s", "cpu_ghz", "memory_gib", "up_bytes_per_s", "down_bytes_per_s")
    }
    return replace(status, **faster, share=1.0, present_s=step_s)


# -- forged models -----------------------------------------------------------------------------------------------------


@attack("forged-leader-model", ONE_LEADER, "other", "sends its change of the model ten times as long")
def forging(run: Recorded, lengths: Sequence[float] = LENGTHS) -> Iterator[Measured]:
    """The client that led most often sends a model whose change is this many times as long.

    Two findings each: its model's remaining weight relative to its honest ones', and the effect on accuracy. Chance of
    the latter is the honest run's accuracy, with its spread over the later half.
    """
    client = most_often(run)
    for length in lengths:
        forged = repeated(run, client, {fl.Compute: partial(_lengthened, length)})
        words = f"its change {abs(length):g} times as long{', backwards' if length < 0 else ''}"
        yield tried(ONE_LEADER, f"weight that a leader model keeps, {words}", partial(weighed, run, forged, client))
        yield tried(ONE_LEADER, f"accuracy that is lost by a leader model, {words}", partial(spoilt, run, forged))


def _lengthened(length: float, message: fl.Message, effect: fl.Compute, result: Any) -> Any:
    if effect.function is not contribution:
        return result
    start, weights = effect.arguments
    return lengthened(start, weights, length)


def weight(run: Recorded, client: str) -> list[float]:
    """The weight of a client's leader model over the largest, in every round with an opened sum."""
    notes = [line["notes"] for line in run.lines if client in line["notes"].get("s_factors", {})]
    return [float(note.get("influence", {}).get(client, 1.0)) for note in notes]


def weighed(run: Recorded, forged: Recorded, client: str) -> AttackResult:
    """Mean weight of its forged models over that of its honest ones. 1: they are not damped."""
    honest, left = weight(run, client), weight(forged, client)
    if not left or not honest or not fmean(honest):
        raise fl.UserError("no round with its model was opened, or its honest models have no weight")
    return AttackResult("weight over that of its honest models", min(1.0, fmean(left) / fmean(honest)), 0.0, 1.0, 1)


def spoilt(run: Recorded, forged: Recorded) -> AttackResult:
    """The final global model's accuracy, with the forging leader and without it."""
    honest, after = (
        [float(line["global_accuracy"]) for line in one.lines if line.get("global_accuracy") is not None]
        for one in (run, forged)
    )
    if not honest or not after:
        raise fl.UserError("the task has no accuracy")
    later = honest[len(honest) // 2 :]
    spread = stdev(later) if len(later) > 1 else 0.0
    guess = 1 / run.label_counts.shape[1]
    return AttackResult("accuracy of the global model", after[-1], honest[-1], guess, 1, spread)


# -- subtraction -------------------------------------------------------------------------------------------------------


Own = Mapping[tuple[int, str], tuple[Doubles, Doubles]]
"""By round and leader, its memory when it encrypts: (d,) the model that it began with, and its own."""


def observed(run: Recorded) -> tuple[Own, Recorded]:
    """The run again, with nobody deviating, and each leader's memory."""
    own: dict[tuple[int, str], tuple[Doubles, Doubles]] = {}

    def meddle(federation: fl.Federation, delays: Delays) -> None:
        for name in run.clients:
            wrap(federation.alter(name), {fl.Compute: partial(keep, name)})

    def keep(name: str, message: fl.Message, effect: fl.Compute, result: Any) -> Any:
        if effect.function is contribution:
            began, model = (np.asarray(weights, np.float64) for weights in (effect.arguments[0], result))
            own[int(getattr(message, "round", 0)), name] = began, model
        return result

    return own, run.again(meddle)


@attack("subtraction-repeated", COALITION, "other", "repeats the run, and reads label shares off the leaders' models")
def subtracting(honest: Recorded) -> Iterator[Measured]:
    """What all others with the server find of the leader with the largest weight, compared with its memory.

    Also what the models, each known to the coalition of all others, reveal: label shares of a leader's clients.
    """
    own, run = observed(honest)
    places, models, before = eligible(run.spec), global_models(run), run.initial
    for line in run.lines:
        r, note = line["round"], line["notes"]
        if r not in models or len(of := list(note["s_factors"])) < 2:
            continue
        weights, divisor = note["weights"], note["divisor"]
        after = models[r].astype(np.float64)
        changes = run.settings.sends_changes
        sent = {name: own[r, name][1] - changes * own[r, name][0] for name in of}
        last = max(weights, key=lambda name: weights[name])
        rest = sum(weight * sent[name] for name, weight in weights.items() if name != last)
        found = (divisor * (after - changes * before) - rest) / weights[last]
        steps = {name: own[r, name][1] - own[r, name][0] for name in of}
        error = float(np.linalg.norm((found - sent[last])[places]) / (np.linalg.norm(steps[last][places]) or 1.0))
        result = AttackResult("relative error of its change of the model", error, 1.0, 0.0, 1)
        yield Measured(COALITION, "the last leader's model, subtracted", result)
        if run.label_counts.shape[1] > 1:
            for one in profiles(COALITION, np.stack([*steps.values()]), pooled(run, note, of), run.spec):
                yield one._replace(what=f"{one.what} of a cluster")
        before = models[r]


# -- the noise ---------------------------------------------------------------------------------------------------------

AUDITED = 256
"""Parameters of an audited upload. More tell no more of noise that is alike on all."""


def noise(federation: fl.Federation) -> Sequence[Mapping[str, Any]]:
    """What the run's own noise is worth: an empirical lower bound beside the claim (``attacks/noisy_uploads.py``)."""
    config = federation.look(federation.hub).config
    if config.mechanism != "paper":
        size = min(AUDITED, federation.common.spec.size)
        mechanism = config.uploads(size)
        if isinstance(mechanism, Standard):
            return [audit_standard(mechanism, size, config.dp_delta).row()]
        return [audit_distributed(mechanism, config.dp_delta).row()]
    return [audit_heuristic(delta=config.dp_delta, spread=spread).row() for spread in (SPREAD, inf)]


AUDIT = Audit(
    passive,
    active,
    (
        by_global_model,
        by_reports,
        by_scalars,
        by_lowered_losses,
        by_values,
        by_choices,
        by_coalition,
        stealing,
        boasting,
        forging,
        subtracting,
    ),
    noise,
)
