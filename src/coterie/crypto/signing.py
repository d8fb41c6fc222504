"""Ed25519 signatures (RFC 8032, by ``cryptography``) over lists of fields, and a guard against replays.

FedCAPrivacy signs ``T_i = (ciphertext, PID, timestamp)``; here the round is signed, too: ``key.sign("update", data,
pid, round, time_ms)``. Start with a word for the purpose, so that a signature made for one message never fits another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from coterie.crypto.fields import Field, RawKey, RawSecret, digest
from coterie.protocol.errors import PeerError, UserError

_DOMAIN = "coterie/signed/1"


class SignatureError(PeerError):
    """A signature that its claimed sender did not make over these fields."""


class ReplayError(PeerError):
    """A message that is too old, from the future, of another round, or seen before."""


class VerifyKey(RawKey):
    """The public half: what others verify with."""

    named = "a verification key"

    @cached_property
    def _public(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.key)

    def verify(self, signature: bytes, *fields: Field) -> None:
        """Returns if the signature is the key's over exactly these fields, in this order. Raises SignatureError."""
        try:
            self._public.verify(bytes(signature), digest(_DOMAIN, *fields))
        except (InvalidSignature, ValueError):
            raise SignatureError(f"the signature is not one of key {self.key.hex()[:8]} over these fields") from None


class SigningKey(RawSecret):
    """The secret half."""

    named = "a signing key"

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.key)

    @property
    def public(self) -> VerifyKey:
        """The public half."""
        return VerifyKey(self._private.public_key().public_bytes_raw())

    def sign(self, *fields: Field) -> bytes:
        """64 bytes over the fields (bytes, int or str), which are hashed once. Raises CryptoError for other types."""
        return self._private.sign(digest(_DOMAIN, *fields))


@dataclass(frozen=True)
class ReplayGuard:
    """Accepts each sender's messages once, in order, and while they are fresh. Immutable: ``accept`` returns the next.

    max_age_s: how old a message may be.  max_ahead_s: how far a sender's clock may be ahead of ours.
    max_lag_rounds: how many rounds late a message may be.
    accepted: the (round, timestamp in seconds) of the last accepted message by sender.
    """

    max_age_s: float
    max_ahead_s: float = 0.0
    max_lag_rounds: int = 0
    accepted: Mapping[int | str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # not(>=) refuses NaN, too
        if not self.max_age_s >= 0 or not self.max_ahead_s >= 0 or self.max_lag_rounds < 0:
            raise UserError(f"a replay guard's limits are at least 0: {self!r}")

    def accept(
        self, sender: int | str, message_round: int, timestamp_s: float, *, current_round: int, now_s: float
    ) -> ReplayGuard:
        """The guard after this message, whose signature has been verified. Raises ReplayError if it is refused."""
        if not current_round - self.max_lag_rounds <= message_round <= current_round:
            raise ReplayError(f"{sender}: a message of round {message_round} in round {current_round}")
        if not -self.max_ahead_s <= now_s - timestamp_s <= self.max_age_s:
            raise ReplayError(
                f"{sender}: a message {now_s - timestamp_s:.3f} s old; at most {self.max_age_s} s are accepted, "
                f"and clocks at most {self.max_ahead_s} s ahead"
            )
        last = self.accepted.get(sender)
        if last and not (message_round > last[0] and timestamp_s > last[1]):
            raise ReplayError(
                f"{sender}: round {message_round} at {timestamp_s} s is not after round {last[0]} at {last[1]} s, "
                "which was accepted before"
            )
        return replace(self, accepted={**self.accepted, sender: (message_round, timestamp_s)})
