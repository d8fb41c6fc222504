"""The active attacks on OFL: a recorded run is repeated with one client that deviates, or with its leaders observed.

Data, devices and the honest clients' randomness are the same, by the same seed. Real keys and ciphers are fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.contribution import contribution
from coterie.crypto import threshold
from coterie.devices.links import Delays
from coterie.devices.resources import Status
from coterie.dp.uploads import eligible
from coterie.privacy.attacks.active.vectors import moved as lengthened
from coterie.privacy.attacks.key_in_sum import KeyThief, key_agreement
from coterie.privacy.attacks.result import Result
from coterie.privacy.attacks.shared_key import Guess
from coterie.privacy.attacks.wrapping import Between, wrap
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.audits.measured import Measured, findings
from coterie.privacy.audits.profiling import profiles
from coterie.protocol.effects import Compute, Encrypt, Local, Vector
from coterie.protocol.errors import UserError
from coterie.protocol.messages import Message
from coterie.protocol.system import Federation
from coterie.protocols.threshold_pads import Once
from coterie.protocols.threshold_theft import SHARE, joint_secret, moved, read_joint
from coterie.systems.ofl.audit_views import COALITION, global_models, pooled
from coterie.systems.ofl.messages import MODEL

Doubles = NDArray[np.float64]

ONE_LEADER = "one leader, deviating"
"""The same words for all runs, so that findings of several seeds are one row."""
BOAST = 10.0
"""How many times its device's speed a boasting client reports."""
LENGTHS = (10.0, -10.0)
"""How many times its change of the global model a forging leader sends; backwards, if it is negative."""


def active(run: Recorded) -> list[Finding]:
    """All of them. Raises UserError for a run of fewer than 3 rounds, or in which nobody led."""
    if len(run.lines) < 3:
        raise UserError("what a client that deviates does shows later: repeat the run with 3 rounds or more")
    if not terms(run):
        raise UserError("nobody led in this run, so there is no leader to deviate")
    return [
        *subtracting(run),
        stealing(run),
        boasting(run),
        *(one for length in LENGTHS for one in forging(run, length)),
    ]


def terms(run: Recorded) -> Counter[str]:
    """In how many rounds each client led."""
    return Counter(name for line in run.lines for name in line["notes"]["leaders"].values())


def most_often(run: Recorded) -> str:
    """The client that led in the most rounds; of several the first."""
    led = terms(run)
    return max(run.clients, key=lambda name: led[name])


# -- the joint key -----------------------------------------------------------------------------------------------------


class LeaderThief(KeyThief):
    """A leader's deviation: it adds K to one of its padded polynomials once, and reads the next global model.

    A leader does not choose its second polynomial, so K is all that it can add (``protocols/threshold_theft.py``).
    parties: all clients, for the truth when it forges.  guess: (N,) its reading, or None.  secret: (N,) the truth.
    """

    def __init__(self, party: Any, parties: dict[str, Any]) -> None:
        super().__init__(party.spec, SHARE)
        self._places_of_model = eligible(party.spec)
        self._parties = parties
        self._group: threshold.Group | None = None
        self._base: Doubles | None = None
        self.secret: Guess | None = None

    @property
    def between(self) -> Between:
        return {Compute: self._contributed, Encrypt: self._encrypted}

    def _contributed(self, message: Message, effect: Compute, result: Any) -> Any:
        """Just before it encrypts it has the global model: the one that its own last model is in."""
        if effect.function is contribution and self.guess is None:
            base = np.asarray(effect.arguments[0], np.float64)[self._places_of_model]
            if self._row is not None and self._base is not None and self._group is not None:
                change = (base - self._base)[self._row * self._group.degree :][: self._group.degree]
                if change.any():  # no round was skipped in between
                    self.guess, self.round = read_joint(change, self._group), getattr(message, "round", None)
            elif self._row is None:
                self._base = base
        return result

    def _encrypted(self, message: Message, effect: Encrypt, honest: Any) -> Any:
        if self._row is not None or not isinstance(effect.key, Once):
            return honest
        self._group = honest.group
        self.secret = joint_secret(self._parties, MODEL)
        self._row = self._shortest(effect.values, honest.group.degree)
        self.forged_in.append(int(getattr(message, "round", 0)))
        return moved(honest, self._row, self.share)


