"""The updates that the aggregator holds in one round: the sum of those in time, and the late ones one by one.

Each update is verified before it is taken. In mode ``hardened`` clients send vectors under one-time pads. When all are
there, the helper gives one counterpart for the sum of those in time, and one for each late update; with these they are
ciphertexts as in the other modes.
"""

from __future__ import annotations

from typing import Any

from coterie.crypto.ckks import PublicKey
from coterie.crypto.pads import Padded
from coterie.protocol.errors import PeerError
from coterie.protocol.spool import Spool
from coterie.protocol.steps import Steps
from coterie.protocols.pads import NONCE_BYTES, Collected, complete
from coterie.systems.pafed.correction import Late
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import HELPER, PaddedUpdate, Update


class Inbox:
    """Updates that are ciphertexts. key: the helper's public key.

    total: the sum of those in time, or None.  late: the others.
    """

    def __init__(self, spool: Spool, layout: Layout, key: PublicKey) -> None:
        self.spool, self.layout, self.key = spool, layout, key
        self.late = Late(spool, layout, key)
        self.total: Any = None

    def read(self, update: Any) -> Any:
        """The vector of an update, checked. Raises DecodeError or PeerError."""
        message: Update = update
        return self.key.from_bytes(message.cipher, self.layout.size, terms=1, blinded=0, form=self.key.fresh)

    def take(self, name: str, update: Any, vector: Any, *, late: bool) -> None:
        if late:
            self.late.put(vector)
        else:
            self.total = vector if self.total is None else self.total + vector

    def close(self, r: int) -> Steps[None]:
        """After the last update of round r: ``total`` and ``late`` are ciphertexts."""
        yield from ()


class PaddedInbox(Inbox):
    """Updates under one-time pads."""

    def __init__(self, spool: Spool, layout: Layout, key: PublicKey) -> None:
        super().__init__(spool, layout, key)
        self._in_time: list[tuple[str, int, bytes]] = []
        self._later: list[Collected] = []

    def read(self, update: Any) -> Padded:
        message: PaddedUpdate = update
        if len(message.nonce) != NONCE_BYTES:
            raise PeerError(f"a nonce of {len(message.nonce)} bytes; it has {NONCE_BYTES}")
        return Padded.from_bytes(self.key, message.padded, self.layout.size)

    def take(self, name: str, update: Any, vector: Any, *, late: bool) -> None:
        held = name, update.round, update.nonce
        if late:
            ticket = self.spool.put(vector.to_bytes())
            self._later.append(Collected([held], lambda: Padded.from_bytes(self.key, self.spool.take(ticket))))
        else:
            super().take(name, update, vector, late=False)
            self._in_time.append(held)

    def close(self, r: int) -> Steps[None]:
        sums = dict(enumerate(self._later, 1))
        if padded := self.total:
            sums[0] = Collected(self._in_time, lambda: padded)

        def use(key: int, vector: Any) -> None:
            if key:
                self.late.put(vector)
            else:
                self.total = vector

        yield from complete(r, HELPER, self.key, sums, use)
