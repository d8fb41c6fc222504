"""The keys of parties in this process, and everybody's public ones, as the roster has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from coterie.crypto.sealing import KEY_BYTES as OPENING_BYTES
from coterie.crypto.sealing import OVERHEAD_BYTES, OpeningKey, SealingKey
from coterie.crypto.signing import KEY_BYTES as SIGNING_BYTES
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.roster import Identity, Roster

K = TypeVar("K")


class PartyKeys:
    """``coterie.transport.envelope.Keyring``. identities: SECRET, of one party or, in a simulation, of all."""

    overhead = OVERHEAD_BYTES

    def __init__(self, roster: Roster, identities: Mapping[str, Identity]) -> None:
        self.session = roster.session.hex()
        self._verify = {one.name: VerifyKey(one.verify_key) for one in roster.entries}
        self._sealing = {one.name: SealingKey(one.sealing_key) for one in roster.entries}
        self._signing = {name: SigningKey.load(own.signing) for name, own in identities.items()}
        self._opening = {name: OpeningKey.load(own.opening) for name, own in identities.items()}

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        """64 bytes over an envelope's fields and its payload's digest. Raises PeerError for a party without a key."""
        return _of(self._signing, src, "signing").sign("envelope", header, digest)

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        """Raises PeerError unless ``src`` has signed exactly this."""
        _of(self._verify, src, "verification").verify(signature, "envelope", header, digest)

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        """Bytes that only ``dst`` can open, with this header; raises PeerError for a party without a key."""
        return _of(self._sealing, dst, "sealing").seal(frame, src, dst, header)

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        """The frame; raises PeerError when it was not sealed for these ends with this header."""
        return _of(self._opening, dst, "opening").open(sealed, src, dst, header)

    def secrets(self) -> dict[str, bytes]:
        """SECRET: the keys of every party in this process, for its file of secrets; under "" the session."""
        keys = {name: key.to_bytes() + self._opening[name].to_bytes() for name, key in self._signing.items()}
        return {"": bytes.fromhex(self.session), **keys}

    def restore(self, secrets: Mapping[str, bytes]) -> None:
        """Go on with the keys of ``secrets()``; raises PeerError (a DecodeError) for what is none."""
        for name, data in secrets.items():
            if not name:
                self.session = data.hex()
                continue
            if len(data) != SIGNING_BYTES + OPENING_BYTES:
                raise DecodeError(f"the keys of {name} have {len(data)} bytes")
            self._signing[name] = SigningKey.load(data[:SIGNING_BYTES])
            self._opening[name] = OpeningKey.load(data[SIGNING_BYTES:])
            self._verify[name], self._sealing[name] = self._signing[name].public, self._opening[name].public


def _of(keys: Mapping[str, K], name: str, what: str) -> K:
    if name not in keys:
        raise PeerError(f"{name!r} has no {what} key")
    return keys[name]
