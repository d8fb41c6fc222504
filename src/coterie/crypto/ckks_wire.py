"""The binary forms of CKKS keys and vectors, the same for the emulated twin. Little end first.

A vector is the 40-byte header of ``wire`` and then its ciphertexts: two polynomials each, limb by limb, N residues in
NTT form of as many bytes as their prime needs. A key is a 20-byte header and then its polynomials modulo all primes:

    magic "CoKy", version u8, scheme u8, kind u8 (0 public, 1 secret, 2 evaluation), products u8, identity of the
    parameters 12 bytes

of a public key, its pair and, if products is 1, the pairs to relinearise with; of a secret key, the secret polynomial
and then those; of an evaluation key, the 16 bytes of the key that it belongs to, and the pairs of each automorphism.
The twins' are hollow, as in ``wire``. All decoding raises DecodeError, whatever the bytes.
"""

from __future__ import annotations

import struct

from coterie.crypto import wire
from coterie.crypto.ckks_parameters import PARAMETERS, Parameters, known
from coterie.crypto.tally import Form, Tally
from coterie.protocol.errors import DecodeError

_KEY = struct.Struct("<4sBBBB12s")
_KEY_MAGIC = b"CoKy"
_KINDS = ("public", "secret", "evaluation")
FINGERPRINT_BYTES = 16


def vector_bytes(parameters: Parameters, length: int, form: Form) -> int:
    """Exact size of a vector, in bytes (a product: after rescaling)."""
    return wire.VECTOR_HEADER_BYTES + parameters.body_bytes(length, form)


def split_vector(
    data: bytes, scheme: str, fingerprint: bytes, parameters: Parameters, wanted: wire.Wanted
) -> tuple[Tally, memoryview]:
    """What the header says, checked, and the ciphertexts' bytes."""

    def size(tally: Tally) -> int:
        maskable = parameters.flood_bits is not None
        if (
            tally.form.level > parameters.levels
            or (tally.form.scalar and tally.length != 1)
            or (tally.blinded and not maskable)
        ):
            raise DecodeError(
                f"{tally.length} values with {tally.blinded} masks as a {tally.form} can't be under {parameters.name}"
            )
        if max(tally.terms, tally.blinded) > (most := parameters.room(tally.form)):
            raise DecodeError(f"{tally.terms} terms with {tally.blinded} masks: a {tally.form} has room for {most}")
        return vector_bytes(parameters, tally.length, tally.form)

    return wire.split_sized(data, scheme, fingerprint, 1 << parameters.largest_bits, size, wanted)


def key_header(parameters: Parameters, scheme: str, kind: str, *, products: bool) -> bytes:
    """The 20 bytes before a key's polynomials."""
    code = wire.SCHEMES[scheme], _KINDS.index(kind), int(products)
    return _KEY.pack(_KEY_MAGIC, wire.VERSION, *code, parameters.identity)


def key_bytes(parameters: Parameters, kind: str, *, products: bool) -> int:
    """Exact size of a key, in bytes."""
    if kind == "evaluation":
        return _KEY.size + FINGERPRINT_BYTES + parameters.evaluation_bytes
    return _KEY.size + parameters.public_bytes(products) + (parameters.secret_bytes if kind == "secret" else 0)


def split_evaluation(data: bytes, scheme: str, allow_insecure: bool) -> tuple[Parameters, bytes, memoryview]:
    """Whose parameters an evaluation key has, the fingerprint of its public key, and the bytes of its polynomials."""
    parameters, _, body = split_key(data, scheme, "evaluation", allow_insecure)
    return parameters, bytes(body[:FINGERPRINT_BYTES]), body[FINGERPRINT_BYTES:]


def split_key(data: bytes, scheme: str, kind: str, allow_insecure: bool) -> tuple[Parameters, bool, memoryview]:
    """Whose parameters a key has, whether it is one for products, and the bytes of its polynomials."""
    held, size = wire.opened(data, scheme)
    if len(held) < _KEY.size:
        raise DecodeError(f"{len(held)} bytes are no key: its header alone has {_KEY.size}")
    magic, version, code, what, products, identity = _KEY.unpack_from(held)
    if magic != _KEY_MAGIC or version != wire.VERSION or products > 1:
        raise DecodeError(f"no key of version {wire.VERSION}")
    if code != wire.SCHEMES[scheme] or what != _KINDS.index(kind):
        raise DecodeError(f"not a {kind} key of {scheme}")
    parameters = {p.identity: p for p in known()}.get(identity)
    if parameters is None:
        raise DecodeError(f"a key with unknown parameters {identity.hex()}: known are {sorted(PARAMETERS)}")
    if not parameters.secure and not allow_insecure:
        raise DecodeError(f"a key of {parameters.name} is refused: only {sorted(PARAMETERS)} are secure")
    if products != bool(products and parameters.levels) or (kind == "evaluation" and not products):
        raise DecodeError(f"a {kind} key of {parameters.name} can't be one {'for' if products else 'without'} products")
    if size != (whole := key_bytes(parameters, kind, products=bool(products))):
        raise DecodeError(f"a {kind} key of {parameters.name} has {whole} bytes, not {size}")
    return parameters, bool(products), held[_KEY.size :]
