"""Encrypted energies against numpy's Fourier transform, within the stated error; constant scalars; misuse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.crypto import ckks, fourier, residues
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks_parameters import PARAMETERS
from coterie.crypto.seal import ring
from coterie.crypto.tally import Form
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, KeyMismatchError

N = 1024
NAME = "insecure-1024-high"
PAIRS = [ckks.keygen(NAME, allow_insecure=True, emulated=emulated) for emulated in (False, True)]
KEYS = {pair: pair.evaluation() for pair in PAIRS}
P = PAIRS[0].parameters
both = pytest.mark.parametrize("key", PAIRS, ids=["real", "emulated"])


def opened(key, cipher) -> float:
    return float(key.decrypt(cipher)[0])


# ---- on plain numbers


def spectrum(values):
    """(blocks, n) energies by frequency k + 1/2, and the frequencies that are high."""
    blocks = np.pad(values, (0, -len(values) % N)).view(np.complex128).reshape(-1, N // 2)
    half = np.exp(-1j * np.pi * np.arange(N // 2) / (N // 2))
    at = np.arange(N // 2) + 0.5
    return np.abs(np.fft.fft(blocks * half, norm="ortho")) ** 2, (at >= N / 8) & (at < 3 * N / 8)


def test_energies_are_those_of_the_spectrum():
    values = np.random.default_rng(0).normal(size=3000)
    high, total = fourier.energies(values, N)
    power, kept = spectrum(values)
    assert total == pytest.approx(power.sum(), rel=1e-12)
    assert high == pytest.approx(power[:, kept].sum(), rel=0.01)  # whose taps have eight bits


def test_exact_taps_are_the_projection_on_high_frequencies():
    """What the taps are rounded from, by numpy's transform instead of by a closed form."""
    kept = spectrum(np.zeros(N))[1]
    m, k = np.arange(N // 2), np.flatnonzero(kept) + 0.5
    exact = np.cos(2 * np.pi * np.outer(m, k) / (N // 2)).sum(axis=1) / (N // 2)
    taps = fourier.taps(N)
    assert np.abs(taps[0::2] - fourier.TAPS * exact).max() <= 0.5 + 1e-9
    assert not taps[1::2].any()


def test_energies_of_pure_tones():
    j = np.arange(N // 2)
    for k, kept in ((0, 0.0), (60, 0.0), (110, 0.0), (150, 1.0), (200, 1.0), (255, 1.0)):
        values = np.zeros(N)
        values[0::2] = np.cos(2 * np.pi * (k + 0.5) * j / (N // 2))
        high, total = fourier.energies(values, N)
        assert high / total == pytest.approx(kept, abs=0.05)


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
    found = fourier.high_energy(cipher, keys)
    assert (found.tally.form, found.length) == (Form(1, scalar=True, constant=True), 1)
    assert abs(opened(key, found) / fourier.TAPS - high) < fourier.error(P, norm, length)
    assert abs(opened(key, fourier.energy(cipher, keys)) - total) < fourier.error(P, norm, length)


@both
def test_distances_and_dot_products(key):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 2000)) * 0.1
    x, y = key.public.encrypt(a), key.public.encrypt(b)
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
            cipher = fourier.high_energy(key.public.encrypt(values), KEYS[key])
            off.append(abs(opened(key, cipher) / fourier.TAPS - high))
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
        (lambda: fourier.energy(vector, KEYS[other]), KeyMismatchError, "evaluation key"),
        (lambda: fourier.high_energy(vector, stranger.evaluation()), KeyMismatchError, "doesn't fit"),
        (lambda: fourier.inner(vector, key.public.encrypt(np.ones(9)), keys), CryptoError, "no dot product"),
        (lambda: fourier.energy(vector.at_level(1), keys), CapacityError, "no level"),
        (lambda: fourier.energy(vector, keys, at_most=0), CryptoError, "at least 1"),
        (lambda: scalar.add_plain([1.0]), CryptoError, "no known values"),
        (lambda: scalar.times(key.public.encrypt_scalar(0.5, level=1)), CryptoError, "encrypt_scalar"),
        (lambda: scalar + key.public.encrypt_scalar(0.5, level=1), CryptoError, "one form"),
        (lambda: vector.dot(vector.conjugated(keys), keys), CryptoError, "constant ones"),
    ):
        with pytest.raises(error, match=words):
            action()


def test_a_set_without_rotations_has_constant_dot_products_only():
    assert (P.rotations, P.elements) == ((), (2 * N - 1,))


@both
def test_more_than_an_honest_energy_is_noticed(key):
    """16,384 values of 8 have an energy of 2^20; a forged vector's is larger than what was told to be possible."""
    cipher = key.public.encrypt(np.full(3000, 8.0))
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


def test_the_set_for_filters():
    """128 bits: at most 218 bits of primes at N = 8192. What is opened has a modulus of 98 bits."""
    chosen = PARAMETERS["threshold-8192-high"]
    assert sum(chosen.prime_bits) == 218
    assert (chosen.levels, chosen.lowest) == (2, 1)
    assert chosen.scale(Form(1, scalar=True, constant=True)) == 2.0 ** (2 * 66 - 60 - 12)
    assert fourier.error(chosen, 20.0, 178_110) < 1e-6


def test_a_large_model_by_the_secure_set():
    key = ckks.keygen("threshold-8192-high")
    values = np.random.default_rng(8).normal(size=20_000) * 0.05
    found = fourier.high_energy(key.public.encrypt(values), key.evaluation())
    high, total = fourier.energies(values)
    assert abs(opened(key, found) / fourier.TAPS - high) < fourier.error(key.parameters, math.sqrt(total), values.size)
