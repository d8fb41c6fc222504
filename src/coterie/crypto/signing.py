"""Signing and sealing: keys of 32 bytes, and one unambiguous byte form for a list of fields.

**Signatures** are Ed25519 (RFC 8032) over lists of fields. Start with a word for the purpose, so that none fits another
kind of message.

**Sealed bytes** are HPKE (RFC 9180, base mode; X25519, HKDF-SHA256, ChaCha20-Poly1305), for data that a hub carries and
must not read. Sender and recipient are bound in, but anyone can seal in anyone's name: sign what is inside where the
sender matters.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from coterie.crypto.arrays import RandomBytes, drawn
from coterie.protocol.errors import CryptoError, DecodeError, PeerError

Field = bytes | bytearray | memoryview | int | str
KEY_BYTES = 32
OVERHEAD_BYTES, SIGNATURE_BYTES = 48, 64
"""The first of sealed bytes: the ephemeral key (32) and the tag (16)."""

_SIGNED, _SEALED, _AGREED = "coterie/signed/1", "coterie/sealed/1", "coterie/agreed/1"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class SignatureError(PeerError):
    """The claimed sender did not sign these fields."""


class ReplayError(PeerError):
    """A message that is too old, from the future, of another round, or seen before."""


class SealError(PeerError):
    """Sealed bytes that don't open: damaged, forged, or for another recipient, sender or context."""


@dataclass(frozen=True)
class RawKey:
    """A key of 32 bytes. Raises DecodeError for another length."""

    key: bytes

    named: ClassVar[str]

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise DecodeError(f"{self.named} has {KEY_BYTES} bytes, not {len(self.key)}")

    def to_bytes(self) -> bytes:
        """32 bytes; of a secret key SECRET, at rest in a file of mode 0600."""
        return self.key

    @classmethod
    def load(cls, data: bytes) -> Self:
        return cls(bytes(data))


@dataclass(frozen=True, eq=False, repr=False)
class RawSecret(RawKey):
    @property
    def public(self) -> RawKey:
        raise NotImplementedError

    @classmethod
    def generate(cls, random_bytes: RandomBytes = os.urandom) -> Self:
        """random_bytes: n -> n secret random bytes; other than the system's for emulated runs only."""
        return cls(drawn(random_bytes, KEY_BYTES))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.public.key.hex()[:8]}>"


class _Known:
    def __init__(self, most: int = 1 << 15) -> None:
        self._most, self._held = most, OrderedDict[tuple[bytes, bytes, bytes], None]()

    def __contains__(self, signed: tuple[bytes, bytes, bytes]) -> bool:
        return signed in self._held

    def add(self, key: bytes, signature: bytes, over: bytes) -> None:
        self._held[key, signature, over] = None
        if len(self._held) > self._most:
            self._held.popitem(last=False)


_known = _Known()


class VerifyKey(RawKey):
    named = "a verification key"

    def verify(self, signature: bytes, *fields: Field) -> None:
        """Raises SignatureError unless this key has signed exactly these fields, in order."""
        signature, over = bytes(signature), digest(_SIGNED, *fields)
        if (self.key, signature, over) in _known:
            return
        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, over)
        except (InvalidSignature, ValueError):
            raise SignatureError(f"the signature is not one of key {self.key.hex()[:8]} over these fields") from None
        _known.add(self.key, signature, over)


class SigningKey(RawSecret):
    named = "a signing key"

    @cached_property
    def _loaded(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.key)

    @cached_property
    def public(self) -> VerifyKey:
        return VerifyKey(self._loaded.public_key().public_bytes_raw())

    def sign(self, *fields: Field) -> bytes:
        """64 bytes over the fields. Raises CryptoError for other types."""
        over = digest(_SIGNED, *fields)
        signature = self._loaded.sign(over)
        _known.add(self.public.key, signature, over)
        return signature


