"""The engine moves bytes between parties: at least once, in the order of each pair, from authenticated senders."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from coterie.deploy.names import safe

STREAM, SUBJECT = "COT", "cot"
PRESENCE = "$SYS.REQ.SERVER.PING.CONNZ"
OWN_RIGHTS = "$SYS.REQ.USER.INFO"
"""A user's account and permissions."""


class EngineError(Exception):
    """The engine fails: what, where, and the remedy."""


class UndeliverableError(EngineError):
    """Never to be stored: unknown recipient, too large, or not permitted."""


class FullError(EngineError):
    """Too much waits for this recipient, or in all."""


class NotAdmittedError(EngineError):
    """The party's certificate was revoked or has expired."""


class OutgoingPacket(msgspec.Struct, frozen=True, array_like=True):
    """body: wrapped.  key: unguessable, since a packet under a known key is dropped."""

    dst: str
    key: str
    body: bytes


class Delivery(Protocol):
    """A packet, which comes again until ``done``, also after a restart of either side.

    src: the authenticated sender.  body: as pushed; a node may drop it (b""). Any thread may call ``done`` and
    ``working``.
    """

    src: str
    body: bytes

    def done(self) -> None:
        """Its consequences are stored. Never raises or waits."""

    def working(self) -> None:
        """It must not come again yet. Called every few seconds. Never raises."""


class Engine(Protocol):
    """The connection of one party, for one thread."""

    name: str

    def nodes(self) -> Collection[str]: ...

    def push(self, dst: str, body: bytes, key: str) -> None:
        """Returns when the packet, of any size, is stored; once for a key. Raises UndeliverableError if it never will
        be, FullError if too much waits, and EngineError otherwise.
        """

    def push_all(self, parcels: Sequence[OutgoingPacket]) -> list[EngineError | None]:
        """Store packets, those to one recipient in this order. For each: None, or why it is not stored.

        After one fails for now, no other overtakes it. Raises NotAdmittedError.
        """
        found: list[EngineError | None] = []
        broken: dict[str, EngineError] = {}
        for parcel in parcels:
            problem = broken.get(parcel.dst)
            if problem is None:
                try:
                    self.push(parcel.dst, parcel.body, parcel.key)
                except NotAdmittedError:
                    raise
                except UndeliverableError as error:
                    problem = error
                except EngineError as error:
                    problem = broken[parcel.dst] = error
            found.append(problem)
        return found

    def pull(self, wait_s: float) -> Delivery | None:
        """None if no packet comes within ``wait_s`` seconds. Raises EngineError.

        One sender's packets come in order, also when repeated. Several may be held before the first is ``done``.
        """

    def close(self) -> None: ...


# -- over NATS --


@dataclass(frozen=True)
class Tls:
    """PEM files: a party's certificate and key, the authority's certificate."""

    certificate: Path
    key: Path
    authority: Path

    def context(self) -> ssl.SSLContext:
        """For a client that shows its certificate and knows no other authority. Raises EngineError."""
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.authority))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(str(self.certificate), str(self.key))
        except OSError as error:
            files = f"{self.certificate}, {self.key} and {self.authority}"
            raise EngineError(f"TLS cannot be set up with {files}: {error}") from None
        return context


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    parties: by name, the SHA-256 (hex) of the public key (DER) in its newest certificate. None admits any certificate
    of the party, and then of all.  watchers: may ask who is connected.  operator: of the operator's own key.
    members: may be admitted later.  refused: keys of those that are told that they are not admitted.
    """

    # members have accounts from the start: nats-server 2.15.1 connects a new account only when it reads its
    # configuration once more

    parties: Mapping[str, str | None]
    watchers: frozenset[str] = frozenset()
    operator: str | None = None
    members: Collection[str] = ()
    refused: Collection[str] = ()

    def pinned(self) -> tuple[str, ...]:
        """The keys with which TLS begins; empty if one is not known."""
        keys = [*self.parties.values(), self.operator, *self.refused]
        return tuple(sorted({key for key in keys if key is not None})) if None not in keys else ()


def mark(access: Access) -> str:
    """The operator's right that a server names once it has read this access."""
    known = sorted(access.parties.items()), sorted(access.watchers), sorted(access.members), access.pinned()
    return f"coterie.access.{hashlib.sha256(repr(known).encode()).hexdigest()[:32]}"


def subject(dst: str, src: str) -> str:
    """``cot.client-3.hub`` for packets from the hub to client/3."""
    return f"{SUBJECT}.{safe(dst)}.{safe(src)}"
