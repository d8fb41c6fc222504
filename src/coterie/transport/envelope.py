"""Envelopes: the metadata of a message on any wire, which its sender signs together with the payload's digest.

A relay sees an envelope and the payload's bytes, and may drop either. Any change to them is refused: the signature
covers every field and the digest, and a message between two parties other than the hub is sealed with the same fields
bound in. So a message is accepted only by its recipient, in its session, round and attempt, and under its number.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
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
        return _encode((*(getattr(self, name) for name in _HEADER),))

    @property
    def key(self) -> tuple[str, str, int]:
        """Sender, recipient and number, which no two messages of a session share."""
        return self.src, self.dst, self.number


_HEADER = Envelope.__struct_fields__[:-2]
_encode = msgspec.msgpack.Encoder().encode


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


class Digests:
    """SHA-256 of frames. That of the same object is computed once: of a broadcast, and of what arrives in the process
    that it was sent in. room: bytes of frames that are held for that.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()  # by id, which stays its own while it is held
        self._bytes = 0

    def of(self, frame: bytes) -> bytes:
        """32 bytes."""
        known = self._held.get(id(frame))
        if known is not None:
            return known[1]
        digest = hashlib.sha256(frame).digest()
        self._held[id(frame)] = frame, digest
        self._bytes += len(frame)
        while self._bytes > self._room and len(self._held) > 1:
            self._bytes -= len(self._held.popitem(last=False)[1][0])
        return digest

    def clear(self) -> None:
        """Hold no frame."""
        self._held.clear()
        self._bytes = 0
