"""Envelopes: the metadata of a message on any wire, which its sender signs together with the payload's digest.

A relay sees an envelope and the payload's bytes, and may drop either. Any change to them is refused: the signature
covers every field and the digest, and a message between two parties other than the hub is sealed with the same fields
bound in. So a message is accepted only by its recipient, in its session, round and attempt, and under its number.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Protocol

import msgspec

from coterie.protocol.errors import PeerError

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class EnvelopeError(PeerError):
    """An envelope that is forged, or meant for another recipient, session or attempt. It changes nothing."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message, without its payload.

    role: the role that the sender acts in.  session: names one run of one federation.  round, attempt: those of the
    coordinator's message that led to it.  number: grows with every message of its sender.  answers: the number of the
    request that it answers, or 0.  sealed: whether only the recipient can read the payload.  weight: bytes that the
    payload would have with real ciphertexts (``protocol/weight.py``).  digest: SHA-256 of the payload as it is sent.
    signature: the sender's, over all of it.
    """

    src: str
    dst: str
    role: str
    kind: str
    session: str
    round: Count
    attempt: Count
    number: Count
    answers: Count
    sealed: bool
    weight: Count
    digest: bytes = b""
    signature: bytes = b""

    def header(self) -> bytes:
        """The fields that a sealed payload is bound to: all but the digest and the signature."""
        return msgspec.msgpack.encode(msgspec.structs.astuple(self)[:-2])

    @property
    def key(self) -> tuple[str, str, int]:
        """Sender, recipient and number, which no two messages of a session share."""
        return self.src, self.dst, self.number


class Keyring(Protocol):
    """The keys of one party (in a simulation, of all parties), and all public keys. A higher layer provides it.

    session: names the run that these keys are for.  overhead: bytes that sealing adds to a payload.
    """

    session: str
    overhead: int

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        """The signature of ``src``."""

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        """Raises PeerError unless the registered key of ``src`` has signed exactly this."""

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        """Bytes that only ``dst`` can open, and only with this header."""

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        """The frame. Raises PeerError if it was not sealed for ``dst`` with this header."""


class Sent(NamedTuple):
    """A message that is ready to be sent. to_role: the role that the recipient acts in."""

    envelope: Envelope
    frame: bytes
    to_role: str
