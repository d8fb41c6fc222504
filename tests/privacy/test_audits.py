"""Audits of any system: what is plain is found by itself, runs of one method are one row, and mistakes are named."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import coterie
from coterie.cli.app import app
from coterie.privacy.audits import Recorded
from coterie.privacy.audits.scaffold import variates
from coterie.privacy.plain import ATTACKS, NONE_IN_THE_CLEAR, plain_findings, plain_updates
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, run
from coterie.runs.audited import audited, kept
from coterie.runs.findings import merged, noise
from coterie.runs.intervals import mean_and_interval
from coterie.runs.recorded import record, recorded_run

OPTIONS: dict[str, Any] = {
    "clients": 5,
    "rounds": 3,
    "partition": "dirichlet:0.5",
    "crypto": "emulated",
    "samples": 600,
}
LATE: dict[str, Any] = {"delta": 0.5, "clients": 8, "rounds": 6, "delay": "uniform:1-2"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(system: str, **options: Any) -> Recorded:
    return record(RunConfig(system, record=True, **{**OPTIONS, **options}))


def call(*words: str) -> tuple[int, str, str]:
    ended = CliRunner().invoke(app, ["audit", *words], env={"COLUMNS": "120", "COTERIE_DEBUG": "0"})
    return ended.exit_code, ended.stdout, ended.stderr


# -- what is plain -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "kind", "options"),
    [
        ("fedprox", "Update", {"model": "mlp"}),
        ("scaffold", "Change", {}),
        ("fedavg_late", "Update", LATE),
        ("fedavg_stale", "Update", LATE),
        *(
            pytest.param(system, kind, {"settings": {"lr": lr}}, marks=pytest.mark.long)
            for system, kind in (("fedavg", "Update"), ("scaffold", "Change"))
            for lr in (1e-5, 1.0)
        ),
    ],
)
def test_steps_are_what_training_added(system: str, kind: str, options: dict[str, Any]) -> None:
    """The twin reads the messages by their names, and knows which systems send models and which send changes."""
    run = recorded(system, **options)
    begun: dict[tuple[str, int], Any] = {}
    for name in run.clients:
        begun |= {(name, seen.round): getattr(seen.message, "weights", None) for seen in run.views[name].seen}
    first: dict[tuple[int, str], Any] = {}
    for seen in run.views["server"].seen:
        if seen.kind == kind:
            first.setdefault((seen.round, seen.src), seen.message)
    found = {}
    for of in plain_updates(run):
        for i, model, step in zip(of.clients, of.models, of.steps, strict=True):
            found[of.round, run.clients[i]] = model, step
    assert found.keys() == first.keys()
    rounds = [r for r, _ in first]
    assert (rounds != sorted(rounds)) == ("delta" in options)
    for (r, name), message in first.items():
        start = begun[name, message.round]
        step = message.weights if system in ("scaffold", "fedavg_late") else message.weights - start
        model, guessed = found[r, name]
        assert np.abs(guessed - step).max() < 1e-6
        assert np.abs(model - (start + step)).max() < 1e-6


def test_of_several_models_the_one_that_a_client_trained_is_taken() -> None:
    run = recorded("ifca", settings={"clusters": 3})
    for updates in plain_updates(run):
        for i, step in zip(updates.clients, updates.steps, strict=True):
            name = run.clients[i]
            of_it = name, updates.round
            (sent,) = (seen.message for seen in run.views["server"].seen if (seen.src, seen.round) == of_it)
            (asked,) = (seen.message for seen in run.views[name].seen if seen.round == updates.round)
            start = asked.weights.reshape(3, -1)[sent.cluster]  # type: ignore[union-attr]
            assert np.abs(step - (sent.weights - start)).max() < 1e-6  # type: ignore[union-attr]


def test_running_statistics_are_no_step() -> None:
    run = recorded("fedavg_late", model=f"{__name__}:normed", rounds=1, clients=2, delta=0.0)
    assert run.spec.buffers.any()
    (updates,) = plain_updates(run)
    assert not updates.steps[:, run.spec.buffers].any()
    sent = {seen.src: seen.message for seen in run.views["server"].seen}
    for i, model in zip(updates.clients, updates.models, strict=True):
        own = sent[run.clients[i]].weights  # type: ignore[union-attr]
        assert np.abs(model - np.where(run.spec.buffers, own, run.initial + own)).max() < 1e-6


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def test_changes_of_control_variates_add_up_to_them() -> None:
    run, experiment = recorded_run(RunConfig("scaffold", record=True, **OPTIONS))
    *_, last = variates(run)
    for client in experiment.federation.of_role("client"):
        assert np.abs(last[client.name] - client.state.control).max() < 1e-5
    experiment.close()


@pytest.mark.parametrize("system", ["fedcaprivacy", "local"])
def test_nothing_plain_is_nothing_to_attack(system: str) -> None:
    settings = {} if system == "local" else {"clusters": 3}
    run = recorded(system, clients=4, rounds=1, settings=settings)
    assert plain_findings(run) == ([], {attack.name: NONE_IN_THE_CLEAR for attack in ATTACKS})


# -- what training leaves ----------------------------------------------------------------------------------------------


def by_heart(here: Path, lr: float) -> dict[str, Any]:
    """The audit of clients whose labels are random: what a model gets right of them, it knows by heart."""
    rng = np.random.default_rng(0)

    def drawn() -> tuple[Any, Any]:
        return rng.normal(size=(30, 40)), rng.integers(0, 3, 30)

    clients = {f"c{i}": (*drawn(), *drawn()) for i in range(4)}
    result = coterie.run(
        "fedavg", data=clients, model="mlp", rounds=2, max_epochs=40, slowest=1.0, lr=lr, record=True, progress=False
    )
    content = result.audit()
    return {row["name"]: row for row in content["attacks"]}


def test_what_is_known_by_heart_leaks_and_what_is_not_learned_does_not(here: Path) -> None:
    name = "server: samples that were trained on, by loss"
    learned, nothing = (by_heart(here, lr)[name] for lr in (0.1, 1e-7))
    assert learned["value"] > 0.99
    assert learned["verdict"] in ("much", "everything")
    assert nothing["verdict"] == "cannot tell"  # for the audit, test samples may be harder or easier
    assert abs(nothing["leak"]) < 2 * nothing["error"]


def test_one_of_two_samples_is_read_off_the_update(here: Path) -> None:
    """Of one step on two samples: a neuron of the first layer that one of them alone moves gives that one away."""
    rng = np.random.default_rng(0)
    test = rng.normal(size=(9, 20)), np.arange(9) % 2
    clients = {f"c{i}": (rng.normal(size=(2, 20)), np.arange(2), *test) for i in range(6)}
    once = {"rounds": 1, "max_epochs": 1, "slowest": 1.0, "batch_size": 2, "lr": 0.1, "min_samples": 1}
    coterie.run("fedavg", data=clients, model="mlp", record=True, out="one", progress=False, **once)
    attacks = {row["name"]: row for row in coterie.audit("one")["attacks"]}
    found = attacks["server: samples read off the first layer's step"]
    assert found["value"] > 0.999
    assert found["verdict"] == "everything"


# -- a system of one's own ---------------------------------------------------------------------------------------------

PLAIN_MEAN = """
import numpy as np
from coterie.protocol.effects import Fit
from coterie.protocol.arrays import Doubles
from coterie.protocol.messages import Message, message
from coterie.protocol.party import Party, on
from coterie.protocol.steps import for_each
from coterie.protocol.system import System
from coterie.protocols.local_training import LocalTraining, batch_seed
import msgspec

