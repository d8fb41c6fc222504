"""What a report says of contributions that a defence took for poisoned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_folders import edit, write_run

from coterie.report import render

pytestmark = pytest.mark.usefixtures("no_figures")


def page(folder: Path, name: str = "Krum", **content: Any) -> str:
    out = write_run(folder, system=name.lower(), title=name, clients=6, rounds=4)
    edit(out / "result.json", **content)
    return render([out]).read_text()


def test_without_attackers_there_are_false_alarms_alone(tmp_path: Path) -> None:
    found = page(tmp_path / "run", detection={"rate": None, "false_alarms": 0.125, "rounds": 4})
    assert "Flagged attackers" not in found
    assert "of the honest contributions were flagged as poisoned" in found


def test_with_attackers_both_shares_are_told(tmp_path: Path) -> None:
    attack = {"attack": "scale:10", "attackers": 0.2, "attacker_names": ["client/1"]}
    found = page(tmp_path / "run", detection={"rate": 0.5, "false_alarms": 0.125, "rounds": 4}, **attack)
    assert "Flagged attackers" in found
    assert "of the other contributions were flagged as poisoned" in found


def test_a_comparison_says_what_false_alarms_are(tmp_path: Path) -> None:
    page(tmp_path / "a", detection={"rate": None, "false_alarms": 0.125, "rounds": 4})
    page(tmp_path / "b", "FedAvg")
    both = render([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").read_text()
    assert "False alarms: the share of other contributions that it took for poisoned." in both
    assert "Attackers flagged: the share" not in both
