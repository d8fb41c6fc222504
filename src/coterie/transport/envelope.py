"""Envelopes: a message's metadata, which its sender signs together with the payload's digest.

A relay may drop an envelope or its payload; any change is refused. Between parties other than the hub the payload is
sealed, and bound to the envelope's fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import msgspec

from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
USED = "its number was used before"


class EnvelopeError(PeerError):
    """Forged, or of another recipient, session or attempt. It changes nothing."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message, without its payload."""

    src: str
    dst: str
    role: str  # that the sender acts in
    kind: str
    session: str  # of one run of one federation
    round: Count  # of the coordinator's message that led to it, as is the attempt
    attempt: Count
    number: Count  # grows with every message of its sender
    answers: Count  # the number of its request, or 0
    sealed: bool  # whether only the recipient can read the payload
    weight: Count  # bytes of the payload with real ciphertexts
    digest: bytes = b""  # of the payload as sent (``codec.frame_digest``)
    signature: bytes = b""

    def header(self) -> bytes:
        return msgspec.msgpack.encode(msgspec.structs.astuple(self)[:-2])

    @property
    def key(self) -> tuple[str, str, int]:
        """Sender, recipient and number, unique in a session."""
        return self.src, self.dst, self.number


class Keyring(Protocol):
    """The keys of one party (in a simulation, of all), and all public keys. overhead: bytes of sealing."""

    session: str
    overhead: int

    def check_known(self, name: str) -> None:
        """Raises PeerError unless there are public keys of this party."""

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes: ...

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        """Raises PeerError unless ``src`` has signed exactly this."""

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        """Bytes that only ``dst`` can open, and only with this header."""

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        """The frame. Raises PeerError if it was not sealed for ``dst`` with this header."""


class Sent(NamedTuple):
    envelope: Envelope
    frame: bytes
    to_role: str


@dataclass(frozen=True)
class Opened:
    """A verified, unsealed and decoded message. role: of its recipient.  size: of its frame, in bytes."""

    envelope: Envelope
    message: Message
    role: str
    at_s: float
    size: int


@dataclass(frozen=True)
class Handled:
    """The result of handling a message. refused: why, or ""."""

    sent: tuple[Sent, ...] = ()
    refused: str = ""

    @property
    def answered(self) -> bool:
        return any(one.envelope.answers for one in self.sent)


@dataclass(frozen=True)
class Waiting:
    envelope: Envelope
    ticket: int
    at_s: float


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """A request's digest and round, and the answer as sent or the refusal."""

    digest: bytes
    round: Count
    answer: Sent | None = None
    refusal: str = ""


class Numbers(msgspec.Struct):
    """A party's memory of its links: no message is handled twice, out of order or in another attempt."""

    sent: Count = 0  # the last number that it used
    taken: dict[str, Count] = msgspec.field(default_factory=dict)  # by sender, the last number that it took
    round: Count = 0  # the hub's newest
    attempts: dict[Count, Count] = msgspec.field(default_factory=dict)  # by round tried again, its attempt
    # By sender and number, of its newest round's requests.
    kept: dict[str, dict[Count, Outcome]] = msgspec.field(default_factory=dict)

    def next(self) -> int:
        self.sent += 1
        return self.sent

    def is_old(self, envelope: Envelope) -> bool:
        return envelope.number <= self.taken.get(envelope.src, 0)

    def take(self, envelope: Envelope) -> None:
        self.taken[envelope.src] = envelope.number

    def check_attempt(self, envelope: Envelope, *, announces: bool) -> None:
        """Raises EnvelopeError for a message of an abandoned or unannounced attempt.

        announces: its sender, the hub, may try a round again.
        """
        now = self.attempts.get(envelope.round, 0)
        if envelope.attempt < now or (envelope.attempt > now and not announces):
            raise EnvelopeError(
                f"it is of attempt {envelope.attempt} of round {envelope.round}, which is at attempt {now}"
            )

    def keep(self, request: Envelope, answer: Sent | None = None, refusal: str = "") -> None:
        """Remember a request's outcome, and forget those of the sender's earlier rounds."""
        of_sender = self.kept.setdefault(request.src, {})
        if of_sender and next(reversed(of_sender.values())).round < request.round:
            of_sender.clear()
        of_sender[request.number] = Outcome(request.digest, request.round, answer, refusal)

    def again(self, request: Envelope) -> tuple[Sent | None, str]:
        kept = self.kept.get(request.src, {}).get(request.number)
        return (kept.answer, kept.refusal) if kept is not None and kept.digest == request.digest else (None, "")