@message(src="server", dst="client")
class Go(Message, frozen=True):
    number: int
    model: Doubles

@message(src="client", dst="server")
class Back(Message, frozen=True):
    count: int
    model: Doubles

class Client(Party, role="client"):
    @on(Go, answers=Back)
    def train(self, msg, src):
        start, seed = msg.model.astype(np.float32), batch_seed(self, msg.number)
        fitted = yield Fit(start, self.config.solver(), self.epochs, seed)
        return Back(fitted.samples, fitted.weights.astype(np.float64))

class Server(Party, role="server"):
    class State(msgspec.Struct):
        weights: np.ndarray
    def __init__(self, own, common, config):
        super().__init__(own, common, config)
        self.state = self.State(common.initial)
    def round(self, r):
        got = []
        requests = dict.fromkeys(self.clients, Go(r, self.state.weights.astype(np.float64)))
        yield from for_each(requests, Back, lambda name, back: got.append(back.model))
        self.state.weights = np.mean(got, axis=0).astype(np.float32)
        return {"participants": len(got)}

SYSTEM = System(
    "plain_mean", "Plain mean", citation="none", config=LocalTraining,
    parties=lambda config: {"server": Server, "client": Client},
    models=lambda federation: dict.fromkeys(federation.common.clients, federation.look("server").state.weights),
    learns={"server": "every model", "client": "the mean"},
)
"""


@pytest.fixture
def plain_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "plain_mean.py").write_text(PLAIN_MEAN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plain_mean", raising=False)
    import plain_mean  # type: ignore[import-not-found]

    return plain_mean


def test_a_system_of_ones_own_is_attacked_without_a_word_of_its_own(plain_mean: ModuleType) -> None:
    run(RunConfig("plain_mean:SYSTEM", record=True, out="mine", **OPTIONS))
    run(RunConfig("fedavg", record=True, out="fedavg", **OPTIONS))
    mine, theirs = (coterie.audit(folder) for folder in ("mine", "fedavg"))
    assert {row["name"] for row in mine["attacks"]} == {row["name"] for row in theirs["attacks"]}
    assert set(mine["not_applicable"]) == {"sums-by-names", "differences-of-sums"}  # always the same clients answer
    found = {row["name"]: row for row in mine["attacks"]}
    assert found["server: models, as they are sent"]["verdict"] == "everything"
    assert found["server: label shares"]["leak"] > 0.5
    code, out, _ = call("mine")
    assert code == 0
    assert "Plain mean" in out


def test_a_system_of_ones_own_that_hides_its_models_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_system.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace('audit=sums_audit(MEAN, Update, "cipher"),', "")
    (tmp_path / "hidden_mean.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run(RunConfig("hidden_mean:SYSTEM", record=True, out="hidden", **OPTIONS))
    ended, out, _ = call("hidden")
    assert ended == 0
    assert f"gradient-inversion: {NONE_IN_THE_CLEAR}." in out
    assert audited("hidden")["attacks"] == []


# -- several runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods with two seeds, recorded but not yet audited."""
    out = tmp_path_factory.mktemp("several") / "race"
    options = {
        **OPTIONS,
        "model": "linear",
        "rounds": 2,
        "fine_tune": "no",
        "record": True,
        "out": str(out),
        "progress": False,
    }
    coterie.compare(["fedavg", "ifca"], seeds=2, local=False, **options)
    return out


