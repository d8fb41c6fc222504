"""What the parties of FedEPC find out from their views, as numbers.

The attacks are shared (``audits/describing.py``, ``audits/profiling.py``). Here stands which party has what they need.
An attacker's labelled samples are the hub's public ones, or test samples where the hub has none. Clusters and
selections are the hub's own, as it notes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.privacy.attacks.result import Attack
from coterie.privacy.attacks.selections import label_entropy, rank_correlation
from coterie.privacy.audits import Audit, Recorded
from coterie.privacy.audits.describing import (
    Auxiliary,
    floors,
    memberships,
    selections,
    vectors_and_clusters,
    vectors_by_name,
    vectors_without_names,
)
from coterie.privacy.audits.measured import Measured, findings, tried
from coterie.privacy.audits.profiling import profiles
from coterie.privacy.audits.received import held_key
from coterie.protocol.errors import UserError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.sparsity import bounded
from coterie.systems.fedepc import messages
from coterie.systems.fedepc.audit_active import active
from coterie.systems.fedepc.messages import HELPER, HUB
from coterie.training.sparsity import sparsities

Doubles = NDArray[np.float64]
Rows = Mapping[str, Doubles]

COLLUDING = "server with the helper"


@dataclass(frozen=True, eq=False)
class Devices:
    """Devices with something that an attacker has of each. clients: (n,) their numbers.  rows: (n, m)."""

    clients: NDArray[np.int64]
    rows: Doubles

    @classmethod
    def of(cls, run: Recorded, found: Mapping[str, Any]) -> Devices:
        """From what is known by name."""
        names = [name for name in run.clients if name in found]
        return cls(np.array([run.clients.index(name) for name in names], np.int64), np.array([found[n] for n in names]))


def descriptions(run: Recorded) -> dict[str, Doubles]:
    """The last vector and floor of each device by name, (C + 1,). In mode hardened it takes both servers' views."""
    hub = run.views[HUB]
    if run.mode != "hardened":
        sent = hub.messages(messages.Described)
        return {seen.src: np.append(m.vector, m.floor) for seen, m in sent if m.vector is not None}
    name_of = {m.cipher: seen.src for seen, m in hub.messages(messages.Concealed) if m.cipher}
    relayed = run.views[HELPER].messages(Relayed)
    key = held_key(run.views[HELPER], SERVICE)
    return {name_of[m.cipher]: key.decrypt(key.public.from_bytes(m.cipher)) for _, m in relayed if m.cipher in name_of}


def auxiliary(run: Recorded) -> Auxiliary:
    """What an attacker makes of its own samples, as devices make their vectors. Raises UserError without classes."""
    views = (run.views[name] for name in run.clients if name in run.views)
    asked = next((m for view in views for _, m in view.messages(messages.Describe) if m.weights is not None), None)
    if asked is None or asked.weights is None:
        raise UserError("no device was asked for a description")
    if run.federation.common.public:
        samples = run.samples(HUB)
        x, y = samples.x, samples.y
    else:
        others = [run.samples(name) for name in run.clients]
        x, y = torch.cat([one.other_x for one in others]), torch.cat([one.other_y for one in others])
    labels = y.numpy()
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or run.label_counts.shape[1] < 2:
        raise UserError("the data have no classes, so there are no label shares")
    vectors = sparsities(run.model, asked.weights, x, run.settings.layer).astype(np.float64)
    if asked.centre is not None:
        vectors = bounded(vectors, asked.centre, asked.clip, asked.basis)
    return Auxiliary.of(vectors, labels, run.label_counts.shape[1])


def losses(run: Recorded) -> dict[str, float]:
    """By name, the mean of what a device's losses are above those of the others in its round."""
    of: dict[str, list[float]] = {}
    rounds: dict[int, dict[str, float]] = {}
    for seen in run.views[HUB].seen:
        if isinstance(seen.message, messages.Update | messages.Sealed):
            rounds.setdefault(seen.round, {})[seen.src] = seen.message.loss
    for said in rounds.values():
        mean = float(np.mean(list(said.values())))
        for name, loss in said.items():
            of.setdefault(name, []).append(loss - mean)
    return {name: float(np.mean(values)) for name, values in of.items()}


