"""OFL's uploads from a client to its leader: what their noise hides, and what it costs.

``ofl/audits``: claimed epsilons beside what neighbouring data prove (``attacks/noisy_uploads.py``).
``ofl/noise``: the noise that a budget needs, by the number of uploads and by what else is paid for. No data.
``ofl/membership``: 16 clients share digits; each trains an MLP from a common start, the mean of five epochs of all, and
uploads a tenth or all of its change once. The leader tells training samples from test samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import coterie.method as fl
from benchmarks.items import crossed, main, mean
from coterie.data.sources import load
from coterie.dp import heuristic
from coterie.dp.composition import composed
from coterie.dp.uploads import Standard, eligible, shared_set
from coterie.privacy.attacks.noisy_uploads import NoiseAudit, audit_heuristic, audit_standard
from coterie.privacy.attacks.samples import upload_membership, uploaded_model
from coterie.reproductions.study import Calculation, Item, Row, by_cell, named
from coterie.selection.parameters import count, density, gumbel_top_k, max_min, o_factor
from coterie.training.engine import fit_many
from coterie.training.evaluate import judge_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build

DELTA = 1e-5
SIZE = 50
"""Parameters of an upload in an audit. The bound does not depend on it."""


def audited(mechanism: str, number: float, uploads: int, seed: int) -> NoiseAudit:
    """The standard mechanism at an epsilon for so many uploads, or the paper's at a spread."""
    if mechanism == "standard":
        return audit_standard(Standard.within(1.0, number, DELTA, uploads), SIZE, DELTA, uploads, seed=seed)
    return audit_heuristic(2.0, DELTA, number, seed=seed)


AUDITS = [("standard", epsilon, uploads) for epsilon in (1.0, 2.0, 8.0) for uploads in (1, 10)]
AUDITS += [("paper", spread, 1) for spread in (3.0, 20.0, math.inf)]


def _audits(outcomes: Mapping[str, Sequence[NoiseAudit]]) -> list[Row]:
    rows: list[Row] = []
    for found in outcomes.values():
        one = found[0]
        rows.append(
            {
                "mechanism": one.mechanism,
                "neighbours": one.neighbours,
                "claimed": round(one.claimed, 2),
                "proved, at least": mean([each.lower_bound for each in found], digits=2),
                "largest": round(max(each.lower_bound for each in found), 2),
                "exactly": None
                if one.exact is None
                else round(one.exact, 1)
                if math.isfinite(one.exact)
                else "infinite",
                "claims that hold": f"{sum(each.holds for each in found)} of {len(found)}",
            }
        )
    return rows


class Cost(NamedTuple):
    """multiplier: z of an upload.  epsilon: of all of them.  hidden: the same, were each sampled with .1 and hidden.

    with_choice: with 100 parameters chosen by the o-factor each time, at epsilon_1 = .01 a draw.
    """

    multiplier: float
    epsilon: float
    hidden: float
    with_choice: float


def noise(epsilon: float, uploads: int, seed: int) -> Cost:
    """For a budget. The seed makes no difference."""
    z = Standard.within(1.0, epsilon, DELTA, uploads).noise_multiplier
    chosen = composed({z: uploads}, {}, {0.01: 100 * uploads}, DELTA)
    return Cost(z, composed({z: uploads}, {}, {}, DELTA), composed({}, {(z, 0.1): uploads}, {}, DELTA), chosen)


@by_cell
def _noise(name: str, found: Sequence[Cost]) -> Row:
    one, (epsilon, uploads) = found[0], name.split("/")
    return {
        "budget, epsilon": float(epsilon),
        "uploads": int(uploads),
        "noise multiplier": round(one.multiplier, 2),
        "noise over the largest update, 1,000 parameters": round(2 * one.multiplier * math.sqrt(1000), 1),
        "epsilon with the choice paid for": round(one.with_choice, 2),
        "epsilon if hidden with probability 0.1": round(one.hidden, 2),
    }


CLIENTS, EPOCHS, CLIP = 16, 20, 1.0
SENT = ("clean", "standard, epsilon 1000", "standard, epsilon 100", "standard, epsilon 8", "standard, epsilon 1",
        "paper, epsilon_2 1", "paper, epsilon_2 100")  # fmt: skip
SHARES = (1.0, 0.1, 0.01)


class Fleet(NamedTuple):
    """model, start: what all clients begin with.  x, y: their samples.  trained: their models.  others: test data."""

    model: Model
    start: fl.Vector
    x: Sequence[NDArray[np.float32]]
    y: Sequence[NDArray[np.int64]]
    trained: Sequence[fl.Vector]
    others: tuple[NDArray[np.float32], NDArray[np.int64]]


