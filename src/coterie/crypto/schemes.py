"""Real or emulated: which of the two twins a key belongs to, and live keys from their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from coterie.crypto import exact, paillier
from coterie.crypto.packing import Lanes
from coterie.crypto.vector import PublicKeyLike, RandomBytes, SecretKeyLike
from coterie.crypto.wire import scheme_of_key


def paillier_keygen(
    bits: int, lanes: Lanes, randomness: Literal["short", "full"], *, emulated: bool, random_bytes: RandomBytes
) -> SecretKeyLike:
    """A Paillier key pair, or its emulated twin. Real keys come from the operating system's randomness only."""
    if emulated:
        return exact.keygen(bits, lanes, randomness=randomness, random_bytes=random_bytes)
    return paillier.keygen(bits, lanes, randomness=randomness)


@lru_cache(maxsize=64)
def public_key(data: bytes) -> PublicKeyLike:
    """A public key from its bytes; raises DecodeError. The same bytes give the same object, tables included."""
    return exact.PublicKey.load(data) if scheme_of_key(data) == "exact" else paillier.PublicKey.load(data)


@lru_cache(maxsize=64)
def secret_key(data: bytes) -> SecretKeyLike:
    """A secret key from its bytes; raises DecodeError."""
    return exact.SecretKey.load(data) if scheme_of_key(data) == "exact" else paillier.SecretKey.load(data)
