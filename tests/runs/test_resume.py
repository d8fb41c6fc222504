"""Runs that end early and go on: the same numbers as undisturbed ones, whatever ended them and wherever."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_federation
from ended import interrupt, kill_after, stop_at
from kept_parties import contents, key_bytes, log_of
from outcomes import alike, numbers

from coterie.protocol.errors import RunError, UserError
from coterie.record import files
from coterie.record.folder import read_lines
from coterie.runs import FinishedRun, Interrupted, RunConfig, run
from coterie.runs.views import read_views

TOY = RunConfig(
    "toy_federation:SYSTEM", clients=9, rounds=6, devices="mobile", record=True, checkpoint_every=1, eval_every=2
)


def outcome(out: Path) -> dict[str, Any]:
    """Everything that a run leaves and that must not depend on how often it was interrupted."""
    files = {name: json.loads((out / name).read_text()) for name in ("observed.json", "clients.json", "partition.json")}
    summary = json.loads((out / "result.json").read_text())
    for key in ("seconds", "observing_seconds", "peak_memory_bytes", "set_up"):
        summary.pop(key)
    views = {
        party: [(s.time_s, s.round, s.src, s.kind, s.size) for s in view.seen]
        for party, view in read_views(out / "views.bin", toy_federation.SYSTEM.kinds()).views.items()
    }
    return {"lines": numbers(out), "summary": summary, "views": views, **files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    result = run(replace(TOY, out=str(out)))
    assert any(max(line["notes"]["stale"]) > 0 for line in result.rounds), "nothing was under way between rounds"
    assert any(line["lost"] for line in result.rounds)
    assert result.summary["refused"] == 0
    return outcome(out)


@pytest.mark.parametrize(("at", "every"), [(1, 1), (3, 2), (5, 1)])
def test_interrupted_between_rounds(at: int, every: int, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    config = replace(TOY, out=str(tmp_path / "run"), checkpoint_every=every)
    with pytest.raises(Interrupted) as caught:
        run(config, stop_at(at))
    assert caught.value.folder == tmp_path / "run"
    assert caught.value.done == at - at % every
    assert not (tmp_path / "run" / "result.json").exists()
    run(config, resume=True)
    assert outcome(tmp_path / "run") == alike(undisturbed)


def test_interrupted_again_and_again_in_the_middle_of_rounds(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.runs.interpreter import LocalEffects

    config, real, calls = replace(TOY, out=str(tmp_path / "run")), LocalEffects.run, [0]

    def sometimes(self: LocalEffects, wanted: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise KeyboardInterrupt
        return real(self, wanted)

    monkeypatch.setattr(LocalEffects, "run", sometimes)
    resume, interruptions = False, 0
    while True:
        try:
            run(config, resume=resume)
            break
        except Interrupted:
            resume, interruptions = True, interruptions + 1
            assert interruptions < 30
    assert interruptions >= 2
    assert outcome(tmp_path / "run") == alike(undisturbed)


def test_killed_in_the_middle_of_a_round(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    out = tmp_path / "run"
    code = (
        "from dataclasses import replace; from tests.runs.test_resume import TOY; from coterie.runs import run; "
        f"run(replace(TOY, out={str(out)!r}))"
    )
    kill_after(2, out, code, COTERIE_TOY_SLEEP_S="0.5")
    assert not (out / "result.json").exists()
    (out / "metrics.jsonl").open("a").write('{"round": 3, "half a li')
    run(replace(TOY, out=str(out)), resume=True)
    assert outcome(out) == alike(undisturbed)


def test_killed_before_the_first_checkpoint(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    config = replace(TOY, out=str(tmp_path / "run"), checkpoint_every=4)
    interrupt(config, 2)
    assert not (tmp_path / "run" / "checkpoint").exists()
    run(config, resume=True)
    assert outcome(tmp_path / "run") == alike(undisturbed)


def test_a_finished_run_takes_more_rounds(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    config = replace(TOY, out=str(tmp_path / "run"))
    run(replace(config, rounds=4))
    again = run(replace(config, rounds=4), resume=True)  # nothing left to do
    assert again.summary["rounds"] == 4
    result = run(config, resume=True)
    assert result.summary["rounds"] == 6
    assert outcome(tmp_path / "run") == alike(undisturbed)
    with pytest.raises(UserError, match="already has 6 rounds"):
        run(replace(config, rounds=5), resume=True)


@pytest.mark.parametrize("system", ["scaffold", "ifca"])
def test_baselines_resume(system: str, tmp_path: Path) -> None:
    config = RunConfig(system, clients=6, rounds=4, samples=300, checkpoint_every=1, settings={"max_epochs": 1})
    run(replace(config, out=str(tmp_path / "a")))
    interrupt(replace(config, out=str(tmp_path / "b")), 2)
    run(replace(config, out=str(tmp_path / "b")), resume=True)
    assert numbers(tmp_path / "a") == alike(numbers(tmp_path / "b"))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after round 2 of 6."""
    out = tmp_path_factory.mktemp("half") / "run"
    interrupt(replace(TOY, out=str(out)), 2)
    return out


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


