"""Secret linear maps from a shared 32-byte seed: random projections and secret rotations, by a ChaCha20 keystream.

Draw a fresh seed each round, and keep it from parties that see the output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import ArrayLike, NDArray

from coterie.crypto.packing import as_vector
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import CryptoError

SEED_BYTES = 32


def project(vector: ArrayLike, dim: int, seed: bytes) -> Doubles:
    """A random projection: ``(d,)`` to ``(dim,) float64``, ``R v / sqrt(dim)`` with random signs R of shape (dim, d).

    Squared distances are kept in expectation, with relative standard deviation at most sqrt(2 / dim) (D. Achlioptas,
    "Database-friendly random projections", 2003). Raises CryptoError for a bad dimension or seed.
    """
    values = as_vector(vector, kinds="fiu").astype(np.float64)
    if dim < 1:
        raise CryptoError(f"a projection to {dim} dimensions: take at least 1")
    octets = _keystream(seed, "project")
    signs_of_byte = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[None], axis=0, bitorder="little"), 1.0, -1.0)
    by_byte = [np.bincount(octets(values.size), weights=values, minlength=256) for _ in range(-(-dim // 8))]
    return np.asarray(np.concatenate([signs_of_byte @ sums for sums in by_byte])[:dim] / np.sqrt(dim))


def rotate(vector: ArrayLike, seed: bytes) -> Doubles:
    """A secret orthogonal map: ``(d,)`` to ``(d,) float64``, undone by ``unrotate``. Distances, norms and angles are
    kept, and hence seen.
    """
    return _rotated(vector, seed, direction=1)


def unrotate(vector: ArrayLike, seed: bytes) -> Doubles:
    """``(d,) float64``, to about 1e-15 of the norm."""
    return _rotated(vector, seed, direction=-1)


def _rotated(vector: ArrayLike, seed: bytes, direction: int) -> Doubles:
    values = as_vector(vector, kinds="fiu").astype(np.float64)
    length, octets = values.size, _keystream(seed, "rotate")
    size = 1 << (length.bit_length() - 1)
    first, last = slice(0, size), slice(length - size, length)
    bits = [np.unpackbits(octets(-(-length // 8)), count=length) for _ in range(4)]
    before, between, after, end = (np.where(row, 1.0, -1.0) for row in bits)
    # Signs and Hadamard transforms of the first and the last 2^k coordinates, for the largest 2^k <= d. Without the
    # last signs anyone could undo the public transform.
    for step in (before, first, between, last, after, first, end)[::direction]:
        if isinstance(step, slice):
            values[step] = hadamard(values[step])
        else:
            values *= step
    return values


def hadamard(values: Doubles) -> Doubles:
    """The orthonormal Walsh-Hadamard transform of 2^k values."""
    size, result, half = values.size, values.copy(), 1
    if size & (size - 1):
        raise CryptoError(f"a Hadamard transform takes a power of two values, not {size}")
    while half < size:
        pairs = result.reshape(-1, 2, half)  # a view: the butterflies are done in place
        upper = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = upper
        half *= 2
    return np.divide(result, np.sqrt(size), out=result)


def expanded(seed: bytes, purpose: str) -> Callable[[int], bytes]:
    """n -> the next n secret random bytes of a seed's stream. Raises CryptoError for a bad seed."""
    octets = _keystream(seed, purpose)
    return lambda count: octets(count).tobytes()


def _keystream(seed: bytes, purpose: str) -> Callable[[int], NDArray[np.uint8]]:
    if len(seed) != SEED_BYTES:
        raise CryptoError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    key = hashlib.sha256(b"coterie/sketch/" + purpose.encode() + b"/" + seed).digest()
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: np.frombuffer(encryptor.update(bytes(count)), dtype=np.uint8)
