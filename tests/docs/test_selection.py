"""What docs/selection.md shows works as it stands there, and its numbers are those of its file."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from coterie.selection.bandit import MEMBERS, Cics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "selection.md").read_text()


def test_the_example_runs_and_says_what_it_says(capsys: pytest.CaptureFixture[str]):
    code, turns = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(turns, "docs/selection.md", "exec"), {})
    assert f"# {', '.join(capsys.readouterr().out.splitlines())}\n" in turns
    exec(compile(code, "docs/selection.md", "exec"), {})
    chosen, reason = capsys.readouterr().out.splitlines()
    assert chosen == "(0, 2)"
    assert f"`{reason}`" in PAGE


def test_the_table_of_settings_is_complete_and_right():
    table = {}
    for names, values in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \| ", PAGE, re.MULTILINE):
        table |= dict(zip(re.findall(r"\w+", names), values.split(", "), strict=True))
    for field in fields(Cics):
        shown = table.pop(field.name).strip()
        assert field.default == (shown == "on") if isinstance(field.default, bool) else float(shown) == field.default
    assert not table
    kilobytes = Cics().window * MEMBERS * 5 * 8 / 1000
    assert f"{kilobytes:.0f} kB" in PAGE


def test_the_measured_tables_are_those_of_the_file():
    found = json.loads((DOCS / "selection" / "regret.json").read_text())

    def shown(of: dict[str, float], digits: int) -> str:
        return f"{of['mean']:.{digits}f} ± {of['interval']:.{digits}f}"

    problems = found["regret"]
    for method in problems["moving"]:
        cells = [method]
        for name in ("moving", "fixed"):
            row = problems[name][method]
            quarters = ", ".join(f"{quarter['mean']:.3f}" for quarter in row["quarters"])
            cells += [shown(row["cumulative"], 1), quarters]
        assert f"| {' | '.join(cells)} |" in PAGE
    for lie, row in found["liars"].items():
        cells = [lie, shown(row["liar"], 2), shown(row["honest"], 2), f"{max(row['liar']['values']):.2f}"]
        assert f"| {' | '.join(cells)} |" in PAGE