def stealing(run: Recorded) -> Finding:
    """How much of the leaders' joint key the client that led most often reads."""
    client = most_often(run)
    name = f"{ONE_LEADER}: the joint key"
    if run.options["crypto"] != "real":
        config = Path(run.options["out"] or "RUN") / "config.toml"
        again = f"coterie run --config {config} --crypto real --record --out ANOTHER_FOLDER"
        return Finding(name, (), why=f"an emulated key has no secret to be stolen: repeat the run with {again}")
    thieves: list[LeaderThief] = []

    def meddle(federation: Federation, delays: Delays) -> None:
        parties = {one: federation.alter(one) for one in run.clients}
        thieves.append(LeaderThief(parties[client], parties))
        wrap(parties[client], thieves[0].between)

    try:
        run.again(meddle)
    except UserError as error:  # the model fills no ciphertext
        return Finding(name, (), why=str(error))
    (thief,) = thieves
    if thief.guess is None or thief.secret is None:
        return Finding(name, (), why=f"{client} led in no two rounds with a global model between: take more rounds")
    return Finding(name, (key_agreement(thief.guess, thief.secret),), round=thief.round)


# -- status reports ----------------------------------------------------------------------------------------------------


def boasting(run: Recorded) -> Finding:
    """The client that led least reports ``BOAST`` times its device's speed, and that it is always there.

    Chance is how often it led honestly. Its spread is that of elections by lot.
    """
    led = terms(run)
    name = min(run.clients, key=lambda one: led[one])

    def more(message: Message, effect: Local, result: Any) -> Any:
        return boasted(result, float(effect.arguments[1])) if isinstance(result, Status) else result

    lied = run.again(lambda federation, delays: wrap(federation.alter(name), {Local: more}))
    before, after = (terms(one)[name] / len(one.lines) for one in (run, lied))
    elections = sum(line["notes"]["reclustered"] for line in lied.lines) or 1
    fair = sum(led.values()) / len(run.lines) / len(run.clients)
    result = Result(
        "rounds in which it leads (share)", after, before, 1.0, 1, float(np.sqrt(fair * (1 - fair) / elections))
    )
    return Finding("one client, deviating: leads, for a device that it does not have", (result,))


def boasted(status: Status, step_s: float) -> Status:
    """A device so many times as fast, which gives all of its time."""
    faster = {
        name: BOAST * getattr(status, name)
        for name in ("compute_flops_per_s", "cpu_ghz", "memory_gib", "up_bytes_per_s", "down_bytes_per_s")
    }
    return replace(status, **faster, share=1.0, present_s=step_s)


# -- forged models -----------------------------------------------------------------------------------------------------


def forging(run: Recorded, length: float) -> list[Finding]:
    """The client that led most often sends a model whose change is ``length`` times as long, which fits the format.

    Two findings: what weight is left to its model, of that which its honest ones have, and what it does to the
    accuracy. Chance of the latter is the accuracy of the honest run, and its spread that over the later half.
    """
    client = most_often(run)

    def longer(message: Message, effect: Compute, result: Any) -> Any:
        if effect.function is not contribution:
            return result
        start, weights = effect.arguments
        return lengthened(start, weights, length)

    forged = run.again(lambda federation, delays: wrap(federation.alter(client), {Compute: longer}))
    words = f"{abs(length):g} times as long{', backwards' if length < 0 else ''}"
    return [weighed(run, forged, client, words), spoilt(run, forged, words)]


