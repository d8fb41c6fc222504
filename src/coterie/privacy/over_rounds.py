"""Attacks on sums over rounds, for every system whose clients are sent models in the clear.

The change of such a model is a weighted mean of updates, and its sender knows who answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.privacy.attacks.hidden_groups import by_names
from coterie.privacy.attacks.labels import label_shares_from_bias, last_bias
from coterie.privacy.attacks.samples import membership_auc
from coterie.privacy.audits import Attack, Finding, Measured, Recorded, applied, attack
from coterie.privacy.measures import by_estimate
from coterie.privacy.plain import losses, models_in, same_pool

Floats = NDArray[np.float64]

Sent = tuple[NDArray[np.float32], set[int]]
"""A model (d,), and the clients that it was sent to."""
NONE_SENT = "clients are sent no single model in the clear that moves from round to round"
SENDER = "party that sends models in the clear"


@dataclass(eq=False)
class SentModel:
    """By round: models (d,), and answered, the clients that got it then and answered.  holders: ever got it."""

    sender: str
    models: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    answered: dict[int, set[int]] = field(default_factory=dict)
    holders: set[int] = field(default_factory=set)

    def changes(self, part: slice = slice(None)) -> dict[int, Floats]:
        """By round, the change until the next one, if somebody answered."""
        following = ((r, s) for r, s in pairwise(sorted(self.models)) if s == r + 1 and self.answered[r])
        return {r: self.models[s][part].astype(np.float64) - self.models[r][part] for r, s in following}


def lines(run: Recorded) -> list[SentModel]:
    """All moving models sent in the clear, each linked with the last round's nearest."""
    got: dict[str, dict[int, dict[bytes, Sent]]] = {}
    for client, name in enumerate(run.clients):
        for seen in run.views[name].seen if name in run.views else ():
            weights = models_in(run, seen.message)
            if weights is not None and len(weights) == 1 and seen.src not in run.clients:
                model = np.asarray(weights[0], np.float32)
                of_round = got.setdefault(seen.src, {}).setdefault(seen.round, {})
                of_round.setdefault(sha256(model.tobytes()).digest(), (model, set()))[1].add(client)
    every = (line for sender, rounds in got.items() for line in _linked(run, sender, rounds))
    return [line for line in every if any(not np.array_equal(run.initial, model) for model in line.models.values())]


def _linked(run: Recorded, sender: str, rounds: dict[int, dict[bytes, Sent]]) -> list[SentModel]:
    answers: dict[int, set[int]] = {}
    for seen in run.views[sender].seen if sender in run.views else ():
        if seen.src in run.clients:
            answers.setdefault(seen.round, set()).add(run.clients.index(seen.src))
    found = list[SentModel]()
    for r in sorted(rounds):
        free = list(found)
        for model, clients in rounds[r].values():
            far = [float(np.linalg.norm(one.models[max(one.models)] - model)) for one in free]
            line = free.pop(int(np.argmin(far))) if far else SentModel(sender)
            found += [] if far else [line]
            line.models[r], line.answered[r] = model, clients & answers.get(r, set())
            line.holders |= clients
    return found


@attack("sums-by-names", SENDER, "labels")
def _by_names(run: Recorded, line: SentModel) -> Iterator[Measured]:
    """Solves for each client's part in a model's changes from round to round.

    Where always the same clients answer, nothing can be solved for.
    """
    changes = line.changes(last_bias(run.spec))
    clients = sorted(set().union(*(line.answered[r] for r in changes)))
    if len(changes) < 2 or len(clients) < 3:
        raise fl.UserError("it takes two changes of a model or more, and three clients")
    weights = np.array([[(i in line.answered[r]) / len(line.answered[r]) for i in clients] for r in changes])
    parts = by_names(weights, np.stack([*changes.values()]), alike=True)
    yield from _scored(run, line, parts, clients, "by regression of sums on names")


@attack("differences-of-sums", SENDER, "labels")
def _differences(run: Recorded, line: SentModel) -> Iterator[Measured]:
    """Takes the difference of two rounds in which one client came or went."""
    guesses: dict[int, list[Floats]] = {}
    for (r, one), (s, other) in pairwise(line.changes(last_bias(run.spec)).items()):
        there = line.answered[r], line.answered[s]
        if s == r + 1 and len(there[0] ^ there[1]) == 1:
            (client,) = there[0] ^ there[1]
            sign = 1 if client in there[0] else -1
            guesses.setdefault(client, []).append(sign * (len(there[0]) * one - len(there[1]) * other))
    if len(guesses) < 2:
        raise fl.UserError("in no two rounds one after the other did exactly one client come or go, of two or more")
    parts = np.stack([np.mean(own, axis=0) for own in guesses.values()])
    yield from _scored(run, line, parts, [*guesses], "by differences of sums")


def _scored(run: Recorded, line: SentModel, parts: Floats, clients: Sequence[int], how: str) -> Iterator[Measured]:
    """parts: (n, classes) of the last bias, as known in the end."""
    guess = label_shares_from_bias(parts)
    for one in by_estimate(_role(run, line.sender), guess, run.label_counts[list(clients)]):
        yield from [one._replace(what=f"{one.what}, {how}")] * max(1, len(run.lines))


@attack("membership-in-sums", "client", "samples")
def _members(run: Recorded, line: SentModel) -> Iterator[Measured]:
    """Tells from losses under the model that it is sent who was trained on.

    The loss under the public start is the sample's difficulty (Watson et al., ICLR 2022).
    """
    model = line.models[max(line.models)]
    sides: tuple[list[Floats], list[Floats]] = [], []
    for client in sorted(line.holders):
        both = [losses(run, weights, client) for weights in (run.initial, model)]
        for side, start, end in zip(sides, *both, strict=True):
            side.append(end - start)
    role = run.federation.common.roster.client_role
    result = membership_auc(*sides, same_pool=same_pool(run, line.holders))
    yield Measured(role, "samples of others that were trained on, by the model that it is sent", result)


def _role(run: Recorded, party: str) -> str:
    return str(run.federation.common.roster.by_name[party].role)


ATTACKS: tuple[Attack, ...] = (_by_names, _differences, _members)


def sums_findings(run: Recorded) -> tuple[list[Finding], dict[str, str]]:
    """These attacks' findings, and why some do not apply."""
    return applied(ATTACKS, run, lines(run), NONE_SENT)
