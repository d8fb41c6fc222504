"""MingledPie's items about ill-conditioned H: draws against slow sums, redraws in closed form, tables by hand."""

from __future__ import annotations

import numpy as np
import pytest
from mingling import coefficients

from benchmarks import ridge
from benchmarks.identity_coins import coin_sets
from benchmarks.ridge import rebuild_error
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks.identity import expected_accuracy
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Curve
from coterie.runs.config import resolve

LAW = IdentityLaw(10, 0.5, 2)


def test_draws_against_normal_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors and what is held back, from (H'H + lambda D) theta = H'S + lambda D previous written out."""
    monkeypatch.setattr(ridge, "DRAWS", 3)
    found, true = ridge.drawn(30, 10, 0.5, 4), np.arange(30) % 10
    for i in range(3):
        sets, _ = coin_sets(LAW, true, rng(4, "identity sets", "30 10 0.5", i).bytes)
        h = coefficients(sets, true).astype(float)
        d = np.diag((h**2).sum(axis=0))
        scaled = h @ np.diag(1 / np.sqrt(np.diag(d)))
        singular = np.linalg.svd(scaled, compute_uv=False)
        assert found.condition[i] == pytest.approx(singular[0] / singular[-1], rel=1e-6)
        assert found.plain[i] == pytest.approx(np.sqrt((rebuild_error(sets, true) ** 2).mean()))
        for bound in ridge.BOUNDS:
            lam = max(0.0, (singular[0] ** 2 - (bound * singular[-1]) ** 2) / (bound**2 - 1))
            solve = np.linalg.solve(h.T @ h + lam * d, h.T)
            spread = sets.T.astype(float) - h @ (np.eye(10)[true].T / 3)
            assert found.ridged[bound][i] == pytest.approx(np.sqrt(((solve @ spread) ** 2).sum() / 10), rel=1e-6)
            left_out = np.sqrt(((np.eye(10) - solve @ h) ** 2).sum() / 10)
            assert found.held_back[bound][i] == pytest.approx(left_out, abs=1e-5)
            assert (lam > 0) == (found.condition[i] > bound)


def test_redraws_in_closed_form() -> None:
    assert ridge.redrawn(LAW, 0.0) == (1.0, pytest.approx(LAW.guess_accuracy))
    sets, guessed = ridge.redrawn(LAW, 0.25)
    assert sets == pytest.approx(4 / 3)
    by_sets = [expected_accuracy([LAW] * m).accuracy for m in range(1, 30)]
    assert guessed == pytest.approx(sum(0.75 * 0.25**m * a for m, a in enumerate(by_sets)), abs=1e-6)
    assert LAW.guess_accuracy < guessed < ridge.redrawn(LAW, 0.5)[1] < 1


def test_redraws_are_what_a_simulation_of_them_gives() -> None:
    """Clients whose sets are drawn anew with probability .4, again and again; the server intersects."""
    source, guessed = np.random.default_rng(0), []
    for client in range(4000):
        left = np.ones(10, bool)
        while True:
            left &= coin_sets(LAW, [client % 10], source.bytes)[0][0]
            if source.random() >= 0.4:
                break
        guessed.append(1 / left.sum())
    assert np.mean(guessed) == pytest.approx(ridge.redrawn(LAW, 0.4)[1], abs=0.02)


def test_the_table_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([20.0, 50, 200, 10])
    one = ridge.Drawn(values, values / 10, {30.0: values / 20, 100.0: values / 40}, {30.0: values, 100.0: values})
    first, second = ridge._draws_table({"120/10/0.5": [one, one]})
    assert (first["above it %"], second["above it %"]) == (50, 25)
    assert (first["these: error as they are"], first["with a ridge"], second["with a ridge"]) == (12.5, 6.25, 5)
    assert (first["drawn anew: sets shown"], second["drawn anew: sets shown"]) == (2, 1.33)
    assert first["of one set %"] == 19.8
    none = ridge.Drawn(*[np.ones(2)] * 2, *[dict.fromkeys(ridge.BOUNDS, np.ones(2))] * 2)
    assert ridge._draws_table({"120/5/0.5": [none]})[0]["with a ridge"] is None


def test_the_table_of_bounds() -> None:
    def curve(accuracies: list[float], sets: list[list[list[int]]], skipped: dict[str, str]) -> Curve:
        notes = tuple({"membership": of_round} for of_round in sets)
        local = tuple(accuracies)
        return Curve(0, local, local, (True,) * len(local), summary={"skipped": skipped}, notes=notes)

    a = curve([0.5, 0.25, 0.75], [[[0, 1], [2]], [[0, 1], [2]], [[0, 2], [2]]], {"1": "x"})
    b = curve([0.5, 0.5, 0.25], [[[0, 1], [2]]] * 3, {})
    (row, other) = ridge._ridge_table({"30": [a, b], "ifca": [b]})
    assert (row["local %"], row["the worst seed %"], row["the worst round %"]) == ("50.00 ± 35.36", 25, 25)
    assert (row["rounds skipped"], row["sets that a client shows"], row["rounds"]) == (1, 1.25, 3)
    assert other["sets that a client shows"] is None


def test_cells_are_valid_runs() -> None:
    for cell in ridge.ITEMS["mingledpie/ridge"].cells:
        resolved = resolve(cell.config)
        assert (resolved.clients, resolved.settings["clusters"], resolved.rounds) == (60, 10, 12)
        assert cell.name == "ifca" or resolved.settings["max_condition"] == float(cell.name)
