"""The keys for signing, sealing and opening envelopes: those of the roster, and identities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from coterie.crypto.signing import OVERHEAD_BYTES, OpeningKey, SealingKey, SigningKey, VerifyKey
from coterie.protocol.errors import PeerError
from coterie.protocol.told import Identity, Roster
from coterie.transport.envelope import Keyring

K = TypeVar("K")


class PartyKeys(Keyring):
    """All public keys, by the roster, and the secret keys of some parties. Raises PeerError for a key that is missing.

    roster: its signature was checked.  identities: SECRET, of the parties that sign, seal and open with this keyring.
    """

    overhead = OVERHEAD_BYTES

    def __init__(self, roster: Roster, identities: Mapping[str, Identity]) -> None:
        self._signing = {name: SigningKey.load(one.signing) for name, one in identities.items()}
        self._opening = {name: OpeningKey.load(one.opening) for name, one in identities.items()}
        self._verify = {one.name: VerifyKey.load(one.verify_key) for one in roster.entries}
        self._sealing = {one.name: SealingKey.load(one.sealing_key) for one in roster.entries}
        self.session = roster.session.hex()

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        return _of(self._signing, src, "signing").sign("envelope", header, digest)

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        _of(self._verify, src, "verification").verify(signature, "envelope", header, digest)

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        return _of(self._sealing, dst, "sealing").seal(frame, src, dst, header)

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        return _of(self._opening, dst, "opening").open(sealed, src, dst, header)


def _of(keys: Mapping[str, K], name: str, what: str) -> K:
    if name not in keys:
        raise PeerError(f"{name!r} has no {what} key")
    return keys[name]
