"""The forms that a message has between members, and the observer of members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from coterie.protocol import codec
from coterie.protocol.messages import M, Message
from coterie.protocol.party import Party
from coterie.transport.envelope import Digests, Envelope, Sent

Roles = Mapping[str, tuple[str, ...]]
"""The roles of every party by name, its main role first. All parties know them."""


class RolesOf(Roles):
    """The roles of parties, each looked up when it is first asked for, so that nobody is made for it before."""

    def __init__(self, parties: Mapping[str, Party]) -> None:
        self._parties = parties
        self._known: dict[str, tuple[str, ...]] = {}

    def __getitem__(self, name: str) -> tuple[str, ...]:
        if name not in self._known:
            party = self._parties[name]
            self._known[name] = (party.role, *sorted(party.roles - {party.role}))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parties)

    def __len__(self) -> int:
        return len(self._parties)

    def __contains__(self, name: object) -> bool:
        return name in self._parties


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
class Letter:
    """One encoded message to be sent. role, to_role: the roles that sender and recipient act in."""

    dst: str
    kind: str
    role: str
    to_role: str
    frame: bytes
    weight: int


@dataclass(frozen=True)
class Handled:
    """The result of handling a message.

    sent: the messages to send.  refused: why it was refused, or "".  again: whether it was handled before.
    answered: whether its sender gets a direct answer.
    """

    sent: tuple[Sent, ...] = ()
    refused: str = ""
    again: bool = False
    answered: bool = False


class Observer(Protocol):
    """An observer beside the protocol, which is told what a member reads and refuses, for counts and views."""

    def read(self, opened: Opened) -> None:
        """A handler or a fold receives this message."""

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        """This message was not accepted. role: the role that it was for."""

    def late(self, party: str) -> None:
        """A step did not wait for this party's answer."""


class Unobserved:
    """An observer that does nothing."""

    def read(self, opened: Opened) -> None:
        """Nothing."""

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        """Nothing."""

    def late(self, party: str) -> None:
        """Nothing."""


class Reader:
    """Decodes and digests. Members of one process share it: a broadcast is decoded once for all, a frame digested once.

    room: bytes of frames that are held to know their digests.
    """

    def __init__(self, room: int = 64 << 20) -> None:
        self.digests = Digests(room)
        self._last: tuple[bytes, Message] | None = None

    def decode(self, frame: bytes, kinds: tuple[type[M], ...]) -> M:
        """As ``codec.decode``."""
        if self._last is not None and self._last[0] is frame and type(self._last[1]) in kinds:
            return self._last[1]  # type: ignore[return-value]
        message = codec.decode(frame, *kinds)
        self._last = frame, message
        return message

    def clear(self) -> None:
        """Hold no frame."""
        self.digests.clear()
        self._last = None


@dataclass
class Waiting:
    """A message that has come to a coordinator before a step asked for it. ticket: of its bytes."""

    envelope: Envelope
    ticket: int
    at_s: float
