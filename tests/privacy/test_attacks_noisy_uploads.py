"""Audits of the noise on uploads: the standard mechanism keeps its claim, the paper's does not."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from matrix import few

from coterie.dp.uploads import Standard, shared_set
from coterie.privacy.attacks.noisy_uploads import NoiseAudit, audit_heuristic, audit_standard
from coterie.privacy.attacks.samples import upload_membership, uploaded_model
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets

DELTA = 1e-5


@pytest.mark.parametrize(("epsilon", "uploads"), few([(1.0, 10), (8.0, 1)], [(8.0, 1)]))
def test_what_is_proved_stays_under_the_claim_of_the_standard_mechanism(epsilon: float, uploads: int) -> None:
    found = audit_standard(Standard.within(0.5, epsilon, DELTA, uploads), 20, DELTA, uploads, 2000)
    assert found.claimed == pytest.approx(epsilon, rel=1e-4)
    assert 0.05 * epsilon < found.lower_bound <= epsilon
    assert found.holds


def test_the_audit_notices_noise_that_is_too_small() -> None:
    """A fifth of the noise of epsilon 1 proves more than 1."""
    honest = Standard.within(0.5, 1.0, DELTA, 1)
    found = audit_standard(replace(honest, noise_multiplier=honest.noise_multiplier / 5), 20, DELTA)
    assert found.claimed > 1.0
    assert not replace(found, claimed=1.0).holds


@pytest.mark.parametrize("spread", [3.0, math.inf])
def test_what_is_proved_exceeds_the_claim_of_the_papers_mechanism(spread: float) -> None:
    found = audit_heuristic(2.0, DELTA, spread)
    assert found.claimed == 2.0
    assert found.lower_bound > 2.5 * found.claimed
    assert found.exact is not None
    assert found.lower_bound < found.exact
    assert found.exact > 20 * found.claimed
    assert not found.holds


def test_the_exact_epsilon_and_what_is_proved_do_not_depend_on_the_claim() -> None:
    """Less epsilon_2 makes both noises larger, and their ratio stays."""
    few, many = audit_heuristic(0.1, DELTA), audit_heuristic(10.0, DELTA)
    assert few.exact == many.exact == pytest.approx(42.6, abs=0.1)
    assert few.lower_bound > 5 < many.lower_bound
    assert many.lower_bound < 10 < many.exact, "4,000 trials prove no more than about 6; the formula does"
    assert not many.holds


def test_a_row_is_json_and_infinity_a_word() -> None:
    row = audit_heuristic(2.0, DELTA, math.inf, trials=100).row()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert (row["exact_epsilon"], row["holds"]) == ("infinite", False)
    assert NoiseAudit("m", "n", 1.0, 0.5, DELTA, 100).row()["exact_epsilon"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: audit_heuristic(spread=1.0),
        lambda: audit_heuristic(spread=math.nan),
        lambda: audit_heuristic(claimed=0.0),
        lambda: audit_standard(Standard(1.0, 1.0), 5, 1.0),
    ],
)
def test_an_audit_of_nothing_is_refused(wrong) -> None:
    with pytest.raises(UserError):
        wrong()


def losses(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of a linear classifier with two classes, y in (-1, 1)."""
    return np.logaddexp(0, -y * (x @ weights))


def membership(noise: Standard | None, clients: int = 12, size: int = 200, samples: int = 40) -> float:
    """Clients train a linear model on noise labels, and upload half of its change, clean or noisy."""
    generator, start = np.random.default_rng(0), np.zeros(size, np.float32)
    trained, others = [], []
    for i in range(clients):
        x, y = generator.normal(size=(2 * samples, size)), generator.choice([-1.0, 1.0], 2 * samples)
        own, weights = slice(0, samples), start.astype(np.float64)
        for _ in range(50):
            slope = -y[own] / (1 + np.exp(y[own] * (x[own] @ weights)))
            weights -= 0.1 * (slope @ x[own]) / samples
        places = shared_set(np.arange(size), size // 2, b"session", f"c{i}", 0)
        change = weights[places] - start[places]
        if noise is not None:
            change = noise.noised(change, Secrets(np.random.default_rng(i)))
        model = uploaded_model(start, places, change)
        before, after = (losses(one, x, y) for one in (start, model))
        trained.append((before[own], after[own]))
        others.append((before[samples:], after[samples:]))
    return upload_membership(trained, others).value


def test_clean_uploads_tell_members_and_noisy_ones_do_not() -> None:
    """Of two samples, one trained on: the attacker names it in most pairs, with noise in half of them."""
    assert membership(None) > 0.85
    assert membership(Standard.within(1.0, 1000.0, DELTA, 1)) > 0.6
    assert abs(membership(Standard.within(1.0, 1.0, DELTA, 1)) - 0.5) < 0.06


def test_an_uploaded_model_is_the_leaders_with_the_changes() -> None:
    start = np.arange(4, dtype=np.float32)
    assert uploaded_model(start, np.array([1, 3]), np.array([0.5, -1.0])).tolist() == [0.0, 1.5, 2.0, 2.0]
    assert start.tolist() == [0, 1, 2, 3]
    for change in ([1.0], [1.0, math.nan]):
        with pytest.raises(UserError):
            uploaded_model(start, np.array([1, 3]), np.array(change))
