"""Everybody's keys in a simulation: a signing and an opening key of every party, as an operator would register them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from coterie.crypto.sealing import KEY_BYTES as OPENING_BYTES
from coterie.crypto.sealing import OVERHEAD_BYTES, OpeningKey, SealingKey
from coterie.crypto.signing import KEY_BYTES as SIGNING_BYTES
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.randomness import Randomness

K = TypeVar("K")


class PartyKeys:
    """``coterie.transport.envelope.Keyring``. Keys are the operating system's, or follow the seed in emulated runs.

    The public halves are everybody's; the secret ones are those of all parties, or of one (``of``).
    """

    overhead = OVERHEAD_BYTES

    def __init__(self, parties: Iterable[str], randomness: Randomness) -> None:
        names = tuple(parties)
        self._signing = {n: SigningKey.generate(randomness.secrets(n, "signing envelopes").bytes) for n in names}
        self._opening = {n: OpeningKey.generate(randomness.secrets(n, "sealing").bytes) for n in names}
        self._register()

    def _register(self) -> None:
        """The public halves, and the session that they name."""
        self._verify: dict[str, VerifyKey] = {name: key.public for name, key in self._signing.items()}
        self._sealing: dict[str, SealingKey] = {name: key.public for name, key in self._opening.items()}
        hashed = hashlib.sha256()
        for name in sorted(self._verify):
            hashed.update(self._verify[name].key + self._sealing[name].key + name.encode())
        self.session = hashed.hexdigest()[:32]

    def of(self, party: str) -> PartyKeys:
        """The keyring of one party: its own secret keys, and everybody's public ones."""
        own = object.__new__(PartyKeys)
        own._verify, own._sealing, own.session = self._verify, self._sealing, self.session
        own._signing, own._opening = {party: self._signing[party]}, {party: self._opening[party]}
        return own

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
        """SECRET: every party's keys, for its file of secrets."""
        return {name: key.to_bytes() + self._opening[name].to_bytes() for name, key in self._signing.items()}

    def restore(self, secrets: Mapping[str, bytes]) -> None:
        """Go on with the keys of ``secrets()``; raises PeerError (a DecodeError) for what is none."""
        for name, data in secrets.items():
            if len(data) != SIGNING_BYTES + OPENING_BYTES:
                raise DecodeError(f"the keys of {name} have {len(data)} bytes")
            self._signing[name] = SigningKey.load(data[:SIGNING_BYTES])
            self._opening[name] = OpeningKey.load(data[SIGNING_BYTES:])
        self._register()


def _of(keys: Mapping[str, K], name: str, what: str) -> K:
    if name not in keys:
        raise PeerError(f"{name!r} has no {what} key")
    return keys[name]
