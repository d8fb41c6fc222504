"""Plain averaging under PAFed's encryption is ``fedavg_late``; and clients' own averages of the models they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, rig
from pafed_parts import TARGETS, four, model, paf

from coterie.baselines.late import SYSTEMS
from coterie.protocols.own_mean import OwnMean, taken
from coterie.systems.pafed.messages import Compare, Invert, Train

GIVEN: dict[str, Any] = {"participation": 0.75, "delta": 0.5, "delay": "uniform:1-3", "seed": 3, "max_epochs": 1}
SCHEDULES = [{"server_decay": 0.0}, {"server_decay": 0.2}, {"server_decay": 0.0, "server_rounds": 4}]


def plain(name: str = "fedavg_late", **options: Any) -> Rig:
    return rig(SYSTEMS[name], TARGETS, **{**GIVEN, "lr": 0.1, **options})


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("mode", ["paper", pytest.param("hardened", marks=pytest.mark.long)])
def test_plain_averaging_under_encryption_is_fedavg_late(mode: str, schedule: dict[str, Any]) -> None:
    ours = paf(**GIVEN, rule="averaged", local="sgd", mode=mode, **schedule)
    theirs = plain(**schedule)
    for r in range(1, 7):
        assert ours.round(r)["staleness"] == theirs.round(r)["staleness"]
        assert np.abs(model(ours) - theirs.hub.state.weights).max() < 5e-5
    assert not ours.refused


def test_the_helper_is_sent_no_cosine_and_no_sum() -> None:
    run = four(rule="averaged")
    run.rounds(3)
    seen = {type(one.message) for one in run.view("helper").seen}
    assert seen.isdisjoint({Compare, Invert})
    assert {type(one.message).__name__ for one in run.view("helper").seen} >= {"Refresh", "Convert"}


def test_an_average_by_its_closed_form() -> None:
    models = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    for beta in (0.0, 0.3, 0.9):
        kept: OwnMean | None = None
        for n, w in enumerate(models, 1):
            kept = taken(kept, w, beta)
            weights = beta ** np.arange(n - 1, -1, -1.0)
            assert kept.weight == pytest.approx(weights.sum())
            assert np.abs(kept.mean - weights @ models[:n] / weights.sum()).max() < 1e-6


def test_a_client_predicts_with_its_average_and_trains_on_the_last_model() -> None:
    """Who is away in round 2 averages the models of rounds 1 and 3, and the one that stands at the end."""
    ours = four(ema=0.5, delta=0.0, links=Steady(away={("client/1", 2): "offline"}))
    bare = four(delta=0.0, links=Steady(away={("client/1", 2): "offline"}))
    sent = []
    for r in (1, 2, 3):
        sent.append(model(ours))
        assert ours.round(r)["participants"] == bare.round(r)["participants"]
        assert (model(ours) == model(bare)).all()
    sent.append(model(ours))
    found = ours.models()
    assert np.abs(found[0] - np.array([1, 2, 4, 8]) @ np.array(sent) / 15).max() < 1e-3
    assert np.abs(found[1] - np.array([1, 2, 4]) @ np.array(sent)[[0, 2, 3]] / 7).max() < 1e-3
    assert np.abs(bare.models() - sent[-1]).max() < 1e-3
    assert len(list(ours.view("client/1").messages(Train))) == 2


@pytest.mark.parametrize("name", ["pafed", *SYSTEMS])
def test_a_client_between_machines_predicts_with_what_the_observer_sees(name: str) -> None:
    given = {**GIVEN, "participation": 1.0, "delta": 0.0, "ema": 0.5, "deployed": True}
    run = paf(**given) if name == "pafed" else plain(name, **given)
    run.rounds(3)
    seen = run.models()
    run.finish(3)
    own = [run.system.own_model(run.party(client)) for client in run.common.clients]
    assert np.abs(np.stack(own) - seen).max() < 1e-3
    bare = paf(**{**given, "ema": 0.0}) if name == "pafed" else plain(name, **{**given, "ema": 0.0})
    bare.rounds(3)
    assert np.abs(bare.models() - seen).max() > 0.01
