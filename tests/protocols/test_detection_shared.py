"""Detection as OFL's server runs it: models under a key that the leaders made together, and only scalars opened."""

from __future__ import annotations

import math

import numpy as np
import pytest
from threshold_parts import MUL, made, opened

from coterie.aggregation import detection
from coterie.crypto import CiphertextError, fourier

HIGH = "insecure-1024-high"
LEADERS, SIZE = 4, 1500


def leaders(seed: int = 0):
    """A global model (SIZE,), and four models near it (4, SIZE), the last scaled up."""
    rng = np.random.default_rng(seed)
    start = 0.05 * rng.normal(size=SIZE)
    common = rng.normal(size=SIZE)
    updates = 0.01 * (common + 0.5 * rng.normal(size=(LEADERS, SIZE)))
    updates[-1] *= 10
    return start, start + updates


def scalar(shared, cipher) -> float:
    """One opened number; infinite where it opens to nonsense, as the server takes it."""
    try:
        return float(opened(shared, cipher)[0])
    except CiphertextError:
        return math.inf


@pytest.mark.parametrize("emulated", [False, True], ids=["real", "emulated"])
def test_the_paper_mode(emulated):
    shared = made(HIGH, 3, 0, emulated)
    keys, (start, models) = shared.evaluation, leaders()
    ciphers = [shared.key.encrypt(model) for model in models]
    high = [scalar(shared, fourier.high_energy(cipher, keys)) / fourier.TAPS for cipher in ciphers]
    total = [scalar(shared, fourier.energy(cipher, keys, 64)) for cipher in ciphers]
    far = [scalar(shared, fourier.energy(cipher.add_plain(-start), keys, 64)) for cipher in ciphers]
    plain = np.array([fourier.energies(model, 1024) for model in models])
    assert np.abs(np.transpose([high, total]) - plain).max() < 1e-3
    assert far == pytest.approx(((models - start) ** 2).sum(axis=1), abs=1e-3)
    weights = detection.s_factors(high, far)
    assert weights.weights.argmin() == LEADERS - 1
    mean = opened(shared, detection.weighted(ciphers, weights.weights)) / weights.divisor
    assert np.abs(mean - weights.weights @ models / weights.divisor).max() < 1e-4
    assert not detection.too_long(mean - start, weights.weights, weights.divisor, far)


@pytest.mark.parametrize("emulated", [False, True], ids=["real", "emulated"])
def test_the_hardened_mode(emulated):
    shared = made(MUL, 3, 0, emulated)
    keys, (start, models) = shared.evaluation, leaders()
    updates = models - start
    ciphers = [shared.key.encrypt(update) for update in updates]
    squares = [scalar(shared, fourier.energy(cipher, keys, 1 << 10)) for cipher in ciphers]
    factors = detection.cut(squares)
    whole = detection.weighted(ciphers, factors)
    dots = [scalar(shared, fourier.inner(cipher, whole, keys, 1 << 16)) for cipher in ciphers]
    weights = detection.robust(squares, dots, factors)
    twin = detection.robust((updates**2).sum(axis=1), updates @ (factors @ updates), factors)
    assert np.abs(weights.weights - twin.weights).max() <= 1
    assert weights.weights[-1] < 0.2 * np.median(weights.weights)
    mean = opened(shared, detection.weighted(ciphers, weights.weights)) / weights.divisor
    honest = updates[:-1].mean(axis=0)
    assert np.linalg.norm(mean - honest) < 0.35 * np.linalg.norm(honest)
    assert not detection.too_long(mean, weights.weights, weights.divisor, squares)


def test_an_energy_beyond_what_was_stated_opens_to_nonsense_and_gets_no_weight():
    shared = made(MUL, 3)
    start, models = leaders()
    updates = models - start
    updates[0] = 30.0
    keys = shared.evaluation
    squares = [scalar(shared, fourier.energy(shared.key.encrypt(update), keys, 1 << 10)) for update in updates]
    assert squares[0] == math.inf
    assert detection.cut(squares)[0] == 0


def test_an_energy_that_wraps_around_is_caught_by_the_mean():
    """Values of 60, summed up a million times, are more than the modulus holds: their energy says what it likes."""
    shared = made(MUL, 3)
    keys = shared.evaluation
    _, models = leaders()
    cipher = shared.key.encrypt(models[0])
    forged = cipher
    ring, moduli = forged.key.arrays.ring, forged.key.arrays.ring.moduli_at(forged.tally.form.level)
    whole = math.prod(int(q) for q in ring.moduli_at(shared.group.space.lowest)[:, 0])
    period = whole / ring.scale(fourier.energy(cipher, keys).tally.form)  # energies are the same modulo this
    value = math.sqrt(period / SIZE)
    assert value > shared.group.space.reach  # no honest value reaches it, so the mean shows it
    assert len(moduli) == shared.group.space.levels + 1
    mean = np.full(SIZE, value / 3)
    assert detection.too_long(mean, [1, 1, 1], 3, [0.5, 0.5, 0.5])
