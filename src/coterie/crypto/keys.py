"""A key of any scheme from its bytes, for those who hold keys and do not compute with them."""

from __future__ import annotations

from typing import Any

from coterie.crypto import ckks, paillier, wire


def public_key(data: bytes) -> paillier.PublicKey | ckks.PublicKey:
    """A public key; raises DecodeError. The same bytes give the same object, tables included."""
    module: Any = paillier if wire.scheme_of(data) in paillier.PublicKey.backends else ckks
    key: paillier.PublicKey | ckks.PublicKey = module.public_key(data)
    return key


def secret_key(data: bytes) -> paillier.SecretKey | ckks.SecretKey:
    """A secret key; raises DecodeError. The same bytes give the same object."""
    module: Any = paillier if wire.scheme_of(data) in paillier.SecretKey.backends else ckks
    key: paillier.SecretKey | ckks.SecretKey = module.secret_key(data)
    return key
