"""Runs that stop by themselves, and steps after the last round: costs, models, resumption, reports, audits."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from ended import die_at, kill_at
from matrix import few
from numpy.typing import NDArray
from outcomes import REAL, alike, numbers, told

import coterie.method as fl
from coterie.baselines.fedavg import SYSTEM as FEDAVG
from coterie.record.folder import read_lines
from coterie.report import render
from coterie.report.summary import results
from coterie.reproductions.study import one
from coterie.runs import FinishedRun, RunConfig, checkpoint, load_result, resolve, run
from coterie.runs.digests import models_digest
from coterie.runs.recorded import record
from coterie.runs.views import read_views


@fl.message(src="server", dst="client")
class Final(fl.Message, frozen=True):
    """The model to keep."""

    weights: fl.Floats


class Keeper(fl.AveragingClient, role="client"):
    """Keeps the model that is handed out at the end, and halves it, so that a test sees whether it came."""

    class State(msgspec.Struct):
        kept: NDArray[np.float32] | None = None

    def __init__(self, *told: Any) -> None:
        super().__init__(*told)
        self.state = self.State()

    @fl.on(Final)
    def halve(self, msg: Final, src: str) -> None:
        self.state.kept = msg.weights / 2


class Stopping(fl.Server, role="server"):
    """FedAvg that trains on public data first, stops after a round, and hands its model out."""

    def setup(self) -> fl.Steps[None]:
        fitted = yield from fl.compute(fl.Fit(self.common.initial, self.config.solver(), 1, seed=0))
        self.state.weights = fitted.weights

    def round(self, r: int) -> fl.Work[Any]:
        die_at(r)
        notes = yield from super().round(r)
        return {**notes, "stopped": "it is good enough"} if r == self.config.last else notes

    def finish(self) -> fl.Steps[Any]:
        die_at("finish")
        yield from fl.post(dict.fromkeys(self.clients, Final(self.state.weights)))
        return {"handed_out": len(self.clients)}


class Lonely(Stopping, role="server"):
    """Waits in vain after the last round."""

    def finish(self) -> fl.Steps[Any]:
        yield from fl.ask(self.clients[0], Final(self.state.weights), Final)


@dataclass(frozen=True)
class Config(FEDAVG.config):  # type: ignore[misc,name-defined]
    """last: the round after which it stops, or 0."""

    last: int = 0


def models(federation: fl.Federation) -> dict[str, Any]:
    weights = federation.parties[federation.hub].state.weights
    return {c.name: weights if c.state.kept is None else c.state.kept for c in federation.of_role("client")}


PARTS: dict[str, Any] = {"name": "stopping", "config": Config, "models": models, "public": 0.1}
SYSTEM = replace(FEDAVG, **PARTS, parties=lambda config: {"server": Stopping, "client": Keeper})
LONELY = replace(FEDAVG, **PARTS, parties=lambda config: {"server": Lonely, "client": Keeper})
PLAIN = replace(
    FEDAVG,
    **PARTS,
    parties=lambda config: {"server": type("S", (Stopping,), {"finish": fl.Server.finish}), "client": Keeper},
)
HERE = RunConfig(
    "tests.runs.test_finish:SYSTEM", data="digits", model="linear", clients=5, rounds=4, record=True, checkpoint_every=1
)


def outcome(out: Path) -> dict[str, Any]:
    """What a run leaves and that must not depend on how often it was interrupted."""
    summary = json.loads((out / "result.json").read_text())
    summary = {key: value for key, value in summary.items() if key not in {*REAL, "peak_memory_bytes"}}
    for key in ("set_up", "finish"):
        summary[key] = told(summary[key])
    views = {
        party: [(s.time_s, s.round, s.src, s.kind, s.size) for s in view.seen]
        for party, view in read_views(out / "views.bin", SYSTEM.kinds()).views.items()
    }
    kept = json.loads((out / "models" / "index.json").read_text())["sha256"]
    return {"lines": numbers(out), **summary, "v": views, "m": kept}


def went(out: Path, **changes: Any) -> FinishedRun:
    return run(replace(HERE, out=str(out), **changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of four rounds and its end. Tests that write in its folder have a copy."""
    return went(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The same, for at most nine rounds, which the hub ends after three."""
    return went(tmp_path_factory.mktemp("stopped") / "run", rounds=9, settings={"last": 3}, fine_tune="held_out")


def test_what_follows_the_last_round_counts(whole: FinishedRun, tmp_path: Path) -> None:
    done = whole
    of, finish, size = done.summary, done.summary["finish"], done.summary["parameters"]
    assert finish["notes"] == {"handed_out": 5}
    assert finish["message_bytes"] == {"server > client Final": pytest.approx(5 * 4 * size, rel=0.01)}
    sent = sum(sum(line["bytes_up"].values()) for line in done.rounds)
    assert of["bytes_up"] == sent + sum(finish["bytes_up"].values()) + sum(of["set_up"]["bytes_up"].values())
    assert of["virtual_seconds"] == finish["virtual_seconds"] > done.rounds[-1]["virtual_seconds"]
    assert finish["began_virtual_seconds"] == done.rounds[-1]["virtual_seconds"]
    assert dict(results(of))["after the last round"].startswith("server > client Final: ")
    assert of["stopped"] is None
    assert of["rounds_done"] == of["rounds"] == 4
    page = render([done.folder], tmp_path / "report.html").read_text()
    assert "server &gt; client Final" in page


def test_models_are_those_after_it_and_so_are_the_scores(whole: FinishedRun, tmp_path: Path) -> None:
    """Every client halves what it gets: the models of the run are these, scored again."""
    done, plain = whole, went(tmp_path / "b", system="tests.runs.test_finish:PLAIN")
    assert done.rounds[-1]["models_sha256"] == plain.rounds[-1]["models_sha256"]
    assert done.summary["finish"]["models_sha256"] != done.rounds[-1]["models_sha256"]
    assert done.summary["global_loss"] == done.summary["finish"]["global_loss"] != done.rounds[-1]["global_loss"]
    first = [made.models.of("client/0").tensors[0] for made in (done, plain)]
    for name, values in first[0].items():
        np.testing.assert_array_equal(values, first[1][name] / 2)
    assert plain.summary["finish"] is None
    assert plain.summary["global_loss"] == plain.rounds[-1]["global_loss"]


def test_a_longer_run_goes_on_from_before_it(whole: FinishedRun, tmp_path: Path) -> None:
    went(tmp_path / "run", rounds=2)
    run(replace(HERE, out=str(tmp_path / "run")), resume=True)
    assert outcome(tmp_path / "run") == alike(outcome(whole.folder))


ENDS = [("finish", 3, False), *((at, last, True) for at in ("3", "finish") for last in (0, 3))]


@pytest.mark.parametrize(("at", "last", "really"), few(ENDS, ENDS[:1]))
def test_a_run_that_is_killed_ends_with_the_same_numbers(at: str, last: int, really: bool, tmp_path: Path) -> None:
    config = replace(HERE, out=str(tmp_path / "run"), settings={"last": last})
    kill_at(at, config, really=really)
    assert checkpoint.read(tmp_path / "run", resolve(config)) is not None
    run(config, resume=True)
    went(tmp_path / "whole", settings={"last": last})
    assert outcome(tmp_path / "run") == alike(outcome(tmp_path / "whole"))


def test_a_hub_that_stops_ends_the_run(stopped: FinishedRun, tmp_path: Path) -> None:
    done = stopped
    assert [line["round"] for line in done.rounds] == [1, 2, 3]
    assert done.summary["stopped"] == "it is good enough"
    assert (done.summary["rounds_done"], done.summary["rounds"]) == (3, 9)
    assert "global_accuracy" in done.rounds[-1]  # as after any last round
    assert "fine_tuned_global_accuracy" in done.rounds[-1]
    assert done.summary["finish"]["notes"] == {"handed_out": 5}
    assert dict(results(done.summary))["stopped"] == "after round 3: it is good enough"
    text = " ".join(render([done.folder], tmp_path / "report.html").read_text().split())
    assert "for 3 of 9 rounds. The run ended by itself: it is good enough." in text
    assert len(done.models.clients) == 5


def test_more_rounds_do_not_go_on_training(tmp_path: Path) -> None:
    went(tmp_path / "run", rounds=5, settings={"last": 2})
    again = run(replace(HERE, out=str(tmp_path / "run"), rounds=8, settings={"last": 2}), resume=True)
    assert (again.summary["rounds_done"], again.summary["rounds"]) == (2, 8)
    went(tmp_path / "whole", rounds=8, settings={"last": 2})
    assert outcome(tmp_path / "run") == alike(outcome(tmp_path / "whole"))


def test_a_recorded_run_made_anew_ends_as_the_first_did(stopped: FinishedRun) -> None:
    made = record(replace(HERE, rounds=9, settings={"last": 3}, fine_tune="held_out"))
    assert [line["models_sha256"] for line in made.lines] == [line["models_sha256"] for line in stopped.rounds]
    assert {seen.round for seen in made.views["client/0"].seen if seen.kind == "Final"} == {4}
    assert models_digest(made.system.models(made.federation)) == stopped.summary["finish"]["models_sha256"]


def test_a_study_takes_a_stopped_run_as_done(tmp_path: Path) -> None:
    config = replace(HERE, rounds=6, settings={"last": 2}, record=False)
    first = one(config, tmp_path, None, "it")
    again = one(config, tmp_path, lambda *_: pytest.fail("it was run again"), "it")
    assert len(first.models) == len(again.models) == 2
    assert first.scores


def test_what_fails_after_the_last_round_keeps_the_rounds(tmp_path: Path) -> None:
    with pytest.raises(fl.RunError, match=r"after round 4: client/0 did not answer Final.* Rounds 1 to 4 are kept"):
        went(tmp_path / "run", system="tests.runs.test_finish:LONELY")
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 4
    assert not (tmp_path / "run" / "result.json").exists()


def test_results_of_earlier_versions_are_read(whole: FinishedRun, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    old = {
        k: v
        for k, v in json.loads(path.read_text()).items()
        if k not in ("rounds_done", "stopped", "finish", "public_samples")
    }
    path.write_text(json.dumps(old))
    assert "for 4 rounds." in " ".join(render([tmp_path / "run"]).read_text().split())
    assert dict(results(load_result(tmp_path / "run").summary))
