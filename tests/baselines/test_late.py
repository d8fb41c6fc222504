"""The baselines with late updates, each against one slow twin that keeps everything; and what is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, rig
from matrix import few
from outcomes import alike, numbers

from coterie.baselines import fedadmm, fedasync, fedavg
from coterie.baselines.late import SYSTEMS as AVERAGING
from coterie.devices.links import Delays
from coterie.protocol.errors import UserError
from coterie.protocol.system import System
from coterie.protocols.local_training import sample_clients
from coterie.runs import Interrupted, RunConfig, build, run

N, ROUNDS, LR = 8, 14, 0.3
TARGETS = np.random.default_rng(0).normal(size=(N, 10))
NAMES = tuple(f"client/{i}" for i in range(N))

DROPPING = (AVERAGING["fedavg_drop"], AVERAGING["fedprox_drop"])
LATE = (
    AVERAGING["fedavg_stale"],
    AVERAGING["fedprox_stale"],
    AVERAGING["fedavg_late"],
    AVERAGING["time_weighted"],
    fedasync.SYSTEM,
    fedadmm.SYSTEM,
)


def made(system: System, targets: np.ndarray = TARGETS, **settings: Any) -> Rig:
    return rig(system, targets, **{"lr": LR, "participation": 0.75, "delta": 0.5, **settings})


# -- the twin ----------------------------------------------------------------------------------------------------------


@dataclass
class Came:
    """An update as it arrives. start: w that its client was sent.  end: what it made of it.  dual: eq. 10's change."""

    late: int
    start: np.ndarray
    end: np.ndarray
    own: np.ndarray
    dual: np.ndarray


Rule = Callable[[np.ndarray, list[Came], float], np.ndarray]


def twin(w: np.ndarray, rule: Rule, *, mu: float = 0.0, rho: float = 0.0, lr: float, decay: float) -> list[np.ndarray]:
    """All models of the server. One step from w on |v - b|^2 / 2 + <y, v - w> + (mu + rho) / 2 |v - w|^2 at v = w."""
    delays = Delays(lambda r: sample_clients(NAMES, 0.75, 0, r), 0.5, "uniform:1-5", 0)
    own, duals = dict.fromkeys(NAMES, w), {name: np.zeros_like(w) for name in NAMES}
    under_way: list[tuple[int, int, int, Came]] = []
    models = []
    for r in range(1, ROUNDS + 1):
        for name in sample_clients(NAMES, 0.75, 0, r):
            b = TARGETS[NAMES.index(name)]
            end = w - LR * ((w - b) + duals[name])
            late = delays.of(r).get(name, 0)
            under_way.append((r + late, r, NAMES.index(name), Came(late, w, end, own[name], rho * (end - w))))
            own[name], duals[name] = end, duals[name] + rho * (end - w)
        arrived = [came for due, _, _, came in sorted(under_way, key=lambda one: (one[2], one[1])) if due == r]
        if arrived:
            w = rule(w, arrived, lr / (1 + decay * (r - 1)))
        models.append(w)
    return models


def mean_of_models(weight: Callable[[Came], float]) -> Rule:
    def rule(w: np.ndarray, arrived: list[Came], step: float) -> np.ndarray:
        weights = [weight(came) for came in arrived]
        if not sum(weights):
            return w
        return (1 - step) * w + step * np.average([came.end for came in arrived], axis=0, weights=weights)

    return rule


def mean_of_changes(w: np.ndarray, arrived: list[Came], step: float) -> np.ndarray:
    return w + step * np.mean([came.end - came.start for came in arrived], axis=0)


def one_after_the_other(w: np.ndarray, arrived: list[Came], step: float) -> np.ndarray:
    for came in [c for c in arrived if c.late] + [c for c in arrived if not c.late]:
        share = step / (1 + came.late) ** 0.5
        w = (1 - share) * w + share * came.end
    return w


def all_clients(w: np.ndarray, arrived: list[Came], step: float) -> np.ndarray:
    return w + step / N * np.sum([came.end - came.own + came.dual / 0.1 for came in arrived], axis=0)


def those_received(w: np.ndarray, arrived: list[Came], step: float) -> np.ndarray:
    return w + step * np.mean([came.end - came.start + came.dual / 0.1 for came in arrived], axis=0)


in_time = mean_of_models(lambda came: float(not came.late))
everything = mean_of_models(lambda came: 1.0)