def test_secrets_are_private_and_not_in_the_checkpoint(copy: Path) -> None:
    """They are this user's alone, and no key of a party and no secret stands anywhere else.

    A record also has the keys with which servers open what is sealed to them: an audit needs them.
    """
    assert stat.S_IMODE((copy / "checkpoint").stat().st_mode) == 0o700
    assert stat.S_IMODE(log_of(copy).stat().st_mode) == 0o600
    names = ["helper", "hub", *(f"client/{i}" for i in range(9))]
    assert stat.S_IMODE((copy / "views.bin").stat().st_mode) == 0o600
    held = {f.name: f.read_bytes() for f in copy.rglob("*") if f.is_file()}
    for name in names:
        secrets = key_bytes(copy, name)
        if name.startswith("client/"):
            secrets.append(contents(copy, name, toy_federation.Client)[1].salt)
        for at, secret in enumerate(secrets):
            opens = at == 1 and not name.startswith("client/")
            assert len(set(secret)) > 8
            found = {where for where, data in held.items() if secret in data}
            assert found == {log_of(copy).name} | ({"views.bin"} if opens else set())


Damage = Callable[[Path], RunConfig | None]


def _foreign(out: Path) -> None:
    """A good checkpoint, but of a run with another seed."""
    other = out.parent / "other"
    interrupt(replace(TOY, seed=5, out=str(other)), 1)
    shutil.copy(other / "checkpoint" / "checkpoint.bin", out / "checkpoint" / "checkpoint.bin")


def _twin(out: Path) -> None:
    """A good checkpoint of another run of the same work: real keys are other keys."""
    other = out.parent / "other"
    interrupt(replace(TOY, out=str(other)), 2)
    for file in (other / "checkpoint" / "checkpoint.bin", other / "metrics.jsonl"):
        shutil.copy(file, out / file.relative_to(other))


def _no_metrics(out: Path) -> None:
    (out / "metrics.jsonl").write_text("")


def _no_log(out: Path) -> None:
    log_of(out).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_foreign, r"another run \(seed: 5, now 0\)"),
        (_twin, "or not the file that the checkpoint was written with|cannot read"),
        (_no_metrics, "shorter than its checkpoint"),
        (_no_log, r"cannot read .*parties\.[0-9]+\.bin"),
    ],
)
def test_checkpoints_that_are_refused(damage: Damage, words: str, copy: Path) -> None:
    damage(copy)
    with pytest.raises(UserError, match=words):
        run(replace(TOY, out=str(copy)), resume=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed: 0, now 1"),
        ({"clients": 8}, "clients: 9, now 8"),
        ({"system": "fedavg"}, "system: toy_federation:SYSTEM, now fedavg"),
        ({"settings": {"lr": 0.5, "mix": 0.1}}, "lr: 0.1, now 0.5; mix: 0.2, now 0.1"),
        ({"crypto": "emulated"}, "crypto: real, now emulated"),
    ],
)
def test_another_run_is_not_continued(change: dict[str, Any], words: str, copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=words):
        run(replace(TOY, out=str(copy), **change), resume=True)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_an_edited_config_is_noticed(copy: Path) -> None:
    file = copy / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(UserError, match=r"lr: 0\.1, now 0\.2"):
        run(replace(TOY, out=str(copy), settings={"lr": 0.2}), resume=True)


def test_other_data_under_the_same_name_are_noticed(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.runs import inputs

    real = inputs.load
    monkeypatch.setattr(inputs, "load", lambda *a, **k: replace(real(*a, **k), x_train=real(*a, **k).x_train + 1))
    with pytest.raises(UserError, match="data, partition or initial weights"):
        run(replace(TOY, out=str(copy)), resume=True)


def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", files.atomic_write

    def full(path: Path, data: bytes, mode: int = 0o644) -> None:
        def no_space(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            if path.name == "checkpoint.bin" and len(read_lines(out / "metrics.jsonl")) == 4:
                patch.setattr(os, "fsync", no_space)
            real(path, data, mode)

    monkeypatch.setattr(files, "atomic_write", full)
    with pytest.raises(RunError, match=r"checkpoint\.bin: No space left.*Rounds 1 to 3 are kept.*--resume"):
        run(replace(TOY, out=str(out)))
    monkeypatch.undo()
    assert not [path.name for path in (out / "checkpoint").iterdir() if path.name.startswith(".")]
    run(replace(TOY, out=str(out)), resume=True)
    assert outcome(out) == alike(undisturbed)


def test_a_run_that_fails_before_its_first_round_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RunError, match=r"round 1: .*client/\d+ and 19 others diverged"):
        run(RunConfig("fedavg", out=str(out), rounds=2, settings={"lr": 1e30, "weight_decay": 1.0}))
    assert not out.exists()


def test_the_result_can_be_loaded(half: Path, tmp_path: Path) -> None:
    from coterie.runs import load_result

    result: FinishedRun = run(RunConfig("fedavg", samples=300, clients=3, rounds=1, out=str(tmp_path / "run")))
    loaded = load_result(tmp_path / "run")
    assert loaded.rounds == result.rounds
    assert loaded.summary == json.loads(json.dumps(dict(result.summary)))
    with pytest.raises(UserError, match="no finished run"):
        load_result(half)


def test_a_recording_that_had_stopped_stays_stopped(tmp_path: Path) -> None:
    work = RunConfig("fedavg", model="mlp", samples=300, clients=4, rounds=2, partition="iid", out=str(tmp_path / "r"))
    config = replace(work, record=True, record_mib=1)  # four models of this size a round are more than a MiB
    first = run(config)
    assert first.summary["recording"].startswith("stopped in round 1")
    again = run(replace(config, rounds=3), resume=True)
    assert again.summary["recording"] == first.summary["recording"]
