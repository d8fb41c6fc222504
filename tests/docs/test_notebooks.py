"""Every notebook runs from its first cell to its last, in an empty folder, and is committed without outputs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import notebook
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SAYS = {
    "1_first_run": ["<Result: ", "<ShownFigure: ", "Linear", "config.toml"],
    "2_four_hospitals": ["<Comparison: ", "va           alone", "Predictions of 200 samples", "<Sequential: "],
    "3_attack_a_system": ["<Findings: "],
    "4_compare_for_a_paper": ["<Comparison: ", "<ShownFigure: ", "@misc", r"\begin{tabular}", "| fedprox |"],
    "5_your_own_method": ["<Comparison: ", "<Result: ", "<Findings: "],
    "6_deploy_on_this_machine": ["models_sha256", "accuracy"],
}
"""What each prints, among other things."""


def test_the_notebooks_are_these() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(SAYS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path: Path, tmp_path: Path) -> None:
    if "deploy" in path.stem and not find_spec("nats"):
        pytest.skip("the extra deploy is not installed")
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, notebook.__file__, str(path)]
    with (tmp_path / "said.txt").open("w") as file:  # no pipe, which a process in the background would keep open
        output: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
        ran = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PATH": places}, **output)
        try:
            code = ran.wait(250)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ran.pid, signal.SIGKILL)
    said = (tmp_path / "said.txt").read_text()
    assert code == 0, said
    assert [words for words in SAYS[path.stem] if words not in said] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    content = json.loads(path.read_text())
    assert (content["nbformat"], content["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    for cell in content["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for target in re.findall(r"\]\((?!http)([^)#]+)", "\n".join(notebook.cells(path, "markdown"))):
        assert (FOLDER / target).exists(), target


def test_an_own_method_has_25_lines() -> None:
    first = next(cell for cell in notebook.cells(FOLDER / "5_your_own_method.ipynb") if cell.startswith("%%writefile"))
    assert len(first.splitlines()) - 1 <= 25
