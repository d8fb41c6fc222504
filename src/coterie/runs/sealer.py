"""Who can open what in a simulation: one X25519 key a party, as the key authority would have certified them."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.crypto.sealing import OVERHEAD_BYTES, OpeningKey, SealError
from coterie.protocol.errors import PeerError
from coterie.protocol.hollow import content, hollow, weighs
from coterie.protocol.roster import Identity


class PartySealer:
    """``coterie.transport.envelope.Sealer``."""

    def __init__(self, identities: Mapping[str, Identity]) -> None:
        self._keys = {name: OpeningKey.load(identity.opening) for name, identity in identities.items()}
        self._publics = {name: key.public for name, key in self._keys.items()}

    def seal(self, src: str, dst: str, frame: bytes) -> bytes:
        """Bytes that only ``dst`` can open, hollow if the frame is; raises PeerError for a party without a key."""
        if dst not in self._publics:
            raise PeerError(f"{dst!r} has no sealing key")
        sealed = self._publics[dst].seal(frame, src, dst)
        return hollow(weighs(frame) + OVERHEAD_BYTES, sealed)

    def open(self, src: str, dst: str, sealed: bytes) -> bytes:
        """The frame; raises PeerError when it was not sealed by these ends for each other."""
        if dst not in self._keys:
            raise PeerError(f"{dst!r} has no sealing key")
        frame = self._keys[dst].open(content(sealed), src, dst)
        if weighs(sealed) != weighs(frame) + OVERHEAD_BYTES:
            raise SealError(f"sealed bytes from {src} to {dst} that don't weigh what is in them")
        return frame
