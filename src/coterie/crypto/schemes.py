"""Real or emulated: which of two twins a key belongs to, and live keys from their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from coterie.crypto import ckks, ckks_evaluation, exact, paillier, rounded, rounded_masks
from coterie.crypto.packing import Lanes
from coterie.crypto.vector import EvaluationKeyLike, PublicKeyLike, RandomBytes, SecretKeyLike
from coterie.crypto.wire import scheme_of_key
from coterie.protocol.errors import DecodeError

_KEYS = 300
"""Live keys to keep, with their tables: more than clients that one round serves, each with a key of its own."""


def paillier_keygen(
    bits: int, lanes: Lanes, randomness: Literal["short", "full"], *, emulated: bool, random_bytes: RandomBytes
) -> SecretKeyLike:
    """A Paillier key pair, or its emulated twin. Real keys come from the operating system's randomness only."""
    if emulated:
        return exact.keygen(bits, lanes, randomness=randomness, random_bytes=random_bytes)
    return paillier.keygen(bits, lanes, randomness=randomness)


def ckks_keygen(parameters: str, *, products: bool = True, emulated: bool, random_bytes: RandomBytes) -> SecretKeyLike:
    """A CKKS key pair, or its emulated twin. Real keys come from the operating system's randomness only.

    products: False leaves out what products of ciphertexts need, most of a public key's bytes.
    """
    if emulated:
        return rounded.keygen(parameters, products=products, random_bytes=random_bytes)
    return ckks.keygen(parameters, products=products)


_SCHEMES: dict[str, Any] = {"paillier": paillier, "exact": exact, "ckks": ckks, "rounded": rounded}


@lru_cache(maxsize=_KEYS)
def public_key(data: bytes) -> PublicKeyLike:
    """A public key from its bytes; raises DecodeError. The same bytes give the same object, tables included."""
    key: PublicKeyLike = _SCHEMES[scheme_of_key(data)].PublicKey.load(data)
    return key


@lru_cache(maxsize=2)
def evaluation_key(data: bytes) -> EvaluationKeyLike:
    """An evaluation key from its bytes; raises DecodeError."""
    kinds: dict[str, Any] = {"ckks": ckks_evaluation.EvaluationKey, "rounded": rounded_masks.EvaluationKey}
    if (scheme := scheme_of_key(data)) not in kinds:
        raise DecodeError(f"{scheme} has no evaluation keys")
    key: EvaluationKeyLike = kinds[scheme].load(data)
    return key


@lru_cache(maxsize=_KEYS)
def secret_key(data: bytes) -> SecretKeyLike:
    """A secret key from its bytes; raises DecodeError."""
    key: SecretKeyLike = _SCHEMES[scheme_of_key(data)].SecretKey.load(data)
    return key
