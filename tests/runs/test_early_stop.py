"""Early stopping keeps the round with the least loss on held-out samples, and a resumed run keeps the same one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix import few

from coterie.protocol.errors import UserError
from coterie.record.folder import read_lines
from coterie.runs import RunConfig, resolve, run
from coterie.runs.experiment import build
from coterie.runs.models import load_models
from coterie.runs.running import Interrupted

OPTIONS: dict[str, Any] = {"data": "heart", "checkpoint_every": 1, "settings": {"lr": 0.1, "weight_decay": 0.0}}


def config(out: Path, system: str = "fedavg", **options: Any) -> RunConfig:
    return RunConfig(system, **{**OPTIONS, "rounds": 30, "early_stop": 3, **options}, out=str(out))


def test_the_best_round_is_kept_and_scored(tmp_path: Path) -> None:
    done = run(config(tmp_path / "all"))
    losses = {line["round"]: line["held_out_loss"] for line in done.rounds}
    best, last = done.summary["best_round"], len(losses)
    assert losses[best] == min(losses.values())
    assert best < last == best + 3 < 30
    assert f"since round {best}" in done.summary["stopped"]
    line = done.rounds[best - 1]
    for name in ("global_accuracy", "local_accuracy", "local_loss", "metrics", "models_sha256"):
        assert done.summary[name] == line[name]
    assert line["local_loss"] != done.rounds[-1]["local_loss"]

    shorter = run(config(tmp_path / "short", rounds=best))
    assert shorter.models.index == done.models.index
    assert done.models.index.round == best


def test_the_loss_is_that_of_samples_that_nobody_trains_on() -> None:
    experiment = build(RunConfig("fedavg", **OPTIONS, rounds=1, early_stop=1))
    whole = build(RunConfig("fedavg", **OPTIONS, rounds=1))
    experiment.set_up()
    line = experiment.round(1)
    losses = []
    for name, model in experiment.models(1).items():
        own, everything = experiment.data[name], whole.data[name]
        assert own.held_out is not None
        kept, held = ({row.tobytes() for row in x.numpy()} for x in (own.x, own.held_out.x))
        assert kept | held == {row.tobytes() for row in everything.x.numpy()}
        assert len(own.held_out.y) == round(0.2 * len(everything.y)) == len(everything.y) - len(own.y)
        outputs = experiment.model.module_with(model)(own.held_out.x)  # type: ignore[arg-type]  # one model
        losses.append(torch.nn.functional.cross_entropy(outputs, own.held_out.y).item())
    assert line["held_out_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    first = next(iter(experiment.data))  # as a client that has a single sample, which it trains on
    held = experiment.data[first].held_out
    assert held is not None
    experiment.observer.data = {
        **experiment.data,
        first: replace(experiment.data[first], held_out=held.at(np.zeros(0, np.int64))),
    }
    assert experiment.observer.held_out_loss(experiment.models(1)) == pytest.approx(np.mean(losses[1:]), rel=1e-5)
    experiment.close()
    whole.close()


@pytest.mark.parametrize("system", few(["fedavg", "fedem"], ["fedavg"]))
@pytest.mark.parametrize("stop_at", few([2, -1], [-1]))
def test_a_resumed_run_keeps_the_same_round(tmp_path: Path, system: str, stop_at: int) -> None:
    """stop_at: the round of the interrupt, or -1 for one after the best round, which is then read from its files."""
    whole = run(config(tmp_path / "whole", system))
    after = stop_at if stop_at > 0 else whole.summary["best_round"] + 1

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config(tmp_path / "again", system), interrupt)
    resumed = run(config(tmp_path / "again", system), resume=True)
    assert resumed.models.index == whole.models.index
    for name in ("best_round", "global_accuracy", "local_accuracy", "metrics", "stopped", "calibration"):
        assert resumed.summary[name] == whole.summary[name]
    clients = [json.loads((tmp_path / name / "clients.json").read_text()) for name in ("whole", "again")]
    assert clients[0] == clients[1]


def test_models_of_a_round_that_comes_again_are_forgotten(tmp_path: Path) -> None:
    whole = run(config(tmp_path / "whole"))
    best = whole.summary["best_round"]
    assert best > 2

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == best:
            raise KeyboardInterrupt  # models of the best round are there, and the checkpoint is older

    with pytest.raises(Interrupted):
        run(config(tmp_path / "again", checkpoint_every=best - 1), interrupt)
    assert load_models(tmp_path / "again").index.round == best
    assert len(read_lines(tmp_path / "again" / "metrics.jsonl")) == best
    resumed = run(config(tmp_path / "again", checkpoint_every=best - 1), resume=True)
    assert resumed.models.index == whole.models.index


def test_one_use_of_held_out_samples_at_a_time() -> None:
    with pytest.raises(UserError, match="early_stop and fine_tune hold out the same samples"):
        resolve(RunConfig("fedavg", early_stop=2, fine_tune="held_out"))
