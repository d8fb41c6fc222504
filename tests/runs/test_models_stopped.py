"""The models of runs that stop and go on: whole or not at all, and in the end those of an undisturbed run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import interrupted

from coterie.protocol.errors import RunError, UserError
from coterie.runs import load, load_models, run
from coterie.runs import models as module
from coterie.runs.folder import atomic_write
from tests.runs.test_models import QUICK, accuracies, files


@pytest.mark.parametrize("system", ["fedavg", "local"])
def test_a_stopped_run_has_the_models_of_its_last_kept_round(system: str, tmp_path: Path) -> None:
    config = replace(QUICK, system=system, rounds=5, checkpoint_every=2, out=str(tmp_path / "run"))
    interrupted(config, 3)
    models = load_models(tmp_path / "run")
    assert models.index.round == 2
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = accuracies(lambda client, x: models.of(client).predict(x), config)
    for key, values in found.items():
        assert np.mean(values) == pytest.approx(lines[1][key], abs=1e-12)
        assert np.mean(values) != pytest.approx(lines[2][key], abs=1e-12)
    with pytest.raises(UserError, match="no finished run"):
        load(tmp_path / "run")

    run(config, resume=True)
    run(replace(config, out=str(tmp_path / "undisturbed")))
    assert files(tmp_path / "run") == files(tmp_path / "undisturbed")
    assert load(tmp_path / "run").models.index.round == 5


def test_models_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(QUICK, system="local", rounds=3, out=str(tmp_path / "run"), checkpoint_every=1)
    written: list[str] = []

    def full(path: Path, data: Any, mode: int = 0o644) -> None:
        written.append(path.name)
        if len(written) == 7:  # in the second round
            raise RunError(f"cannot write {path}: no space left on device")
        atomic_write(path, data, mode)

    monkeypatch.setattr(module, "atomic_write", full)
    with pytest.raises(RunError, match="no space left"):
        run(config)
    assert written == [f"{i}.safetensors" for i in (0, 1, 2, 3, 0, 1, 2)]
    with pytest.raises(UserError, match=r"holds no models: finish it with coterie run --resume --out"):
        load_models(tmp_path / "run")
    run(config, resume=True)
    run(replace(config, out=str(tmp_path / "undisturbed")))
    assert files(tmp_path / "run") == files(tmp_path / "undisturbed")


def test_files_that_are_left_over_go_and_a_user_s_own_stay(tmp_path: Path) -> None:
    config = replace(QUICK, out=str(tmp_path / "run"))
    interrupted(replace(config, checkpoint_every=1), 1)
    folder = tmp_path / "run/models"
    for name in ("7.safetensors", ".3.safetensors.abc", "notes.txt", "mine.safetensors"):
        (folder / name).write_bytes(b"x")
    run(config, resume=True)
    assert {path.name for path in folder.iterdir()} == {"0.safetensors", "index.json", "notes.txt", "mine.safetensors"}


def test_no_link_is_followed_on_writing(tmp_path: Path) -> None:
    interrupted(replace(QUICK, checkpoint_every=1, out=str(tmp_path / "run")), 1)
    folder, other = tmp_path / "run/models", tmp_path / "other"
    folder.rename(other)
    folder.symlink_to(other)
    before = sorted(path.read_bytes() for path in other.iterdir())
    with pytest.raises(UserError, match="symbolic link"):
        run(replace(QUICK, out=str(tmp_path / "run")), resume=True)
    assert sorted(path.read_bytes() for path in other.iterdir()) == before