@pytest.mark.long
def test_seeds_are_one_row_with_mean_and_interval(race: Path) -> None:
    content = coterie.audit(race)
    single = [kept(race / f"fedavg-{seed}") or {} for seed in range(2)]
    assert [(one["method"], one["seeds"]) for one in content["methods"]] == [("fedavg", [0, 1]), ("ifca", [0, 1])]
    assert content["left_out"] == {}
    for row in content["methods"][0]["attacks"]:
        each = [one for run in single for one in run["attacks"] if one["name"] == row["name"]]
        leak, interval = mean_and_interval([one["leak"] for one in each])
        assert (row["leak"], row["interval"]) == (pytest.approx(leak), pytest.approx(interval))
        assert row["value"] == pytest.approx(np.mean([one["value"] for one in each]))
        assert row["leaks"] == [one["leak"] for one in each]
        shown = all(one["verdict"] not in ("nothing found", "cannot tell") for one in each)
        found = shown or row["leak"] > max(noise(row), 0.02)
        assert found != (row["verdict"] in ("nothing found", "cannot tell"))
        blind = row["leak"] + noise(row) >= 0.5 or not row["chance_known"]
        assert found or (row["verdict"] == "cannot tell") == blind
    assert coterie.audit(race / "fedavg-0", race / "fedavg-1")["methods"][0]["seeds"] == [0, 1]
    code, out, err = call(str(race))
    assert (code, err) == (0, "")
    assert "FedAvg, mode paper, no encryption, 2 rounds of 5 clients, 2 runs (seeds 0, 1)" in out
    assert out.count("server: label shares  ") == 2


def test_rows_are_merged_by_hand() -> None:
    def row(name: str, leak: float, error: float = 0.01) -> dict[str, Any]:
        words = "nothing found" if leak < 0.1 else "much"
        numbers = {"value": leak, "first": leak, "last": leak, "chance": 0.0, "closed_form": None}
        return {"name": name, "verdict": words, "leak": leak, "error": error, **numbers}

    seeds = [row("a", 0.5), row("b", 0.03), row("d", 0.09)], [row("a", 0.7), row("b", -0.03), row("d", 0.5)]
    found = merged([seeds[0], [*seeds[1], row("c", 1.0, 0.0)]])
    assert {one["name"]: one["verdict"] for one in found} == {
        "c": "everything",
        "a": "much",  # .6 +- 1.27, but each seed shows it
        "d": "cannot tell",
        "b": "nothing found",
    }
    assert [one["name"] for one in found] == ["c", "a", "d", "b"]
    assert found[1]["interval"] == pytest.approx(12.7062 * 0.1, rel=1e-4)
    sure = merged([[row("a", 0.5)], [row("a", 0.5)], [row("a", 0.52)]])
    assert sure[0]["verdict"] == "much"
    assert merged([[row("b", 0.01), row("a", 0.5)]]) == [row("a", 0.5), row("b", 0.01)]


def test_runs_of_other_work_are_other_methods(race: Path, here: Path) -> None:
    run(RunConfig("fedavg", record=True, out="longer", **{**OPTIONS, "rounds": 1}))
    methods = coterie.audit(race / "fedavg-0", here / "longer")["methods"]
    assert [(one["method"], one["rounds"]) for one in methods] == [("fedavg", 2), ("fedavg", 1)]


