"""Runs with clients that misbehave: every system takes every attack, scores are of the honest, and runs repeat."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix import few

import coterie
from coterie.privacy.attacks.active import KINDS
from coterie.privacy.attacks.active.samples import TARGET, TRIGGER, triggered
from coterie.protocol.errors import UserError
from coterie.report import render
from coterie.report.summary import results
from coterie.runs import Experiment, RunConfig, build, load_result, registry, run
from coterie.runs.advice import without_effect
from coterie.runs.config import resolve
from coterie.runs.config_file import from_text, to_toml
from tests.systems.test_parties_restart import CASES, STILL, models_of

FAST = {"data": "digits", "model": "linear", "partition": "iid", "clients": 5, "rounds": 3}


def made(system: str = "fedavg", **options: Any) -> Experiment:
    return build(RunConfig(system, **{**FAST, "attack": "scale:3", "attackers": 0.4, **options}))


def done(out: Path, system: str = "fedavg", **options: Any) -> Any:
    return run(RunConfig(system, **{**FAST, "out": str(out), **options}))


# -- options -----------------------------------------------------------------------------------------------------------


def test_the_attack_is_explicit_once_resolved_and_repeats_from_its_file() -> None:
    config = resolve(RunConfig("fedavg", attack="scale", data="digits"))
    assert (config.attack, config.attackers) == ("scale:10", 0.2)
    assert from_text(to_toml(config)).attack == "scale:10"
    assert resolve(RunConfig("fedavg")).attackers is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attack": "nonsense"}, "unknown attack 'nonsense'.*label_flip"),
        ({"attack": "scale:-3"}, "must be above 0"),
        ({"attackers": 0.2, "attack": None}, "no effect without an attack"),
        ({"attackers": 1.0}, r"option 'attackers' must lie in \(0, 1\), not 1.0"),
        ({"attackers": 0.0}, r"must lie in \(0, 1\), not 0.0"),
        ({"attack": "label_flip", "task": "regression"}, "needs classes as labels, and the task is regression"),
    ],
)
def test_nonsense_is_refused_before_anything_is_built(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve(RunConfig("fedavg", **{"attack": "scale", **options}))


def test_a_share_that_is_nobody_is_refused_when_the_clients_are_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is nobody"):
        done(tmp_path / "run", attack="scale", attackers=0.05)
    assert not (tmp_path / "run").exists()


# -- every system, every attack ----------------------------------------------------------------------------------------

CHOOSY = {"krum", "fedepc", "haccs"}  # they may choose no attacker in three rounds


@pytest.mark.long
@pytest.mark.parametrize(("system", "mode", "settings"), CASES)
def test_attackers_of_every_system_are_made_again_from_their_bytes(
    system: str, mode: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adaptive ones remember what they received, and everything else is as without an attack."""
    usual = RunConfig.__init__

    def with_attack(self: RunConfig, *args: Any, **options: Any) -> None:
        usual(self, *args, **{"attack": "adaptive", "attackers": 0.4, **options})

    import tests.systems.test_parties_restart as test_parties_restart

    honest = models_of(test_parties_restart.made(system, mode, settings), restarting=False)
    monkeypatch.setattr(RunConfig, "__init__", with_attack)
    digests = [models_of(test_parties_restart.made(system, mode, settings), restarting) for restarting in (False, True)]
    assert digests[0] == digests[1]
    assert (digests[0] == honest) == ((system, mode) in STILL) or system in CHOOSY


