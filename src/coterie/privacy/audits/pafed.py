"""What the parties of PAFed find out from their views, alone and together (docs/systems/pafed.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.crypto.seal import ring
from coterie.privacy.attacks import masks
from coterie.privacy.attacks.key_in_sum import KeyThief, key_agreement, key_coefficients
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import wrap
from coterie.privacy.audits import Audit, Delays, Finding, Measured, Meddle, Recorded, View, attack
from coterie.privacy.audits.pafed_keys import UPDATES, opened, opener, whole_key
from coterie.privacy.measures import profiles
from coterie.privacy.views import check_real, held_key
from coterie.systems.pafed import messages
from coterie.systems.pafed.config import layout_of
from coterie.systems.pafed.messages import HELPER, HUB, SERVICE, USER

COUNTED = "number of conflicting late updates"

Doubles = NDArray[np.float64]

_KS_CHANCE = 0.8687  # the mean of sqrt(n) times the Kolmogorov-Smirnov distance of n uniform numbers
_ROUNDING = 1e-4  # of the bound of a mask: what the ciphers' noise moves a number by at most
_NO_WEIGHT = 1 / 2048  # a masked sum below this is taken for that of a class without anybody, and the cipher's noise


@dataclass(eq=False)
class CosineRound:
    """One round, in the order of the aggregator's view.

    early, late: updates in time, by sender, and not; (d,) as encrypted.  shown: masked cosines, with dummies, that the
    helper opened.  sums: (sets, 4) n_1, n_2, |m|^2, sum w c, masked, as it opened them.
    """

    number: int
    early: dict[str, Doubles] = field(default_factory=dict)
    late: list[Doubles] = field(default_factory=list)
    shown: Doubles | None = None
    sums: Doubles | None = None

    def cosines(self) -> Doubles:
        """(late,) c_j = <m, v_j>; empty without updates of both kinds."""
        if not self.early or not self.late:
            return np.zeros(0)
        return np.asarray(np.stack(self.late) @ np.mean(list(self.early.values()), axis=0))


def recorded_rounds(
    views: Mapping[str, View], oldest: int, update: Callable[[Doubles], Doubles] = np.asarray
) -> list[CosineRound]:
    """All rounds in which the aggregator took updates, opened with the helper's key, without those that don't open or
    were dropped.

    oldest: by how many rounds an update may be late.  update: one (d,) from what was encrypted.
    """
    key, read = held_key(views[HELPER], SERVICE), opener(views)
    rounds, now = [], CosineRound(1)
    for seen in views[HUB].seen if HUB in views else ():
        message = seen.message
        if isinstance(message, messages.Refreshed):
            rounds += [now] if now.early or now.late else []
            now = CosineRound(seen.round)
        elif isinstance(message, UPDATES) and now.number - message.round <= oldest:
            try:
                found = update(read(seen.src, message))
            except fl.CoterieError:
                continue  # the aggregator has refused it, or whoever trains on it will
            if message.round == now.number:
                now.early.setdefault(seen.src, found)
            else:
                now.late.append(found)
    rounds.append(now)
    for one in rounds:
        one.shown = _scalars(views[HELPER], key, messages.Compare, one.number, 1)
        sums = _scalars(views[HELPER], key, messages.Invert, one.number, 4)
        one.sums = None if sums is None else sums.reshape(-1, 4)
    return [one for one in rounds if one.early or one.late]


def _scalars(view: View, key: Any, kind: Any, round: int, each: int) -> Doubles | None:
    """A request's, opened by the helper, which counts groups of ``each``."""
    for _, message in view.messages(kind, round):
        parts = fl.unbundle(message.ciphers, each * message.count)
        return np.array([float(opened(key, part)[0]) for part in parts])
    return None


def opened_fractions(key: Any, vector: Any) -> Doubles:
    """In [0, 1): residues over their primes, or an emulated key's integers."""
    opened = key.open_blinded(vector).array[0]
    if key.emulated:
        return np.asarray(opened.view(np.uint64) / 2.0**64)
    return np.asarray(opened / ring(key.parameters).moduli_at(vector.tally.form.level).astype(np.float64)).ravel()


