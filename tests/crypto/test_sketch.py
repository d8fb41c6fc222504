"""Projections and rotations against explicit matrices, and what a rotation must not show."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import paillier
from coterie.crypto.sketch import expanded, hadamard, project, rotate, unrotate
from coterie.protocol.errors import CryptoError

SEED = bytes(range(32))


def keystream(purpose, size):
    key = hashlib.sha256(b"coterie/sketch/" + purpose + b"/" + SEED).digest()
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


@pytest.mark.parametrize(("length", "dim"), [(1, 1), (5, 3), (300, 16), (77, 21)])
def test_the_projection_is_its_explicit_matrix(length, dim):
    groups = -(-dim // 8)
    octets = np.frombuffer(keystream(b"project", groups * length), dtype=np.uint8).reshape(groups, length)
    bits = [[octets[row // 8, i] >> (row % 8) & 1 for i in range(length)] for row in range(dim)]
    matrix = 2.0 * np.array(bits) - 1
    vector = np.random.default_rng(0).normal(size=length)
    assert np.allclose(project(vector, dim, SEED), matrix @ vector / np.sqrt(dim), atol=1e-12)


def test_the_projection_keeps_distances():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 2000))
    ratios = [
        np.sum((project(a, 32, seed) - project(b, 32, seed)) ** 2) / np.sum((a - b) ** 2)
        for seed in (i.to_bytes(32, "big") for i in range(200))
    ]
    assert abs(np.mean(ratios) - 1) < 0.1  # 1 within 5.6 standard errors of sqrt(2/32/200)
    assert 0.15 < np.std(ratios) < 0.35  # sqrt(2/32) = .25


def test_the_projection_is_linear_under_encryption():
    key = paillier.keygen(512, allow_insecure=True)
    models = np.random.default_rng(2).normal(0, 0.1, (3, 500))
    ciphers = [key.public.encrypt(project(model, 8, SEED)) for model in models]
    mean = key.decrypt(ciphers[0] + ciphers[1] + ciphers[2]) / 3
    assert np.abs(mean - project(models.mean(axis=0), 8, SEED)).max() <= 2**-17


def test_seeds_matter_and_repeat():
    vector = np.arange(50.0)
    for transform in (lambda v, s: project(v, 16, s), rotate):
        assert np.array_equal(transform(vector, SEED), transform(vector, SEED))
        assert not np.allclose(transform(vector, SEED), transform(vector, bytes(32)))


def naive_hadamard(size):
    return np.array([[(-1) ** bin(i & j).count("1") for j in range(size)] for i in range(size)]) / np.sqrt(size)


@pytest.mark.parametrize("size", [1, 2, 4, 64])
def test_hadamard_is_its_explicit_matrix(size):
    vector = np.random.default_rng(3).normal(size=size)
    assert np.allclose(hadamard(vector), naive_hadamard(size) @ vector, atol=1e-12)
    with pytest.raises(CryptoError):
        hadamard(np.zeros(3 * size))


@pytest.mark.parametrize("length", [1, 2, 3, 6, 13, 64])
def test_the_rotation_is_its_explicit_matrix(length):
    size = 2 ** int(np.log2(length))
    first, last = np.eye(length), np.eye(length)
    first[:size, :size] = last[-size:, -size:] = naive_hadamard(size)
    octets = -(-length // 8)
    stream = keystream(b"rotate", 4 * octets)
    bits = [np.unpackbits(np.frombuffer(stream[i * octets : (i + 1) * octets], np.uint8))[:length] for i in range(4)]
    a, b, c, d = (np.diag(2.0 * bit - 1) for bit in bits)
    matrix = d @ first @ c @ last @ b @ first @ a
    assert np.allclose(matrix @ matrix.T, np.eye(length), atol=1e-12)
    vector = np.random.default_rng(4).normal(size=length)
    assert np.allclose(rotate(vector, SEED), matrix @ vector, atol=1e-12)


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_rotation_is_undone_and_commutes_with_means(length, number):
    rng = np.random.default_rng(number)
    models, seed = rng.normal(size=(3, length)), rng.bytes(32)
    rotated = np.array([rotate(model, seed) for model in models])
    assert rotated.shape == models.shape
    assert np.abs(unrotate(rotated.mean(axis=0), seed) - models.mean(axis=0)).max() < 1e-9
    assert np.allclose(np.linalg.norm(rotated[0] - rotated[1]), np.linalg.norm(models[0] - models[1]))


def test_the_size_of_a_model():
    model = np.random.default_rng(5).normal(0, 0.1, 178_110).astype(np.float32)
    rotated = rotate(model, SEED)
    assert np.abs(unrotate(rotated, SEED) - model).max() < 1e-9
    assert abs(np.corrcoef(rotated, model)[0, 1]) < 0.02
    assert np.abs(rotated).max() < 1  # about normal with the model's root mean square, .1


@pytest.mark.parametrize(("length", "spikes"), [(1024, 0), (1024, 1014), (1500, 0), (1500, 1490), (1025, 1015)])
def test_undoing_the_public_transforms_shows_nothing(length, spikes):
    """Without secret signs around them, the public Hadamard transforms could be undone."""
    spiky = np.zeros(length)
    spiky[spikes : spikes + 10] = np.arange(10, 20.0)
    undone = rotate(spiky, np.random.default_rng(length + spikes).bytes(32))
    for block in (slice(0, 1024), slice(length - 1024, length), slice(0, 1024)):
        assert np.abs(undone).max() < 9  # a spike of 10 to 19 would stand out; the root mean square is at most 1.5
        undone[block] = hadamard(undone[block])
    assert np.abs(undone).max() < 9


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_bad_seeds_and_dimensions(seed):
    for transform in (lambda v: project(v, 4, seed), lambda v: rotate(v, seed), lambda v: unrotate(v, seed)):
        with pytest.raises(CryptoError, match="32 bytes"):
            transform(np.ones(4))
    with pytest.raises(CryptoError):
        project(np.ones(4), 0, SEED)
    with pytest.raises(CryptoError):
        rotate(np.ones((2, 2)), SEED)


def test_a_seed_expands_to_a_stream_for_each_purpose() -> None:
    """Equal for equal seeds and purposes however it is read, and another for others."""
    one, again = expanded(SEED, "mask"), expanded(SEED, "mask")
    assert one(7) + one(9) == again(16)
    others = [expanded(SEED, "other"), expanded(bytes(31) + b"1", "mask")]
    assert len({expanded(SEED, "mask")(32), *(other(32) for other in others)}) == 3
    with pytest.raises(CryptoError, match="a seed has 32 bytes"):
        expanded(b"short", "mask")
