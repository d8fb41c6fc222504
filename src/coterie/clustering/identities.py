"""Indistinguishable cluster identities: algorithm 1 and section IV-B (I) of "MingledPie".

The server publishes a key for every cluster. A client compares the key of its true cluster with every cluster's address
under a hash of one bit, and joins those that match in all n bits: its true cluster, and others with probability p =
2^-n. Departures: docs/systems/mingledpie_appendix.md.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from coterie.clustering.identity_law import MAX_CLUSTERS, Counts, IdentityLaw
from coterie.protocol.errors import CryptoError, DecodeError, UserError

RandomBytes = Callable[[int], bytes]
"""n -> n uniform random bytes."""

MAX_BITS = 32
MAX_EXPECTED_TRIES = 10_000
SCALAR_BYTES = 32
POINT_BYTES = 33  # compressed

_GROUP = ec.SECP256R1()  # of prime order, with cofactor 1: every point on the curve is in the group
_ECDH = ec.ECDH()
_HEADER = struct.Struct("<4sBBH")
_MAGIC, _VERSION = b"CoCI", 1
_HASH_DOMAIN = b"coterie/cluster identity/1"


@dataclass(frozen=True, repr=False)
class ClusterKeys:
    """Eq. (1): addresses dsk_j and public keys dpk_j of all clusters, each of n elements, in the group P-256.

    data: header (magic, version u8, n u8, k u16), then all x_j^l, scalars of 32 bytes, big-endian, then all h_j^l =
    g^(x_j^l), compressed points, cluster by cluster. Raises DecodeError for anything else.
    """

    data: bytes

    def __post_init__(self) -> None:
        _loaded(self.data)

    @classmethod
    def generate(cls, clusters: int, bits: int, random_bytes: RandomBytes = os.urandom) -> ClusterKeys:
        """bits: n.  clusters: k. Raises UserError for impossible numbers."""
        if not 2 <= operator.index(clusters) <= MAX_CLUSTERS or not 1 <= operator.index(bits) <= MAX_BITS:
            raise UserError(f"keys for {clusters} clusters with {bits} bits cannot be made: {_LIMITS}")
        keys = [_scalar(random_bytes) for _ in range(clusters * bits)]
        scalars = (x.private_numbers().private_value.to_bytes(SCALAR_BYTES, "big") for x in keys)
        points = (x.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint) for x in keys)
        return cls(b"".join([_HEADER.pack(_MAGIC, _VERSION, bits, clusters), *scalars, *points]))

    @property
    def clusters(self) -> int:
        return len(_loaded(self.data)[0])

    @property
    def bits(self) -> int:
        return len(_loaded(self.data)[0][0])

    @property
    def p(self) -> float:
        return float(2.0**-self.bits)

    def __repr__(self) -> str:
        return f"<ClusterKeys of {self.clusters} clusters with {self.bits} bits>"


def identity_set(
    keys: ClusterKeys,
    true_cluster: int,
    threshold: int,
    random_bytes: RandomBytes,
    counts: Counts = "identities",
    printed: bool = False,
) -> tuple[NDArray[np.bool_], int]:
    """Algorithm 1: the clusters that a client joins, (k,) bool, and the number of tries.

    threshold, counts: the least number of identities, or of false ones.  printed: eq. (3) as printed, which all
    clusters satisfy. A try costs about n + 2k Diffie-Hellman operations. Raises UserError for an impossible threshold,
    also by ``MAX_EXPECTED_TRIES``.
    """
    law = IdentityLaw(keys.clusters, keys.p, threshold, counts)
    true = _true_clusters([true_cluster], law)[0]
    addresses, points = _loaded(keys.data)
    for tries in range(1, (1 if printed else _most_tries(law)) + 1):
        r = _scalar(random_bytes)
        u = r.public_key()  # u = g^r
        key_bits = _key_bits(r, points[true])
        expected = [_key_bits(r, own) if printed else key_bits for own in points]  # eq. (3)
        joined = np.array([_matches(address, u, bits) for address, bits in zip(addresses, expected, strict=True)])
        if joined.sum() >= law.least:
            return joined, tries
    raise _stuck(law)


_LIMITS = f"2 to {MAX_CLUSTERS} clusters and 1 to {MAX_BITS} bits are possible"
_Addresses = tuple[tuple[ec.EllipticCurvePrivateKey, ...], ...]
_Points = tuple[tuple[ec.EllipticCurvePublicKey, ...], ...]


@lru_cache(maxsize=8)
def _loaded(data: bytes) -> tuple[_Addresses, _Points]:
    if len(data) < _HEADER.size:
        raise DecodeError(f"{len(data)} bytes are no cluster keys: their header alone has {_HEADER.size}")
    magic, version, bits, clusters = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise DecodeError(f"no cluster keys of version {_VERSION}")
    size = _HEADER.size + bits * clusters * (SCALAR_BYTES + POINT_BYTES)
    if len(data) != size:
        raise DecodeError(f"{clusters} clusters with {bits} bits take {size} bytes, not {len(data)}")
    if not 2 <= clusters <= MAX_CLUSTERS or not 1 <= bits <= MAX_BITS:
        raise DecodeError(f"keys of {clusters} clusters with {bits} bits: {_LIMITS}")
    body = BytesIO(data[_HEADER.size :])
    addresses = tuple(tuple(_private(body.read(SCALAR_BYTES)) for _ in range(bits)) for _ in range(clusters))
    points = tuple(tuple(_public(body.read(POINT_BYTES)) for _ in range(bits)) for _ in range(clusters))
    for j, (row, expected) in enumerate(zip(addresses, points, strict=True)):
        if tuple(x.public_key() for x in row) != expected:
            raise DecodeError(f"the public key of cluster {j} is not that of its address")
    return addresses, points


def _key_bits(r: ec.EllipticCurvePrivateKey, points: tuple[ec.EllipticCurvePublicKey, ...]) -> list[int]:
    return [_hash(r.exchange(_ECDH, h)) for h in points]


def _matches(
    address: tuple[ec.EllipticCurvePrivateKey, ...], u: ec.EllipticCurvePublicKey, key_bits: list[int]
) -> bool:
    return all(_hash(x.exchange(_ECDH, u)) == bit for x, bit in zip(address, key_bits, strict=True))


def _hash(element: bytes) -> int:
    return hashlib.sha256(_HASH_DOMAIN + element).digest()[0] & 1


def _scalar(random_bytes: RandomBytes) -> ec.EllipticCurvePrivateKey:
    extra = int.from_bytes(_drawn(random_bytes, SCALAR_BYTES + 16), "big")
    return ec.derive_private_key(1 + extra % (_GROUP.group_order - 1), _GROUP)


def _private(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    x = int.from_bytes(scalar, "big")
    if not 1 <= x < _GROUP.group_order:
        raise DecodeError("a cluster address holds a number that is no scalar of P-256")
    return ec.derive_private_key(x, _GROUP)


def _public(point: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_GROUP, point)
    except ValueError:
        raise DecodeError("a cluster's public key holds a point that is not on P-256") from None


def _true_clusters(clusters: Any, law: IdentityLaw) -> NDArray[np.intp]:
    truth = np.asarray(clusters)
    if truth.ndim != 1 or not truth.size or truth.dtype.kind not in "iu":
        raise UserError(f"true clusters must be whole numbers (clients,), not {truth.dtype} of shape {truth.shape}")
    if truth.min() < 0 or truth.max() >= law.clusters:
        wrong = truth[(truth < 0) | (truth >= law.clusters)][0]
        raise UserError(f"there is no cluster {wrong}: they count from 0 to {law.clusters - 1}")
    return truth.astype(np.intp)


def _most_tries(law: IdentityLaw) -> int:
    """So many tries all fail with probability 2^-64."""
    if law.expected_tries > MAX_EXPECTED_TRIES:
        raise UserError(
            f"a set of at least {law.least} of {law.clusters} clusters at p = {law.p} takes {law.expected_tries:.3g} "
            f"tries on average, more than {MAX_EXPECTED_TRIES}: lower the threshold or raise p (shorten the keys)"
        )
    return math.ceil(64 * math.log(2) * law.expected_tries)


def _stuck(law: IdentityLaw) -> CryptoError:
    return CryptoError(
        f"no set of at least {law.least} of {law.clusters} clusters after {_most_tries(law)} tries: the source of "
        "randomness repeats itself"
    )


def _drawn(random_bytes: RandomBytes, size: int) -> bytes:
    data = random_bytes(size)
    if len(data) != size:
        raise CryptoError(f"the source of randomness gave {len(data)} bytes where {size} were asked for")
    return data
