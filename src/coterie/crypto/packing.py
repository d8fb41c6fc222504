"""Packed signed fixed point: a flat float vector as a few large integers.

A value ``w`` becomes the integer ``q = round(2^rho * w)`` (FedCAPrivacy, eq. 4) of ``value_bits`` signed bits. A *lane*
holds ``q + 2^(value_bits-1)``, and ``guard_bits`` more bits for the carries of ``2^guard_bits`` additions. A mask (eq.
6) is added to the *whole* plaintext, and hides it up to a statistical distance of ``2^-kappa``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto.tally import PLAIN, Form, Tally
from coterie.protocol.arrays import Array, Doubles, Flags, Integers, Words64
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError, UserError

PARAMETERS = {"paillier-2048": 2048, "paillier-3072": 3072}  # 112 and 128 bits of security
Randomness = Literal["short", "full"]
RANDOMNESS: tuple[Randomness, ...] = ("short", "full")
NOT_OF_MODELS = "these two don't carry the same mask, or one is forged: their difference is not of two models"
_IDENTITY = struct.Struct("<HHHHI")


@dataclass(frozen=True)
class Lanes:
    """The fixed-point format of one value, in bits.

    fraction_bits: rho of eq. (4); a step is 2^-rho.
    value_bits: signed width of a value: [-2^(value_bits-1), 2^(value_bits-1)) steps, by default +-128.
    guard_bits: a lane holds the sum of up to 2^guard_bits values, integer weights counted.
    kappa: statistical hiding of masks, at least 40.
    """

    fraction_bits: int = 16
    value_bits: int = 24
    guard_bits: int = 8
    kappa: int = 40

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits <= 52:
            raise UserError(f"fraction_bits={self.fraction_bits} is out of range: choose 0 to 52")
        if self.value_bits < 2 or self.guard_bits < 0 or not 8 <= self.width <= 62:
            raise UserError(
                f"value_bits={self.value_bits} and guard_bits={self.guard_bits} make no lane: "
                "choose at least 2 and 0, together 8 to 62 bits"
            )
        if not 40 <= self.kappa <= 256:
            raise UserError(f"kappa={self.kappa} is out of range: masks hide with 40 to 256 statistical bits")

    @property
    def width(self) -> int:
        return self.value_bits + self.guard_bits

    @property
    def word(self) -> np.dtype[Any]:
        return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= self.width)}")

    @property
    def max_terms(self) -> int:
        return 1 << self.guard_bits

    @property
    def offset(self) -> int:
        return 1 << (self.value_bits - 1)

    def quantise(self, values: ArrayLike) -> Integers:
        """Eq. (4): ``(d,)`` floats to ``(d,) int64`` steps, rounded half to even.

        Raises CapacityError naming the first value that is not finite or too large.
        """
        array = as_vector(values, kinds="fiu").astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.rint(array * float(1 << self.fraction_bits))
            fits = (scaled >= -self.offset) & (scaled < self.offset)  # False for NaN, too
        reach = self.offset / (1 << self.fraction_bits)
        bits = f"{self.value_bits} bits with {self.fraction_bits} after the point"
        room = f"{bits}: values must lie in [-{reach:g}, {reach:g}); clip them or widen value_bits"
        check_fit(array, fits, "value", room)
        return scaled.astype(np.int64)

    def dequantise(self, integers: ArrayLike) -> Doubles:
        """``(d,) int64`` steps, or sums of them, to ``(d,) float64``; exact below 2^53 steps."""
        return np.asarray(integers, dtype=np.float64) / float(1 << self.fraction_bits)

    def within(self, sums: Integers, terms: int, minus: int = 0) -> bool:
        """Whether these can be sums of ``terms`` values less ``minus`` such values."""
        lowest = -terms * self.offset - minus * (self.offset - 1)
        highest = terms * (self.offset - 1) + minus * self.offset
        return bool(sums.min() >= lowest) and bool(sums.max() <= highest)


@dataclass(frozen=True)
class Layout:
    """How vectors lie in a key's plaintexts. key_bits: of its modulus, a multiple of 16."""

    lanes: Lanes
    key_bits: int

    def __post_init__(self) -> None:
        if self.key_bits < 256 or self.key_bits % 16:
            raise UserError(f"key_bits={self.key_bits} is no key size: take a multiple of 16, at least 256")
        if self.lanes_per_plaintext < 1:
            raise UserError(f"no lane of {self.lanes} fits a key of {self.key_bits} bits: take fewer bits a lane")

    @cached_property
    def lanes_per_plaintext(self) -> int:
        # A mask is uniform below 2^(wL + kappa). There is room for 2^guard_bits masked plaintexts below any modulus N:
        # 2^guard_bits * 2^(wL + kappa) + 2^(wL) < 2^(key_bits - 1) <= N.
        return (self.key_bits - 2 - self.lanes.kappa - self.lanes.guard_bits) // self.lanes.width

    @property
    def packed_bits(self) -> int:
        return self.lanes.width * self.lanes_per_plaintext

    @property
    def mask_bits(self) -> int:
        return self.packed_bits + self.lanes.kappa

    @property
    def ciphertext_bytes(self) -> int:
        return self.key_bits // 4

    def plaintexts(self, length: int) -> int:
        return -(-length // self.lanes_per_plaintext)

    # ---- what keys and vectors need of their parameters: ``ckks_parameters.ParameterSet`` has the same

    fresh = PLAIN

    @property
    def identity(self) -> bytes:
        lanes = self.lanes
        return _IDENTITY.pack(lanes.fraction_bits, lanes.value_bits, lanes.guard_bits, lanes.kappa, self.key_bits)

    @classmethod
    def known(cls, identity: bytes) -> Self:
        *lanes, key_bits = _IDENTITY.unpack(identity)
        try:
            return cls(Lanes(*lanes), key_bits)
        except UserError as error:
            raise DecodeError(f"a key with an impossible layout: {error}") from None

    @property
    def size(self) -> str:
        return f"{self.key_bits} bits"

    @property
    def secure(self) -> bool:
        return self.key_bits in PARAMETERS.values()

    def room(self, form: Form) -> int:
        return self.lanes.max_terms

    def admits(self, tally: Tally) -> None:
        if tally.form != PLAIN:
            raise DecodeError(f"a {tally.form} is none of Paillier")

    def maskable(self) -> None:
        """Raises CryptoError if vectors carry no masks."""

    def body_bytes(self, length: int, form: Form) -> int:
        return self.plaintexts(length) * self.ciphertext_bytes

    def key_bytes(self, kind: str, flag: int) -> int:
        """Behind its header. Raises DecodeError for an impossible key."""
        return self.key_bits // 4

    def pack(self, integers: Integers) -> list[int]:
        """``(d,) int64`` values that fit their lanes as plaintexts, lane 0 in the lowest bits."""
        shape = self.plaintexts(integers.size), self.lanes_per_plaintext
        lanes = np.full(shape, self.lanes.offset, dtype=np.int64)  # unused lanes hold the value 0
        lanes.ravel()[: integers.size] += integers
        rows = _to_rows(lanes.view(np.uint64), self.lanes.width)
        size, data = rows.shape[1], rows.tobytes()
        return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]

    def unpack(self, plaintexts: Sequence[int], bias: int) -> Integers:
        """Plaintexts below ``2^packed_bits`` to *all* their lanes minus ``bias``, ``(plaintexts * L,) int64``."""
        size = -(-self.packed_bits // 8)
        data = b"".join([int(m).to_bytes(size, "little") for m in plaintexts])
        rows = np.frombuffer(data, dtype=np.uint8).reshape(len(plaintexts), size)
        lanes = _from_rows(rows, self.lanes.width, self.lanes_per_plaintext)
        return lanes.view(np.int64).ravel() - bias

    @cached_property
    def ones(self) -> int:
        return ((1 << self.packed_bits) - 1) // ((1 << self.lanes.width) - 1)


SEALED_BYTES = 80


@dataclass(frozen=True)
class Words(Layout):
    key_bits: int = 256  # of Curve25519

    def __post_init__(self) -> None:
        if self.key_bits != 256:
            raise UserError(f"pads are sealed under keys of 256 bits, not {self.key_bits}")

    @property
    def secure(self) -> bool:
        return True

    def body_bytes(self, length: int, form: Form) -> int:
        return self.lanes.word.itemsize * length + SEALED_BYTES

    def key_bytes(self, kind: str, flag: int) -> int:
        return 32


def as_vector(values: ArrayLike, kinds: str) -> Array:
    """A flat non-empty array of one of these ``kinds`` of dtype. Raises CryptoError otherwise."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise CryptoError(f"a flat vector with at least one value is needed, not one of shape {array.shape}")
    if array.dtype.kind not in kinds:
        wanted = "real numbers" if "f" in kinds else "integers"
        raise CryptoError(f"a vector of {wanted} is needed, not one of {array.dtype}")
    return array


def check_fit(values: Array, fits: Flags, kind: str, room: str) -> None:
    """Raises CapacityError naming the first value that doesn't fit ``room``."""
    if not fits.all():
        index = int(np.argmin(fits))
        raise CapacityError(f"{kind} {values[index]} at index {index} doesn't fit {room}")


def _to_rows(lanes: Words64, width: int) -> NDArray[np.uint8]:
    count = lanes.shape[0]
    octets = lanes.astype("<u8").view(np.uint8).reshape(*lanes.shape, 8)
    if width % 8 == 0:
        return octets[:, :, : width // 8].reshape(count, -1)
    bits = np.unpackbits(octets, axis=2, bitorder="little")[:, :, :width]
    return np.packbits(bits.reshape(count, -1), axis=1, bitorder="little")


def _from_rows(rows: NDArray[np.uint8], width: int, lanes: int) -> Words64:
    count = rows.shape[0]
    octets = np.zeros((count, lanes, 8), dtype=np.uint8)
    if width % 8 == 0:
        octets[:, :, : width // 8] = rows.reshape(count, lanes, width // 8)
    else:
        bits = np.unpackbits(rows, axis=1, count=lanes * width, bitorder="little").reshape(count, lanes, width)
        octets[:, :, : -(-width // 8)] = np.packbits(bits, axis=2, bitorder="little")
    return octets.view("<u8")[:, :, 0].astype(np.uint64)