@lru_cache(maxsize=2)
def fleet(seed: int) -> Fleet:
    """Clients of one seed. The common start is the mean of what they train in one round before."""
    data = load("digits")
    x, y = data.inputs(), data.labels().astype(np.int64)
    parts = np.array_split(fl.rng(seed, "", "uploads study").permutation(len(y)), CLIENTS)
    model = build("mlp", data.input_shape, data.classes)
    solver = fl.Sgd(0.1, 10)

    def train(start: fl.Vector, epochs: int, turn: int) -> list[fl.Vector]:
        jobs = [
            Job(start, solver, epochs, seed + turn, torch.from_numpy(x[part]), torch.from_numpy(y[part]))
            for part in parts
        ]
        return [one.weights for one in fit_many(model, jobs)]

    start: fl.Vector = np.mean(np.stack(train(model.initial(seed), 5, 1)), axis=0, dtype=np.float32)
    others = data.inputs(split="test"), data.labels(split="test").astype(np.int64)
    return Fleet(model, start, [x[p] for p in parts], [y[p] for p in parts], train(start, EPOCHS, 2), others)


class Told(NamedTuple):
    """auc: of a leader that tells training samples by one upload of each client. Shares of test samples that are right:
    accuracy, of the models that the uploads make, on average; before, of the common start.
    """

    auc: float
    accuracy: float
    before: float


def membership(sent: str, share: float, seed: int) -> Told:
    """Each client uploads once."""
    of = fleet(seed)
    places = eligible(of.model.spec)
    k, trained, others = count(share, len(places)), [], []
    right = []
    for i, weights in enumerate(of.trained):
        draw = fl.Secrets(fl.rng(seed, f"client/{i}", f"noise {sent} {share}"))
        change = (weights - of.start).astype(np.float64)
        if sent.startswith("paper"):
            utility = max_min(o_factor(weights[places], of.start[places], of.start[places], density(weights[places])))
            chosen = places[gumbel_top_k(utility, k, 1.0, draw)]
            values, epsilon2 = weights[chosen], float(sent.rpartition(" ")[2])
            noisy = heuristic.perturbed(values, density(values), epsilon2, draw) - of.start[chosen]
        else:
            chosen = shared_set(places, k, b"study", f"client/{i}", seed)
            noisy = change[chosen]
            if sent != "clean":
                noisy = Standard.within(CLIP, float(sent.rpartition(" ")[2]), DELTA, 1).noised(noisy, draw)
        model = uploaded_model(of.start, chosen, noisy)
        both, (x, y) = np.stack([of.start, model]), of.others
        own = judge_many(of.model, both, torch.from_numpy(of.x[i]), torch.from_numpy(of.y[i]))
        rest = judge_many(of.model, both, torch.from_numpy(x), torch.from_numpy(y))
        trained.append((own.losses[0], own.losses[1]))
        others.append((rest.losses[0], rest.losses[1]))
        right.append(rest.right.mean(axis=1))
    before, after = np.mean(right, axis=0)
    return Told(upload_membership(trained, others).value, float(after), float(before))


@by_cell
def _membership(name: str, found: Sequence[Told]) -> Row:
    sent, _, share = name.rpartition("/")
    return {
        "sent": sent,
        "share of the parameters": float(share),
        "AUC (chance 0.5)": mean([one.auc for one in found], digits=2),
        "accuracy of the uploaded models, %": mean([100 * one.accuracy for one in found], digits=2),
        "of the start, %": mean([100 * one.before for one in found], digits=2),
    }


ITEMS: Mapping[str, Item[Any]] = named(
    Item(
        "ofl/audits",
        "Claimed epsilons of uploads beside what data prove (delta 1e-5, 4,000 trials; mean, 95 % interval)",
        tuple(
            Calculation(f"{mechanism}/{number:g}/{uploads}", partial(audited, mechanism, number, uploads))
            for mechanism, number, uploads in AUDITS
        ),
        _audits,
        command="python -m benchmarks.upload_noise",
    ),
    Item(
        "ofl/noise",
        "The noise that a budget needs (delta 1e-5, one client against its leader)",
        crossed(noise, lambda *_: {}, (1.0, 8.0), (1, 10, 100)),
        _noise,
        command="python -m benchmarks.upload_noise",
    ),
    Item(
        "ofl/membership",
        f"Membership from one upload of each of {CLIENTS} clients (digits, MLP, {EPOCHS} epochs; mean, 95 % interval)",
        crossed(membership, lambda *_: {"delta": DELTA, "clip": CLIP}, [*SENT], SHARES),
        _membership,
        command="python -m benchmarks.upload_noise",
    ),
)

if __name__ == "__main__":
    main(ITEMS)