@attack("conflict-count", "helper", "other")
def by_signs(rounds: Sequence[CosineRound], dummies: int, *, hidden: bool = False) -> Iterator[Measured]:
    """Guesses how many late updates conflict with the others.

    From the signs, and the classes that the helper inverts.  hidden: by coins, among sets of sums.
    """
    for one in rounds:
        cosines, shown, sums = one.cosines(), one.shown, one.sums
        if shown is not None and sums is not None and len(shown) + len(sums) == len(cosines) + dummies + 1:
            believed = _counted(shown, sums, len(cosines), dummies, hidden)
            yield Measured("helper", COUNTED, masks.count_accuracy([believed], [int((cosines < 0).sum())]))


def _counted(shown: Doubles, sums: Doubles, late: int, dummies: int, hidden: bool) -> Doubles:
    if hidden:
        return masks.count_among_decoys([_classes(one) for one in sums], late)
    signs = int((shown < 0).sum()), late, dummies
    try:
        return masks.count_posterior(*signs, _classes(sums[0]))
    except fl.UserError:  # a class of so little weight that it looked empty: the signs say otherwise
        return masks.count_posterior(*signs)


def _classes(sums: Doubles) -> masks.Classes:
    if abs(sums[0]) < _NO_WEIGHT:
        return "conflicting"
    return "agreeing" if abs(sums[1]) < _NO_WEIGHT else "both"


@attack("mask", "helper", "other")
def by_mask(views: Mapping[str, View]) -> Iterator[Measured]:
    """Compares the masked models that it opens with uniform numbers."""
    from scipy.stats import kstest  # slow to import

    key = held_key(views[HELPER], SERVICE)
    for _, message in views[HELPER].messages(messages.Refresh):
        numbers = opened_fractions(key, key.public.from_bytes(message.cipher))
        distance, n = float(kstest(numbers, "uniform").statistic), len(numbers)
        result = AttackResult("distance from uniform", distance, _KS_CHANCE / n**0.5, 1.0, n, 0.26 / n**0.5)
        yield Measured("helper", "the model under its mask", result)


@attack("real-mask", "helper", "other")
def by_real_mask(views: Mapping[str, View], clients: Sequence[str], bound: float) -> Iterator[Measured]:
    """Tells two models apart by what the range of a mask of real numbers allows (mode literal).

    bound: of the mask, +-.

    Candidates are a round's model and the previous one; the truth is what clients open.
    """
    key, models = held_key(views[HELPER], SERVICE), {}
    for name in (name for name in clients if name in views):
        for r, cipher in _models(views[name]).items():
            if r not in models:
                models[r] = opened(held_key(views[name], USER), cipher)
    probabilities = []
    for seen, message in views[HELPER].messages(messages.Refresh):
        if {seen.round, seen.round - 1} <= models.keys():
            pair = models[seen.round], models[seen.round - 1]
            probabilities.append(masks.told_apart(opened(key, message.cipher)[None], *pair, bound * (1 + _ROUNDING))[0])
    if probabilities:
        result = masks.telling_accuracy(np.array(probabilities), np.ones(len(probabilities), np.bool_))
        yield Measured("helper", "the model under its mask", result)


@attack("converted-model", "aggregator with one client", "other")
def by_clients_key(views: Mapping[str, View], clients: Sequence[str], start: NDArray[Any]) -> Iterator[Measured]:
    """Opens the model that clients are sent.

    With the most often asked client, scored by what another opens.

    start: (d,) the public initial weights, as encrypted, which chance guesses.
    """
    sent = {name: _models(views[name]) for name in clients if name in views}
    helping = max(sent, key=lambda name: len(sent[name]), default="")
    for r, cipher in sent.pop(helping, {}).items():
        other = next((name for name in sent if r in sent[name]), None)
        if other is not None:
            model = opened(held_key(views[helping], USER), cipher)
            truth = opened(held_key(views[other], USER), sent[other][r])
            error = float(np.linalg.norm(model - truth) / (np.linalg.norm(truth - start) or 1.0))
            result = AttackResult("relative error of the model", error, 1.0, 0.0, 1)
            yield Measured("aggregator with one client", "global model", result)


def _models(view: View) -> dict[int, bytes]:
    return {seen.round: message.cipher for seen, message in view.messages(messages.Train) if message.cipher}


