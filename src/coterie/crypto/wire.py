"""The binary forms of ciphertext vectors and keys of all schemes. Little end first.

A ciphertext vector is a header and then its ciphertexts. A Paillier ciphertext is one number of ``key_bits / 4`` bytes.
A CKKS ciphertext is two polynomials, limb by limb, N residues in NTT form of as many bytes as their prime needs. A
padded vector (``padded``) is a machine word a value and 80 bytes a pad. A key is a header and then its numbers.

An emulated twin writes only its values, or its key's name, and states the real length as their weight. Decoding raises
DecodeError alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from coterie.crypto.arrays import KeyArrays, Space
from coterie.crypto.ckks_parameters import known
from coterie.crypto.packing import SEALED_BYTES, Layout, Words
from coterie.crypto.tally import Form, Tally
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import DecodeError

VERSION = 1
SCHEMES = {"paillier": 1, "exact": 2, "ckks": 3, "rounded": 4, "pads": 5, "plain": 6}
EMULATED = frozenset({"exact", "rounded", "plain"})
KINDS = ("public", "secret", "evaluation")

# Magic "CoCv", version, scheme, level, kind (0 vector, 1 scalar, 2 a scalar in the constant coefficient; level and kind
# are CKKS's, else zero), key fingerprint, length, terms, blinded. Magic "CoKy", version, scheme, kind (0 public, 1
# secret, 2 evaluation), flag, parameters.
_VECTOR, _KEY = struct.Struct("<4sBBBB16sQII"), struct.Struct("<4sBBBB12s")
_VECTOR_MAGIC, _KEY_MAGIC = b"CoCv", b"CoKy"


def vector_bytes(space: Space, length: int, form: Form) -> int:
    """In bytes (a product: after rescaling)."""
    return _VECTOR.size + space.body_bytes(length, form)


def join_vector(scheme: str, space: Space, tally: Tally, parts: Sequence[Any]) -> bytes:
    """Products travel rescaled."""
    form = tally.form.level, tally.form.scalar + tally.form.constant
    fields = tally.fingerprint, tally.length, tally.terms, tally.blinded
    header = _VECTOR.pack(_VECTOR_MAGIC, VERSION, SCHEMES[scheme], *form, *fields)
    whole = vector_bytes(space, tally.length, tally.form)
    if isinstance(space, Words):  # whose sums grow
        whole = len(header) + sum(map(len, parts))
    return _joined(scheme, whole, header, *parts)


def split_vector(
    data: bytes, scheme: str, fingerprint: bytes, space: Space, wanted: Sequence[int | None], form: Form | None
) -> tuple[Tally, memoryview]:
    """The checked header of a vector, and its body.

    wanted: required length, terms and masks; None: all that fits. One term without a mask has one pad.
    """
    held, found = _opened(data, scheme)
    if len(held) < _VECTOR.size:
        raise DecodeError(f"{len(held)} bytes are no ciphertext vector: its header alone has {_VECTOR.size}")
    magic, version, code, level, what, key, count, sums, masks = _VECTOR.unpack_from(held)
    if magic != _VECTOR_MAGIC or version != VERSION or what > 2:
        raise DecodeError(f"no ciphertext vector of version {VERSION}")
    if code != SCHEMES[scheme]:
        raise DecodeError(f"a ciphertext vector of scheme {code}, not of {scheme} ({SCHEMES[scheme]})")
    if key != fingerprint:
        raise DecodeError(f"encrypted under key {key.hex()[:8]}, not under {fingerprint.hex()[:8]}")
    tally = Tally(key, count, sums, masks, Form(level, what > 0, constant=what > 1))
    space.admits(tally)
    most = space.room(tally.form)
    if not 1 <= sums <= most or masks > most:
        raise DecodeError(f"{sums} terms with {masks} masks: a {tally.form} has room for 1 to {most} of them")
    for what, got, asked in zip(("values", "terms", "masks"), (count, sums, masks), wanted, strict=True):
        if asked is not None and got != asked:
            raise DecodeError(f"{got} {what} where {asked} were expected")
    if form is not None and tally.form != form:
        raise DecodeError(f"a {tally.form} where a {form} was expected")
    if count == 0:
        raise DecodeError("a vector of no values")
    whole = vector_bytes(space, count, tally.form)
    if isinstance(space, Words) and found > whole and tuple(wanted[1:]) != (1, 0):
        whole += (found - whole) // SEALED_BYTES * SEALED_BYTES
    if found != whole:
        raise DecodeError(f"{found} bytes for {count} values: {whole} were expected")
    return tally, held[_VECTOR.size :]


def key_header(kind: str, key: KeyArrays) -> bytes:
    """The 20 bytes before a key's numbers."""
    code = SCHEMES[key.scheme], KINDS.index(kind), key.flag
    return _KEY.pack(_KEY_MAGIC, VERSION, *code, key.space.identity)