def test_runs_that_cannot_be_audited_are_named(race: Path, here: Path) -> None:
    shutil.copytree(race, here / "race")
    (here / "race" / "fedavg-1" / "views.bin").unlink()
    damaged = here / "race" / "ifca-1" / "views.bin"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    code, out, err = call("race")
    assert (code, err) == (0, "")
    assert "Left out: race/fedavg-1 holds a run whose views were not kept" in out
    assert "--record" in out
    assert "Left out: race/ifca-1" in out
    assert "is damaged" in out
    content = coterie.audit("race")
    assert set(content["left_out"]) == {"race/fedavg-1", "race/ifca-1"}
    assert [one["seeds"] for one in content["methods"]] == [[0], [0]]
    for folder in (here / "race").iterdir():
        (folder / "views.bin").unlink(missing_ok=True) if folder.is_dir() else None
    code, out, err = call("race")
    assert (code, out) == (2, "")
    assert "none of these 4 runs can be audited" in err
    assert err.count("--record") == 1
    assert "likewise" in err


# -- where it is kept --------------------------------------------------------------------------------------------------


def test_an_audit_is_kept_with_its_run_and_stands_in_its_report(race: Path, here: Path) -> None:
    shutil.copytree(race / "fedavg-0", here / "one")
    before = json.loads((here / "one" / "result.json").read_bytes())
    before.pop("audit", None)
    (here / "one" / "result.json").write_text(json.dumps(before))
    assert kept("one") is None
    assert "What the attacks found" not in coterie.load("one").report().read_text()  # type: ignore[union-attr]
    content = coterie.audit("one")
    after = json.loads((here / "one" / "result.json").read_bytes())
    found = after.pop("audit")
    assert after == before
    assert found == {key: value for key, value in content.items() if key != "not_kept"}
    page = coterie.load("one").report().read_text()  # type: ignore[union-attr]
    assert "What the attacks found" in page
    section = page.split('id="run-s-attacks"')[1].split("</section>")[0]
    rows = section.split("<tr>")[2:]
    assert len(rows) == len(content["attacks"]) + len(content["not_applicable"])
    for row, shown in zip(content["attacks"], rows, strict=False):
        assert all(word in shown for word in (row["verdict"], f"{row['leak']:.2f}", f"{row['value']:.3f}"))


def test_an_audit_that_cannot_be_kept_is_shown_all_the_same(race: Path, here: Path) -> None:
    from coterie.record.files import locked

    with locked(race / "fedavg-0"):
        code, out, err = call(str(race / "fedavg-0"))
    assert code == 0
    assert "server: label shares" in out
    assert "this audit could not be kept: another run is at work in" in err


def test_the_worst_comes_first_and_json_is_the_table(race: Path) -> None:
    code, out, _ = call(str(race / "ifca-0"), "--json")
    content = json.loads(out)
    assert code == 0
    order = ["everything", "much", "a little", "cannot tell", "nothing found"]
    ranks = [order.index(row["verdict"]) for row in content["attacks"]]
    assert ranks == sorted(ranks)
    table = [line for line in call(str(race / "ifca-0"))[1].splitlines() if line.strip().startswith("server: ")]
    for row, line in zip(content["attacks"], table, strict=True):
        assert all(word in line for word in (row["name"], row["verdict"], f"{row['leak']:.3f}", f"{row['value']:.3f}"))


def test_a_damaged_audit_in_a_result_is_named_by_the_report(race: Path, here: Path) -> None:
    shutil.copytree(race / "fedavg-0", here / "one")
    content = json.loads((here / "one" / "result.json").read_bytes())
    content["audit"] = {"attacks": [{"name": "x", "verdict": "certainly"}]}
    (here / "one" / "result.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"result\.json: .*audit"):
        coterie.load("one").report()  # type: ignore[union-attr]


def test_views_without_a_message_are_refused(race: Path, here: Path) -> None:
    shutil.copytree(race / "fedavg-0", here / "one")
    (here / "one" / "views.bin").write_bytes(b"")
    with pytest.raises(UserError, match="the record of this run is empty"):
        coterie.audit("one")
    with pytest.raises(UserError, match="no folder to report on"):
        coterie.audit()


def test_a_finding_of_everybody_needs_no_labels_that_differ() -> None:
    """Where all clients have the same labels there is nothing to guess, and that is said."""
    run = recorded("fedavg")
    same = replace(run, label_counts=np.ones_like(run.label_counts))
    found, not_applicable = plain_findings(same)
    assert "label shares are the same for all clients" in not_applicable["plain-label-shares"]
    assert "server: samples that were trained on, by loss" in [finding.name for finding in found]
