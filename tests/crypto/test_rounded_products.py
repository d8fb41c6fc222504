"""The emulated twin of CKKS with levels: the same tallies, refusals and bytes as the real one in any program, errors of
the same size, and hardly any time.
"""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pytest
from emulated import rounded
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import ckks
from coterie.crypto.twins import add_noise, to_steps
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CapacityError, CoterieError

N = 1024
SET = "insecure-1024-deep"
MODULES = {"ckks": ckks, "rounded": rounded}
TWINS = {scheme: module.keygen(SET, allow_insecure=True) for scheme, module in MODULES.items()}
EVALUATION = {scheme: key.evaluation() for scheme, key in TWINS.items()}
P = TWINS["ckks"].parameters
LENGTH = N + 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "add",
                "number",
                "level",
                "times",
                "square",
                "dot",
                "mask",
                "unmask",
                "convert",
                "scale",
                "plain",
                "wire",
                "clean",
            ]
        ),
        st.integers(0, 2**16),
    ),
    max_size=8,
)


def program(scheme, steps):
    """Runs random operations on a vector; what is refused is left out. Returns all that can be compared."""
    key, keys = TWINS[scheme], EVALUATION[scheme]
    values = np.cos(np.arange(LENGTH)) / 30
    cipher, mask, fate = key.public.encrypt(values), key.public.mask(LENGTH, bytes), []
    scalar = key.public.encrypt_scalar(0.5)
    for step, number in steps:
        level = number % 4
        mask = mask if cipher.blinded else key.public.mask(cipher.length, bytes, cipher.tally.form.level)
        act = {
            "add": lambda c=cipher, n=level: c + key.encrypt(values, n),
            "number": partial(cipher.times_plain, (number % 50) / 20 - 1),
            "level": partial(cipher.at_level, level),
            "times": lambda c=cipher, n=level: c.times(scalar.at_level(n), at_most=1 + n).rescaled(),
            "square": lambda c=cipher: c.times(c).rescaled(),
            "dot": lambda c=cipher, n=level: c.dot(key.public.encrypt(values, n).conjugated(keys), keys),
            "mask": lambda c=cipher, m=mask: c.blind(m),
            "unmask": lambda c=cipher, m=mask, n=level: c.unblind(m, max(n, 1)),
            "convert": lambda c=cipher: key.public.encrypt_blinded(key.open_blinded(c)),
            "scale": partial(cipher.scale, 1 + number % 40),
            "clean": cipher.sanitised,
            "plain": lambda c=cipher: c.add_plain([1.5] if c.tally.form.scalar else values),
            "wire": lambda c=cipher: key.public.from_bytes(c.to_bytes(), c.length, terms=c.terms, blinded=c.blinded),
        }[step]
        try:
            cipher = act()
            fate.append(step)
        except CoterieError as error:
            words = str(error).replace(key.fingerprint.hex()[:8], "key").replace("emulated ", "")
            fate.append((type(error).__name__, words))
    tally = cipher.tally
    opened = key.decrypt(cipher.unblind(mask, cipher.blinded) if cipher.blinded else cipher)
    return fate, (tally.length, tally.terms, tally.blinded, tally.form), weighs(cipher.to_bytes()), opened


@given(STEPS)
def test_any_program_goes_the_same_way(steps):
    fate, tally, size, values = program("ckks", steps)
    twin_fate, twin_tally, twin_size, twin_values = program("rounded", steps)
    assert fate == twin_fate
    assert (tally, size) == (twin_tally, twin_size)
    assert np.abs(values - twin_values).max() < P.tolerance(tally[1], tally[3])


@pytest.mark.parametrize("scheme", TWINS)
@pytest.mark.parametrize("level", [1, 3])
def test_the_largest_factor_is_the_same_and_the_library_takes_it(scheme, level):
    cipher = TWINS[scheme].public.encrypt(np.zeros(3), level)
    largest = P.largest_factor(cipher.tally.form)
    for sign in (1, -1):
        assert cipher.times_plain(sign * largest * 0.999, at_most=1).tally.form.level == level - 1
        with pytest.raises(CapacityError, match="too large a factor"):
            cipher.times_plain(sign * largest, at_most=1)