@pytest.mark.parametrize("decay", few([0.0, 0.1], [0.1]))
@pytest.mark.parametrize(
    ("system", "rule", "settings"),
    [
        (AVERAGING["fedavg_drop"], in_time, {}),
        (AVERAGING["fedavg_stale"], everything, {}),
        (AVERAGING["fedprox_drop"], in_time, {"mu": 0.5}),
        (AVERAGING["fedprox_stale"], everything, {"mu": 0.5}),
        (AVERAGING["fedavg_late"], mean_of_changes, {}),
        (AVERAGING["time_weighted"], mean_of_models(lambda came: (np.e / 2) ** -came.late), {}),
        (AVERAGING["time_weighted"], mean_of_models(lambda came: 2.0**-came.late), {"base": 2.0}),
        (fedasync.SYSTEM, one_after_the_other, {}),
        (fedadmm.SYSTEM, all_clients, {"rho": 0.1}),
        (fedadmm.SYSTEM, those_received, {"rho": 0.1, "reference": "received"}),
    ],
)
def test_each_is_its_twin(system: System, rule: Rule, settings: dict[str, Any], decay: float) -> None:
    """Every round's model, within the rounding of float32 (FedADMM's: times 1 / rho)."""
    federation = made(system, server_lr=0.6, server_decay=decay, **settings)
    expected = twin(federation.models()[0].astype(np.float64), rule, rho=settings.get("rho", 0.0), lr=0.6, decay=decay)
    late = 0
    for r, model in enumerate(expected, 1):
        notes = federation.round(r)
        late += sum(notes["staleness"][1:]) + notes["too_old"]
        np.testing.assert_allclose(federation.models(), np.tile(model, (N, 1)), atol=3e-6)
    assert late > 15
    assert np.abs(expected[-1] - expected[0]).max() > 0.1


def test_the_proximal_term_acts_on_every_step_but_the_first() -> None:
    """At w it has no slope; many steps reach argmin |v - b|^2 / 2 + mu / 2 |v - w|^2 = (b + mu w) / (1 + mu)."""
    for system in (AVERAGING["fedprox_drop"], AVERAGING["fedprox_stale"]):
        federation = made(
            system, effects=lambda t: Pulled(t, steps=300), lr=0.05, mu=2.0, delta=0.0, participation=1.0, server_lr=1.0
        )
        w = federation.models()[0]
        federation.round(1)
        np.testing.assert_allclose(federation.models()[0], (TARGETS.mean(0) + 2 * w) / 3, atol=1e-5)


# -- how they hang together --------------------------------------------------------------------------------------------


def models_of(system: System, **settings: Any) -> list[bytes]:
    federation = made(system, **settings)
    return [federation.round(r) and federation.models()[0].tobytes() for r in range(1, 9)]


def test_bounds_and_weights_that_say_the_same_give_the_same() -> None:
    dropped = models_of(AVERAGING["fedavg_drop"])
    assert models_of(AVERAGING["fedavg_stale"], max_staleness=0) == dropped
    assert models_of(AVERAGING["fedprox_drop"], mu=0.0) == dropped
    assert models_of(AVERAGING["time_weighted"], max_staleness=0) == dropped
    assert models_of(AVERAGING["fedprox_stale"], mu=0.0) == models_of(AVERAGING["fedavg_stale"]) != dropped


def test_with_nobody_late_and_a_full_step_it_is_fedavg() -> None:
    reference = rig(fedavg.SYSTEM, TARGETS, lr=LR, participation=0.75)
    same = [
        made(AVERAGING[name], delta=0.0, server_lr=1.0, server_decay=0.0)
        for name in ("fedavg_drop", "fedavg_stale", "fedavg_late", "time_weighted")
    ]
    for r in range(1, 7):
        reference.round(r)
        for federation in same:
            federation.round(r)
            np.testing.assert_allclose(federation.models()[0], reference.models()[0], atol=1e-6)


def test_models_count_by_samples() -> None:
    """On real data of unequal clients, one round of everybody: the mean that FedAvg takes, too."""
    settings = {"momentum": 0.5, "max_epochs": 1, "slowest": 1.0, "participation": 1.0, "lr": 0.1}
    late = {"server_lr": 1.0}
    work = RunConfig("fedavg", "digits", clients=5, rounds=1, samples=600, partition="dirichlet:0.3", settings=settings)
    results = []
    for config in (work, replace(work, system="fedavg_stale", delta=0.0, settings=settings | late)):
        experiment = build(config)
        experiment.set_up()
        assert len({experiment.owns[name].samples for name in experiment.common.clients}) > 2
        experiment.round(1)
        results.append(experiment.models()["client/0"])
    np.testing.assert_allclose(*results, atol=1e-6)


# -- FedADMM -----------------------------------------------------------------------------------------------------------


def augmented(federation: Rig, rho: float) -> np.ndarray:
    """w_i + y_i / rho of every client that was asked, w_0 of the others; (clients, d)."""
    states = [federation.party(name).state for name in NAMES]
    return np.stack([s.own if s.dual is None else s.own + s.dual / np.float32(rho) for s in states])


