"""The encrypted Fourier transform and energies against numpy's, within the stated error; constant scalars; misuse."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.crypto import ckks, fourier, residues
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks_parameters import INSECURE, PARAMETERS
from coterie.crypto.seal import ring
from coterie.crypto.stages import is_high, plan, radices
from coterie.crypto.tally import Form
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, KeyMismatchError

N = 1024
NAME = "insecure-1024-dft"
PAIRS = [ckks.keygen(NAME, allow_insecure=True, emulated=emulated) for emulated in (False, True)]
KEYS = {pair: pair.evaluation() for pair in PAIRS}
P = PAIRS[0].parameters
both = pytest.mark.parametrize("key", PAIRS, ids=["real", "emulated"])


def opened(key, cipher) -> float:
    return float(key.decrypt(cipher)[0])


# ---- the plan


@pytest.mark.parametrize("n", [8, 16, 32, 512, 8192])
def test_the_stages_are_numpys_transform(n):
    rng = np.random.default_rng(n)
    slots = rng.normal(size=(2, n)) + 1j * rng.normal(size=(2, n))
    want = np.fft.fft(slots, norm="ortho")
    for high in (False, True):
        made, found = plan(n, high), slots
        for stage in made.stages:
            found = stage.applied(found)
        expected = want[:, made.order] * (is_high(made.order, n) if high else 1)
        assert np.abs(found - expected).max() < 1e-13
        assert sorted(made.order.tolist()) == list(range(n))
    assert math.prod(radices(n)) == n


def test_a_stage_is_worth_its_diagonals():
    """Wrapping around, a stage of radix r has r diagonals, else 2 r - 1; two rotations serve each stage."""
    counts = [(stage.radix, len(stage.diagonals)) for stage in plan(8192).stages]
    assert counts == [(16, 16), (16, 31), (32, 63)]
    for name in ("threshold-16384-dft", NAME):
        parameters = (PARAMETERS | INSECURE)[name]
        assert parameters.steps == plan(parameters.degree // 2).steps
        assert math.prod(times + 1 for _, times in parameters.rotations) == parameters.degree // 2


def test_sizes_that_have_no_plan():
    for n in (0, 4, 12, 1000):
        with pytest.raises(CryptoError, match="power of two"):
            plan(n)


def test_which_frequencies_are_high():
    assert is_high(np.arange(8), 8).tolist() == [False, False, True, True, True, True, True, False]
    k = np.arange(512)
    assert (is_high(k, 512) == is_high(-k, 512)).all()


# ---- on plain numbers


def test_energies_are_those_of_two_real_blocks():
    """The mixed terms of even and odd values cancel: a block's energy is the sum of two real transforms' energies."""
    values = np.random.default_rng(0).normal(size=3000)
    high, total = fourier.energies(values, N)
    padded = np.pad(values, (0, 3 * N - 3000)).reshape(3, N)
    expected = 0.0
    for block in padded:
        for part in (block[0::2], block[1::2]):
            power = np.abs(np.fft.fft(part)) ** 2 / len(part)
            expected += power[is_high(np.arange(len(part)), len(part))].sum()
    assert high == pytest.approx(expected, rel=1e-12)
    assert total == pytest.approx(values @ values, rel=1e-12)


def test_energies_of_pure_tones():
    j = np.arange(N // 2)
    for k, kept in ((0, 0.0), (100, 0.0), (128, 1.0), (200, 1.0), (256, 1.0)):
        values = np.zeros(N)
        values[0::2] = np.cos(2 * np.pi * k * j / (N // 2))
        high, total = fourier.energies(values, N)
        assert high / total == pytest.approx(kept, abs=1e-12)


# ---- under encryption


@settings(max_examples=12)
@given(
    st.sampled_from(PAIRS),
    st.one_of(st.sampled_from([1, 2, N - 1, N, N + 1, 3000]), st.integers(1, 4000)),
    st.sampled_from([0.01, 0.3, 2.0]),
    st.integers(0, 2**32),
)
def test_encrypted_energies_equal_plain_ones(key, length, size, seed):
    values = np.clip(np.random.default_rng(seed).normal(size=length) * size, -8, 8)
    cipher, keys = key.public.encrypt(values), KEYS[key]
    high, total = fourier.energies(values, N)
    norm = math.sqrt(total)
    found = fourier.energy(fourier.dft(cipher, keys, high=True), keys)
    assert (found.tally.form, found.length) == (Form(1, scalar=True, constant=True), 1)
    assert abs(opened(key, found) - high) < fourier.error(P, norm, length)
    assert abs(opened(key, fourier.energy(fourier.dft(cipher, keys), keys)) - total) < fourier.error(P, norm, length)
    direct = opened(key, fourier.energy(cipher, keys))
    assert abs(direct - total) < fourier.error(P, norm, length, transformed=False)


@both
def test_the_spectrum_itself(key):
    values = np.random.default_rng(1).normal(size=2500)
    found = fourier.dft(key.public.encrypt(values), KEYS[key])
    assert (found.length, found.tally.form) == (3 * N, Form(2))
    slots = key.decrypt(found).view(np.complex128).reshape(3, N // 2)
    want = fourier.transformed(values, N)[:, plan(N // 2).order]
    assert np.abs(slots - want).max() < 1e-10
    both_sums = fourier.dft(key.public.encrypt(values), KEYS[key]) + found  # a form like any other
    assert np.abs(key.decrypt(both_sums) - 2 * np.ascontiguousarray(want).view(np.float64).ravel()).max() < 1e-10


@both
def test_distances_and_dot_products(key):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 2000)) * 0.1
    x, y = key.public.encrypt(a), key.public.encrypt(b, level=3)
    keys = KEYS[key]
    assert opened(key, fourier.energy(x.add_plain(-b), keys)) == pytest.approx(((a - b) ** 2).sum(), abs=1e-8)
    found = fourier.inner(x, y, keys, at_most=100)
    assert found.tally.form.level == 1
    assert opened(key, found) == pytest.approx(a @ b, abs=1e-8)
    assert opened(key, found + found.scale(2)) == pytest.approx(3 * (a @ b), abs=1e-8)
    back = key.public.from_bytes(found.to_bytes(), 1, form=found.tally.form)
    assert opened(key, back) == pytest.approx(a @ b, abs=1e-8)


def test_the_stated_error_is_a_bound_and_not_a_wild_one():
    values = np.random.default_rng(3).normal(size=3000)
    high, total = fourier.energies(values, N)
    for key in PAIRS:
        off = []
        for _ in range(5):
            cipher = fourier.energy(fourier.dft(key.public.encrypt(values), KEYS[key], high=True), KEYS[key])
            off.append(abs(opened(key, cipher) - high))
        stated = fourier.error(P, math.sqrt(total), 3000)
        assert stated / 1e5 < max(off) < stated


# ---- the constant coefficient


def test_constant_coefficients_from_ntt_form():
    made = ring(P)
    coefficients = np.random.default_rng(4).integers(-(2**30), 2**30, (3, N))
    numbers = made.transformed(coefficients, 1)
    moduli = made.moduli_at(1)
    found = residues.constant(numbers, moduli)
    assert found.shape == (3, 2)
    assert [residues.centred(row, moduli) for row in found] == coefficients[:, 0].tolist()


def test_only_the_constant_coefficient_is_opened():
    """Whatever the other coefficients hold: they may hide what nobody must see."""
    key = PAIRS[0]
    cipher = key.public.encrypt(np.full(10, 0.5))
    scalar = fourier.energy(cipher, KEYS[key])
    junk = np.random.default_rng(5).integers(-(2**40), 2**40, (1, N))
    junk[0, 0] = 0
    spoilt = scalar.array.copy()
    moduli = key.public.arrays.ring.moduli_at(1)
    spoilt[:, 0] = residues.add(spoilt[:, 0], key.public.arrays.ring.transformed(junk, 1), moduli)
    assert opened(key, replace(scalar, array=spoilt)) == opened(key, scalar) == pytest.approx(2.5, abs=1e-9)


def test_a_constant_opens_from_shares_of_one_integer_each():
    """What a threshold key does: each holder of a share of s gives one integer modulo each prime."""
    key = PAIRS[0]
    values = np.random.default_rng(6).normal(size=500)
    scalar = fourier.energy(key.public.encrypt(values), KEYS[key])
    made = key.public.arrays.ring
    moduli = made.moduli_at(1)
    secret = key.arrays.secret[: len(moduli)]
    primes = moduli[:, 0].tolist()
    first = np.stack([np.random.default_rng(7).integers(0, q, N, dtype=np.uint64) for q in primes])
    second = residues.add(secret[None], moduli - first[None], moduli)[0]
    c0, c1 = scalar.array[0]

    def part(share):
        product = [
            [int(x) * int(y) % q for x, y in zip(a, b, strict=True)] for a, b, q in zip(c1, share, primes, strict=True)
        ]
        return residues.constant(np.array(product, dtype=np.uint64), moduli)

    total = [
        sum(map(int, row)) % q
        for *row, q in zip(residues.constant(c0, moduli), part(first), part(second), primes, strict=True)
    ]
    number = residues.centred(np.array(total, dtype=np.uint64), moduli)
    assert number / made.scale(Form(1, scalar=True, constant=True)) == pytest.approx(values @ values, abs=1e-8)


# ---- misuse


@both
def test_misuse(key):
    keys, vector = KEYS[key], key.public.encrypt(np.ones(10))
    scalar = fourier.energy(vector, keys)
    other = next(pair for pair in PAIRS if pair is not key)
    stranger = ckks.keygen(NAME, allow_insecure=True, emulated=key.emulated)
    for action, error, words in (
        (lambda: fourier.dft(vector.at_level(3), keys), CapacityError, "3 levels"),
        (lambda: fourier.dft(key.public.encrypt_scalar(0.5), keys), CryptoError, "plain vector"),
        (lambda: fourier.dft(scalar, keys), CryptoError, "plain vector"),
        (lambda: fourier.dft(vector, KEYS[other]), KeyMismatchError, "evaluation key"),
        (lambda: fourier.dft(vector, stranger.evaluation()), KeyMismatchError, "doesn't fit"),
        (lambda: fourier.inner(vector, key.public.encrypt(np.ones(9)), keys), CryptoError, "no dot product"),
        (lambda: fourier.energy(vector.at_level(1), keys), CapacityError, "no level"),
        (lambda: fourier.energy(vector, keys, at_most=0), CryptoError, "at least 1"),
        (lambda: scalar.add_plain([1.0]), CryptoError, "no known values"),
        (lambda: vector.at_level(2).times(scalar), CryptoError, "encrypt_scalar"),
        (lambda: scalar.times(key.public.encrypt_scalar(0.5, level=1)), CryptoError, "encrypt_scalar"),
        (lambda: scalar + key.public.encrypt_scalar(0.5, level=1), CryptoError, "one form"),
        (lambda: vector.times(key.public.encrypt_scalar(0.5)), CryptoError, "dot products only"),
        (lambda: vector.dot(vector.conjugated(keys), keys), CryptoError, "constant ones"),
    ):
        with pytest.raises(error, match=words):
            action()


def test_a_set_without_rotations_has_constant_dot_products_only():
    parameters = replace(P, name="turns", steps=())
    assert parameters.elements == (2 * N - 1,)
    deep = ckks.keygen("insecure-1024-deep", allow_insecure=True)
    with pytest.raises(CryptoError, match="no keys for the steps"):
        fourier.dft(deep.public.encrypt(np.ones(5)), deep.evaluation())


@both
def test_more_than_an_honest_energy_is_noticed(key):
    """16,384 values of 8 have an energy of 2^20; a forged vector's is larger than what was told to be possible."""
    cipher = key.public.encrypt(np.full(3000, 8.0), level=2)
    assert opened(key, fourier.energy(cipher, KEYS[key])) == pytest.approx(192_000, rel=1e-9)
    with pytest.raises(CiphertextError, match="damaged or forged"):
        key.decrypt(fourier.energy(cipher, KEYS[key], at_most=100_000))
    huge = cipher.scale(4096)  # beyond what the twin's integers hold
    with pytest.raises(CiphertextError, match="damaged or forged"):
        key.decrypt(fourier.energy(huge, KEYS[key]))


