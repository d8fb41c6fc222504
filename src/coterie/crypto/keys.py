"""A key of any scheme from its bytes, cached: the same bytes give the same object, tables included."""

from __future__ import annotations

from functools import lru_cache

from coterie.crypto import ckks, paillier, wire

KEPT_KEYS = 300
"""Live keys with their tables."""
# more than clients that one round serves, each with its own


@lru_cache(KEPT_KEYS)
def public_key(data: bytes) -> paillier.PublicKey | ckks.PublicKey:
    """Raises DecodeError."""
    integers = wire.scheme_of(data) in paillier.PublicKey.backends
    return paillier.PublicKey.load(data) if integers else ckks.PublicKey.load(data)


@lru_cache(KEPT_KEYS)
def secret_key(data: bytes) -> paillier.SecretKey | ckks.SecretKey:
    """Raises DecodeError."""
    integers = wire.scheme_of(data) in paillier.SecretKey.backends
    return paillier.SecretKey.load(data) if integers else ckks.SecretKey.load(data)


evaluation_key = lru_cache(2)(ckks.EvaluationKey.load)
"""An evaluation key; raises DecodeError."""
