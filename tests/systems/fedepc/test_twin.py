"""FedEPC's rounds in mode paper against a slow, readable twin: plain numpy, written from algorithm 4 and the docs page.

No transport, no parties. Clustering (algorithm 2) and selection (algorithm 3) have twins of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, planted, rig

from coterie.clustering.isomorphic import cluster
from coterie.protocol.effects import Fit, Local
from coterie.protocol.randomness import rng
from coterie.protocols.sparsity import Halves, halves
from coterie.selection.bandit import Bandit, choose, learned
from coterie.systems.fedepc import SYSTEM

GROUPS = [0] * 6 + [1] * 6 + [2] * 3
TARGETS = planted(GROUPS, 24)
ROUNDS = 6
GHZ, GIB = 2.0, 4.0  # of the ordinary device
SAMPLES = 10


def three_steps(targets: Mapping[str, np.ndarray]) -> Pulled:
    """Effects whose trainings are of three steps, so that the proximal term has an effect."""
    return Pulled(targets, steps=3)


def made(**settings: Any) -> Rig:
    return rig(
        SYSTEM, TARGETS, effects=three_steps, **{"extractor": "random", "panel": 4, "converged": 0.0, **settings}
    )


def twin(run: Rig) -> Iterator[dict[str, Any]]:
    """Algorithm 4 with the same effects; gives the models (n, d), the chosen and L_k, by round."""
    config, names, seed = run.config, run.common.clients, 0
    n, effects = len(names), three_steps(dict(zip(names, TARGETS, strict=True)))
    aidc, cics = config.clustering(), config.selection()

    # algorithm 1: the mean of the halves' vectors, and their divergence
    vectors, floors = [], []
    for name in names:
        drawn = int(rng(seed, name, "sparsity halves", 0).integers(1 << 62))
        found: Halves = effects.halves(name, Local(halves, (run.common.initial, "auto", drawn)))
        vectors.append(found.means.mean(axis=0).astype(np.float32).astype(np.float64))
        floors.append(mjs(found.means[0], found.means[1], config.gamma))
    groups, _ = cluster(names, np.stack(vectors), np.array(floors), aidc)  # algorithm 2
    members = {k: [i for i in range(n) if groups.labels[i] == k] for k in sorted(set(groups.labels.tolist()))}

    cost = SAMPLES / GHZ
    budgets = {k: max(config.participation * len(own) * cost, 5 * cost) for k, own in members.items()}  # T_max
    rooms = {k: len([j for j in range(1, len(own) + 1) if j * cost <= budgets[k]]) for k, own in members.items()}
    owed = dict.fromkeys(members, 0.0)
    panels = {}
    for k, own in members.items():
        order = rng(seed, "server", f"panel of cluster {k}", 0).permutation(len(own))
        panels[k] = sorted(own[j] for j in order[: config.panel])

    weights = dict.fromkeys(members, run.common.initial)
    bandits = {k: Bandit() for k in members}
    last: dict[int, Any] = {}
    measured: dict[int, dict[int, float]] = {k: {} for k in members}
    losses: list[list[float]] = [[] for _ in names]
    norms: list[list[float]] = [[] for _ in names]
    for r in range(1, ROUNDS + 1):
        chosen_in = {}
        places = turns(owed, members, rooms, max(1, round(config.participation * n)))
        for k, own in members.items():
            contexts = np.array([context(losses[i], norms[i]) for i in own])  # eq. (9)
            source = rng(seed, "server", f"selection in cluster {k}", r)
            least = max(1, math.ceil(config.fill * places[k]))
            costs = np.full(len(own), cost)
            choice = choose(bandits[k], contexts, costs, budgets[k], cics, source, least, places[k])
            chosen_in[k] = [own[j] for j in choice.chosen]
            measured_now = {}
            trained = []
            for i in own:
                if i not in chosen_in[k] and i not in panels[k]:
                    continue
                w = weights[k]
                measured_now[i] = loss = float(np.square(w - TARGETS[i]).sum() / 2)
                losses[i] = [*losses[i], loss][-config.history - 1 :]
                if i in chosen_in[k]:
                    order = int(rng(seed, names[i], "batches", r).integers(1 << 62))
                    fit = effects.fit(names[i], Fit(w, config.solver(), run.owns[names[i]].epochs, order))
                    trained.append(fit.weights)  # eq. (13), (14)
                    norm = float(np.linalg.norm(w.astype(np.float64) - fit.weights)) / config.lr
                    norms[i] = [*norms[i], norm][-config.history :]
            before, now = measured[k], {i: measured_now[i] for i in panels[k]}
            if k in last and before:
                old, new = (math.fsum(x[i] for i in panels[k]) / len(panels[k]) for x in (before, now))
                bandits[k] = learned(bandits[k], *last[k], math.log(old / new), cics)  # eq. (12)
            measured[k], last[k] = now, (contexts, choice.chosen)
            columns = zip(*trained, strict=True)
            weights[k] = np.array([math.fsum(map(float, c)) / len(trained) for c in columns], np.float32)  # eq. (15)
        of = {i: k for k, own in members.items() for i in own}
        yield {
            "models": np.stack([weights[of[i]] for i in range(n)]),
            "selected": {names[i]: k for k, own in chosen_in.items() for i in own},
            "loss": {k: math.fsum(own.values()) / len(own) for k, own in measured.items()},
            "membership": [[of[i]] for i in range(n)],
        }


def turns(owed: dict[int, float], members: Mapping[int, Any], rooms: Mapping[int, int], most: int) -> dict[int, int]:
    """The places of a round one by one, each to the cluster that is owed most; ``owed`` is what is left."""
    given = dict.fromkeys(members, 0)
    for k, own in members.items():
        owed[k] += most * len(own) / sum(map(len, members.values()))
    for _ in range(min(most, sum(rooms.values()))):
        open_to = [k for k in members if given[k] < rooms[k]]
        k = max(open_to, key=lambda k: (owed[k], -k))
        given[k], owed[k] = given[k] + 1, owed[k] - 1
    for k in members:
        owed[k] = min(1.0, max(-1.0, owed[k]))
    return given


def context(losses: list[float], norms: list[float]) -> list[float]:
    """Eq. (9): the mean reduction of the loss is the sum of the differences over their number."""
    drops = [a - b for a, b in pairwise(losses)]
    reduction = sum(drops) / len(drops) if drops else math.nan
    return [GHZ, GIB, SAMPLES, sum(norms) / len(norms) if norms else math.nan, reduction]


def mjs(s: np.ndarray, t: np.ndarray, gamma: float) -> float:
    """Eq. (3) and (4), term by term."""

    def js(x: np.ndarray, y: np.ndarray) -> float:
        total = 0.0
        for a, b in zip(x, y, strict=True):
            total += a * math.log(2 * a / (a + b)) if a else 0.0
            total += b * math.log(2 * b / (a + b)) if b else 0.0
        return total / 2

    return js(s / s.sum(), t / t.sum()) + gamma * js(s, t)


@pytest.mark.parametrize("settings", [{}, {"mu": 0.7, "participation": 0.9, "fill": 0.0, "history": 1}, {"gamma": 0.0}])
def test_six_rounds_equal_the_twin_bit_for_bit(settings: dict[str, Any]) -> None:
    run = made(**settings)
    sizes = set()
    for r, expected in enumerate(twin(run), 1):
        notes = run.round(r)
        assert notes["membership"] == expected["membership"]
        assert notes["selected"] == expected["selected"]
        assert {int(k): v for k, v in notes["loss"].items()} == pytest.approx(expected["loss"], rel=1e-6)
        assert run.models().tobytes() == expected["models"].tobytes()
        sizes.add(len(expected["selected"]))
    assert len({tuple(row) for row in map(tuple, run.models())}) == 3, "three clusters with three models"
    assert max(sizes) < len(TARGETS), "not everybody trained, so that the choice mattered"


def test_the_twin_can_fail() -> None:
    """Weighted means or another proximal term would show: the twin of another mu has other models."""
    run, other = made(), made(mu=0.02)
    expected = next(twin(other))
    run.round(1)
    assert run.models().tobytes() != expected["models"].tobytes()


def test_eq_14_has_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    """One device, one cluster, a quadratic loss: three steps of w <- w - lr ((w - t) + mu (w - w_0))."""
    run = rig(SYSTEM, TARGETS[:1], effects=three_steps, extractor="random", mu=0.5, lr=0.1)
    start = w = run.common.initial.astype(np.float64)
    run.round(1)
    for _ in range(3):
        w = w - 0.1 * ((w - TARGETS[0]) + 0.5 * (w - start))
    np.testing.assert_allclose(run.models()[0], w, rtol=1e-5, atol=1e-6)


def test_eq_15_weighs_all_devices_alike() -> None:
    """Whatever number of samples they claim."""
    run = rig(SYSTEM, planted([0] * 4, 12), extractor="random", participation=1.0, fill=1.0)
    for name, samples in zip(run.common.clients, (1, 10, 100, 1000), strict=True):
        run.party(name).samples = samples
    fresh = rig(SYSTEM, planted([0] * 4, 12), extractor="random", participation=1.0, fill=1.0)
    for one in (run, fresh):
        one.hub.state.clusters[0].budget = 1e9
        assert len(one.round(1)["selected"]) == 4
    assert run.models().tobytes() == fresh.models().tobytes()
