"""Masks for packed Paillier plaintexts (FedCAPrivacy, eq. 6 to 10), and what the key's holder sees under them.

The same mask is added to every client's vector of a round. Whoever opens them sees integers that are each uniform up to
2^-kappa, but whose differences are those of the models (eq. 8 needs just these): carries between lanes cancel in a
difference of whole integers. Sums carry their masks along and are unmasked later, under another key (eq. 10).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coterie.crypto.packing import Integers, Layout
from coterie.crypto.tally import Tallied, Tally, differences
from coterie.crypto.vector import NOT_OF_MODELS, BlindedLike, CiphertextError, RandomBytes, drawn
from coterie.protocol.errors import CryptoError, KeyMismatchError


@dataclass(frozen=True, eq=False)
class Mask:
    """SECRET of who drew it: one number below ``2^mask_bits`` a plaintext. Fits every key of this layout."""

    layout: Layout
    length: int
    numbers: tuple[int, ...]

    @classmethod
    def draw(cls, layout: Layout, length: int, random_bytes: RandomBytes) -> Mask:
        """A fresh mask for ``length`` values from n -> n secret random bytes."""
        if length < 1:
            raise CryptoError(f"a mask for {length} values: give at least 1")
        size, surplus = -(-layout.mask_bits // 8), -layout.mask_bits % 8
        data = drawn(random_bytes, size * layout.plaintexts(length))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        return cls(layout, length, tuple(int.from_bytes(part, "little") >> surplus for part in parts))

    def fitting(self, layout: Layout, length: int) -> tuple[int, ...]:
        """The numbers. Raises KeyMismatchError or CryptoError if they aren't made for such vectors."""
        if self.layout != layout:
            raise KeyMismatchError("this mask is made for a key of another size or lanes")
        if self.length != length:
            raise CryptoError(f"a mask for {self.length} values doesn't fit a vector of {length}")
        return self.numbers

    def __repr__(self) -> str:
        return f"<Mask length {self.length}>"

    def __deepcopy__(self, memo: object) -> Mask:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Blinded(Tallied):
    """An opened vector that still carries its masks: integers within 2^-kappa of uniform, unless two share a mask."""

    layout: Layout
    tally: Tally
    plaintexts: tuple[int, ...]

    def minus(self, other: BlindedLike) -> Integers:
        """``(d,) int64``: the exact difference of the values under two masked vectors that carry the same mask.

        ``Lanes.dequantise`` makes floats of them. Raises CiphertextError if that can't be, because the masks differ or
        a sender overfilled a lane, and CapacityError if both together have more terms than a lane holds.
        """
        theirs = _masked(other)
        lanes, (a, b) = self.layout.lanes, (self.tally, theirs.tally)
        differences(a, b, lanes.max_terms)
        half = 1 << (lanes.width - 1)
        lift = self.layout.in_every_lane(1) * (half - (a.terms - b.terms) * lanes.offset)
        lifted = [x - y + lift for x, y in zip(self.plaintexts, theirs.plaintexts, strict=True)]
        if min(lifted) < 0 or max(lifted) >> self.layout.packed_bits:
            raise CiphertextError(NOT_OF_MODELS)
        every_lane = self.layout.unpack(lifted, half)
        values, unused = every_lane[: self.length], every_lane[self.length :]
        if unused.any() or not lanes.within(values, a.terms, minus=b.terms):
            raise CiphertextError(NOT_OF_MODELS)
        return values

    def plus(self, other: BlindedLike) -> Blinded:
        """The sum: values and masks add up. Raises CapacityError if terms or masks become too many."""
        theirs = _masked(other)
        tally = self.tally.plus(theirs.tally, self.layout.lanes.max_terms)
        plaintexts = tuple(x + y for x, y in zip(self.plaintexts, theirs.plaintexts, strict=True))
        return replace(self, tally=tally, plaintexts=plaintexts)

    __add__ = plus


def _masked(blinded: Any) -> Blinded:
    if not isinstance(blinded, Blinded):
        raise KeyMismatchError(f"{blinded!r} was not opened with a Paillier key")
    return blinded
