"""Packets between two nodes: letters, which carry the protocol's messages, and short notices.

Each is sealed to its recipient and signed by its sender, with the session, both ends and its number. An engine sees
ends, sizes and times, and no message's kind.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from coterie.deploy.plan import decode
from coterie.protocol.errors import DecodeError, PeerError
from coterie.transport.clock import NOWHEN as NOWHEN
from coterie.transport.clock import Instant as Instant
from coterie.transport.envelope import Count, Envelope, Keyring, Numbers

Short = Annotated[str, msgspec.Meta(max_length=80)]
Sent = Annotated[dict[Short, Count], msgspec.Meta(max_length=1 << 16)]
"""Numbers of letters, by the other end."""
Kinds = Annotated[dict[Short, Count], msgspec.Meta(max_length=256)]
Scores = Annotated[dict[Short, float], msgspec.Meta(max_length=256)]
Era = tuple[Count, Count]
"""A round and its attempt."""

_MOST_KINDS = 64
_MOST_SUM = 1 << 62  # of a party's whole run: files hold no larger numbers


class Tally(msgspec.Struct, frozen=True, array_like=True, tag="tally", forbid_unknown_fields=True):
    """Letters that a party has sent and taken in this era, by the other end. It may travel with another packet."""

    era: Era
    sent: Sent
    taken: Sent


class Letter(msgspec.Struct, frozen=True, array_like=True, tag="letter", forbid_unknown_fields=True):
    """A message.  frame: as of ``Member.send``.

    era: its sender's, which may be later than the envelope's.  arrives: in a rehearsal.  commit: the sender's.
    """

    envelope: Envelope
    frame: bytes
    era: Era
    arrives: Instant = NOWHEN
    commit: Count = 0
    tally: Tally | None = None


class NoAnswer(msgspec.Struct, frozen=True, array_like=True, tag="no_answer", forbid_unknown_fields=True):
    """The request with this number gets no direct answer.  why: one word, not a refusal's reason."""

    number: Count
    era: Era
    why: Short
    arrives: Instant = NOWHEN
    commit: Count = 0
    tally: Tally | None = None


class BeginAttempt(msgspec.Struct, frozen=True, array_like=True, tag="begin", forbid_unknown_fields=True):
    """The hub begins an attempt of a round (0: the set-up). The recipient goes back to the round's beginning.

    commit: the recipient's newest that the hub has heard of.  taken: the highest number taken from it.  at: in a
    rehearsal.  mark: random; the same attempt under another mark shows that the hub's disk was put back.
    """

    era: Era
    commit: Count
    taken: Count = 0
    at: Instant = NOWHEN
    mark: Count = 0


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report", forbid_unknown_fields=True):
    """How a party fared in a round: numbers for the operator.

    commit: its count.  bytes_up, bytes_down: of packets.  refused: by kind of message.  scores: as its owner allows.
    interrupted: killed while coordinating, so it asks for another attempt.  rolled_back: its state is older than the
    hub knows, and it ends.  closed: this attempt is over.  started: it asks for the hub's attempt.  repeated: it has
    been in this attempt before, and asks for another.
    """

    era: Era
    commit: Count
    busy_s: float = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    refused: Kinds = {}
    scores: Scores = {}
    samples: Count = 0
    interrupted: bool = False
    rolled_back: bool = False
    closed: bool = False
    started: bool = False
    repeated: bool = False
    tally: Tally | None = None


class Traffic(msgspec.Struct, kw_only=True):
    """Of a node in an attempt, or summed. bytes_up, bytes_down: of packets.

    refused: by kind of message, or "packet", "push", ...
    """

    bytes_up: Count = 0
    bytes_down: Count = 0
    busy_s: float = 0.0
    refused: dict[str, Count] = {}

    def refuse(self, kind: str) -> None:
        """Kinds are others' words, so they are bounded."""
        known = kind in self.refused or len(self.refused) < _MOST_KINDS
        kind = kind[:80] if known else "other"
        self.refused[kind] = self.refused.get(kind, 0) + 1

    def add(self, report: Report) -> None:
        self.bytes_up = min(self.bytes_up + report.bytes_up, _MOST_SUM)
        self.bytes_down = min(self.bytes_down + report.bytes_down, _MOST_SUM)
        self.busy_s += report.busy_s
        refused = Counter(self.refused) + Counter(report.refused)
        self.refused = {kind: min(count, _MOST_SUM) for kind, count in refused.items()}


