"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import coterie.data

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
(USING,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def ended(folder: Path, command: list[str]) -> str:
    """What the command prints; it must end well."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_four_hospitals_become_an_answer_an_audit_and_an_export_in_fifteen_lines_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one seed and two rounds, in this process."""
    assert len([line for line in USING.splitlines() if line.strip()]) <= 15
    assert "seeds=5" in USING
    monkeypatch.chdir(tmp_path)
    exec(USING.replace("seeds=5", "seeds=1, rounds=2"), {"__name__": "__main__"})
    check(capsys.readouterr().out, tmp_path)


@pytest.mark.long
def test_and_as_a_script(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(USING)
    lines = check(ended(tmp_path, [sys.executable, "own.py"]), tmp_path)
    assert lines[3].split()[3] == "better"


def check(printed: str, folder: Path) -> list[str]:
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[:4]] == list(HOSPITALS)
    assert "Linear" in printed
    check_export(folder / "va.safetensors")
    return lines


@pytest.mark.long
def test_and_in_three_commands(tmp_path: Path) -> None:
    commands = re.findall(
        r"^(coterie (?:compare coterie fedavg --data heart|(?:audit|export) runs/clinic|predict clinic).*)$",
        README,
        re.MULTILINE,
    )
    assert len(commands) == 4
    file = Path(coterie.data.__file__).with_name("heart") / "va.csv"
    (tmp_path / "patients.csv").write_text(file.read_text())
    compare, audit, export, predict = (
        ended(tmp_path, [sys.executable, "-m", *shlex.split(command)]) for command in commands
    )
    assert "better for 1 (va)" in compare
    assert "label shares" in audit
    assert "Model of va" in export
    assert "Predictions of 200 samples" in predict
    check_export(tmp_path / "clinic.safetensors")


def check_export(file: Path) -> None:
    from coterie.runs import load_exported

    facts = load_exported(file).facts
    assert facts.input_shape == (22,)
    assert facts.columns[0].name == "age"