# Paillier: the flag is the randomness (0 short, 1 full); the parameters are fraction_bits, value_bits, guard_bits and
# kappa as u16 and key_bits as u32; the numbers are N and h, or both primes and h. CKKS: the flag says whether the key
# has products; the parameters are a hash; the numbers of a public key are its pair and, with the flag, the pairs to
# relinearise with; of a secret key the secret polynomial and then those; of an evaluation key the 16 bytes of its key,
# and the pairs of each automorphism. Padded vectors have Paillier's parameters with the 256 bits of their keys, whose
# numbers are 32 bytes.
def join_key(kind: str, key: KeyArrays) -> bytes:
    size = _KEY.size + key.space.key_bytes(kind, key.flag)
    return _joined(key.scheme, size, key_header(kind, key), *key.parts())


def scheme_of(data: bytes) -> str:
    """As the bytes of a key claim. Raises DecodeError for none."""
    held = content(data)
    code = _KEY.unpack_from(held)[2] if len(held) >= _KEY.size else 0
    for name, number in SCHEMES.items():
        if number == code:
            return name
    raise DecodeError(f"{len(held)} bytes are no key of a known scheme")


def split_key(
    data: bytes, kind: str, schemes: Sequence[str], allow_insecure: bool
) -> tuple[str, Space, int, memoryview]:
    held = content(data)
    if len(held) < _KEY.size:
        raise DecodeError(f"{len(held)} bytes are no key: its header alone has {_KEY.size}")
    magic, version, code, what, flag, identity = _KEY.unpack_from(held)
    if magic != _KEY_MAGIC or version != VERSION or flag > 1:
        raise DecodeError(f"no key of version {VERSION}")
    scheme = next((name for name in schemes if SCHEMES[name] == code), None)
    if scheme is None or what != KINDS.index(kind):
        raise DecodeError(f"not a {kind} key of {' or '.join(schemes)}")
    _, size = _opened(data, scheme)
    layout = Words if scheme in ("pads", "plain") else Layout
    space: Space = known(identity) if "ckks" in schemes else layout.known(identity)
    if not space.secure and not allow_insecure:
        raise DecodeError(f"a key of {space.size} is refused: it is secure for tests only")
    if size != (whole := _KEY.size + space.key_bytes(kind, flag)):
        raise DecodeError(f"a {kind} key of {space.size} has {whole} bytes, not {size}")
    return scheme, space, flag, held[_KEY.size :]


def _joined(scheme: str, size: int, *parts: Any) -> bytes:
    return weighted(size, *parts) if scheme in EMULATED else b"".join(parts)


def _opened(data: bytes, scheme: str) -> tuple[memoryview, int]:
    held = content(data)
    if scheme not in EMULATED and len(held) != len(data):
        raise DecodeError(f"emulated bytes where {scheme} is used: a real key or vector states no weight")
    return held, weighs(data)
