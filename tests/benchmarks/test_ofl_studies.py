"""OFL's learning rates and lies are those that its studies chose and played."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import leading, movement, rates
from coterie.crypto.roster import signed, simulated
from coterie.protocol.randomness import Randomness
from coterie.protocol.setup_info import Common, Own
from coterie.protocols.reports import StatusReport, checked
from papers.ofl import GRAPHS, ITEMS, RATES

DOCS = Path(__file__).parents[2] / "docs"


def test_rates_on_graphs_are_the_best_of_the_grid_on_a_seed_of_no_table() -> None:
    found = json.loads((DOCS / "ofl" / "rates.json").read_text())
    table = json.loads((DOCS / "reproduction" / "ofl" / "table3.json").read_text())
    assert rates.chosen(found) == {method: RATES[method] for method in found["found"]}
    assert not set(found["seeds"]) & set(table["seeds"])
    assert {len(row) for row in found["found"].values()} == {len(rates.RATES)}  # every method has the same grid
    for cell in ITEMS["ofl/table3"].cells:
        task, _, method = cell.name.partition("/")
        assert method in {*found["found"], "local"}
        assert cell.config.settings["lr"] == (RATES[method] if task in GRAPHS else 0.1)


def test_the_noise_of_hardened_is_many_times_what_a_round_moves_on_cora() -> None:
    rows = json.loads((DOCS / "ofl" / "movement.json").read_text())["rows"]
    assert {(row["task"], float(row["rate"])) for row in rows} == set(movement.CASES)
    assert all(row["noise on a whole upload"] > 4 * row["a client's change"] for row in rows)


def test_a_lie_about_resources_is_one_that_the_hub_accepts() -> None:
    randomness = Randomness(0, emulated=True)
    roster, identities = simulated({"server": "server", "client/0": "client"}, randomness)
    common = Common(roster, ("client/0",), leading.SPEC, np.zeros((1, 1), "float32"), "paper", True)
    own = Own("client/0", randomness, identities["client/0"])
    profile = leading.fleet("mixed", 8, 0)[3]
    for lie in leading.LIES:
        values = leading.lied(leading.honest(profile, 100, 30.0), lie, leading.honest(profile, 900, 60.0))
        report = StatusReport(1, "client/0", values, np.zeros(8, "float32"))
        checked(common, signed(own, report, roster.session), 1, leading.STEP_S)
