"""The source of random numbers.

Experiments (partition, initial weights, sampling, delays) follow the seed. Secrets (keys, masks, shuffles, noise) come
from the operating system in real runs, from the seed in emulated ones. Draws from the seed also follow from party,
purpose, round and attempt. Real noise for privacy follows from a secret that the party keeps (``Party.kept``).
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

BLOCK = 1 << 14  # numbers at a time, so that the passes of one draw stay in the cache
_ZEROS = memoryview(bytes(8 * BLOCK))


def rng(seed: int, party: str, purpose: str, round: int = 0, attempt: int = 0) -> np.random.Generator:
    """By its arguments alone (Philox, keyed by a hash of them)."""
    text = f"{seed}\x1f{party}\x1f{purpose}\x1f{round}\x1f{attempt}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def keystream(key: bytes, count: int, start: bytes = bytes(16)) -> bytes:
    """``count`` bytes of AES in counter mode. key: 16 or 32 bytes.  start: the first counter block."""
    cipher = Cipher(AES(key), CTR(start)).encryptor()
    return b"".join(cipher.update(_ZEROS[: count - at]) for at in range(0, count, len(_ZEROS)))


@dataclass(frozen=True)
class Secrets:
    """A seeded generator, or the operating system's (None)."""

    generator: np.random.Generator | None

    def bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count) if self.generator is None else self.generator.bytes(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """(count,) independent numbers, uniform on (0, 1)."""
        return _uniform(np.frombuffer(self.bytes(8 * count), np.uint64))

    def normal(self, count: int) -> NDArray[np.float64]:
        """(count,) independent standard normal numbers (Box and Muller, 1958)."""
        drawn, normal = np.frombuffer(self.bytes(16 * count), np.uint64).reshape(2, count), np.empty(count)
        for at in range(0, count, BLOCK):
            u, angle = _uniform(drawn[:, at : at + BLOCK])
            np.log(u, out=u)
            u *= -2
            np.sqrt(u, out=u)
            angle *= 2 * np.pi
            np.multiply(u, np.cos(angle, out=angle), out=normal[at : at + BLOCK])
        return normal

    def permutation(self, count: int) -> NDArray[np.int64]:
        """A uniform permutation of ``range(count)``, (count,) int64."""
        order = np.arange(count, dtype=np.int64)
        (self.generator or secrets.SystemRandom()).shuffle(order)  # type: ignore[arg-type]
        return order


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = np.add(words >> np.uint64(11), 0.5, dtype=np.float64)
    numbers /= 2.0**53
    return numbers


class Derived(Secrets):
    """Secret randomness from a key alone, in the order of the calls: AES-256 in counter mode, by the SHA-256 of the
    key, the call and the count.

    key: SECRET, and of one use: equal ones give equal numbers.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(None)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_calls", itertools.count())

    def bytes(self, count: int) -> bytes:
        """Different for each call and count: fewer are no prefix of more."""
        call: int = next(self._calls)  # type: ignore[attr-defined]
        of = self._key + call.to_bytes(8, "little") + count.to_bytes(8, "little")  # type: ignore[attr-defined]
        return keystream(hashlib.sha256(of).digest(), count)

    def permutation(self, count: int) -> NDArray[np.int64]:
        return np.argsort(np.frombuffer(self.bytes(8 * count), "<u8"), kind="stable")

    def __repr__(self) -> str:
        return "<Derived>"


@dataclass(frozen=True)
class Randomness:
    """The parties' source. emulated: secrets follow the seed, too."""

    seed: int
    emulated: bool

    def rng(self, party: str, purpose: str, round: int = 0, attempt: int = 0) -> np.random.Generator:
        """Experimental, the same for real and emulated runs."""
        return rng(self.seed, party, purpose, round, attempt)

    def secrets(self, party: str, purpose: str, round: int = 0, attempt: int = 0) -> Secrets:
        return Secrets(self.rng(party, f"secret {purpose}", round, attempt) if self.emulated else None)
