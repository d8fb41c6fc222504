"""The updates of a round of PAFed, in time and late, as the aggregator gets them and as ciphertexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import coterie.method as fl
from coterie.crypto.ckks import PublicKey
from coterie.crypto.pads import Padded
from coterie.protocols.pads import NONCE_BYTES, Collected, complete
from coterie.systems.pafed import messages
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import HELPER


class Late:
    def __init__(self, spool: fl.Spool, layout: Layout, key: Any) -> None:
        self._spool, self._layout, self._key = spool, layout, key
        self._tickets: list[int] = []

    def put(self, cipher: Any) -> None:
        self._tickets.append(self._spool.put(cipher.to_bytes()))

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for ticket in self._tickets:
            yield self._layout.split(self._key.from_bytes(self._spool.peek(ticket), self._layout.size, terms=1))


class Inbox:
    """key: the helper's.  total: of updates in time, or None.  late: the others."""

    def __init__(self, spool: fl.Spool, layout: Layout, key: PublicKey) -> None:
        self.spool, self.layout, self.key = spool, layout, key
        self.late = Late(spool, layout, key)
        self.total: Any = None

    def read(self, update: Any) -> Any:
        message: messages.Update = update
        return self.key.from_bytes(message.cipher, self.layout.size, terms=1, blinded=0, form=self.key.fresh)

    def take(self, name: str, update: Any, vector: Any, *, late: bool) -> None:
        if late:
            self.late.put(vector)
        else:
            self.total = vector if self.total is None else self.total + vector

    def close(self, r: int) -> fl.Steps[None]:
        yield from ()


class PaddedInbox(Inbox):
    """Updates under one-time pads. With the helper's counterparts they are ciphertexts: one for the sum of those in
    time, and one for each late update.
    """

    def __init__(self, spool: fl.Spool, layout: Layout, key: PublicKey) -> None:
        super().__init__(spool, layout, key)
        self._in_time: list[tuple[str, int, bytes]] = []
        self._later: list[Collected] = []

    def read(self, update: Any) -> Padded:
        message: messages.PaddedUpdate = update
        if len(message.nonce) != NONCE_BYTES:
            raise fl.PeerError(f"a nonce of {len(message.nonce)} bytes; it has {NONCE_BYTES}")
        return Padded.from_bytes(self.key, message.padded, self.layout.size)

    def take(self, name: str, update: Any, vector: Any, *, late: bool) -> None:
        held = name, update.round, update.nonce
        if late:
            ticket = self.spool.put(vector.to_bytes())
            self._later.append(Collected([held], lambda: Padded.from_bytes(self.key, self.spool.take(ticket))))
        else:
            super().take(name, update, vector, late=False)
            self._in_time.append(held)

    def close(self, r: int) -> fl.Steps[None]:
        sums = dict(enumerate(self._later, 1))
        if padded := self.total:
            sums[0] = Collected(self._in_time, lambda: padded)

        def use(key: int, vector: Any) -> None:
            if key:
                self.late.put(vector)
            else:
                self.total = vector

        yield from complete(r, HELPER, self.key, sums, use)
