"""Sealing bytes to one recipient: HPKE (RFC 9180, base mode, by ``cryptography``).

For what travels through a hub that must not read it. The suite is X25519, HKDF-SHA256 and ChaCha20-Poly1305. Sender and
recipient are bound in: sealed bytes that are handed to another recipient, or that claim another sender, don't open.
Anyone can seal in anyone's name, though: where it matters who sent it, sign what is inside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.fields import Field, digest
from coterie.protocol.errors import DecodeError, PeerError

KEY_BYTES = 32
OVERHEAD_BYTES = 48  # the ephemeral key (32) and the tag (16)
_DOMAIN = "coterie/sealed/1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class SealError(PeerError):
    """Sealed bytes that don't open: damaged, forged, or for another recipient, sender or context."""


@dataclass(frozen=True)
class SealingKey:
    """The recipient's public key. key: its 32 bytes."""

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise DecodeError(f"a sealing key has {KEY_BYTES} bytes, not {len(self.key)}")

    def seal(self, data: bytes, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data for the key's owner, ``OVERHEAD_BYTES`` longer. context: what else must be the same on opening.

        Raises DecodeError if the key is no point that keeps secrets (an all-zero key, say).
        """
        try:
            public = X25519PublicKey.from_public_bytes(self.key)
            return _SUITE.encrypt(data, public, info=digest(_DOMAIN, sender, recipient, *context))
        except ValueError:
            raise DecodeError(f"sealing key {self.key.hex()[:8]} is not a usable X25519 key") from None

    def to_bytes(self) -> bytes:
        """32 bytes."""
        return self.key

    @classmethod
    def load(cls, data: bytes) -> SealingKey:
        """A key from ``to_bytes``. Raises DecodeError."""
        return cls(bytes(data))


@dataclass(frozen=True, eq=False, repr=False)
class OpeningKey:
    """The recipient's secret key. seed: its 32 secret bytes."""

    seed: bytes

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise DecodeError(f"an opening key has {KEY_BYTES} bytes, not {len(self.seed)}")

    @classmethod
    def generate(cls, random_bytes: RandomBytes = os.urandom) -> OpeningKey:
        """A fresh key. random_bytes: n -> n secret random bytes; another than the system's for emulated runs only."""
        return cls(drawn(random_bytes, KEY_BYTES))

    @property
    def public(self) -> SealingKey:
        """What others seal with."""
        return SealingKey(X25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw())

    def open(self, sealed: bytes | memoryview, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data that was sealed with the same sender, recipient and context. Raises SealError."""
        try:
            secret = X25519PrivateKey.from_private_bytes(self.seed)
            return _SUITE.decrypt(bytes(sealed), secret, info=digest(_DOMAIN, sender, recipient, *context))
        except (InvalidTag, ValueError):
            raise SealError(f"{len(sealed)} bytes from {sender} to {recipient} don't open") from None

    def to_bytes(self) -> bytes:
        """SECRET: 32 bytes. At rest: a file of mode 0600."""
        return self.seed

    @classmethod
    def load(cls, data: bytes) -> OpeningKey:
        """A key from ``to_bytes``. Raises DecodeError."""
        return cls(bytes(data))

    def __repr__(self) -> str:
        return f"<OpeningKey of {self.public.key.hex()[:8]}>"