@cache
def after_two_rounds(system: str, attack: str | None) -> str:
    """The digest of all models."""
    own = {"clusters": 2} if system == "fedcaprivacy" else {}
    options = {"attack": attack, "attackers": None if attack is None else 0.4}
    one = made(system, crypto="emulated", delta=0.0, settings={"participation": 1.0, **own}, **options)
    one.set_up()
    lines = [one.round(r) for r in (1, 2)]
    assert not lines[-1]["refused"]
    one.close()
    return str(lines[-1]["models_sha256"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("system", few(["fedavg", "fedcaprivacy", "pafed"], {"fedavg"}))
def test_every_attack_changes_the_models(system: str, kind: str) -> None:
    assert after_two_rounds(system, kind) != after_two_rounds(system, None)


# -- scores ------------------------------------------------------------------------------------------------------------


def test_scores_are_means_over_the_honest_clients(tmp_path: Path) -> None:
    """By hand, with the baseline where each client's model is its own."""
    result = done(tmp_path / "run", "local", attack="sign_flip:5", attackers=0.4)
    names = result.summary["attacker_names"]
    assert len(names) == 2
    each = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert set(each["clients"]) == {f"client/{i}" for i in range(5)} - set(names)
    assert result.summary["global_accuracy"] == pytest.approx(np.mean(each["global_accuracy"]))
    experiment = made("local", attack="sign_flip:5")
    experiment.set_up()
    for r in (1, 2, 3):
        experiment.round(r)
    everybody = experiment.observer.scores(experiment.models()).values["global_accuracy"]
    honest = np.array([name not in names for name in experiment.common.clients])
    assert result.summary["global_accuracy"] == pytest.approx(everybody[honest].mean())
    assert everybody[~honest].max() < everybody[honest].min()
    experiment.close()
    assert len(result.clients) == 5  # the attackers' models are kept all the same


def test_the_backdoors_success_is_what_it_says() -> None:
    """A slow twin: every sample of another class, with the trigger, one by one."""
    experiment = made(attack="backdoor", partition="rotate:2")
    experiment.set_up()
    line = experiment.round(1)
    shares = []
    for name, weights in experiment.attackers.left_out(experiment.models(1)).items():
        whole, module = experiment.observer.data[name].test_set, experiment.model.module_with(weights)
        others = [i for i, y in enumerate(whole.y) if int(y) != TARGET]
        with torch.no_grad():
            hits = [int(module(triggered(whole.x[i : i + 1], TRIGGER)).argmax()) == TARGET for i in others]
        shares.append(np.mean(hits))
    assert line["backdoor_success"] == pytest.approx(np.mean(shares))
    experiment.close()


def test_a_backdoor_works_on_the_mean_and_label_flips_hurt_it(tmp_path: Path) -> None:
    options = {"clients": 8, "rounds": 4, "attackers": 0.25, "model": "mlp"}
    backdoor = done(tmp_path / "b", attack="backdoor:3", **options).summary
    flipped = done(tmp_path / "f", attack="label_flip", **{**options, "attackers": 0.4}).summary
    honest = done(tmp_path / "h", clients=8, rounds=4, model="mlp").summary
    assert backdoor["backdoor_success"] > 0.6
    assert flipped["global_accuracy"] < honest["global_accuracy"] - 0.03
    assert honest["backdoor_success"] is None is honest["detection"]
    assert honest["attacker_names"] == []


def test_unit_scaling_has_a_trigger_within_its_range() -> None:
    bright, standard = made(attack="backdoor", scaling="unit"), made(attack="backdoor")
    assert (bright.attackers.trigger, standard.attackers.trigger) == (1.0, 3.0)
    assert made(attack="scale").attackers.trigger is None


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", few(["fedavg", "scaffold", "fedcaprivacy"], {"fedcaprivacy"}))
def test_a_run_that_is_resumed_goes_on_as_if_undisturbed(tmp_path: Path, system: str) -> None:
    settings = {"clusters": 2} if system == "fedcaprivacy" else {}
    options = {"attack": "adaptive", "attackers": 0.4, "crypto": "emulated", "settings": settings}
    whole = done(tmp_path / "whole", system, **options)
    done(tmp_path / "parts", system, **{**options, "rounds": 2})
    config = RunConfig(system, **{**FAST, **options, "out": str(tmp_path / "parts")})
    resumed = run(config, resume=True)
    assert [line["models_sha256"] for line in resumed.rounds] == [line["models_sha256"] for line in whole.rounds]
    with pytest.raises(UserError, match=r"attack: adaptive:1, now scale:10"):
        run(RunConfig(system, **{**FAST, **options, "attack": "scale", "out": str(tmp_path / "parts")}), resume=True)


def test_attackers_sleep_like_everybody() -> None:
    """No party but the hub stays awake for the attack."""
    experiment = made(attack="adaptive")
    experiment.parties._awake_bytes = 0
    experiment.set_up()
    experiment.round(1)
    assert set(experiment.parties._awake) == {"server"}
    experiment.close()


def test_the_same_clients_attack_in_every_system_and_attack_and_after_a_drift() -> None:
    one, *others = [
        made(system, attack=attack, drift=drift)
        for system, attack, drift in (("fedavg", "noise", None), ("ifca", "scale", None), ("fedavg", "scale", "0.5@2"))
    ]
    others[-1].reach(2)
    assert {each.attackers.names for each in others} == {one.attackers.names}
    assert len(one.attackers.names) == 2


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_result_console_and_report_name_the_attackers_and_how_many_were_found(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = done(out, "multi_krum", attack="backdoor:20", attackers=0.2, clients=10).summary
    assert summary["attack"] == "backdoor:20"
    assert summary["attackers"] == 0.2
    assert summary["detection"]["rounds"] == 3
    assert summary["detection"]["rate"] > 0.6
    shown = dict(results(load_result(out).summary))
    assert f"2 of 10 clients misbehave, backdoor:20 ({', '.join(summary['attacker_names'])})" in shown["attackers"]
    assert "Scores are means over the honest ones" in shown["attackers"]
    assert "of the poisoned contributions" in shown["flagged as poisoned"]
    html = render([out], out / "report.html").read_text()
    for words in ("misbehave, backdoor:20", "mean over honest clients", "Backdoor success", "False alarms"):
        assert words in html


@pytest.mark.long
def test_a_comparison_has_the_same_attackers_for_all_and_says_so(tmp_path: Path) -> None:
    race = coterie.compare(
        ["fedavg", "trimmed_mean"],
        seeds=1,
        local=False,
        fine_tune="no",
        attack="scale:10",
        attackers=0.2,
        out=tmp_path / "race",
        progress=False,
        **FAST,
    )
    assert race.content["attack"] == "scale:10"
    found = {row["method"]: row for row in race.content["rows"]}
    assert found["trimmed_mean"]["detection_rate"]["mean"] > 0.8
    assert found["fedavg"]["detection_rate"] is None
    names = {tuple(one.summary["attacker_names"]) for method in race.results.values() for one in method[:1]}
    assert len(names) == 1
    assert "20.0" in (text := race.report().read_text())
    assert "of the clients misbehave (scale:10); all scores are means over the honest ones" in text


def test_the_python_api_takes_the_options(tmp_path: Path) -> None:
    result = coterie.run("fedavg", attack="noise:0.5", attackers=0.4, out=tmp_path / "run", progress=False, **FAST)
    assert result.summary["attack"] == "noise:0.5"
    with pytest.raises(UserError, match="did you mean 'noise'"):
        coterie.run("fedavg", attack="nois", **FAST)


def test_systems_of_all_kinds_are_covered() -> None:
    assert {case.values[0] for case in CASES} == set(registry.SYSTEMS)


def test_an_attack_on_clients_that_train_alone_is_said_to_have_no_effect() -> None:
    alone, together = (resolve(RunConfig(name, attack="scale")) for name in ("local", "fedavg"))
    (said,) = without_effect({"attack"}, [alone])
    assert "option attack has no effect on local: no model of an attacker reaches anybody" in said
    assert without_effect({"attack"}, [alone, together]) == []
