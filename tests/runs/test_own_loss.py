"""A loss of one's own in a system: ``Fit`` trains it, so that attacks bite; and what trains otherwise is told."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_system import PAGE

import coterie
import coterie.method as fl
from coterie.baselines import fedavg
from coterie.runs import RunConfig, build, load_result, registry, run
from coterie.runs.failures import NoAttackError

FAST = {"data": "digits", "model": "linear", "clients": 8, "rounds": 2, "partition": "iid", "fine_tune": "no"}
ATTACK = {"attack": "scale:10", "attackers": 0.25}


@fl.local("test: a training by hand")
def by_hand(own: fl.OwnData, weights: Any, lr: float) -> Any:
    """One step over all samples."""
    network = own.model.module_with(weights).train()
    loss = own.model.mean_loss(network(torch.from_numpy(own.x.copy())), torch.from_numpy(own.y.copy()))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter -= lr * gradient
    return own.model.flatten(network)


class ByHand(fl.AveragingClient, role="client"):
    """Trains, and says so to nobody."""

    @fl.on(fl.Train, fl.training)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        weights = yield fl.Local(by_hand, (msg.weights, self.config.lr))
        return fl.Update(msg.round, msg.spec, weights, self.samples)


BY_HAND = replace(fedavg.SYSTEM, name="by_hand", parties=lambda config: {"server": fl.Server, "client": ByHand})
SYSTEM = "tests.runs.test_own_loss:BY_HAND"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The system of the page, by its name."""
    for name, code in zip(("fedprox_own", "proximal"), re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "proximal", None)
    del sys.modules["proximal"]
    return "proximal:SYSTEM"


def done(out: Path, system: str, **options: Any) -> Any:
    return run(RunConfig(system, **{**FAST, "out": str(out), **options}))


def weights_of(system: str, **options: Any) -> np.ndarray:
    experiment = build(RunConfig(system, **{**FAST, **options}))
    experiment.set_up()
    for r in (1, 2):
        experiment.round(r)
    found = experiment.models()["client/0"]
    experiment.close()
    return found


def test_the_pages_loss_trains_as_fedprox_and_attacks_bite(page: str) -> None:
    settings = {"mu": 0.5, "max_epochs": 2}
    for attack in ({}, ATTACK, {**ATTACK, "attack": "label_flip"}):
        own, known = (weights_of(name, settings=settings, **attack) for name in (page, "fedprox"))
        np.testing.assert_allclose(own, known, atol=2e-5)
    assert not np.allclose(weights_of(page, settings=settings, **ATTACK), weights_of(page, settings=settings), atol=0.1)


def test_class_weights_need_a_loss_of_each_sample(page: str) -> None:
    with pytest.raises(coterie.UserError, match="one number for a batch"):
        weights_of(page, class_weights="balanced")


def test_an_attack_that_replaces_nothing_has_no_result(tmp_path: Path) -> None:
    """The models are those of the run without it, so a result would say that the attack did no harm."""
    with pytest.raises(fl.RunError) as error:
        done(tmp_path / "run", SYSTEM, **ATTACK)
    said = str(error.value)
    names = build(RunConfig(SYSTEM, **FAST, **ATTACK)).attackers.names
    assert re.search(rf"the attack scale:10 replaced nothing.*{', '.join(names)} had no training to do \(Fit\)", said)
    assert "'test: a training by hand' (4 times) from their data" in said
    assert "make it a Fit, with an Objective" in said
    assert "Rounds 1 to 2 are kept" in said
    assert not (tmp_path / "run" / "result.json").exists()
    assert isinstance(error.value.__cause__, NoAttackError)
    assert done(tmp_path / "clean", SYSTEM).summary["poisoned"] == {}


def test_what_was_replaced_is_counted_in_each_round_and_in_all(tmp_path: Path) -> None:
    result = done(tmp_path / "run", "fedavg", **ATTACK)
    names = result.summary["attacker_names"]
    assert [line["poisoned"] for line in result.rounds] == [dict.fromkeys(names, 1)] * 2
    assert load_result(tmp_path / "run").summary["poisoned"] == dict.fromkeys(names, 2)
    assert "poisoned" not in done(tmp_path / "clean", "fedavg").rounds[0]


def test_an_adaptive_attack_of_one_round_is_none_and_goes_on_with_more(tmp_path: Path) -> None:
    options = {**ATTACK, "attack": "adaptive"}
    with pytest.raises(fl.RunError, match=r"trained in the only round, and adaptive is honest until.*more rounds"):
        done(tmp_path / "run", "fedavg", **options, rounds=1)
    config = RunConfig("fedavg", **{**FAST, **options, "out": str(tmp_path / "run")})
    whole = done(tmp_path / "whole", "fedavg", **options)
    found = run(config, resume=True)
    assert [line["models_sha256"] for line in found.rounds] == [line["models_sha256"] for line in whole.rounds]
    assert found.summary["poisoned"] == whole.summary["poisoned"]


def test_what_was_replaced_before_a_resumption_counts(tmp_path: Path) -> None:
    """Resumed after the last round, the process itself has seen no attack."""
    options = {**ATTACK, "out": str(tmp_path / "run")}
    first = run(RunConfig("fedavg", **FAST, **options))
    (tmp_path / "run" / "result.json").unlink()
    again = run(RunConfig("fedavg", **FAST, **options), resume=True)
    assert again.summary["poisoned"] == first.summary["poisoned"]


def test_attackers_that_nobody_asked_are_said_to_have_had_nothing_to_do(tmp_path: Path) -> None:
    options = {"settings": {"participation": 0.125}, "rounds": 1, **ATTACK}
    with pytest.raises(fl.RunError, match=r"had no training to do \(Fit\) in the only round\. Run more rounds"):
        done(tmp_path / "run", "fedavg", **options)


def test_nothing_built_in_trains_by_local() -> None:
    """Every system's attackers are replaced once they train: no function of Local returns a model, but the attack's."""
    for name in registry.SYSTEMS:
        registry.get(name)
    from coterie.protocol import effects

    ours = [name for name, of in effects._REGISTERED.items() if of.run.__module__.startswith("coterie.")]
    assert ours
    assert [name for name in ours if "train" in name] == ["training on poisoned samples"]


def test_the_first_example_of_the_page_is_fedprox(page: str) -> None:
    assert np.array_equal(weights_of("fedprox_own:SYSTEM"), weights_of("fedprox"))
