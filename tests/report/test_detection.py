"""What a report says of contributions that a defence took for poisoned."""

from __future__ import annotations

import json
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


def test_a_backdoor_is_told_by_the_name_of_its_class(tmp_path: Path) -> None:
    attack = {"attack": "backdoor:3", "attackers": 0.2, "attacker_names": ["client/1"], "backdoor_success": 0.25}
    assert "are class 0 with the trigger" in page(tmp_path / "run", **attack)
    dealt = json.loads((tmp_path / "run" / "partition.json").read_text())
    names = [f"<{k}>" for k in range(len(dealt["label_counts"][0]))]
    edit(tmp_path / "run" / "partition.json", class_names=names)
    found = render([tmp_path / "run"]).read_text()
    assert "are class &lt;0&gt; with the trigger" in found
    assert "<0>" not in found
