"""The keys for envelopes: the roster's, and identities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from coterie.crypto.signing import OVERHEAD_BYTES, OpeningKey, SealingKey, SigningKey, VerifyKey
from coterie.protocol.errors import PeerError
from coterie.protocol.setup_info import Identity, Roster
from coterie.transport.envelope import Keyring

K = TypeVar("K")
_HELD = 8192


class PartyKeys(Keyring):
    """All public keys, and some parties' secret ones. Raises PeerError for a missing one.

    roster: already checked.  identities: SECRET.
    """

    overhead = OVERHEAD_BYTES

    def __init__(self, roster: Roster, identities: Mapping[str, Identity]) -> None:
        known = roster.by_name
        self._signing = _Loaded("signing", lambda name: SigningKey.load(identities[name].signing))
        self._opening = _Loaded("opening", lambda name: OpeningKey.load(identities[name].opening))
        self._verify = _Loaded("verification", lambda name: VerifyKey.load(known[name].verify_key))
        self._sealing = _Loaded("sealing", lambda name: SealingKey.load(known[name].sealing_key))
        self.session = roster.session.hex()

    def check_known(self, name: str) -> None:
        self._verify(name)

    def sign(self, src: str, header: bytes, digest: bytes) -> bytes:
        return self._signing(src).sign("envelope", header, digest)

    def verify(self, src: str, signature: bytes, header: bytes, digest: bytes) -> None:
        self._verify(src).verify(signature, "envelope", header, digest)

    def seal(self, src: str, dst: str, frame: bytes, header: bytes) -> bytes:
        return self._sealing(dst).seal(frame, src, dst, header)

    def open(self, src: str, dst: str, sealed: bytes, header: bytes) -> bytes:
        return self._opening(dst).open(sealed, src, dst, header)


class _Loaded(Generic[K]):
    def __init__(self, what: str, load: Callable[[str], K]) -> None:
        self._what, self._load = what, lru_cache(maxsize=_HELD)(load)

    def __call__(self, name: str) -> K:
        try:
            return self._load(name)
        except KeyError:
            raise PeerError(f"{name!r} has no {self._what} key") from None
