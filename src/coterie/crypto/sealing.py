"""Sealing bytes to one recipient: HPKE (RFC 9180, base mode, by ``cryptography``).

For what travels through a hub that must not read it. The suite is X25519, HKDF-SHA256 and ChaCha20-Poly1305. Sender and
recipient are bound in: sealed bytes that are handed to another recipient, or that claim another sender, don't open.
Anyone can seal in anyone's name, though: where it matters who sent it, sign what is inside.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from coterie.crypto.fields import Field, RawKey, RawSecret, digest
from coterie.protocol.errors import DecodeError, PeerError

OVERHEAD_BYTES = 48  # the ephemeral key (32) and the tag (16)
_DOMAIN = "coterie/sealed/1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class SealError(PeerError):
    """Sealed bytes that don't open: damaged, forged, or for another recipient, sender or context."""


class SealingKey(RawKey):
    """The recipient's public key: what others seal with."""

    named = "a sealing key"

    def seal(self, data: bytes, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data for the key's owner, ``OVERHEAD_BYTES`` longer. context: what else must be the same on opening.

        Raises DecodeError if the key is no point that keeps secrets (an all-zero key, say).
        """
        try:
            public = X25519PublicKey.from_public_bytes(self.key)
            return _SUITE.encrypt(data, public, info=digest(_DOMAIN, sender, recipient, *context))
        except ValueError:
            raise DecodeError(f"sealing key {self.key.hex()[:8]} is not a usable X25519 key") from None


class OpeningKey(RawSecret):
    """The recipient's secret key."""

    named = "an opening key"

    @property
    def public(self) -> SealingKey:
        """The public half."""
        return SealingKey(X25519PrivateKey.from_private_bytes(self.key).public_key().public_bytes_raw())

    def open(self, sealed: bytes | memoryview, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data that was sealed with the same sender, recipient and context. Raises SealError."""
        try:
            secret = X25519PrivateKey.from_private_bytes(self.key)
            return _SUITE.decrypt(bytes(sealed), secret, info=digest(_DOMAIN, sender, recipient, *context))
        except (InvalidTag, ValueError):
            raise SealError(f"{len(sealed)} bytes from {sender} to {recipient} don't open") from None
