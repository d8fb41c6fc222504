"""What the parties of FedEPC find out from their views.

An attacker's labelled samples are the hub's public ones, or else test samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import coterie.method as fl
from coterie.privacy import measures
from coterie.privacy.attacks.labels import class_means, rank_correlation, shares_by_nnls, unnamed_total_variation
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import repeated
from coterie.privacy.audits import Audit, Finding, Measured, Recorded, attack, tried
from coterie.privacy.views import by_round, held_key
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.sparsity import bounded
from coterie.systems.fedepc import messages
from coterie.systems.fedepc.messages import HELPER, HUB
from coterie.training.sparsity import sparsities

Doubles = NDArray[np.float64]

COLLUDING = "server with the helper"
BOAST = 10.0
"""How many times its clock rate a boasting device says."""
AGAINST = 10.0
"""How many times its step a spoiling device goes, backwards."""
RAISED = 1.5
"""A cluster is spoiled by at least so many times its loss without the liar, over the rounds."""


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """clients: (n,) numbers of devices.  rows: (n, m) on them."""

    clients: NDArray[np.int64]
    rows: Doubles

    @classmethod
    def of(cls, run: Recorded, found: Mapping[str, Any]) -> DeviceRows:
        names = [name for name in run.clients if name in found]
        return cls(np.array(run.numbers(names), np.int64), np.array([found[name] for name in names]))


def descriptions(run: Recorded) -> dict[str, Doubles]:
    """By name, the last vector and floor, (C + 1,). In mode hardened it takes both servers' views."""
    hub = run.views[HUB]
    if run.mode != "hardened":
        sent = hub.messages(messages.Described)
        return {seen.src: np.append(m.vector, m.floor) for seen, m in sent if m.vector is not None}
    name_of = {m.cipher: seen.src for seen, m in hub.messages(messages.Concealed) if m.cipher}
    relayed = run.views[HELPER].messages(Relayed)
    key = held_key(run.views[HELPER], SERVICE)
    return {name_of[m.cipher]: key.decrypt(key.public.from_bytes(m.cipher)) for _, m in relayed if m.cipher in name_of}


def auxiliary(run: Recorded) -> tuple[Doubles, NDArray[np.int64]]:
    """Of the attacker's own samples, (classes, C) means and (classes,) counts. Raises UserError without classes."""
    views = (run.views[name] for name in run.clients if name in run.views)
    asked = next((m for view in views for _, m in view.messages(messages.Describe) if m.weights is not None), None)
    if asked is None or asked.weights is None:
        raise fl.UserError("no device was asked for a description")
    if run.federation.common.public:
        samples = run.samples(HUB)
        x, y = samples.x, samples.y
    else:
        others = [run.samples(name) for name in run.clients]
        x, y = torch.cat([one.other_x for one in others]), torch.cat([one.other_y for one in others])
    labels = y.numpy()
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or run.label_counts.shape[1] < 2:
        raise fl.UserError("the data have no classes, so there are no label shares")
    vectors = sparsities(run.model, asked.weights, x, run.settings.layer).astype(np.float64)
    if asked.centre is not None:
        vectors = bounded(vectors, asked.centre, asked.clip, asked.basis)
    classes = run.label_counts.shape[1]
    return class_means(vectors, labels, classes), np.bincount(labels, minlength=classes)


def losses(run: Recorded) -> dict[str, float]:
    """By name, a device's mean loss above that of the others in its round."""
    of: dict[str, list[float]] = {}
    kind: Any = messages.Sealed if run.mode == "hardened" else messages.Update
    for sent in by_round(run.views[HUB], kind).values():
        mean = float(np.mean([message.loss for message in sent.values()]))
        for name, message in sent.items():
            of.setdefault(name, []).append(message.loss - mean)
    return {name: float(np.mean(values)) for name, values in of.items()}


def clusters(run: Recorded) -> dict[str, int]:
    """The last clusters of devices that are in one."""
    noted = [line["notes"]["membership"] for line in run.lines if "membership" in line["notes"]]
    return {name: own[0] for name, own in zip(run.clients, noted[-1], strict=True) if own} if noted else {}


def first_steps(run: Recorded) -> dict[str, Doubles]:
    """Mode hardened: by name, the first step (d,) of each device that began with W^0, from both servers' views."""
    key = held_key(run.views[HELPER], SERVICE)
    found: dict[str, Doubles] = {}
    for seen, m in run.views[HUB].messages(messages.Sealed):
        asked = run.views[seen.src].messages(messages.Train, seen.round) if seen.src in run.views else iter(())
        if m.cipher and seen.src not in found and any(sent.weights is not None for _, sent in asked):
            model = key.decrypt(key.public.from_bytes(m.cipher))
            found[seen.src] = np.where(run.spec.buffers, 0.0, model - run.initial)
    return found


# -- passive attacks ---------------------------------------------------------------------------------------------------


@attack("sparsity-shares", "server, or helper without names", "labels")
def sparsity_shares(run: Recorded, said: DeviceRows) -> Iterator[Measured]:
    """Solves sparsity vectors for label shares."""
    vectors, counts, hardened = said.rows[:, :-1], run.label_counts[said.clients], run.mode == "hardened"
    who = COLLUDING if hardened else "server"
    try:
        means, prior = auxiliary(run)
        estimate = shares_by_nnls(vectors, means)
    except fl.UserError as error:
        yield Measured(who, "label shares", None, why=str(error))
        return
    yield from measures.by_shares(f"{who}, by vectors", estimate, prior, counts)
    if hardened:
        unnamed = partial(unnamed_total_variation, estimate, counts, prior)
        yield tried("helper", "label shares of unnamed clients", unnamed)
        of = clusters(run)
        of_said = np.array([of.get(run.clients[i], -1) for i in said.clients])
        who = "helper that is told everybody's cluster"
        yield from measures.by_shares(who, estimate, prior, counts, clusters=of_said)


