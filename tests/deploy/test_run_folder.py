"""The run folder of a deployment, and the commands for run folders: each works, or refuses and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command
from deployments import everything

from coterie.deploy.recorder import Recorder
from tests.deploy.test_recorder import plan, rounds

FOLDER = Path("d/run")
CONFIG = str(FOLDER / "config.toml")


def made(state: str) -> dict[str, bytes]:
    """A run folder, and all its files. state: ``ended``, ``begun`` before its first round is over, or ``copied``
    without the private files.
    """
    recorder = Recorder(FOLDER, plan())
    if state != "begun":
        rounds(recorder, 3)
        recorder.ended()
    recorder.close()
    if state == "copied":
        for name in ("status.json", "open.bin", ".lock"):
            (FOLDER / name).unlink()
    return everything(FOLDER)


@pytest.mark.parametrize("state", ["ended", "begun", "copied"])
@pytest.mark.parametrize(
    "words",
    [
        "run --resume --out d/run",
        "run --resume --rounds 9 --out d/run",
        f"run --config {CONFIG} --resume --out d/run",
        "run fedavg --out d/run",
        "compare fedavg local --rounds 1 --out d/run",
        "compare fedavg local --rounds 1 --resume --out d/run",
        "reproduce pafed/parts --only fashion_mnist-mlp/0/decaying/fedadmm_drop --rounds 1 --seeds 1 --out d/run",
    ],
)
def test_nothing_but_its_hub_writes_in_it(cli: Command, words: str, state: str) -> None:
    before = made(state)
    ended = cli(*words.split())
    assert ended.code == 2
    assert "holds the run of a deployment, which only its hub continues" in ended.err
    assert ended.err.count("Error:") == 1
    assert everything(FOLDER) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("export d/run --client client/0 --out m.safetensors", "whose models are with its parties alone"),
        ("predict d/run new.npz --client client/0", "whose models are with its parties alone"),
        ("audit d/run", "of which nobody has all views"),
        ("audit d/run --active", "of which nobody has all views"),
        ("report d", "name the run folder, d/run"),
    ],
)
def test_what_nobody_has_is_refused_in_words(cli: Command, words: str, says: str) -> None:
    before = made("ended")
    Path("d/config.toml").touch()  # of the operator's folder
    ended = cli(*words.split())
    assert ended.code == 2
    assert says in ended.err
    assert "--config" not in ended.err
    assert everything(FOLDER) == before


def test_a_report_needs_a_round(cli: Command) -> None:
    made("begun")
    ended = cli("report", "d/run")
    assert (ended.code, "no round of this deployment is over yet" in ended.err) == (2, True)
    assert "--resume" not in ended.err


def test_a_rehearsal_may_be_repeated_with_its_views(cli: Command) -> None:
    made("ended")
    result = json.loads((FOLDER / "result.json").read_text())
    result["deployment"]["rehearsal"] = True
    (FOLDER / "result.json").write_text(json.dumps(result))
    assert f"coterie run --config {CONFIG} --record" in cli("audit", "d/run").err
    exported = cli("export", "d/run", "--client", "client/0", "--out", "m.safetensors")
    assert f"coterie run --config {CONFIG} --out" in exported.err
    assert "which only its hub continues" in cli("run", "--resume", "--out", "d/run").err
