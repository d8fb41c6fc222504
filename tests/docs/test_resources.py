"""What docs/resources.md shows works as it stands there, and its numbers are those of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import leading
from coterie.devices.jetson import BOARDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "resources.md").read_text()


def test_the_example_runs_and_says_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/resources.md", "exec"), {})
    assert f"This prints `{capsys.readouterr().out.strip()}`" in PAGE


def test_the_boards_are_those_of_the_fleet() -> None:
    speeds = " | ".join(f"{board.flops_per_s / 1e9:.1f}" for board in BOARDS.values())
    shares = " | ".join(f"{board.gpu_share:.2f}".lstrip("0") for board in BOARDS.values())
    assert f"| *training, GFLOP/s (nominal)* | {speeds} |" in PAGE
    assert f"| *GPU's share of the training time (nominal)* | {shares} |" in PAGE


def test_the_table_of_liars_is_that_of_the_file() -> None:
    found = json.loads((DOCS / "resources" / "leading.json").read_text())
    assert found["seeds"] >= 10
    assert f"{found['seeds']} seeds" in PAGE
    for fleet, rules in found["led"].items():
        for rule, lies in rules.items():
            cells = [f"{of['liar']['mean']:.2f} ± {of['liar']['interval']:.2f}" for of in lies.values()]
            followers = lies["everything"]["followers"]["mean"]
            assert f"| `{fleet}` | {rule} | {' | '.join(cells)} | {followers:.1f} |" in PAGE


def test_a_lie_is_one_that_the_hub_accepts() -> None:
    """And the study repeats: one seed, few hours."""
    from coterie.crypto.roster import signed, simulated
    from coterie.protocol.randomness import Randomness
    from coterie.protocol.told import Common, Own
    from coterie.protocols.reports import StatusReport, checked

    randomness = Randomness(0, emulated=True)
    roster, identities = simulated({"server": "server", "client/0": "client"}, randomness)
    common = Common(roster, ("client/0",), leading.SPEC, leading.np.zeros((1, 1), "float32"), "paper", True)
    own = Own("client/0", randomness, identities["client/0"])
    profile = leading.fleet("mixed", 8, 0)[3]
    for lie in leading.LIES:
        values = leading.lied(leading.honest(profile, 100, 30.0), lie, leading.honest(profile, 900, 60.0))
        report = StatusReport(1, "client/0", values, leading.np.zeros(8, "float32"))
        checked(common, signed(own, report, roster.session), 1, leading.STEP_S)
