"""CICS learns: a small version of the regret study, and what a liar gets out of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.selection import DEVICES, LIES, METHODS, PROBLEMS, Cics, liar_share, main, problem, regrets

pytestmark = pytest.mark.long
SEEDS = range(6)
ROUNDS = 40


@pytest.mark.parametrize("name", PROBLEMS)
def test_cics_is_below_random_and_largest_first_and_grows_ever_slower(name):
    """Paired over the seeds: 95 % intervals of the differences lie above 0."""
    found = {m: regrets(m, SEEDS, ROUNDS, PROBLEMS[name]) for m in ("CICS", "random", "largest data first")}
    own = found.pop("CICS")
    for rows in found.values():
        differences = rows.sum(axis=1) - own.sum(axis=1)
        assert differences.mean() > 0
    late = own[:, ROUNDS // 2 :].mean()
    assert late < own[:, : ROUNDS // 2].mean() / 2
    assert late < found["random"].mean() / 2
    differences = found["random"].sum(axis=1) - own.sum(axis=1)
    assert differences.mean() > 2.57 * differences.std(ddof=1) / len(SEEDS) ** 0.5  # Student's t, 5 degrees


def test_the_literal_form_does_not_learn():
    literal = regrets("CICS, literal", SEEDS, ROUNDS, 0.0)
    assert literal[:, ROUNDS // 2 :].mean() > 0.9 * literal[:, : ROUNDS // 2].mean()
    assert literal.mean() > 2 * regrets("random", SEEDS, ROUNDS, 0.0).mean()


def test_the_problem_is_as_stated_and_no_set_beats_the_best():
    draw = np.random.default_rng(0)
    for r in problem(3, 20, 0.3):
        assert r.worth == pytest.approx(np.sqrt(r.contexts[:, 2]) * r.contexts[:, 3])
        assert r.costs == pytest.approx(r.contexts[:, 2] / r.contexts[:, 0])
        assert r.budget == pytest.approx(0.4 * r.costs.sum())
        for _ in range(50):
            members = np.flatnonzero(draw.random(DEVICES) < 0.5)
            if len(members) and r.costs[members].sum() <= r.budget:
                assert r.value(members) <= r.best() + 1e-12
    first, again = (next(iter(problem(3, 1, drift))).contexts for drift in (0.0, 0.0))
    assert (first == again).all()


def test_a_liar_that_brings_nothing_is_selected_less_often_than_an_honest_device():
    """Mean over seeds, the second half of 60 rounds; docs/selection.md has the table of all lies."""
    for lie in ("CPU", "everything"):
        share = liar_share(Cics(), LIES[lie], range(4), 60)
        assert np.mean(share["liar"]) < 1 / 3
        assert np.mean(share["liar"]) < 0.7 * np.mean(share["honest"])
    believed = liar_share(Cics(cheapest=0.0), LIES["CPU"], range(4), 60)
    assert np.mean(believed["liar"]) > 1 / 3  # a device that is free is neither here nor there


def test_the_command_writes_its_table_and_picture(tmp_path: Path):
    main([str(tmp_path), "--seeds", "2", "--liar-seeds", "2", "--rounds", "4"])
    found = json.loads((tmp_path / "regret.json").read_text())
    assert found["seeds"] == [0, 1]
    assert set(found["regret"]["moving"]) == set(METHODS)
    values = found["regret"]["fixed"]["random"]["cumulative"]["values"]
    assert values == pytest.approx(regrets("random", [0, 1], 4, 0.0).sum(axis=1))
    assert (tmp_path / "regret.png").stat().st_size > 10_000
