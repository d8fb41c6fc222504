"""What travels between two nodes: letters, which carry the messages of the protocol, and a few words about them.

Every packet is sealed to its recipient and signed by its sender, with the session, both ends and its key. So an engine
(and a hub, for what is not sent to it) sees ends, sizes and times, and no kind of any message.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from coterie.protocol.errors import DecodeError, PeerError
from coterie.transport.envelope import Count, Envelope, Keyring

Short = Annotated[str, msgspec.Meta(max_length=80)]


class Letter(msgspec.Struct, frozen=True, array_like=True, tag="letter", forbid_unknown_fields=True):
    """A message. frame: as ``Member.send`` gives it.  arrives_s: on the virtual clock, in a rehearsal; 0 otherwise."""

    envelope: Envelope
    frame: bytes
    arrives_s: float = 0.0


class Silence(msgspec.Struct, frozen=True, array_like=True, tag="silence", forbid_unknown_fields=True):
    """The request with this number gets no direct answer. refused: whether it was refused, without the reason."""

    number: Count
    round: Count
    attempt: Count
    refused: bool
    arrives_s: float = 0.0


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin", forbid_unknown_fields=True):
    """The hub begins an attempt of a round; round 0 is the set-up. Its recipient goes back to where the round began.

    commit: the newest commit of the recipient that the hub has heard of (``Report``).  last: there is no later round.
    """

    round: Count
    attempt: Count
    commit: Count
    last: bool = False


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report", forbid_unknown_fields=True):
    """A party tells the hub how it fares: numbers for the operator, none of them of the protocol.

    commit: how often it has stored its state.  busy_s: of work in this round.  bytes_up, bytes_down: of packets.
    refused: counts by kind of message; reasons stay at the party.  scores: those that its owner allows, such as
    ``local_accuracy``.  leaves: it has stopped and will not come back by itself.
    """

    round: Count
    attempt: Count
    commit: Count
    busy_s: float = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    refused: dict[Short, Count] = {}
    scores: dict[Short, float] = {}
    samples: Count = 0
    leaves: bool = False


class End(msgspec.Struct, frozen=True, array_like=True, tag="end", forbid_unknown_fields=True):
    """The hub's run is over: a party that has handled all before it stops."""

    round: Count


Packet = Letter | Silence | Begin | Report | End


class Wrapped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A packet as it travels. key: unique among the packets of its sender.  sealed: for its recipient alone."""

    key: Short
    sealed: bytes
    signature: bytes


def wrap(keyring: Keyring, src: str, dst: str, key: str, packet: Packet) -> bytes:
    """The bytes of a packet from ``src`` to ``dst``."""
    header = _header(keyring, src, dst, key)
    sealed = keyring.seal(src, dst, msgspec.msgpack.encode(packet), header)
    return msgspec.msgpack.encode(Wrapped(key, sealed, keyring.sign(src, header, sealed)))


def unwrap(keyring: Keyring, src: str, dst: str, body: bytes) -> tuple[str, Packet]:
    """The key and the packet that ``src``, as the engine names it, has sent to ``dst``. Raises PeerError."""
    try:
        wrapped = msgspec.msgpack.decode(body, type=Wrapped)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"{len(body)} bytes from {src} are no packet: {error}") from None
    header = _header(keyring, src, dst, wrapped.key)
    keyring.verify(src, wrapped.signature, header, wrapped.sealed)
    try:
        packet = msgspec.msgpack.decode(keyring.open(src, dst, wrapped.sealed, header), type=Packet)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"the packet {wrapped.key} of {src} says nothing that is known: {error}") from None
    if isinstance(packet, Letter) and packet.envelope.src != src:
        raise PeerError(f"{src} sends a letter of {packet.envelope.src!r:.40}")
    return wrapped.key, packet


def _header(keyring: Keyring, src: str, dst: str, key: str) -> bytes:
    return msgspec.msgpack.encode(("packet", keyring.session, src, dst, key))