def weight(run: Recorded, client: str) -> list[float]:
    """The weight of a client's leader model over the largest, in every round whose sum has been opened."""
    notes = [line["notes"] for line in run.lines if client in line["notes"].get("s_factors", {})]
    return [float(note.get("influence", {}).get(client, 1.0)) for note in notes]


def weighed(run: Recorded, forged: Recorded, client: str, words: str) -> Finding:
    """The mean weight of its forged models, over that of its honest ones. 1: they are not damped."""
    name = f"{ONE_LEADER}: weight that a leader model keeps, its change {words}"
    honest, kept = weight(run, client), weight(forged, client)
    if not kept or not honest or not fmean(honest):
        return Finding(name, (), why="no round with its model was opened, or its honest models have no weight")
    value = min(1.0, fmean(kept) / fmean(honest))
    return Finding(name, (Result("weight over that of its honest models", value, 0.0, 1.0, 1),))


def spoilt(run: Recorded, forged: Recorded, words: str) -> Finding:
    """The accuracy of the global model at the end, with the forging leader and without it."""
    name = f"{ONE_LEADER}: accuracy that is lost by a leader model, its change {words}"
    honest, after = (
        [float(line["global_accuracy"]) for line in one.lines if line.get("global_accuracy") is not None]
        for one in (run, forged)
    )
    if not honest or not after:
        return Finding(name, (), why="the task has no accuracy")
    later = honest[len(honest) // 2 :]
    spread = stdev(later) if len(later) > 1 else 0.0
    guess = 1 / run.label_counts.shape[1]
    return Finding(name, (Result("accuracy of the global model", after[-1], honest[-1], guess, 1, spread),))


# -- subtraction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kept:
    """What a leader has in its own memory when it encrypts: (d,) the model that it began with, and its own."""

    base: Vector
    model: Vector


def subtracting(run: Recorded) -> list[Finding]:
    """The run again, with nobody deviating: the last leader's model by subtraction, beside what it had in its memory.

    In each round the leader with the largest weight is the last one. And what the models tell, each known to the
    coalition of all others: label shares of those whom a leader stands for.
    """
    own: dict[tuple[int, str], Kept] = {}

    def meddle(federation: Federation, delays: Delays) -> None:
        for name in run.clients:

            def keep(message: Message, effect: Compute, result: Any, name: str = name) -> Any:
                if effect.function is contribution:
                    own[int(getattr(message, "round", 0)), name] = Kept(effect.arguments[0], result)
                return result

            wrap(federation.alter(name), {Compute: keep})

    return subtracted(run.again(meddle), own)


@findings
def subtracted(run: Recorded, own: Mapping[tuple[int, str], Kept]) -> Iterator[Measured]:
    """By round and leader, what each had in its memory -> what all others with the server find."""
    places, models, before = eligible(run.spec), global_models(run), run.initial
    for line in run.lines:
        r, note = line["round"], line["notes"]
        if r not in models or len(of := list(note["s_factors"])) < 2:
            continue
        weights, divisor = note["weights"], note["divisor"]
        after = models[r].astype(np.float64)
        changes = run.settings.sends_changes
        sent = {name: own[r, name].model.astype(np.float64) - changes * own[r, name].base for name in of}
        last = max(weights, key=lambda name: weights[name])
        rest = sum(weight * sent[name] for name, weight in weights.items() if name != last)
        found = (divisor * (after - changes * before) - rest) / weights[last]
        moved = own[r, last].model.astype(np.float64) - own[r, last].base
        error = float(np.linalg.norm((found - sent[last])[places]) / (np.linalg.norm(moved[places]) or 1.0))
        result = Result("relative error of its change of the model", error, 1.0, 0.0, 1)
        yield Measured(f"{COALITION}: the last leader's model, subtracted", result)
        steps = np.stack([own[r, name].model.astype(np.float64) - own[r, name].base for name in of])
        if run.label_counts.shape[1] > 1:
            for one in profiles(COALITION, steps, pooled(run, note, of), run.spec):
                yield one._replace(name=f"{one.name} of a cluster")
        before = models[r]
