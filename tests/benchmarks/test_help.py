"""Every benchmark says what it does, without data sets and without measuring anything."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = [path.stem for path in sorted(FOLDER.glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_a_benchmark_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code in (0, None)
    assert "usage" in capsys.readouterr().out.lower()
