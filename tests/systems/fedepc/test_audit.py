"""FedEPC's audit: it reads what the parties had, by mode, and its attacks find what is there to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import OnDemand, few

import coterie
from coterie.privacy.audits import Finding, Recorded, fedepc
from coterie.privacy.plain import NONE_IN_THE_CLEAR, plain_findings, plain_updates
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, run
from coterie.runs.recorded import record, recorded_run
from coterie.systems.fedepc.messages import Describe, Train, Update

OPTIONS: dict[str, Any] = {
    "clients": 12,
    "rounds": 4,
    "partition": "labelsets:3",
    "model": "mlp",
    "crypto": "emulated",
    "samples": 800,
    "record": True,
}
ALONE = "server, by vectors: label shares"
TOGETHER = "server with the helper, by vectors: label shares"


def config(mode: str = "paper", *, settings: dict[str, Any] | None = None, **options: Any) -> RunConfig:
    return RunConfig("fedepc", mode=mode, settings={"converged": 0.0, **(settings or {})}, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def recorded() -> dict[str, Recorded]:
    return OnDemand(lambda mode: record(config(mode)))


def by_name(run: Recorded) -> dict[str, Finding]:
    return {one.name: one for one in fedepc.passive(run)}


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paper", "hardened"])
def test_descriptions_are_those_of_the_devices(mode: str) -> None:
    """In mode hardened names come from the hub's view and numbers from the helper's, and both must fit."""
    run, experiment = recorded_run(config(mode))
    found = fedepc.descriptions(run)
    for device in experiment.federation.of_role("device"):
        said = device.state.said
        assert np.abs(found[device.name] - np.append(said.vector, said.floor)).max() < 1e-4
    labels = {device: k for k, names in experiment.federation.look("server").members().items() for device in names}
    assert fedepc.clusters(run) == labels
    experiment.close()


def test_opened_first_steps_are_those_that_devices_trained() -> None:
    """The twin repeats the run in mode paper: in round 1 every chosen device trains W^0 alike."""
    hidden, plain = record(config("hardened", rounds=1)), record(config(rounds=1))
    found, sent = fedepc.first_steps(hidden), {seen.src: m for seen, m in plain.views["server"].messages(Update)}
    both = [name for name in found if sent[name].weights is not None]
    assert len(both) >= 2
    for name in both:
        assert np.abs(found[name] - (sent[name].weights - plain.initial)).max() < 1e-3


@pytest.mark.parametrize("settings", few([{}, {"distribute": "round"}], [{}]))
def test_a_newcomer_s_step_starts_from_the_model_that_it_trained(settings: dict[str, Any]) -> None:
    """It is sent the extractor in the same round, and before that model."""
    newcomers = {"founders": 6, "newcomers": 3, "join_every": 1, "participation": 1.0, "fill": 1.0}
    run = record(config(settings={**newcomers, **settings}))
    of_newcomers = 0
    for updates in plain_updates(run):
        for i, step in zip(updates.clients, updates.steps, strict=True):
            name, r = run.clients[i], updates.round
            (asked,) = (m for _, m in run.views[name].messages(Train, r))
            (sent,) = (m for seen, m in run.views["server"].messages(Update, r) if seen.src == name)
            assert np.abs(step - (sent.weights - asked.weights)).max() < 1e-6  # type: ignore[operator]
            of_newcomers += i >= 6
    assert of_newcomers


def test_losses_are_compared_within_a_round(recorded: dict[str, Recorded]) -> None:
    found = fedepc.losses(recorded["paper"])
    sums: dict[str, list[float]] = {}
    for r in range(1, 5):
        said = {seen.src: m.loss for seen, m in recorded["paper"].views["server"].messages(Update, r)}
        for name, loss in said.items():
            sums.setdefault(name, []).append(loss - sum(said.values()) / len(said))
    assert found == pytest.approx({name: sum(values) / len(values) for name, values in sums.items()}, abs=1e-9)
    assert fedepc.DeviceRows.of(recorded["paper"], found).clients.tolist() == sorted(
        recorded["paper"].clients.index(name) for name in found
    )


# -- who finds what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", few(["paper", "literal"], ["paper"]))
def test_the_hub_reads_label_shares_off_vectors(recorded: dict[str, Recorded], mode: str) -> None:
    found = by_name(recorded[mode])
    assert found[ALONE].leak > 0.4
    assert found[ALONE].verdict == "much"
    assert TOGETHER not in found
    assert not any(name.startswith("helper") for name in found)
    plain, not_applicable = plain_findings(recorded[mode])
    assert "server: models, as they are sent" in [one.name for one in plain]
    assert NONE_IN_THE_CLEAR not in not_applicable.values()


def test_in_mode_hardened_it_takes_both_servers(recorded: dict[str, Recorded]) -> None:
    found, plain = by_name(recorded["hardened"]), by_name(recorded["paper"])
    assert ALONE not in found
    assert found[TOGETHER].leak == pytest.approx(plain[ALONE].leak, abs=1e-3)
    unnamed = found["helper: label shares of unnamed clients"]
    assert unnamed.results[0].value <= found[TOGETHER].results[0].value + 1e-9, "the best matching is the best"
    assert found["server with the helper, by models: label shares"].leak > 0.3
    assert plain_findings(recorded["hardened"])[0] == []
    assert found["server: which pairs are of one group, by cluster"].results[0].value > 0.5


def test_noise_weakens_the_attack_and_the_attacker_clips_as_devices_do() -> None:
    found = {}
    for epsilon in (50.0, 0.2):
        run = record(config(rounds=1, settings={"send": "noise", "epsilon": epsilon}))
        found[epsilon] = by_name(run)[ALONE].leak
        means, prior = fedepc.auxiliary(run)
        centre = np.average(means, axis=0, weights=prior)
        assert np.linalg.norm(means - centre, axis=1).max() < 2 * clip_of(run)
    assert found[50.0] > 0.4
    assert found[0.2] < found[50.0] - 0.1


def clip_of(run: Recorded) -> float:
    return next(m.clip for _, m in run.views["client/0"].messages(Describe))


def test_without_public_samples_an_attacker_takes_others() -> None:
    run = record(config(rounds=1, public=0.0, settings={"extractor": "random"}))
    assert by_name(run)[ALONE].leak > 0.2


def test_data_without_classes_have_no_label_shares(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.normal(size=(30, 5)), rng.normal(size=30)) for i in range(6)}
    coterie.run(
        "fedepc",
        data=clients,
        task="regression",
        model="mlp",
        rounds=2,
        record=True,
        out=str(tmp_path / "numbers"),
        progress=False,
    )
    content = coterie.audit(tmp_path / "numbers")
    assert "no classes" in content["not_applicable"]["server: label shares"]
    assert not [row for row in content["attacks"] if "label shares" in row["name"]]


# -- liars -------------------------------------------------------------------------------------------------------------


def test_a_boasting_device_is_not_chosen_less(recorded: dict[str, Recorded]) -> None:
    run = recorded["paper"]
    (found,) = fedepc.boasting(run)
    name = found.who.split(",")[0]
    assert name in fedepc.largest(run)
    assert fedepc.selected(run)[name] == min(fedepc.selected(run)[one] for one in fedepc.largest(run))
    assert found.results[0].chance == fedepc.selected(run)[name] / 4
    assert found.results[0].value >= found.results[0].chance


def test_a_spoiler_reaches_its_own_cluster_and_no_other(recorded: dict[str, Recorded]) -> None:
    run = recorded["paper"]
    (found,) = fedepc.spoiling(run)
    assert found.who.split(",")[0] in fedepc.largest(run)
    assert found.results[0].value == len(fedepc.largest(run)) / len(run.clients)


def test_active_attacks_need_some_rounds(recorded: dict[str, Recorded]) -> None:
    with pytest.raises(UserError, match="3 rounds or more"):
        fedepc.active(record(config(rounds=2)))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", few(["paper", "literal", "hardened"], ["hardened"]))
def test_a_folder_gives_what_memory_gives(recorded: dict[str, Recorded], tmp_path: Path, mode: str) -> None:
    folder = tmp_path / mode
    run(config(mode, out=str(folder)))
    content = coterie.audit(folder)
    rows = {row["name"]: row["leak"] for row in content["attacks"]}
    mine = {one.name: one.leak for one in fedepc.passive(recorded[mode]) if one.results}
    assert {name: rows[name] for name in mine} == pytest.approx(mine, abs=1e-6)
    assert "What the attacks found" in coterie.load(folder).report().read_text()  # type: ignore[union-attr]
    kept = json.loads((folder / "result.json").read_text())["audit"]["attacks"]
    assert {row["name"] for row in kept} == set(rows)
