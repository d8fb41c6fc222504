"""The public facts about a vector under encryption, and the book-keeping on them that refuses misuse.

The same rules hold for a scheme and its emulated twin, since they are kept here and in the front, never in a backend.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import NamedTuple, SupportsIndex

from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError


class Form(NamedTuple):
    """What else two vectors must share to be added. Only CKKS has other forms than this one.

    level: how many products can still follow.  scalar: one value, which stands in every slot.
    product: of a vector and a scalar, not rescaled yet.  conjugated: prepared to be the second factor of a dot product.
    """

    level: int = 0
    scalar: bool = False
    product: bool = False
    conjugated: bool = False

    def __str__(self) -> str:
        kind = "scalar" if self.scalar else "vector"
        prepared = "conjugated " if self.conjugated else ""
        return f"{'product, a ' if self.product else ''}{prepared}{kind} at level {self.level}"


PLAIN = Form()


@dataclass(frozen=True)
class Tally:
    """The public facts about a vector under encryption, which travel in its header.

    fingerprint: 16 bytes of the key that it is under (for an opened blinded vector: was under).
    length: d, the number of values.  terms: how many vectors it sums up, integer weights counted.
    blinded: how many times a mask is inside.  form: what else must agree before two can be added.
    """

    fingerprint: bytes
    length: int
    terms: int = 1
    blinded: int = 0
    form: Form = PLAIN

    def plus(self, other: Tally, most: int) -> Tally:
        """The tally of a sum. most: terms, and masks, that there is room for."""
        self._under_one_key(other, "can't be added")
        if self.length != other.length:
            raise CryptoError(f"vectors of {self.length} and {other.length} values can't be added")
        if self.form != other.form:
            raise CryptoError(f"a {self.form} and a {other.form} can't be added: bring both to one form first")
        return self.bounded(self.terms + other.terms, most, masks=other.blinded)

    def times(self, weight: int, most: int) -> Tally:
        return self.bounded(self.terms * weight, most, masks=self.blinded * (weight - 1))

    def bounded(self, terms: int, most: int, *, masks: int = 0, form: Form | None = None) -> Tally:
        """The same with another number of terms, that the caller answers for, more masks, and another form."""
        blinded = self.blinded + masks
        if terms > most or blinded > most:
            raise CapacityError(
                f"{terms} terms with {blinded} masks are too many, this key has room for {most}: "
                "add fewer vectors, use smaller weights or choose more room (guard_bits, or another parameter set)"
            )
        return replace(self, terms=terms, blinded=blinded, form=form or self.form)

    def unmasked(self, times: int) -> Tally:
        if not 1 <= times <= self.blinded:
            raise CryptoError(f"{times} masks can't be taken off a vector that carries {self.blinded}")
        return replace(self, blinded=self.blinded - times)

    def product(self, scalar: Tally, most: int, at_most: int | None = None) -> Tally:
        """The tally of a product with a scalar. Terms multiply: a scalar within +-u counts as u terms.

        at_most: terms that the result is known to have, whatever those of the factors.
        """
        if not scalar.form.scalar:
            raise CryptoError(f"the second factor is a {scalar.form}: make it with encrypt_scalar")
        self._factors(scalar)
        return self.bounded(at_most or self.terms * scalar.terms, most, form=self.form._replace(product=True))

    def rescaled(self) -> Tally:
        """The tally of a product after rescaling; of anything else, the same."""
        lower = self.form._replace(level=self.form.level - 1, product=False)
        return replace(self, form=lower) if self.form.product else self

    def conjugated(self) -> Tally:
        if self.form.scalar or self.form.conjugated:
            raise CryptoError(f"a {self.form} has no use in a dot product: take a vector, once conjugated")
        self.multiplied()
        return replace(self, form=self.form._replace(conjugated=True))

    def dot(self, other: Tally, most: int) -> Tally:
        """The tally of a dot product, one level down: of terms of norm 1 at most, the terms' product bounds it."""
        if self.form.scalar or self.form.conjugated or not other.form.conjugated:
            raise CryptoError(
                f"no dot product of a {self.form} and a {other.form}: give a vector and a conjugated() one"
            )
        self._factors(other)
        if self.length != other.length:
            raise CryptoError(f"vectors of {self.length} and {other.length} values have no dot product")
        form = Form(self.form.level - 1, scalar=True)
        return replace(self, length=1).bounded(self.terms * other.terms, most, form=form)

    def multiplied(self) -> None:
        """Whether it can be multiplied by something. Raises CapacityError without a level, CryptoError with a mask."""
        if self.blinded:
            raise CryptoError("a vector that carries masks can't be multiplied: unblind it first")
        if self.form.product:
            raise CapacityError("a product can be multiplied again only after rescaled()")
        if not self.form.level:
            raise CapacityError("no level is left for a product: choose a parameter set with more levels")

    def travels(self) -> None:
        """Whether it can leave, or be opened. Raises CryptoError."""
        if self.form.conjugated:
            raise CryptoError("a conjugated vector is half of a dot product: send or open the vector itself")

    def split(self, at: int, block: int) -> tuple[Tally, Tally]:
        """The tallies of the first ``at`` values and of the others. block: values that lie in one ciphertext."""
        self._whole()
        if not 0 < at < self.length or at % block:
            raise CryptoError(
                f"{self.length} values can be split between ciphertexts only, at a multiple of {block}, not at {at}"
            )
        return replace(self, length=at), replace(self, length=self.length - at)

    def joined(self, other: Tally, block: int) -> Tally:
        """The tally of these values followed by the other's. Raises as ``plus`` does for another key or form."""
        self._whole()
        self._under_one_key(other, "can't be joined")
        if self.form != other.form or other.blinded:
            raise CryptoError(f"a {self.form} and a {other.form} can't be joined: bring both to one form, without mask")
        if self.length % block:
            raise CryptoError(f"{self.length} values don't fill their ciphertexts of {block}: nothing can follow them")
        return replace(self, length=self.length + other.length, terms=max(self.terms, other.terms))

    def openable(self, fingerprint: bytes, masked: bool) -> None:
        """Whether a key may open it. Raises KeyMismatchError, or CryptoError if masks are inside (or missing)."""
        if self.fingerprint != fingerprint:
            raise KeyMismatchError(
                f"a vector under key {self.fingerprint.hex()[:8]} can't be opened with {fingerprint.hex()[:8]}"
            )
        if self.blinded and not masked:
            raise CryptoError(f"the vector still carries {self.blinded} masks: unblind it first, or use open_blinded")
        if masked and not self.blinded:
            raise CryptoError(
                "the vector carries no mask: opening it would show its values; blind it first, or use decrypt"
            )

    def minus(self, other: Tally, most: int) -> None:
        """Whether the exact difference of two blinded vectors is defined. Raises CryptoError or CapacityError."""
        if self.fingerprint != other.fingerprint or self.length != other.length:
            raise KeyMismatchError("only vectors of one length, opened with one key, can be subtracted")
        if not self.blinded or self.blinded != other.blinded:
            raise CryptoError(f"masks cancel in equal numbers only, not {self.blinded} against {other.blinded}")
        if self.terms + other.terms > most:
            terms = f"{self.terms} and {other.terms} terms"
            raise CapacityError(f"the difference of {terms} doesn't fit lanes made for {most}")

    def _factors(self, other: Tally) -> None:
        self._under_one_key(other, "have no product")
        if self.form.level != other.form.level:
            raise CryptoError(f"a {self.form} and a {other.form} have no product: their levels differ, use at_level")
        self.multiplied()
        other.multiplied()

    def _whole(self) -> None:
        if self.form.scalar or self.form.product or self.form.conjugated or self.blinded:
            raise CryptoError(f"a {self.form} with {self.blinded} masks has no parts: take a plain vector")

    def _under_one_key(self, other: Tally, what: str) -> None:
        if self.fingerprint != other.fingerprint:
            names = f"{self.fingerprint.hex()[:8]}, {other.fingerprint.hex()[:8]}"
            raise KeyMismatchError(f"vectors under two keys {what}: {names}")


def integer_weight(weight: SupportsIndex) -> int:
    """A weight for ``scale``. Raises CryptoError unless it is an integer of at least 1."""
    try:
        value = operator.index(weight)
    except TypeError:
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}: scale to integers first") from None
    if value < 1 or isinstance(weight, bool):
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}")
    return value