def clusters(run: Recorded) -> dict[str, int]:
    """The last clusters by name, of devices that are in one."""
    noted = [line["notes"]["membership"] for line in run.lines if "membership" in line["notes"]]
    return {name: own[0] for name, own in zip(run.clients, noted[-1], strict=True) if own} if noted else {}


def first_steps(run: Recorded) -> dict[str, Doubles]:
    """Mode hardened: the first step (d,) of each device that began with W^0, which takes both servers' views."""
    key = held_key(run.views[HELPER], SERVICE)
    found: dict[str, Doubles] = {}
    for seen, m in run.views[HUB].messages(messages.Sealed):
        asked = run.views[seen.src].messages(messages.Train, seen.round) if seen.src in run.views else iter(())
        if m.cipher and seen.src not in found and any(sent.weights is not None for _, sent in asked):
            model = key.decrypt(key.public.from_bytes(m.cipher))
            found[seen.src] = np.where(run.spec.buffers, 0.0, model - run.initial)
    return found


@findings
def passive(run: Recorded) -> Iterator[Measured]:
    """Every attack on one recorded run."""
    counts, hardened = run.label_counts, run.mode == "hardened"
    samples = counts.sum(axis=1)
    of = clusters(run)
    if HUB in run.views:
        yield from _by_vectors(run, of, hardened=hardened)
        lossy = Devices.of(run, losses(run))
        yield tried(
            "server: variety of labels, by losses",
            lambda: rank_correlation(lossy.rows, label_entropy(counts[lossy.clients]), "label entropy"),
        )
    if hardened and HUB in run.views and HELPER in run.views:
        steps = Devices.of(run, first_steps(run))
        if len(steps.clients) > 1:
            yield from profiles(f"{COLLUDING}, by models", steps.rows, counts[steps.clients], run.spec)
    member = Devices.of(run, of)
    if len(member.clients):
        yield from memberships("server", member.rows, member.clients, counts, run.groups)
    times = Counter(name for line in run.lines for name in line["notes"].get("selected", ()))
    chosen = np.array([times[name] for name in run.clients])
    yield from selections("server", chosen, samples, counts)


def _by_vectors(run: Recorded, of: Mapping[str, int], *, hardened: bool) -> Iterator[Measured]:
    """What vectors tell those who have them, and what they would tell the two servers together."""
    if hardened and HELPER not in run.views:
        return
    said = Devices.of(run, descriptions(run))
    if not len(said.clients):
        return
    vectors, counts = said.rows[:, :-1], run.label_counts[said.clients]
    who = COLLUDING if hardened else "server"
    yield from floors(who, said.rows[:, -1], counts.sum(axis=1), counts)
    try:
        known = auxiliary(run)
    except UserError as error:
        yield Measured(f"{who}: label shares", None, why=str(error))
        return
    yield from vectors_by_name(f"{who}, by vectors", vectors, known, counts)
    if hardened:
        yield from vectors_without_names("helper", vectors, known, counts)
        of_said = [of.get(run.clients[i], -1) for i in said.clients]
        yield from vectors_and_clusters(
            "helper that is told everybody's cluster", vectors, np.array(of_said), known, counts
        )


AUDIT = Audit(
    passive,
    active,
    (
        Attack("sparsity-shares", "server, or helper without names", "solves sparsity vectors for label shares"),
        Attack("similar-pairs", "server", "tells which devices have similar data from the clusters that they share"),
        Attack("selections", "server", "tells samples and variety of labels from how often a device is selected"),
        Attack("floors-and-losses", "server", "tells variety of labels from noise floors and losses"),
        Attack("boast", "one client, deviating", "says that it is fast, to be selected more often"),
        Attack("spoil", "one client, deviating", "sends a model against its training, to raise its cluster's loss"),
    ),
)