class SealingKey(RawKey):
    named = "a sealing key"

    def seal(self, data: bytes, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data for the key's owner, ``OVERHEAD_BYTES`` longer. Raises DecodeError for a key that keeps no secrets
        (all zeros, say).

        context: must be equal on opening.
        """
        try:
            public = X25519PublicKey.from_public_bytes(self.key)
            return _SUITE.encrypt(data, public, info=digest(_SEALED, sender, recipient, *context))
        except ValueError:
            raise DecodeError(f"sealing key {self.key.hex()[:8]} is not a usable X25519 key") from None


class OpeningKey(RawSecret):
    named = "an opening key"

    @cached_property
    def _loaded(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.key)

    @property
    def public(self) -> SealingKey:
        return SealingKey(self._loaded.public_key().public_bytes_raw())

    def agreed(self, other: SealingKey, *context: Field) -> bytes:
        """SECRET: 32 bytes that only the owners of both keys can compute (X25519, hashed). Raises DecodeError as
        ``seal``.

        context: what they are for, with both names.
        """
        try:
            return digest(_AGREED, self._loaded.exchange(X25519PublicKey.from_public_bytes(other.key)), *context)
        except ValueError:
            raise DecodeError(f"sealing key {other.key.hex()[:8]} is not a usable X25519 key") from None

    def open(self, sealed: bytes | memoryview, sender: int | str, recipient: int | str, *context: Field) -> bytes:
        """The data sealed with this sender, recipient and context. Raises SealError."""
        try:
            return _SUITE.decrypt(bytes(sealed), self._loaded, info=digest(_SEALED, sender, recipient, *context))
        except (InvalidTag, ValueError):
            raise SealError(f"{len(sealed)} bytes from {sender} to {recipient} don't open") from None


def check_fresh(
    sender: str,
    sent: tuple[int, float],
    last: tuple[int, float] | None,
    current_round: int,
    now_s: float,
    max_age_s: float,
    max_ahead_s: float,
) -> None:
    """Raises ReplayError for a message of another round, too old or from the future, or that does not follow the last.

    sent, last: (round, seconds) of this message, and of the sender's last accepted one.
    max_ahead_s: how far a sender's clock may be ahead of ours.
    """
    (message_round, timestamp_s), age_s = sent, now_s - sent[1]
    if message_round != current_round:
        raise ReplayError(f"{sender}: a message of round {message_round} in round {current_round}")
    if not -max_ahead_s <= age_s <= max_age_s:  # False for NaN, too
        raise ReplayError(
            f"{sender}: a message {age_s:.3f} s old; at most {max_age_s} s are accepted, and clocks at most "
            f"{max_ahead_s} s ahead"
        )
    if last and not (message_round > last[0] and timestamp_s >= last[1]):
        raise ReplayError(
            f"{sender}: round {message_round} at {timestamp_s} s does not follow round {last[0]} at {last[1]} s, "
            "which was accepted before"
        )


_LONG = 4096


def digest(domain: str, *fields: Field) -> bytes:
    """SHA-256 of the domain and the fields, unambiguously: 32 bytes. Raises CryptoError for other types."""
    state, short = hashlib.sha256(), list[bytes | memoryview]()
    for one in (domain, len(fields), *fields):
        kind, content = _encoded(one)  # so ("ab", "c") is not ("a", "bc"), and 1 neither "1" nor b"1"
        short += kind, len(content).to_bytes(8, "little"), content
        if len(content) > _LONG:
            state.update(b"".join(short[:-1]))
            state.update(content)
            short.clear()
    state.update(b"".join(short))
    return state.digest()


def _encoded(one: Field) -> tuple[bytes, bytes | memoryview]:
    if isinstance(one, bytes):
        return b"b", one
    if isinstance(one, str):
        return b"s", one.encode()
    if isinstance(one, bool):
        raise CryptoError(f"a signed field is bytes, int or str, not {one!r}: a bool would read as a number")
    if isinstance(one, int):
        return b"i", one.to_bytes(one.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(one, (bytearray, memoryview)):
        return b"b", memoryview(one).cast("B")
    raise CryptoError(f"a signed field is bytes, int or str, not {type(one).__name__}")
