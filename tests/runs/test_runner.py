"""How a run that cannot go on ends: what its error says to do is what works."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matrix import few

from coterie.protocol.errors import RunError, UserError
from coterie.record.folder import check_writable
from coterie.runs import RunConfig, experiment, run
from coterie.training.jobs import DivergedError

TINY = RunConfig("fedavg", samples=300, clients=3, rounds=2, checkpoint_every=1, settings={"max_epochs": 1})


def test_another_run_in_the_folder_says_what_continues_it(tmp_path: Path) -> None:
    out = tmp_path / "my run"
    run(replace(TINY, out=str(out)))
    with pytest.raises(UserError, match="clients: 3, now 20") as caught:
        run(RunConfig("fedavg", out=str(out)), resume=True)
    assert f"coterie run --resume --out {shlex.quote(str(out))} alone" in str(caught.value)


@pytest.mark.parametrize("cause", [DivergedError(0, "a loss"), None])
def test_only_what_would_not_repeat_itself_is_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: DivergedError | None
) -> None:
    original = experiment.Experiment.round

    def failing(self: experiment.Experiment, r: int) -> object:
        if r == 2:
            raise RunError("round 2: it failed") from cause
        return original(self, r)

    monkeypatch.setattr(experiment.Experiment, "round", failing)
    with pytest.raises(RunError, match=r"it failed\. Rounds 1 to 1 are kept in") as caught:
        run(replace(TINY, out=str(tmp_path / "run")))
    assert ("--resume" in str(caught.value)) == (cause is None)


def test_a_folder_that_cannot_be_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    run(replace(TINY, out=str(out)))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != out)
    with pytest.raises(UserError, match=f"cannot write to {out}"):
        run(replace(TINY, rounds=3, out=str(out)), resume=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_result_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    """A folder of that name stands for the file that the system does not let go."""
    out = tmp_path / "run"
    run(replace(TINY, out=str(out)))
    (out / "result.json").unlink()
    (out / "result.json").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*result\.json"):
        run(replace(TINY, rounds=3, out=str(out)), resume=True)


def test_what_is_not_there_yet_is_as_writable_as_what_it_would_be_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for place in ("file", "file/b"):
        with pytest.raises(UserError, match="file is not a folder that you may write to"):
            check_writable(tmp_path / place)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(UserError, match="is not a folder that you may write to"):
        check_writable(tmp_path / "a" / "b")


@pytest.mark.parametrize("system", few(["fedavg", "pafed", "mingledpie"], {"pafed"}))
def test_a_client_whose_training_diverges_stays_out_of_the_round(system: str) -> None:
    """Its data are too large for the learning rate; it is refused and counted, and the others go on."""
    settings = {"pafed": {"participation": 1.0}, "mingledpie": {"clusters": 3}}.get(system, {})
    made = experiment.build(RunConfig(system, clients=5, rounds=2, crypto="emulated", delta=0.0, settings=settings))
    made.set_up()

    def spoil(name: str) -> None:
        own = made.effects.data[name]
        made.effects.data[name] = replace(own, inputs=own.x * 1e30)

    spoil("client/1")
    line = made.round(1)
    assert line["refused"] == {"client/Train: its training diverged: its loss or weights are no longer finite": 1}
    assert line["notes"]["participants"] == 4
    assert np.isfinite(line["global_loss"])
    spoil("client/0")
    spoil("client/2")
    with pytest.raises(RunError, match=r"round 2: the training of client/\d and 2 others diverged"):
        made.round(2)
    made.close()


def test_a_fine_tuning_that_diverges_is_named_beside_the_scores() -> None:
    made = experiment.build(replace(TINY, rounds=1, fine_tune="own_epochs"))
    made.set_up()
    own = made.effects.data["client/1"]
    made.effects.data["client/1"] = replace(own, inputs=own.x * 1e30)
    line = made.round(1)
    assert line["untuned"] == ["client/1"]
    assert np.isfinite(line["fine_tuned_local_loss"])
    made.effects.data["client/1"] = own
    assert "untuned" not in made.round(1)
    made.close()