def errors(scheme):
    """Measured standard deviation of each operation's own error, in those of one encryption."""
    key, keys = TWINS[scheme], EVALUATION[scheme]
    own = type(key).load(key.to_bytes(), allow_insecure=True)
    values = np.resize(np.linspace(-4, 4, 999), 24 * N)
    cipher = key.public.encrypt(values)
    known = key.decrypt(cipher)
    low = cipher.at_level(0)
    known_low = key.decrypt(low)
    mask = key.public.mask(values.size, os.urandom)
    one = key.encrypt_scalar(1.0)
    rng, dots = np.random.default_rng(1), []
    for _ in range(100):
        v, a = (row / np.linalg.norm(row) for row in rng.normal(size=(2, 2 * N)))
        ours, theirs = key.public.encrypt(v), key.public.encrypt(a)
        dots.append(key.decrypt(ours.dot(theirs.conjugated(keys), keys))[0] - v @ a)
    converted = key.public.encrypt_blinded(key.open_blinded(low.blind(mask))).unblind(mask, 1)
    zeros = key.encrypt(np.zeros(24 * N))
    found = {
        "fresh": known - values,
        "lower": key.decrypt(cipher.at_level(2)) - known,
        "lowest": known_low - known,
        "number": key.decrypt(cipher.times_plain(0.3)) - 0.3 * known,
        "product": key.decrypt(zeros.times(one).rescaled()) - key.decrypt(zeros),
        "blind and unblind": key.decrypt(low.blind(mask).unblind(mask, 1)) - known_low,
        "own key": own.decrypt(converted) - known_low,
        "dot": np.array(dots),
    }
    return {name: float(np.std(error) / P.deviation(2.0**36)) for name, error in found.items()}


def test_errors_are_of_one_size():
    """As theory has it: one deviation an operation, their squares add up; a dot product of unit vectors has that of
    both vectors, the conjugation of one and its own."""
    real, twin = errors("ckks"), errors("rounded")
    expected = {"fresh": 1, "lower": 1, "lowest": 1, "number": 1, "product": 1}
    expected |= {"blind and unblind": np.sqrt(2), "own key": np.sqrt(3), "dot": 2.0}
    for name, size in expected.items():
        wide = 1.0 if name == "dot" else 0.1  # of a hundred numbers; of 24,576
        for found in (real[name], twin[name]):
            assert size / (1 + wide) < found < size * (1 + wide), name


def test_noise_is_gaussian_and_repeats():
    values = to_steps(np.linspace(-1, 1, 200_000), 2.0**30)
    noisy = add_noise(values.copy(), 1000.0, b"key", b"purpose")
    noise = noisy - values
    assert np.std(noise) == pytest.approx(1000, rel=0.02)
    assert abs(noise.mean()) < 10
    assert np.mean(noise**4) == pytest.approx(3e12, rel=0.05)
    assert np.array_equal(noisy, add_noise(values.copy(), 1000.0, b"key", b"purpose"))
    for other in ((b"yek", b"purpose"), (b"key", b"porpoise")):
        again = add_noise(values.copy(), 1000.0, *other) - values
        assert abs(np.corrcoef(noise, again)[0, 1]) < 0.02
    shifted = values + 1
    assert abs(np.corrcoef(noise, add_noise(shifted.copy(), 1000.0, b"key", b"purpose") - shifted)[0, 1]) < 0.02
    long = add_noise(np.zeros(3 << 20, dtype=np.int64), 1000.0, b"key", b"purpose")
    assert np.std(long) == pytest.approx(1000, rel=0.02)


def test_it_costs_next_to_nothing():
    """A round's work on a model, both ways, by CPU time of one core in one run: far below a twentieth."""
    seconds = {}
    for scheme, module in MODULES.items():
        key = module.keygen(SET, allow_insecure=True)
        keys, values = key.evaluation(), np.random.default_rng(0).normal(0, 0.001, 150_000)
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            cipher = key.public.encrypt(values)
            dot = cipher.dot(cipher.conjugated(keys), keys)
            product = cipher.at_level(1).times(dot.at_level(1)).rescaled()
            mask = key.public.mask(values.size, os.urandom)
            opened = key.open_blinded(product.blind(mask))
            key.decrypt(key.public.encrypt_blinded(opened).unblind(mask, 1))
            best = min(best, time.process_time() - start)
        seconds[scheme] = best
    assert seconds["rounded"] < seconds["ckks"] / 20
