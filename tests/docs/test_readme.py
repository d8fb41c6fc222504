"""What the README shows works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKING, USING = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """A folder with the three csv files of the README in ``hospitals``."""
    ended(tmp_path, [sys.executable, "-c", MAKING])
    assert sorted(file.name for file in (tmp_path / "hospitals").iterdir()) == ["east.csv", "north.csv", "west.csv"]
    return tmp_path


def ended(folder: Path, command: list[str]) -> str:
    """What the command prints; it must end well."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_three_csv_files_become_models_an_audit_and_an_export_in_fifteen_lines_of_python(hospitals: Path) -> None:
    assert len([line for line in USING.splitlines() if line.strip()]) <= 15
    (hospitals / "own.py").write_text(USING)
    printed = ended(hospitals, [sys.executable, "own.py"])
    assert float(re.findall(r"mean: (\S+)", printed)[0]) > 0.95
    assert "Linear" in printed
    assert "server: " in printed
    check_export(hospitals, "hospitals", "north.safetensors")


@pytest.mark.long
def test_and_in_three_commands(hospitals: Path) -> None:
    commands = re.findall(
        r"^(coterie (?:run fedavg --data hospitals|(?:audit|export|predict) runs/clinic).*)$", README, re.MULTILINE
    )
    assert len(commands) == 4
    run, audit, export, predict = (
        ended(hospitals, [sys.executable, "-m", *shlex.split(command)]) for command in commands
    )
    assert "AUROC" in run
    assert "label shares" in audit
    assert "north" in export
    assert "Predictions of 280 samples" in predict
    labels = [line.split(",")[0] for line in (hospitals / "labels.csv").read_text().splitlines()[1:]]
    truth = [line.rsplit(",", 1)[1] for line in (hospitals / "hospitals" / "north.csv").read_text().splitlines()[1:]]
    assert sum(float(a) == float(b) for a, b in zip(labels, truth, strict=True)) > 0.95 * len(truth)
    check_export(hospitals, "clinic", "clinic.safetensors")


def check_export(folder: Path, run: str, file: str) -> None:
    from coterie.runs import load_exported

    summary = json.loads((folder / "runs" / run / "result.json").read_text())
    assert summary["metrics"]["local_auroc"] > 0.95
    model = load_exported(folder / file)
    assert model.facts.input_shape == (30,)
    assert model.facts.features == tuple(f"f{i}" for i in range(30))


def test_every_linked_file_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_command_of_the_readme_is_one_of_coteries() -> None:
    """The long ones are only parsed: their options must exist."""
    from typer.main import get_command

    from coterie.cli.app import app

    group = get_command(app)
    for command in re.findall(r"^coterie (.*?)(?:\s+#.*)?$", README, re.MULTILINE):
        name, *words = shlex.split(command)
        context = group.make_context("coterie", [name, *words], resilient_parsing=True)
        found = group.get_command(context, name)  # type: ignore[attr-defined]
        assert found is not None, command
        found.make_context(name, list(words))
