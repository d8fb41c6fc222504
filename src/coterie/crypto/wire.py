"""The binary forms of ciphertext vectors, of all schemes, and of keys of Paillier and its twin. Little end first.

A ciphertext vector is a 40-byte header and then its ciphertexts (of Paillier, ``key_bits / 4`` bytes each):

    magic "CoCv", version u8, scheme u8, level u8, scalar u8, key fingerprint 16 bytes, length u64, terms u32,
    blinded u32

(level and scalar are CKKS's, else zero.) A key of Paillier is a 20-byte header and then ``key_bits / 4`` bytes of
numbers, for the twin as for the real scheme; ``ckks_wire`` has those of CKKS:

    magic "CoKy", version u8, scheme u8, kind u8 (0 public, 1 secret), randomness u8 (0 short, 1 full),
    fraction_bits u16, value_bits u16, guard_bits u16, kappa u16, key_bits u32

What the twins write is hollow: of the length of the real thing it holds only values, or a key's name.
All decoding raises DecodeError, whatever the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from coterie.crypto.packing import Lanes, Layout
from coterie.crypto.tally import PLAIN, Form, Tally
from coterie.protocol.errors import DecodeError, UserError
from coterie.protocol.hollow import content, weighs

VERSION = 1
SCHEMES = {"paillier": 1, "exact": 2, "ckks": 3, "rounded": 4}
EMULATED = frozenset({"exact", "rounded"})
RANDOMNESS = ("short", "full")
PARAMETERS = {"paillier-2048": 2048, "paillier-3072": 3072}  # 112 and 128 bits of security

_VECTOR = struct.Struct("<4sBBBB16sQII")
_KEY = struct.Struct("<4sBBBBHHHHI")
_VECTOR_MAGIC, _KEY_MAGIC = b"CoCv", b"CoKy"

VECTOR_HEADER_BYTES = _VECTOR.size
KEY_HEADER_BYTES = _KEY.size


@dataclass(frozen=True)
class Wanted:
    """What must stand in a vector's header; None: anything that fits."""

    length: int | None
    terms: int | None
    blinded: int | None
    form: Form | None

    def check(self, tally: Tally) -> None:
        """Raises DecodeError for a tally that is not as wanted."""
        for what, got, wanted in (
            ("values", tally.length, self.length),
            ("terms", tally.terms, self.terms),
            ("masks", tally.blinded, self.blinded),
        ):
            if wanted is not None and got != wanted:
                raise DecodeError(f"{got} {what} where {wanted} were expected")
        if self.form is not None and tally.form != self.form:
            raise DecodeError(f"a {tally.form} where a {self.form} was expected")


@dataclass(frozen=True)
class KeyHeader:
    """What comes before the numbers of a key. kind: "public" or "secret"; randomness: "short" or "full"."""

    scheme: str
    kind: str
    randomness: str
    layout: Layout

    def to_bytes(self) -> bytes:
        """The 20 bytes before the numbers."""
        lanes = self.layout.lanes
        return _KEY.pack(
            _KEY_MAGIC,
            VERSION,
            SCHEMES[self.scheme],
            ("public", "secret").index(self.kind),
            RANDOMNESS.index(self.randomness),
            lanes.fraction_bits,
            lanes.value_bits,
            lanes.guard_bits,
            lanes.kappa,
            self.layout.key_bits,
        )


def vector_header(tally: Tally, scheme: str) -> bytes:
    """The 40 bytes before the ciphertexts. (A product travels rescaled, so nothing says that it is one.)"""
    form = tally.form.level, tally.form.scalar
    fields = tally.fingerprint, tally.length, tally.terms, tally.blinded
    return _VECTOR.pack(_VECTOR_MAGIC, VERSION, SCHEMES[scheme], *form, *fields)


def vector_bytes(layout: Layout, length: int) -> int:
    """Exact size of a Paillier vector of ``length`` values, in bytes."""
    return VECTOR_HEADER_BYTES + layout.plaintexts(length) * layout.ciphertext_bytes


