"""The forms that a message has between members, and the observer of members."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.protocol import codec
from coterie.protocol.messages import M, Message
from coterie.protocol.party import Party
from coterie.transport.envelope import Envelope, Sent

Roles = Callable[[str], tuple[str, ...]]
"""The roles of a party by its name, its main role first; none for a stranger. All parties know them."""


def roles_of(parties: Mapping[str, Party]) -> Roles:
    """The roles of parties, each looked up when it is first asked for, so that nobody is made for it before."""
    known: dict[str, tuple[str, ...]] = {}

    def roles(name: str) -> tuple[str, ...]:
        if name not in known and name in parties:
            party = parties[name]
            known[name] = (party.role, *sorted(party.roles - {party.role}))
        return known.get(name, ())

    return roles


@dataclass(frozen=True)
class Opened:
    """A message that was verified, unsealed and decoded.

    role: the role that its recipient acts in.  at_s: when it came.  size: bytes of its frame.
    """

    envelope: Envelope
    message: Message
    role: str
    at_s: float
    size: int


@dataclass(frozen=True)
class Handled:
    """The result of handling a message. sent: the messages to send.  refused: why it was refused, or ""."""

    sent: tuple[Sent, ...] = ()
    refused: str = ""

    @property
    def answered(self) -> bool:
        """Whether its sender gets a direct answer."""
        return any(one.envelope.answers for one in self.sent)


@dataclass(frozen=True)
class Waiting:
    """A message that has come to a coordinator before a step asked for it. ticket: of its bytes."""

    envelope: Envelope
    ticket: int
    at_s: float


class Observer:
    """An observer beside the protocol, which is told what a member reads and refuses. This one does nothing."""

    def read(self, opened: Opened) -> None:
        """A handler or a fold receives this message."""

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        """This message was not accepted. role: the role that it was for."""

    def late(self, party: str) -> None:
        """A step did not wait for this party's answer."""


class Reader:
    """Decodes and digests. Members of one process share it: a broadcast is decoded once for all, a frame digested once.

    room: bytes of frames that are held to know their digests.
    """

    def __init__(self, room: int = 64 << 20) -> None:
        self._room, self._bytes = room, 0
        self._held: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()  # by id, which stays its own while it is held
        self._last: tuple[bytes, Message] | None = None

    def digest(self, frame: bytes) -> bytes:
        """SHA-256, computed once for the same object."""
        if (known := self._held.get(id(frame))) is not None:
            return known[1]
        digest = hashlib.sha256(frame).digest()
        self._held[id(frame)] = frame, digest
        self._bytes += len(frame)
        while self._bytes > self._room and len(self._held) > 1:
            self._bytes -= len(self._held.popitem(last=False)[1][0])
        return digest

    def decode(self, frame: bytes, kinds: tuple[type[M], ...]) -> M:
        """As ``codec.decode``."""
        if self._last is not None and self._last[0] is frame and type(self._last[1]) in kinds:
            return self._last[1]  # type: ignore[return-value]
        message = codec.decode(frame, *kinds)
        self._last = frame, message
        return message

    def clear(self) -> None:
        """Hold no frame."""
        self._held.clear()
        self._bytes, self._last = 0, None
