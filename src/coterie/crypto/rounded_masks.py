"""The twins of ``ckks_masks`` and of evaluation keys: the same rules, sizes and noise, without secrecy.

A mask is a uniform 64-bit integer a value, added modulo 2^64: it hides and comes off as exactly as the real one does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from coterie.crypto import ckks_wire
from coterie.crypto.ckks_habits import EvaluationHabits
from coterie.crypto.ckks_masks import fits
from coterie.crypto.ckks_parameters import Parameters
from coterie.crypto.packing import Integers
from coterie.crypto.tally import Tallied, Tally
from coterie.crypto.vector import BlindedLike, RandomBytes, drawn
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError
from coterie.protocol.hollow import hollow

SCHEME = "rounded"
_SEED_BYTES = 32


@dataclass(frozen=True, eq=False)
class Mask:
    """One number a value. Fits every emulated key of these parameters."""

    parameters: Parameters
    length: int
    level: int
    numbers: Integers

    @classmethod
    def draw(cls, parameters: Parameters, length: int, random_bytes: RandomBytes, level: int) -> Mask:
        """A mask that follows from 32 random bytes."""
        parameters.masked_at(length, level)
        seed = int.from_bytes(drawn(random_bytes, _SEED_BYTES), "little")
        return cls(parameters, length, level, np.random.SFC64(seed).random_raw(length).view(np.int64))

    def fitting(self, parameters: Parameters, tally: Tally) -> Integers:
        """The numbers. Raises KeyMismatchError or CryptoError if they aren't made for such vectors."""
        fits(self, parameters, tally)
        return self.numbers

    def __repr__(self) -> str:
        return f"<Mask length {self.length} level {self.level}>"

    def __deepcopy__(self, memo: object) -> Mask:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Blinded(Tallied):
    """An opened vector that still carries its masks, exact and flooded, ``(d,) int64`` each."""

    parameters: Parameters
    tally: Tally
    exact: Integers
    flooded: Integers

    def under(self, fingerprint: bytes) -> Integers:
        """What may be encrypted under a key."""
        return self.exact if fingerprint == self.tally.fingerprint else self.flooded

    def plus(self, other: BlindedLike) -> Blinded:
        """The sum: values, masks and noises add up. Raises CapacityError if terms or masks become too many."""
        theirs = opened_with(self.parameters, other)
        tally = self.tally.plus(theirs.tally, self.parameters.room(self.tally.form))
        return replace(self, tally=tally, exact=self.exact + theirs.exact, flooded=self.flooded + theirs.flooded)

    __add__ = plus

    def minus(self, other: BlindedLike) -> NoReturn:
        """Raises CryptoError, as the real one does."""
        raise CryptoError("CKKS has no exact differences of masked vectors: use a Paillier key")


def opened_with(parameters: Parameters, blinded: Any) -> Blinded:
    """A blinded vector of these parameters. Raises KeyMismatchError for anything else."""
    parameters.maskable()
    if not isinstance(blinded, Blinded) or blinded.parameters.identity != parameters.identity:
        raise KeyMismatchError(f"{blinded!r} was not opened with an emulated key of {parameters.name}")
    return blinded


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationKey(EvaluationHabits):
    """The twin of an evaluation key: it only says whose it is."""

    parameters: Parameters
    fingerprint: bytes

    scheme = SCHEME
    emulated = True

    def to_bytes(self) -> bytes:
        """Hollow, of the real one's weight; ``EvaluationKey.load`` reads it."""
        header = ckks_wire.key_header(self.parameters, SCHEME, "evaluation", products=True)
        size = ckks_wire.key_bytes(self.parameters, "evaluation", products=True)
        return hollow(size, header, self.fingerprint)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> EvaluationKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        parameters, fingerprint, body = ckks_wire.split_evaluation(bytes(data), SCHEME, allow_insecure)
        if (held := len(fingerprint) + len(body)) != ckks_wire.FINGERPRINT_BYTES:
            raise DecodeError(f"an emulated key that holds {held} bytes besides its header")
        return cls(parameters, fingerprint)


def evaluating(keys: Any) -> EvaluationKey:
    """An emulated evaluation key. Raises KeyMismatchError for anything else."""
    if not isinstance(keys, EvaluationKey):
        raise KeyMismatchError(f"{keys!r} is no emulated evaluation key")
    return keys