def split_vector(
    data: bytes, scheme: str, fingerprint: bytes, layout: Layout, wanted: Wanted
) -> tuple[Tally, memoryview]:
    """What the header of a Paillier vector says, checked, and the ciphertexts' bytes."""

    def size(tally: Tally) -> int:
        if tally.form != PLAIN:
            raise DecodeError(f"a {tally.form} is none of {scheme}")
        return vector_bytes(layout, tally.length)

    return split_sized(data, scheme, fingerprint, layout.lanes.max_terms, size, wanted)


def split_sized(
    data: bytes, scheme: str, fingerprint: bytes, most: int, size: Callable[[Tally], int], wanted: Wanted
) -> tuple[Tally, memoryview]:
    """What the header of any scheme's vector says, checked, and what follows it.

    most: terms, and masks, that there is room for.  size: how many bytes a vector of this tally has; it may refuse the
    form with a DecodeError.
    """
    held, found = opened(data, scheme)
    if len(held) < VECTOR_HEADER_BYTES:
        raise DecodeError(f"{len(held)} bytes are no ciphertext vector: its header alone has {VECTOR_HEADER_BYTES}")
    magic, version, code, level, scalar, key, count, sums, masks = _VECTOR.unpack_from(held)
    if magic != _VECTOR_MAGIC or version != VERSION or scalar > 1:
        raise DecodeError(f"no ciphertext vector of version {VERSION}")
    if code != SCHEMES[scheme]:
        raise DecodeError(f"a ciphertext vector of scheme {code}, not of {scheme} ({SCHEMES[scheme]})")
    if key != fingerprint:
        raise DecodeError(f"encrypted under key {key.hex()[:8]}, not under {fingerprint.hex()[:8]}")
    if not 1 <= sums <= most or masks > most:
        raise DecodeError(f"{sums} terms with {masks} masks: there is room for 1 to {most} terms and {most} masks")
    tally = Tally(key, count, sums, masks, Form(level, bool(scalar)))
    wanted.check(tally)
    if count == 0:
        raise DecodeError("a vector of no values")
    if found != (whole := size(tally)):
        raise DecodeError(f"{found} bytes for {count} values: {whole} were expected")
    return tally, held[VECTOR_HEADER_BYTES:]


def opened(data: bytes, scheme: str) -> tuple[memoryview, int]:
    """What there is of a key or vector, and its size on the wire. A real scheme's are never hollow: DecodeError."""
    held = content(data)
    if scheme not in EMULATED and len(held) != len(data):
        raise DecodeError(f"emulated bytes where {scheme} is used: a real key or vector is never hollow")
    return held, weighs(data)


def split_key(data: bytes, scheme: str, kind: str, allow_insecure: bool) -> tuple[KeyHeader, memoryview]:
    """The checked header of a key and the bytes of its numbers."""
    held, size = opened(data, scheme)
    if len(held) < KEY_HEADER_BYTES:
        raise DecodeError(f"{len(held)} bytes are no key: its header alone has {KEY_HEADER_BYTES}")
    magic, version, code, secret, full, fraction, value, guard, kappa, key_bits = _KEY.unpack_from(held)
    if magic != _KEY_MAGIC or version != VERSION or secret > 1 or full > 1:
        raise DecodeError(f"no key of version {VERSION}")
    if code != SCHEMES[scheme] or secret != ("public", "secret").index(kind):
        raise DecodeError(f"not a {kind} key of {scheme}")
    try:
        layout = Layout(Lanes(fraction, value, guard, kappa), key_bits)
    except UserError as error:
        raise DecodeError(f"a key with an impossible layout: {error}") from None
    if size != (whole := KEY_HEADER_BYTES + key_bits // 4):
        raise DecodeError(f"a key of {key_bits} bits has {whole} bytes, not {size}")
    numbers = held[KEY_HEADER_BYTES:]
    if key_bits not in PARAMETERS.values() and not allow_insecure:
        raise DecodeError(f"a key of {key_bits} bits is refused: only {sorted(PARAMETERS.values())} are secure")
    return KeyHeader(scheme, kind, RANDOMNESS[full], layout), numbers


def scheme_of_key(data: bytes) -> str:
    """The scheme that the bytes of a key name. Raises DecodeError if there is none."""
    codes, held = {code: name for name, code in SCHEMES.items()}, content(data)
    if len(held) < KEY_HEADER_BYTES or held[:4] != _KEY_MAGIC or held[5] not in codes:
        raise DecodeError("these bytes are no key")
    return codes[held[5]]