@attack("pooled-updates", "aggregator with the helper", "labels")
def by_both(rounds: Sequence[CosineRound], run: Recorded) -> Iterator[Measured]:
    """Opens updates, and reads label shares off them.

    Updates in time. With keys=threshold some members of the committee must help, too.
    """
    who = "aggregator with the helper"
    if run.settings.keys == "threshold":
        who += f" and {run.settings.committee(run.clients)[1]} members"
    for one in rounds:
        if len(one.early) > 1:
            labels = run.label_counts[run.numbers(one.early)]
            yield from profiles(who, np.stack(list(one.early.values())), labels, run.spec)


def passive(run: Recorded) -> list[Finding]:
    """Raises UserError for a record without updates or keys."""
    views, clients, settings, helped = run.views, run.clients, run.settings, run.mode != "literal"
    layout = layout_of(run.spec, run.mode)

    def update(opened: Doubles) -> Doubles:
        """(d,) an update as the spec lays it out, 0 for buffers."""
        return np.where(run.spec.buffers, 0.0, layout.unpacked(opened))

    rounds = recorded_rounds(views, settings.max_staleness, update)
    if not rounds:
        raise fl.UserError("the aggregator's view holds no updates: nothing was sent that could be attacked")
    counted = by_signs(rounds, settings.dummies if helped else 0, hidden=settings.signs == "hidden")
    under_mask = by_mask(views) if helped else by_real_mask(views, clients, settings.mask_bound)
    return counted + under_mask + by_both(rounds, run) + by_clients_key(views, clients, layout.packed(run.initial))


# -- the active attack -------------------------------------------------------------------------------------------------

LATE = 1
"""Rounds by which a thief is late. A late update enters by the weight of its class, however long it is. One in time
makes |m|^2 implausible to the helper if others are late.
"""


def steal(play: Callable[[Meddle], Recorded], client: str) -> tuple[Recorded, KeyThief]:
    """A run with this client as a thief. play: runs it with changed parties."""
    thieves: list[KeyThief] = []

    def meddle(federation: fl.Federation, delays: Delays) -> None:
        party: Any = federation.alter(client)
        summands = 2 if party.config.keys == "threshold" else 1
        thieves.append(KeyThief(party.spec, late=LATE, summands=summands))
        wrap(party, thieves[0].between)
        delays.least[client] = LATE

    return play(meddle), thieves[0]


@attack("key-in-sum", "one client, deviating", "other")
def by_theft(client: str, run: Recorded, thief: KeyThief) -> Iterator[Measured]:
    """Reads the helper's secret key off the model that it is handed (fails in mode hardened).

    How much of the last reading is correct; if all, also the error of others' updates opened with it. Chance guesses
    zero.
    """
    truth = whole_key(run.views)
    if thief.guess is None:
        raise fl.UserError(f"{client} received no model after its forged update: take more rounds")
    agreement = key_agreement(thief.guess, key_coefficients(truth))
    yield Measured(f"{client}, deviating", "the helper's key", agreement, round=thief.round)
    if thief.key is None:
        return
    others = [(seen.src, m) for seen, m in run.views[HUB].messages(messages.Update) if seen.src != client]
    errors = []
    for _, message in others:
        vector = truth.public.from_bytes(message.cipher)
        update = truth.decrypt(vector)
        errors.append(float(np.linalg.norm(thief.key.decrypt(vector) - update) / np.linalg.norm(update)))
    result = AttackResult("relative error of updates", fmean(errors), 1.0, 0.0, len({name for name, _ in others}))
    yield Measured(f"the hub with the key of {client}", "the others' updates", result)


def asked_most(run: Recorded) -> str:
    """On a tie, the first asked."""
    viewed = [name for name in run.clients if name in run.views]
    asked = {name: [seen.round for seen, _ in run.views[name].messages(messages.Train)] for name in viewed}
    name = max(viewed, key=lambda name: (len(asked[name]), -min(asked[name], default=0)))
    if len(asked[name]) < 2:
        raise fl.UserError(
            "no client was asked in two rounds, and it reads the key off the next model: take more rounds"
        )
    return name


def active(run: Recorded) -> list[Finding]:
    """The run again, with the most often asked client as a thief. Raises UserError for emulated keys, for models that
    fill no ciphertext, and if no client was asked twice.
    """
    check_real(run)
    client = asked_most(run)
    return by_theft(client, *steal(run.again, client))


AUDIT = Audit(passive, active)
