"""Noise that follows from a secret which the party keeps: what is released again after a stop is released once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy.stats import kstest
from torch import nn

import coterie.method as fl
from coterie.baselines.haccs import Client, Describe, HaccsConfig
from coterie.crypto.roster import new_identity, simulated
from coterie.protocol.randomness import BLOCK
from coterie.protocols.sparsity import Noise, describe
from coterie.training.model import Model

REAL = fl.Randomness(0, False)
IDENTITY = new_identity("c", REAL)
NOISE = Noise(0.3, 1.0, np.full(4, 0.5, np.float32))


class Device(fl.Party, role="client"):
    """Only what ``describe`` needs."""


def device(name: str = "c", identity: Any = IDENTITY, randomness: fl.Randomness = REAL) -> Device:
    return Device(fl.Own(name, randomness, identity))


def drawn(party: fl.Party, purpose: str = "noise", of: bytes = b"values", round: int = 1) -> bytes:
    return party.kept(purpose, of, round).bytes(32)


def test_the_same_values_get_the_same_noise_and_all_else_gets_another() -> None:
    assert drawn(device()) == drawn(device())
    others = [
        drawn(device(), of=b"other values"),
        drawn(device(), round=2),
        drawn(device(), purpose="other noise"),
        drawn(device("d")),
        drawn(device(identity=new_identity("c", REAL))),
        drawn(device(), purpose="noisev", of=b"alues"),
        device().kept("noise", b"values", 1).bytes(64)[32:],
    ]
    assert len({drawn(device()), *others}) == 1 + len(others)


def test_without_an_identity_noise_is_the_operating_systems() -> None:
    bare = device(identity=None)
    assert drawn(bare) != drawn(bare)


def test_in_emulated_runs_noise_follows_seed_purpose_and_round() -> None:
    one = device(randomness=fl.Randomness(5, True))
    assert drawn(one) == one.secrets("noise", 1).bytes(32) == drawn(one, of=b"other values")


def test_a_stream_gives_normal_numbers_and_permutations_and_shows_no_key() -> None:
    source = fl.Derived(b"k" * 32)
    assert kstest(source.normal(20_000), "norm").pvalue > 0.01
    first, second = source.permutation(50), source.permutation(50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second)
    assert np.array_equal(fl.Derived(b"k" * 32).permutation(50), fl.Derived(b"k" * 32).permutation(50))
    assert not fl.Derived(b"k" * 32).bytes(64).startswith(fl.Derived(b"k" * 32).bytes(32))
    assert "k" * 8 not in repr(source)


def test_a_stream_is_aes_in_counter_mode_and_normal_numbers_are_box_and_mullers() -> None:
    """Frozen: a party that is started again must draw the noise that it drew before."""
    count = 2 * BLOCK + 3
    of = b"key" + bytes(8) + (16 * count).to_bytes(8, "little")
    block = Cipher(AES256(hashlib.sha256(of).digest()), ECB()).encryptor()
    stream = block.update(b"".join(at.to_bytes(16, "big") for at in range(count)))
    assert fl.Derived(b"key").bytes(16 * count) == stream
    u, angle = ((np.frombuffer(stream, "<u8") >> 11) + 0.5).reshape(2, count) / 2**53
    expected = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * angle)
    assert fl.Derived(b"key").normal(count) == pytest.approx(expected, abs=1e-12)


def described(party: fl.Party, x: np.ndarray, noise: Noise, round: int = 1) -> np.ndarray:
    model = Model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,))
    weights = np.zeros(model.spec.size, np.float32)
    weights[:16] = np.eye(4, dtype=np.float32).ravel()
    work = describe(party, weights, "1", round=round, noise=noise)
    effect = next(work)
    assert isinstance(effect, fl.Local)
    found = effect.registered(fl.OwnData(x, np.zeros(len(x), np.int64), model), *effect.arguments)
    with pytest.raises(StopIteration) as stopped:
        work.send(found)
    return np.asarray(stopped.value.value.vector)


def test_a_device_that_describes_its_data_again_after_a_stop_sends_the_same_vector() -> None:
    """It was killed and made again from what it was before: nobody has two vectors with independent noise."""
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    before, after = (described(device(), x, NOISE) for _ in range(2))
    assert np.array_equal(before, after)
    assert not np.array_equal(before, described(device(identity=None), x, NOISE))


def test_noise_is_never_used_for_other_values_or_scales() -> None:
    """A hub that asks again with another clip would else compute the noise from two vectors and subtract it."""
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    clean = described(device(), x, replace(NOISE, multiplier=1e-9))
    first = described(device(), x, NOISE) - clean
    louder = described(device(), x, replace(NOISE, multiplier=2.0)) - clean
    assert not np.allclose(louder, 2 * first, rtol=0.05)
    x[0] *= -1
    moved = described(device(), x, NOISE) - described(device(), x, replace(NOISE, multiplier=1e-9))
    assert not np.allclose(moved, first, rtol=0.05)


def test_a_client_of_haccs_sends_the_same_histogram_again_after_a_stop() -> None:
    model = Model(nn.Sequential(nn.Linear(4, 3)), (4,))
    starts = np.zeros((1, model.spec.size), np.float32)

    def histogram(identity: Any) -> np.ndarray:
        roster, _ = simulated({"server": "server", "c": "client"}, fl.Randomness(0, True))
        common = fl.Common(roster, ("c",), model.spec, starts, "paper", False)
        client = Client(fl.Own("c", REAL, identity, samples=30), common, HaccsConfig(epsilon=0.1))
        work = client.describe(Describe(1), "server")
        effect = next(work)
        while True:
            try:
                effect = work.send(np.array([20, 5, 5]) if effect.name == "label histogram" else 1.0)
            except StopIteration as stopped:
                return np.asarray(stopped.value.counts)

    assert np.array_equal(histogram(IDENTITY), histogram(IDENTITY))
    assert not all(np.array_equal(histogram(None), histogram(None)) for _ in range(5))
