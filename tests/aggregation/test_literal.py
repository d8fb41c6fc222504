"""The all-ciphertext form of eq. (6): against plain numbers, how many levels it takes, and where it fails."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.detection_costs import factors, levels, weighted
from coterie.aggregation import detection, literal
from coterie.crypto import ckks, fourier
from coterie.protocol.errors import CapacityError, UserError

KEY = ckks.keygen("insecure-1024-long", allow_insecure=True, emulated=True)
KEYS = KEY.evaluation()
BOUNDS = 100.0, 50.0


def encrypted(values, key=KEY, level=17):
    return [key.encrypt_scalar(value, at_most=1000, level=level) for value in values]


def opened(ciphers, key=KEY):
    return np.array([float(key.decrypt(cipher)[0]) for cipher in ciphers])


def plain(values, iterations):
    """Algorithm 1 of Cheon et al. on numbers: (3 - (1 - x^2)...) written out."""
    a, b = values**2, values**2 - 1
    for _ in range(iterations):
        a, b = a * (1 - b / 2), b**2 * (b - 3) / 4
    return a


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_magnitudes_are_the_iteration_and_blind_near_zero(iterations):
    values = np.array([-1.0, -0.5, -0.1, 0.02, 0.3, 1.0])
    found = opened([literal.magnitude(KEY.encrypt_scalar(value), iterations) for value in values])
    assert found == pytest.approx(plain(values, iterations), abs=1e-4)
    far = np.abs(values) >= 0.3
    if iterations >= 3:
        assert np.abs(found - np.abs(values))[far].max() < 0.1
    assert abs(found[3] - 0.02) > 0.5 * 0.02  # 0.02 is below 2^-5: it is taken for (nearly) nothing


def test_two_leaders_agree_with_eq_6_in_the_clear():
    """Of two the far one has s = 1 - 1 * 1 and the near one 1."""
    found = opened(factors(encrypted([90.0, 10.0]), encrypted([45.0, 5.0]), BOUNDS))
    twin = 1 - detection.s_factors([90.0, 10.0], np.square([45.0, 5.0])).suspicion
    assert found == pytest.approx(twin, abs=0.05)
    found = opened(factors(encrypted([90.0, 10.0]), encrypted([5.0, 45.0]), BOUNDS))
    assert found == pytest.approx([1.0, 1.0], abs=0.05)


def test_four_leaders_with_one_iteration_are_rough():
    high, far = [90.0, 10.0, 15.0, 12.0], [45.0, 5.0, 4.0, 6.0]
    found = opened(factors(encrypted(high), encrypted(far), BOUNDS, iterations=1, steps=5))
    assert found.argmin() == 0
    assert found[0] < 0.5 < found[1:].min()


def test_where_it_fails():
    """Scalars that are near to each other, as a share of the bound: eq. (6) in the clear tells them, this doesn't."""
    high, far = [5.0, 4.0], [2.5, 2.0]
    assert (1 - detection.s_factors(high, np.square(far)).suspicion).tolist() == [0.0, 1.0]
    found = opened(factors(encrypted(high), encrypted(far), BOUNDS))
    assert found.min() > 0.5  # the worst leader keeps its weight


def test_levels_are_what_it_takes():
    for k, iterations, steps in ((2, 3, 5), (2, 1, 2), (3, 1, 5), (4, 1, 4)):
        needed = levels(k, iterations, steps)
        values = encrypted(np.linspace(10, 90, k), level=needed)
        by = factors(values, values, (100.0, 100.0), iterations, steps)
        models = [KEY.public.encrypt(np.ones(5)) for _ in range(k)]
        total, whole = weighted(models, by)
        assert total.tally.form.level >= 0
        assert total.tally.form == whole.tally.form._replace(scalar=False)
        with pytest.raises(CapacityError, match=f"take {needed} levels, {needed - 1} are left"):
            factors(encrypted([1.0] * k, level=needed - 1), values, BOUNDS, iterations, steps)
    assert levels(2, 3, 5) + 2 <= 21 < levels(3) + 2  # two for an energy: 21 are all that there are


@pytest.mark.parametrize("emulated", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_whole_of_it(emulated):
    """From models to their weighted sum, and nothing is opened but that sum and the factors' own."""
    key = KEY if emulated else ckks.keygen("insecure-1024-long", allow_insecure=True)
    keys = KEYS if emulated else key.evaluation()
    rng = np.random.default_rng(0)
    start = 0.05 * rng.normal(size=300)
    near, far = start + 0.005 * rng.normal(size=300), start + 0.1 * rng.normal(size=300)
    ciphers = [key.public.encrypt(model).within(1) for model in (near, far)]
    high, distance = [], []
    for cipher in ciphers:
        tapped = cipher.dot(cipher.conjugated(keys), keys, at_most=4 * fourier.TAPS, taps=fourier.taps(1024))
        high.append(tapped.times_plain(1 / fourier.TAPS, at_most=4))
        moved = cipher.at_level(18).add_plain(-start)
        distance.append(moved.dot(moved.conjugated(keys), keys, at_most=4))
    total, whole = weighted(ciphers, factors(high, distance, (4.0, 4.0)))
    mean = key.decrypt(total) / float(key.decrypt(whole)[0])
    assert np.abs(mean - near).max() < 0.15 * np.abs(far - near).max()


def test_misuse():
    one = encrypted([1.0])
    for magnitudes, distances, bounds in ((one, one, BOUNDS), (one * 2, one, BOUNDS), (one * 2, one * 2, (1.0, 0.0))):
        with pytest.raises(UserError, match="two leaders"):
            factors(magnitudes, distances, bounds)
