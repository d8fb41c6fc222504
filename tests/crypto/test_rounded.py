"""The emulated twin of CKKS: the same sizes, refusals and bounds, and noise of the same size that repeats."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from emulated import rounded
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import ckks, sum_ciphers
from coterie.protocol.codec import weighs
from coterie.protocol.errors import CoterieError, CryptoError

N = 1024
NAMES = ["insecure-1024-add", "insecure-1024-mul"]
TWINS = {name: (ckks.keygen(name, allow_insecure=True), rounded.keygen(name, allow_insecure=True)) for name in NAMES}


def attempt(action):
    """What happens: ("ok", result), or the kind of error and its words without the key's name."""
    try:
        return "ok", action()
    except CoterieError as error:
        return type(error), str(error)


def program(key, steps, values, rng):
    """Random operations, those that are refused left out: (refusals, tally, bytes on the wire, result)."""
    cipher, fate = key.public.encrypt(values[0]), []
    for step, factor in steps:
        other = values[int(rng.integers(len(values)))]
        action = {
            "add": partial(lambda c, o: c + key.public.encrypt(o), cipher, other),
            "own": partial(lambda c, o: c + key.encrypt(o), cipher, other),
            "plain": partial(cipher.add_plain, other),
            "double": partial(lambda c: c + c, cipher),
            "scale": partial(cipher.scale, factor),
            "times": partial(lambda c, f: c.times(key.public.encrypt_scalar(f - 4.5, at_most=4)), cipher, factor % 9),
            "rescale": cipher.rescaled,
            "wire": partial(lambda c: key.public.from_bytes(c.to_bytes(), c.length, terms=c.terms), cipher),
        }[step]
        kind, result = attempt(action)
        fate.append(kind if kind == "ok" else (kind, result))
        cipher = result if kind == "ok" else cipher
    return fate, cipher, weighs(cipher.to_bytes()), key.decrypt(cipher)


def predict(steps, fate, values, rng):
    """The same operations on plain numbers."""
    state = values[0]
    for (step, factor), kind in zip(steps, fate, strict=True):
        other = values[int(rng.integers(len(values)))]
        if kind == "ok":
            state = {
                "add": state + other,
                "own": state + other,
                "plain": state + other,
                "double": 2 * state,
                "scale": factor * state,
                "times": (factor % 9 - 4.5) * state,
            }.get(step, state)
    return state


STEPS = ["add", "own", "plain", "double", "scale", "times", "rescale", "wire"]


@given(
    st.sampled_from(NAMES),
    st.one_of(st.sampled_from([1, N, N + 1]), st.integers(1, 1500)),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 30)), max_size=8),
    st.integers(0, 2**32),
)
def test_any_program_of_operations(name, length, steps, seed):
    """Real, twin and plain numbers agree, each within the stated bound; refusals, tallies and sizes are the same."""
    values = np.random.default_rng(seed).uniform(-64, 64, (3, length))
    values[0, 0] = 64.0
    results = [program(key, steps, values, np.random.default_rng(seed)) for key in TWINS[name]]
    (fate, cipher, size, real), (twin_fate, twin, twin_size, emulated) = results
    assert fate == twin_fate
    assert size == twin_size
    assert (cipher.terms, cipher.tally.form, cipher.length) == (twin.terms, twin.tally.form, twin.length)
    expected = predict(steps, fate, values, np.random.default_rng(seed))
    bound = TWINS[name][0].parameters.error(cipher.terms, cipher.tally.form)
    assert np.abs(real - expected).max() < bound
    assert np.abs(emulated - expected).max() < bound


@pytest.mark.parametrize("name", ["ckks-4096-add", "ckks-8192-mul"])
def test_the_noise_has_the_real_one_s_size(name):
    values = np.random.default_rng(0).normal(0, 0.1, 60_000)
    deviations = []
    for key in (ckks.keygen(name), rounded.keygen(name)):
        made = [key.public.encrypt(values), key.encrypt(values)]
        made.append(sum_ciphers([key.public.encrypt(values + i) for i in range(4)]).add_plain(-3 * values - 6))
        if key.parameters.levels:
            made.append(key.public.encrypt(values).times(key.encrypt_scalar(1.0)).rescaled())
        deviations.append([(key.decrypt(cipher) - values).std() for cipher in made])
    np.testing.assert_allclose(deviations[1], deviations[0], rtol=0.08)
    public, symmetric, four = deviations[0][:3]
    assert symmetric < public / 3
    assert four == pytest.approx(2 * public, rel=0.08)


def test_it_is_labelled_and_repeats():
    draw = np.random.default_rng(3).bytes
    a = rounded.keygen("ckks-8192-mul", random_bytes=draw)
    b = rounded.keygen("ckks-8192-mul", random_bytes=np.random.default_rng(3).bytes)
    c = rounded.keygen("ckks-8192-mul", random_bytes=draw)
    assert a == b
    assert a != c
    assert a.emulated
    assert a.public.emulated
    assert a.public.encrypt([1.0]).emulated
    assert a.scheme == a.public.scheme == "rounded"
    values, scalar = [np.linspace(-1, 1, 3000), np.linspace(0, 2, 3000)], a.encrypt_scalar(0.5)
    forth = [a.public.encrypt(v).times(scalar).to_bytes() for v in values]
    back = [b.public.encrypt(v).times(b.encrypt_scalar(0.5)).to_bytes() for v in reversed(values)]
    assert forth == back[::-1]
    assert c.public.encrypt(values[0]).to_bytes()[40:] != a.public.encrypt(values[0]).to_bytes()[40:]
    assert a.public.encrypt(values[0]).to_bytes() != a.encrypt(values[0]).to_bytes()
    assert a.public.encrypt(values[0].astype(np.float32)).to_bytes() != a.public.encrypt(values[0]).to_bytes()
    with pytest.raises(CryptoError, match="randomness"):
        rounded.keygen("ckks-4096-add", random_bytes=lambda n: b"short")


def test_sums_do_not_depend_on_their_order():
    key = rounded.keygen("ckks-4096-add")
    ciphers = [key.public.encrypt(np.random.default_rng(i).normal(0, 10.0 ** (i % 7 - 5), 2000)) for i in range(40)]
    totals = {sum_ciphers([ciphers[i] for i in np.random.default_rng(s).permutation(40)]).to_bytes() for s in range(5)}
    assert len(totals) == 1


def test_sizes_and_times_are_the_real_one_s():
    for real, twin in TWINS.values():
        for length in (1, N, N + 1, 5000):
            assert twin.public.wire_bytes(length) == real.public.wire_bytes(length)
            assert weighs(twin.public.encrypt(np.zeros(length)).to_bytes()) == real.public.wire_bytes(length)
            for name in ("nominal_seconds_encrypt", "nominal_seconds_times", "nominal_seconds_rescale"):
                assert getattr(twin.public, name)(length) == getattr(real.public, name)(length)
            for name in ("nominal_seconds_encrypt", "nominal_seconds_decrypt"):
                assert getattr(twin, name)(length) == getattr(real, name)(length)
        assert weighs(twin.to_bytes()) == len(real.to_bytes())
        assert weighs(twin.public.to_bytes()) == len(real.public.to_bytes())
        assert weighs(twin.encrypt_scalar(1.0).to_bytes()) == len(real.encrypt_scalar(1.0).to_bytes())
