"""The engine: what moves bytes between the parties of a federation. ``nats.py`` is one, and tests have another.

An engine delivers at least once, keeps the order of each pair of parties, and knows which party has sent. It reads
nothing: what travels is sealed to its recipient and signed (``packets.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec


class EngineError(Exception):
    """The engine cannot be reached, or fails: what, where, and what to do about it. The node tries again later."""


class UndeliverableError(EngineError):
    """This packet will never be stored: no such recipient, too large, not permitted. Trying again would not help."""


class FullError(EngineError):
    """Too much waits for this recipient, or in all. The engine takes more when some is done, which may be never."""


class NotAdmittedError(EngineError):
    """This party may not connect (any more): its certificate was revoked or has run out. The node ends with it."""


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """A packet on its way out. dst: its recipient.  key: it is stored once under this key.  body: wrapped."""

    dst: str
    key: str
    body: bytes


class Delivery(Protocol):
    """One packet that has come. It comes again, also after a restart of either side, until ``done``.

    src: the sender as the engine has authenticated it.  body: the bytes as they were pushed. A node may hold a delivery
    and drop its ``body`` (set it to b""). ``done`` and ``working`` may be called from any thread.
    """

    src: str
    body: bytes

    def done(self) -> None:
        """It was handled, and all that follows from it is stored: it comes no more. Never raises, nor waits.

        If the process ends within moments, the engine may not have heard of it. Then it does come again.
        """

    def working(self) -> None:
        """It is still worked on, so it must not come again yet. Called every few seconds. Never raises."""


class Engine(Protocol):
    """The connection of one party. name: of the party.  Its own methods are called from one thread only."""

    name: str

    def nodes(self) -> Collection[str]:
        """The parties that are connected now, as far as the engine knows (a few seconds late). Cheap to call."""

    def push(self, dst: str, body: bytes, key: str) -> None:
        """Store a packet for another party, of any size; returns when it is stored. The same key is stored once.

        Raises UndeliverableError if it never will be, FullError if too much waits already, and EngineError if it
        cannot be stored now for another reason.
        """

    def push_all(self, parcels: Sequence[Parcel]) -> list[EngineError | None]:
        """Store packets, those to one recipient in this order. For each: None, or why it is not stored.

        After one that cannot be stored now, no other one is stored for its recipient, since it would overtake it.
        Raises NotAdmittedError. An engine that can stores packets for several recipients at the same time.
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
        """The next packet for this party, or None if none comes within ``wait_s`` seconds.

        Packets of one sender come in order, also those that come again. Several may be held before the first is
        ``done``. Raises EngineError.
        """

    def close(self) -> None:
        """Leave. What was not ``done`` will come again."""