def test_fedadmm_keeps_count_of_every_client_however_late_it_is() -> None:
    """The server is at the mean of the clients' w_i + y_i / rho, but for what is under way; and catches up with it."""
    federation, rho = made(fedadmm.SYSTEM, rho=0.5, delta=0.6), 0.5
    start = federation.models()[0]
    for r in range(1, 10):
        federation.round(r)
    gap = np.abs(augmented(federation, rho).mean(0) - federation.models()[0]).max()
    assert gap > 1e-3  # updates are under way
    received = [seen.message.weights for seen in federation.view("server").seen]
    np.testing.assert_allclose(federation.models()[0], start + np.sum(received, axis=0) / N, atol=1e-5)
    asked = sum(len(sample_clients(NAMES, 0.75, 0, r)) for r in range(1, 10))
    assert len(received) < asked
    held = [p for p in federation.transport.snapshot().parcels if p.due]
    assert len(received) + len(held) == asked


def test_fedadmms_clients_that_are_asked_again_while_late_stay_consistent() -> None:
    """What a client sent, in order, adds up to where its state is, and its dual follows eq. 10 from round to round."""
    rho = 0.5
    federation = made(fedadmm.SYSTEM, rho=rho, participation=1.0, delta=0.5, delay="uniform:4")
    start, sent, models = federation.models()[0], np.zeros((N, 10)), {}
    duals = np.zeros((N, 10))
    for r in range(1, 8):
        w = models[r] = federation.models()[0]
        federation.round(r)
        for i, name in enumerate(NAMES):
            state = federation.party(name).state
            duals[i] += rho * (state.own - w)
            np.testing.assert_allclose(state.dual, duals[i], atol=1e-5)
    for seen in federation.view("server").seen:
        sent[NAMES.index(seen.src)] += seen.message.weights
    owes = {p.envelope.src for p in federation.transport.snapshot().parcels if p.due}
    assert 0 < len(owes) < N
    for i, name in enumerate(NAMES):
        done = np.abs(sent[i] - (augmented(federation, rho)[i] - start)).max() < 1e-4
        assert done == (name not in owes)


def test_fedadmm_finds_the_optimum_that_late_models_pull_away_from() -> None:
    """Unequal clients, half of them late: FedADMM's duals make the mean of all targets a fixed point, exactly."""
    optimum = TARGETS.mean(0)

    def distance(system: System, **settings: Any) -> float:
        federation = made(system, effects=lambda t: Pulled(t, steps=20), lr=0.2, **settings)
        federation.rounds(60)
        return float(np.abs(federation.models()[0] - optimum).max())

    assert distance(fedadmm.SYSTEM, rho=1.0) < 1e-3
    assert distance(AVERAGING["fedavg_stale"], server_decay=0.0) > 0.05  # each round's few clients decide


# -- settings, registry, digits ----------------------------------------------------------------------------------------


def test_dropping_has_no_bound_on_staleness_to_set() -> None:
    with pytest.raises(UserError, match="max_staleness"):
        build(RunConfig("fedavg_drop", "digits", settings={"max_staleness": 3}))


@pytest.mark.parametrize("system", few([s.name for s in (*DROPPING, *LATE)], ["fedadmm"]))
def test_each_learns_two_shard_digits_with_half_of_the_clients_late(system: str) -> None:
    settings = {"lr": 0.1, "batch_size": 10, "max_epochs": 5}
    work = RunConfig(system, "digits", clients=10, rounds=12, partition="shards:2", delta=0.5, settings=settings)
    experiment = build(work)
    experiment.set_up()
    lines = [experiment.round(r) for r in range(1, 13)]
    assert sum(len(line["late"]) for line in lines) > 20
    assert max(line["global_accuracy"] for line in lines[-3:]) > 0.6
    json.dumps(lines)


@pytest.mark.parametrize("system", few(["fedadmm", "fedavg_late"], ["fedadmm"]))
@pytest.mark.parametrize("at", few([2, 5], [5]))
def test_a_run_resumes_with_updates_under_way(system: str, at: int, tmp_path: Path) -> None:
    work = RunConfig(
        system, clients=8, rounds=7, partition="shards:2", checkpoint_every=1, record=True, devices="mobile",
        delta=0.5, settings={"max_epochs": 1, "participation": 1.0},
    )  # fmt: skip
    whole = run(replace(work, out=str(tmp_path / "a")))
    assert sum(len(line["notes"]["staleness"]) > 1 for line in whole.rounds) > 3

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == at:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(replace(work, out=str(tmp_path / "b")), stop)
    run(replace(work, out=str(tmp_path / "b")), resume=True)
    assert numbers(tmp_path / "a") == alike(numbers(tmp_path / "b"))
    assert (tmp_path / "a" / "views.bin").stat().st_size == (tmp_path / "b" / "views.bin").stat().st_size
