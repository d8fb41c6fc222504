"""A proof that a vector in two shares is short, of which two servers learn nothing else.

x (d,) whole numbers mod 2^32 are the sum of two shares. Once both are fixed, the servers toss R (m, d) with entries -1,
0, 0 or 1, m = 128, and each projects its own share. For short x the sum of squares of y = R x is near m |x|^2 / 2
(Achlioptas, "Database-friendly random projections", J. Comput. Syst. Sci. 2003). The client proves on shares

    sum_l y_l^2 <= t m L^2 / 2,   t = 2.1                                                          (1)

- |x| <= L is refused with a probability of at most (t e^(1 - t))^(m / 2) = 1.1e-10 (Chernoff).
- |x| = 2 L passes with 2e-6, and 3 L with 1e-19 (chi-square of m degrees).

**The proof** of (3) below is fully linear (Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai, "Zero-knowledge proofs on
secret-shared data via fully linear PCPs", CRYPTO 2019, section 4.2; as in Prio3, RFC draft VDAF), over F_p, p = 2^127 -
1. Its rho and point r are hashes of what the client has fixed. It is sound but for 2^-119.

The hub tells the other server its evaluations, which are uniform but for relations that hold for any honest client; the
other tells only whether all holds. A hub that lies makes the proof fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, factorial

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.one_hot import SEED_BYTES
from coterie.protocol.arrays import Floats, Words
from coterie.protocol.errors import CryptoError
from coterie.protocol.randomness import Secrets, keystream

# with shares h, k of y mod 2^32 as numbers of F_p, in which nothing here wraps, and a carry c_l in {0, 1},
#
#     y_l = (h_l + 2^31 mod 2^32) + k_l - 2^31 - 2^32 c_l                                            (2)
#     sum_i rho^(i + 1) (b_i^2 - b_i) + sum_l y_l^2 + sum_j 2^j s_j - bound = 0                      (3)
#
# b: carries c and bits s of what (1) leaves. rho is drawn after b is fixed, so (3) says (1), and that all b are bits.

PROJECTIONS = 128
SLACK = 2.1
PRIME = 2**127 - 1
WIRES = 12
"""Products in one value of P."""
ELEMENT_BYTES, NAME_BYTES = 16, 32

BLOCK = 8192
_LIMB_BITS = 11  # a block's sums of numbers of so many bits are exact in float32
_SIGNS = np.array([[(0, 1, 0, -1)[byte >> 2 * at & 3] for at in range(4)] for byte in range(256)], np.float32)

Elements = list[int]


# ---------------------------------------------------------------------------------------------------------- projections


def signs(seed: bytes, block: int, held: Floats | None = None) -> Floats:
    """(m, ``BLOCK``) columns of R, of which 16 bytes are the seed. held: where they go."""
    size = PROJECTIONS * BLOCK // 4
    stream = np.frombuffer(keystream(seed, size, (block * (size // 16)).to_bytes(16, "big")), np.uint8)
    found = np.empty((PROJECTIONS, BLOCK), np.float32) if held is None else held
    np.take(_SIGNS, stream, axis=0, out=found.reshape(size, 4), mode="clip")
    return found


def projected(seed: bytes, vectors: Words) -> Words:
    """(n, m) R x mod 2^32 of vectors (n, d). seed: of R."""
    shifts = np.arange(0, 32, _LIMB_BITS, dtype=np.uint32)[:, None, None]
    total = np.zeros((len(shifts), len(vectors), PROJECTIONS), np.int64)
    held = np.empty((PROJECTIONS, BLOCK), np.float32)
    for at in range(0, vectors.shape[1], BLOCK):
        limbs = (vectors[:, at : at + BLOCK] >> shifts & np.uint32(2**_LIMB_BITS - 1)).astype(np.float32)
        wide = limbs.shape[2]
        sums = signs(seed, at // BLOCK, held)[:, :wide] @ limbs.reshape(-1, wide).T
        total += sums.T.astype(np.int64).reshape(total.shape)
    return np.asarray((total << shifts).sum(axis=0).astype(np.uint32))


def bound_of(longest: float) -> int:
    """The right side of (1). longest: L."""
    return ceil(SLACK * PROJECTIONS / 2 * longest**2)


# ---------------------------------------------------------------------------------------------------------------- proof


@dataclass(frozen=True, eq=False, repr=False)
class Proof:
    """share: the hub's, in private.  seed: 16 bytes, the other server's.  name: 32 bytes, of seed."""

    share: bytes
    seed: bytes
    name: bytes


@dataclass(frozen=True)
class _Shape:
    bits: int
    calls: int

    @classmethod
    def of(cls, bound: int) -> _Shape:
        bits = PROJECTIONS + bound.bit_length()
        return cls(bits, -(-(bits + PROJECTIONS) // WIRES))

    @property
    def values(self) -> int:
        return 2 * self.calls + 1


def share_bytes(bound: int) -> int:
    shape = _Shape.of(bound)
    return SEED_BYTES + ELEMENT_BYTES * (shape.bits + shape.values)


def told_bytes() -> int:
    return 3 * NAME_BYTES + ELEMENT_BYTES * (2 * WIRES + 2)


def prove(hub: Words, other: Words, bound: int, context: bytes, secrets: Secrets) -> Proof | None:
    """That (1) holds for hub + other (m,), the projected shares, bound to the context; None if it does not."""
    shape = _Shape.of(bound)
    sums = [(int(h) + 2**31) % 2**32 + int(k) for h, k in zip(hub, other, strict=True)]
    y = [total % 2**32 - 2**31 for total in sums]
    left = bound - sum(one * one for one in y)
    if left < 0:
        return None
    bits = [total >> 32 for total in sums] + [left >> j & 1 for j in range(bound.bit_length())]
    return _proof(bits, y, shape, context, secrets)


def _proof(bits: Elements, y: Elements, shape: _Shape, context: bytes, secrets: Secrets) -> Proof:
    masks, seed = secrets.bytes(SEED_BYTES), secrets.bytes(SEED_BYTES)
    own_masks, (their_masks, their_bits, their_values) = _elements(masks, 2 * WIRES), _of_other(seed, shape)
    inputs = _less(bits, their_bits)
    name = _name("seed", context, seed)
    rho = _hashed("rho", context, _name("inputs", context, masks, *_encoded(inputs)), name)
    random = [(a + b) % PRIME for a, b in zip(own_masks, their_masks, strict=True)]
    # 2 w polynomials through n products each and one random value; P is the sum of their w products.
    wires = _wires(bits, y, rho, random, shape)  # (2 w, n + 1)
    every = np.concatenate([wires, wires @ _beyond(shape.calls).T % PRIME], axis=1)
    values = ((every[:WIRES] * every[WIRES:]).sum(axis=0) % PRIME).tolist()
    return Proof(b"".join([masks, *_encoded(inputs), *_encoded(_less(values, their_values))]), seed, name)


def told(share: bytes, name: bytes, projected: Words, bound: int, context: bytes) -> bytes:
    """To the other server, by the hub. Raises CryptoError for an impossible share."""
    shape = _Shape.of(bound)
    if len(share) != share_bytes(bound) or len(name) != NAME_BYTES:
        raise CryptoError(f"{len(share)} bytes are no share of a proof")
    masks = share[:SEED_BYTES]
    numbers = _decoded(share[SEED_BYTES:])
    bits, values = numbers[: shape.bits], numbers[shape.bits :]
    names = _name("inputs", context, masks, *_encoded(bits)), _name("values", context, *_encoded(values))
    lifted = [(int(one) + 2**31) % 2**32 - 2**31 for one in projected]
    rho, r = _challenges(context, [*names, name], shape)
    found = _evaluated(lifted, bits, _elements(masks, 2 * WIRES), values, rho, r, shape)
    found[-1] = (found[-1] - bound) % PRIME
    return b"".join([*names, name, *_encoded(found)])


def holds(told: bytes, seed: bytes, projected: Words, bound: int, context: bytes) -> bool:
    shape, names = _Shape.of(bound), [told[NAME_BYTES * k : NAME_BYTES * (k + 1)] for k in range(3)]
    if len(told) != told_bytes() or len(seed) != SEED_BYTES or names[2] != _name("seed", context, seed):
        return False
    theirs = _decoded(told[3 * NAME_BYTES :])
    masks, bits, values = _of_other(seed, shape)
    rho, r = _challenges(context, names, shape)
    own = _evaluated([int(one) for one in projected], bits, masks, values, rho, r, shape)
    both = [(a + b) % PRIME for a, b in zip(own, theirs, strict=True)]
    products = sum(f * g for f, g in zip(both[:WIRES], both[WIRES : 2 * WIRES], strict=True))
    return both[-1] == 0 and (products - both[-2]) % PRIME == 0


def _evaluated(
    lifted: Sequence[int], bits: Elements, masks: Elements, values: Elements, rho: int, r: int, shape: _Shape
) -> Elements:
    y = [one - (carry << 32) for one, carry in zip(lifted, bits[:PROJECTIONS], strict=True)]
    wires = _wires(bits, y, rho, masks, shape)
    at_r = (wires @ _basis(shape.calls + 1, r) % PRIME).tolist()
    p = int(np.array(values, object) @ _basis(shape.values, r)) % PRIME
    slack = sum(bit << j for j, bit in enumerate(bits[PROJECTIONS:]))
    linear = sum(power * bit for power, bit in zip(_powers(rho, len(bits)), bits, strict=True))
    return [*at_r, p, (sum(values[1 : shape.calls + 1]) - linear + slack) % PRIME]


def _wires(bits: Elements, y: Elements, rho: int, random: Elements, shape: _Shape) -> NDArray[np.object_]:
    """(2 w, n + 1) the values of all polynomials at 0, ..., n: at 0 random ones, then the factors of (3)."""
    none = [0] * (WIRES * shape.calls - len(bits) - len(y))
    scaled = [power * bit for power, bit in zip(_powers(rho, len(bits)), bits, strict=True)]
    factors = np.array([[*bits, *y, *none], [*scaled, *y, *none]], object).reshape(2 * WIRES, shape.calls)
    return np.concatenate([np.array(random, object)[:, None], factors], axis=1) % PRIME


def _powers(rho: int, count: int) -> Elements:
    found, power = list[int](), 1
    for _ in range(count):
        power = power * rho % PRIME
        found.append(power)
    return found


# --------------------------------------------------------------------------------------------- polynomials over F_p


@lru_cache(maxsize=8)
def _weights(count: int) -> NDArray[np.object_]:
    signs = [-1 if (count - 1 - j) % 2 else 1 for j in range(count)]
    return np.array([s * pow(factorial(j) * factorial(count - 1 - j), -1, PRIME) for j, s in enumerate(signs)], object)


def _basis(count: int, r: int) -> NDArray[np.object_]:
    before, after = [1], [1]
    for j in range(count - 1):
        before.append(before[-1] * (r - j) % PRIME)
        after.append(after[-1] * (r - (count - 1 - j)) % PRIME)
    found = np.array([a * b for a, b in zip(before, reversed(after), strict=True)], object)
    return np.asarray(found * _weights(count) % PRIME, object)


@lru_cache(maxsize=8)
def _beyond(calls: int) -> NDArray[np.object_]:
    """(n, n + 1) from values at 0, ..., n to those at n + 1, ..., 2 n."""
    return np.stack([_basis(calls + 1, x) for x in range(calls + 1, 2 * calls + 1)])


# ----------------------------------------------------------------------------------------------- elements and hashes


def _elements(seed: bytes, count: int) -> Elements:
    return _decoded(keystream(seed, ELEMENT_BYTES * count))


def _of_other(seed: bytes, shape: _Shape) -> tuple[Elements, Elements, Elements]:
    every = _elements(seed, 2 * WIRES + shape.bits + shape.values)
    return every[: 2 * WIRES], every[2 * WIRES : 2 * WIRES + shape.bits], every[2 * WIRES + shape.bits :]


def _less(every: Sequence[int], masks: Elements) -> Elements:
    return [(one - mask) % PRIME for one, mask in zip(every, masks, strict=True)]


def _encoded(elements: Elements) -> list[bytes]:
    return [one.to_bytes(ELEMENT_BYTES, "little") for one in elements]


def _decoded(data: bytes) -> Elements:
    parts = (data[at : at + ELEMENT_BYTES] for at in range(0, len(data), ELEMENT_BYTES))
    return [(int.from_bytes(part, "little") & PRIME) % PRIME for part in parts]


def _name(what: str, context: bytes, *parts: bytes) -> bytes:
    return hashlib.sha256(b"".join([b"coterie/norm/", what.encode(), b"/", context, *parts])).digest()


def _hashed(what: str, context: bytes, *names: bytes) -> int:
    return int.from_bytes(hashlib.sha512(_name(what, context, *names)).digest(), "little") % PRIME


def _challenges(context: bytes, names: Sequence[bytes], shape: _Shape) -> tuple[int, int]:
    inputs, values, seed = names
    rho = _hashed("rho", context, inputs, seed)
    r = _hashed("r", context, inputs, values, seed)
    return rho, shape.calls + 1 + r % (PRIME - shape.calls - 1)
