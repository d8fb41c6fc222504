"""The public facts about a vector under encryption, and the rules that refuse misuse."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, SupportsIndex

from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError


class Form(NamedTuple):
    """What else two vectors must share to be added. Paillier has this form alone."""

    level: int = 0  # how many products can follow
    scalar: bool = False  # one value
    product: bool = False  # of a vector and a scalar, not rescaled yet
    conjugated: bool = False  # prepared as the second factor of a dot product
    constant: bool = False  # a scalar in the constant coefficient only

    def __str__(self) -> str:
        kind = "constant scalar" if self.constant else "scalar" if self.scalar else "vector"
        prepared = "conjugated " if self.conjugated else ""
        return f"{'product, a ' if self.product else ''}{prepared}{kind} at level {self.level}"


PLAIN = Form()
Room = Callable[[Form], int]
"""How many terms, and masks, a vector of a form can have."""


@dataclass(frozen=True)
class Tally:
    """Public, in the header of a vector under encryption."""

    fingerprint: bytes  # 16 bytes of its key (of an opened blinded vector: its former key)
    length: int  # d
    terms: int = 1  # how many vectors it sums up, integer weights counted
    blinded: int = 0  # how many times a mask is inside
    form: Form = PLAIN
    vectors: int = 1  # how many were added up here, whatever their weight

    def plus(self, other: Tally, room: Room) -> Tally:
        self.under_one_key(other, "can't be added")
        if self.length != other.length:
            raise CryptoError(f"vectors of {self.length} and {other.length} values can't be added")
        if self.form != other.form:
            raise CryptoError(f"a {self.form} and a {other.form} can't be added: bring both to one form first")
        total = self.bounded(self.terms + other.terms, room, masks=other.blinded)
        return replace(total, vectors=self.vectors + other.vectors)

    def times(self, weight: int, room: Room) -> Tally:
        return self.bounded(self.terms * weight, room, masks=self.blinded * (weight - 1))

    def bounded(self, terms: int, room: Room, *, masks: int = 0, form: Form | None = None) -> Tally:
        blinded, most = self.blinded + masks, room(form or self.form)
        if terms > most or blinded > most:
            raise CapacityError(
                f"{terms} terms with {blinded} masks are too many, this key has room for {most}: "
                "add fewer vectors, use smaller weights or choose more room (guard_bits, or another parameter set)"
            )
        return replace(self, terms=terms, blinded=blinded, form=form or self.form)

    def under_one_key(self, other: Tally, what: str) -> None:
        """Raises KeyMismatchError, with what such vectors can't do."""
        if self.fingerprint != other.fingerprint:
            names = f"{self.fingerprint.hex()[:8]}, {other.fingerprint.hex()[:8]}"
            raise KeyMismatchError(f"vectors under two keys {what}: {names}")


def integer_weight(weight: SupportsIndex) -> int:
    """Raises CryptoError unless an integer of at least 1."""
    try:
        value = operator.index(weight)
    except TypeError:
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}: scale to integers first") from None
    if value < 1 or isinstance(weight, bool):
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}")
    return value