@attack("floors-and-losses", "server", "other")
def floors_and_losses(run: Recorded, said: DeviceRows) -> Iterator[Measured]:
    """Tells variety of labels from noise floors and losses."""
    counts = run.label_counts
    if len(said.clients):
        own = counts[said.clients]
        who = COLLUDING if run.mode == "hardened" else "server"
        yield measures.by_variety(who, "noise floors", said.rows[:, -1] * own.sum(axis=1), own)
    lossy = DeviceRows.of(run, losses(run))
    yield measures.by_variety("server", "losses", lossy.rows, counts[lossy.clients])


@attack("pooled-models", "server with the helper", "labels")
def pooled_models(run: Recorded) -> Iterator[Measured]:
    """Opens models, and reads label shares off them (mode hardened)."""
    steps = DeviceRows.of(run, first_steps(run))
    if len(steps.clients) > 1:
        yield from measures.profiles(f"{COLLUDING}, by models", steps.rows, run.label_counts[steps.clients], run.spec)


@attack("similar-pairs", "server", "groups")
def similar_pairs(run: Recorded) -> Iterator[Measured]:
    """Tells which devices have similar data from the clusters that they share."""
    member = DeviceRows.of(run, clusters(run))
    if len(member.clients):
        yield from measures.memberships(run, "server", member.rows, member.clients)


@attack("selections", "server", "other")
def by_selections(run: Recorded) -> Iterator[Measured]:
    """Tells samples and variety of labels from how often a device is selected."""
    times = selected(run)
    chosen = np.array([times[name] for name in run.clients])
    score = partial(rank_correlation, chosen, run.label_counts.sum(axis=1), "samples")
    yield tried("server", "number of samples, by selections", score)
    yield measures.by_variety("server", "selections", chosen, run.label_counts)


def passive(run: Recorded) -> list[Finding]:
    hardened = run.mode == "hardened"
    found: list[Finding] = []
    if HUB in run.views:
        both = not hardened or HELPER in run.views
        said = DeviceRows.of(run, descriptions(run) if both else {})
        found += floors_and_losses(run, said)
        if len(said.clients):
            found += sparsity_shares(run, said)
        if hardened and both:
            found += pooled_models(run)
    return found + similar_pairs(run) + by_selections(run)


# -- active attacks ----------------------------------------------------------------------------------------------------


@attack("boast", "one client, deviating", "other")
def boasting(run: Recorded) -> Iterator[Measured]:
    """Says that it is fast, to be selected more often."""
    name = max(largest(run), key=lambda one: -selected(run)[one])

    def faster(message: fl.Message, effect: fl.Local, result: Any) -> Any:
        return (BOAST * result[0], result[1]) if effect.name == "device resources" else result

    lied = repeated(run, name, {fl.Local: faster})
    before, after = (selected(one)[name] / len(one.lines) for one in (run, lied))
    by_chance = float(np.sqrt(before * (1 - before) / len(run.lines)))
    result = AttackResult("rounds in which it is selected (share)", after, before, 1.0, 1, by_chance)
    yield Measured(f"{name}, deviating", "selected, for a clock rate that it does not have", result)


@attack("spoil", "one client, deviating", "other")
def spoiling(run: Recorded) -> Iterator[Measured]:
    """Sends a model against its training, to raise its cluster's loss."""
    name = max(largest(run), key=lambda one: selected(run)[one])

    def backwards(message: fl.Message, effect: fl.Fit, fitted: fl.Fitted) -> fl.Fitted:
        step = fitted.weights - effect.weights
        return replace(fitted, weights=(effect.weights - AGAINST * step).astype(np.float32))

    before, after = loss_of(run), loss_of(repeated(run, name, {fl.Fit: backwards}))
    both = sorted(before.keys() & after.keys())
    if not both:
        raise fl.UserError("the loss of no cluster is known, so none shows what a liar does: take more rounds")
    share = float(np.mean([not after[one] < RAISED * before[one] for one in both]))
    result = AttackResult("devices in a cluster whose mean loss it raises by half (share)", share, 0.0, 1.0, len(both))
    yield Measured(f"{name}, deviating", "spoiled clusters", result)


def active(run: Recorded) -> list[Finding]:
    """Raises UserError for a run of fewer than 3 rounds, or in which no device was selected."""
    if len(run.lines) < 3:
        raise fl.UserError("what a liar does shows after some rounds: repeat the run with 3 rounds or more")
    return boasting(run) + spoiling(run)


def largest(run: Recorded) -> list[str]:
    """The devices of the final largest cluster. Raises UserError without one."""
    last = dict(zip(run.clients, run.lines[-1]["notes"]["membership"], strict=True))
    sizes = Counter(k for own in last.values() for k in own)
    if not sizes:
        raise fl.UserError("no device was in a cluster")
    k = max(sizes, key=lambda k: (sizes[k], -k))
    return [name for name, own in last.items() if k in own]


def selected(run: Recorded) -> Counter[str]:
    return Counter(name for line in run.lines for name in line["notes"].get("selected", ()))


def loss_of(run: Recorded) -> dict[str, float]:
    """By device, its cluster's mean loss over the rounds after the first: honest devices make it recover."""
    found: dict[str, list[float]] = {}
    for line in run.lines[1:]:
        notes = line["notes"]
        for name, own in zip(run.clients, notes["membership"], strict=True):
            loss = notes["loss"].get(str(own[0])) if own else None
            if loss is not None:
                found.setdefault(name, []).append(loss)
    return {name: fmean(values) for name, values in found.items()}


AUDIT = Audit(passive, active)
