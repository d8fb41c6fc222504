"""A recorded run of OFL once more, by the same seed, with a deviating client or leader; real keys and ciphers are
fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.aggregation.contribution import contribution
from coterie.devices.resources import Status
from coterie.dp.uploads import eligible
from coterie.privacy.attacks.active.deviations import moved as lengthened
from coterie.privacy.attacks.joint_key import LeaderThief, key_read_by_leader
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import repeated, wrap
from coterie.privacy.audits import Delays, Finding, Measured, Recorded, attack, tried
from coterie.privacy.audits.ofl_views import global_models, pooled
from coterie.privacy.measures import profiles
from coterie.systems.ofl.messages import MODEL

Doubles = NDArray[np.float64]
COALITION = "all leaders but one, with the server"
ONE_LEADER = "one leader, deviating"
"""The same words for all runs, for one row."""
BOAST = 10.0
"""How many times its device's speed a boasting client reports."""
LENGTHS = (10.0, -10.0)
"""A forging leader sends so many times its change of the global model."""


def active(run: Recorded) -> list[Finding]:
    """Raises UserError for a run of fewer than 3 rounds, or in which nobody led."""
    if len(run.lines) < 3:
        raise fl.UserError("what a client that deviates does shows later: repeat the run with 3 rounds or more")
    if not terms(run):
        raise fl.UserError("nobody led in this run, so there is no leader to deviate")
    return [found for one in ACTIVE for found in one(run)]


def terms(run: Recorded) -> Counter[str]:
    return Counter(name for line in run.lines for name in line["notes"]["leaders"].values())


def most_often(run: Recorded) -> str:
    """The client that led in the most rounds, or the first."""
    led = terms(run)
    return max(run.clients, key=lambda name: led[name])


# -- the joint key -----------------------------------------------------------------------------------------------------


@attack("joint-key-theft", ONE_LEADER, "other")
def stealing(run: Recorded) -> Iterator[Measured]:
    """Reads the joint key off the model (fails: leaders use pads)."""
    thieves = list[LeaderThief]()
    found = tried(ONE_LEADER, "the joint key", partial(key_read_by_leader, run, most_often(run), MODEL, thieves))
    yield found._replace(round=thieves[0].round) if found.result else found


# -- status reports ----------------------------------------------------------------------------------------------------


@attack("boasting", "one client, deviating", "other")
def boasting(run: Recorded) -> Iterator[Measured]:
    """Reports more than its device has, to lead more often.

    The client that led least reports ``BOAST`` times its speed, and constant presence. Chance: how often it led
    honestly, with the spread of elections by lot.
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
    faster = {
        name: BOAST * getattr(status, name)
        for name in ("compute_flops_per_s", "cpu_ghz", "memory_gib", "up_bytes_per_s", "down_bytes_per_s")
    }
    return replace(status, **faster, share=1.0, present_s=step_s)


# -- forged models -----------------------------------------------------------------------------------------------------


@attack("forged-leader-model", ONE_LEADER, "other")
def forging(run: Recorded, lengths: Sequence[float] = LENGTHS) -> Iterator[Measured]:
    """Sends its change of the model ten times as long.

    By the client that led most often: its model's weight relative to its honest ones', and the effect on accuracy,
    whose chance is the honest run's, with its spread over the later half.
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
    """A leader model's weight over the largest, in every round with an opened sum."""
    notes = [line["notes"] for line in run.lines if client in line["notes"].get("s_factors", {})]
    return [float(note.get("influence", {}).get(client, 1.0)) for note in notes]


def weighed(run: Recorded, forged: Recorded, client: str) -> AttackResult:
    """Its forged models' mean weight over that of its honest ones."""
    honest, left = weight(run, client), weight(forged, client)
    if not left or not honest or not fmean(honest):
        raise fl.UserError("no round with its model was opened, or its honest models have no weight")
    return AttackResult("weight over that of its honest models", min(1.0, fmean(left) / fmean(honest)), 0.0, 1.0, 1)


def spoilt(run: Recorded, forged: Recorded) -> AttackResult:
    """The final global model's accuracy, with the forging leader and without."""
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
"""By round and leader, when it encrypts: (d,) the model that it began with, and its own."""


def observed(run: Recorded) -> tuple[Own, Recorded]:
    """The run again, nobody deviating, and each leader's memory."""
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


@attack("subtraction-repeated", COALITION, "other")
def subtracting(honest: Recorded) -> Iterator[Measured]:
    """Repeats the run, and reads label shares off the leaders' models.

    Of the leader with the largest weight.
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


ACTIVE = subtracting, stealing, boasting, forging
