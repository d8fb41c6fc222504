"""Every notebook is committed without outputs: ``make docs`` executes it, and ``test_site.py`` looks at its outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(one["source"]) for one in json.loads(path.read_text())["cells"] if one["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    content = json.loads(path.read_text())
    assert (content["nbformat"], content["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    for cell in content["cells"]:
        assert cell["metadata"] == {}  # a tag could keep a cell from being executed
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for target in re.findall(r"\]\((?!http)([^)#]+)", "\n".join(cells(path, "markdown"))):
        assert (FOLDER / target).exists(), target


def test_an_own_method_has_25_lines() -> None:
    own = cells(FOLDER / "5_your_own_method.ipynb", "code")
    first = next(cell for cell in own if cell.startswith("%%writefile"))
    assert len(first.splitlines()) - 1 <= 25