class PlanUpdate(msgspec.Struct, frozen=True, array_like=True, tag="plan", forbid_unknown_fields=True):
    """The hub passes the newest plan on. plan: its bytes, signed by the operator."""

    plan: bytes


class NewRun(msgspec.Struct, frozen=True, array_like=True, tag="run", forbid_unknown_fields=True):
    """The hub asks for a run that its recipient may not know, or for the newest plan, which a party answers. It alone
    has number 0 and no session.
    """

    plan: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag="end", forbid_unknown_fields=True):
    """The hub has run its last round. final: nothing is under way, so the recipient stops. Else it tallies."""

    final: bool = False


Packet = Letter | NoAnswer | BeginAttempt | Report | Tally | PlanUpdate | NewRun | End


_TOGETHER = "all parties must run the same version of coterie"
FORMAT = 2
"""In format 1 a message inside was signed and sealed once more."""


class Wrapped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """sealed: for the recipient alone.

    number: grows with every packet of its sender, or 0 (``NewRun``).
    """

    format: Count
    number: Count
    sealed: bytes
    signature: bytes


def wrap(keyring: Keyring, src: str, dst: str, number: int, packet: Packet) -> bytes:
    """Raises PeerError for a recipient without a key."""
    header = _header(keyring, src, dst, number)
    sealed = keyring.seal(src, dst, msgspec.msgpack.encode(packet), header)
    return msgspec.msgpack.encode(Wrapped(FORMAT, number, sealed, keyring.sign(src, header, sealed)))


def unwrap(keyring: Keyring, src: str, dst: str, body: bytes) -> tuple[int, Packet]:
    """Number and packet of ``src``, as the engine names it, to ``dst``. Raises PeerError."""
    wrapped = decode(body, Wrapped, f"from {src} are no packet of format {FORMAT}; {_TOGETHER}")
    if wrapped.format != FORMAT:
        raise DecodeError(f"{src} sends packets of format {wrapped.format}, and this party takes {FORMAT}; {_TOGETHER}")
    header = _header(keyring, src, dst, wrapped.number)
    keyring.verify(src, wrapped.signature, header, wrapped.sealed)
    said = keyring.open(src, dst, wrapped.sealed, header)
    packet: Packet = decode(said, Packet, f"in packet {wrapped.number} of {src} say nothing that is known")  # type: ignore[arg-type]
    if isinstance(packet, NewRun) != (wrapped.number == 0):
        raise PeerError(f"{src} sends {type(packet).__name__} with number {wrapped.number}")
    if isinstance(packet, Letter) and (packet.envelope.src, packet.envelope.dst) != (src, dst):
        raise PeerError(f"{src} sends a letter from {packet.envelope.src!r:.40} to {packet.envelope.dst!r:.40}")
    return wrapped.number, packet


def _header(keyring: Keyring, src: str, dst: str, number: int) -> bytes:
    session = keyring.session if number else "of no run"
    return msgspec.msgpack.encode(("packet", FORMAT, session, src, dst, number))


class Carried(Keyring):
    """For messages in packets, which need no own signature or seal. Their overhead counts all the same, for a
    rehearsal's virtual clock.
    """

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.session, self.overhead = keyring.session, keyring.overhead

    def check_known(self, name: str) -> None:
        self._keyring.check_known(name)

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        return b""

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        self.check_known(src)

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        self.check_known(dst)
        return frame

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        return sealed


class CarriedNumbers(Numbers):
    """A message is taken once since its packet is (``PacketQueue``)."""

    def is_old(self, envelope: Envelope) -> bool:
        return False

    def take(self, envelope: Envelope) -> None: ...