@both
def test_kinds_of_vectors_on_the_wire(key):
    data = bytearray(bytes(fourier.energy(key.public.encrypt(np.ones(4)), KEYS[key]).to_bytes()))
    if key.emulated:
        return  # a weight stands around it; the header is the same code
    data[7] = 3
    with pytest.raises(DecodeError, match="no ciphertext vector"):
        key.public.from_bytes(bytes(data))


def test_the_set_for_transforms():
    """128 bits: at most 438 bits of primes at N = 16384. What is opened has a modulus of 120 bits."""
    chosen = PARAMETERS["threshold-16384-dft"]
    assert sum(chosen.prime_bits) == 420
    assert (chosen.levels, chosen.lowest, chosen.scale(Form(1))) == (5, 1, 2.0**72)
    assert chosen.scale(Form(1, scalar=True, constant=True)) == 2.0 ** (2 * 72 - 60 - 13)
    assert fourier.error(chosen, 20.0, 178_110) < 1e-8
    assert 2 < fourier.nominal_seconds(chosen, 178_110) < 10


@pytest.mark.long
def test_one_leaders_model_takes_ten_seconds_at_most():
    key = ckks.keygen("threshold-16384-dft")
    keys, values = key.evaluation(), np.random.default_rng(8).normal(size=178_110) * 0.05
    cipher = key.public.encrypt(values)
    start = time.process_time()
    found = fourier.energy(fourier.dft(cipher, keys, high=True), keys)
    assert time.process_time() - start < 10
    high, total = fourier.energies(values)
    assert abs(opened(key, found) - high) < fourier.error(key.parameters, math.sqrt(total), values.size)


@both
def test_vectors_of_a_steady_set_keep_their_scale(key):
    values = np.linspace(-60, 60, 1500)
    cipher = key.public.encrypt(values)
    for made, factor in (
        (cipher.at_level(2), 1.0),
        (cipher.times_plain(0.3), 0.3),
        (cipher.times_plain(-1.5).times_plain(2.0).at_level(1), -3.0),
    ):
        assert np.abs(key.decrypt(made) - factor * values).max() < 1e-10
        total = made.scale(3) + key.public.encrypt(values, made.tally.form.level)
        assert np.abs(key.decrypt(total) - (3 * factor + 1) * values).max() < 1e-10
