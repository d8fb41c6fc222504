"""What keys and vectors of CKKS and of its emulated twin have in common: all that follows from the parameters.

And what they lack, refused in words: numbers are approximate, so there are no integer lanes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks_wire
from coterie.crypto.ckks_parameters import Parameters
from coterie.crypto.packing import Floats, as_vector
from coterie.crypto.tally import Form, Tallied, Tally, integer_weight
from coterie.crypto.vector import Keyed
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError

_NO_INTEGERS = "CKKS has no exact integers: use encrypt and decrypt, or a Paillier key"


class PublicHabits(Keyed):
    """Of public keys."""

    parameters: Parameters

    @property
    def size(self) -> str:
        """The name of the parameters."""
        return self.parameters.name

    @property
    def fresh(self) -> Form:
        """The form of a fresh vector, to be asked of an upload."""
        return self.parameters.fresh

    @property
    def fresh_scalar(self) -> Form:
        """The form of a fresh scalar, to be asked of an upload."""
        return self.parameters.fresh._replace(scalar=True)

    def wire_bytes(self, length: int, form: Form | None = None) -> int:
        """Exact bytes of a vector of ``length`` values, fresh or of the given form (``Tally.form``)."""
        return ckks_wire.vector_bytes(self.parameters, length, form or self.fresh)

    def nominal_seconds_encrypt(self, length: int) -> float:
        """Nominal seconds of one typical core to encrypt ``length`` values: for virtual time."""
        return self.parameters.seconds(self.parameters.nominal.encrypt, length)

    def nominal_seconds_times(self, length: int) -> float:
        """Nominal seconds of one typical core to multiply ``length`` values by a scalar."""
        return self.parameters.seconds(self.parameters.nominal.times, length)

    def nominal_seconds_rescale(self, length: int) -> float:
        """Nominal seconds of one typical core to rescale a product of ``length`` values (a sum of products: once)."""
        return self.parameters.seconds(self.parameters.nominal.rescale, length)

    def prepared(self, values: ArrayLike, level: int | None = None) -> tuple[Floats, Tally]:
        """Checked values, and the tally of their encryption. Raises CapacityError naming a value that doesn't fit."""
        form = self.parameters.fresh_at(level)
        array = self.parameters.checked(values, form)
        return array, Tally(self.fingerprint, array.size, form=form)

    def prepared_scalar(self, value: float, at_most: int, level: int | None = None) -> tuple[Floats, Tally]:
        """The same for a scalar, ``(1,)``; a bound of ``at_most`` counts as so many terms."""
        bound, form = integer_weight(at_most), self.parameters.fresh_at(level, scalar=True)
        tally = Tally(self.fingerprint, 1, form=form).times(bound, self.parameters.room(form))
        return self.parameters.checked([float(value)], form, bound), tally

    @property
    def layout(self) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_INTEGERS)

    def encrypt_integers(self, integers: ArrayLike) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_INTEGERS)


class SecretHabits(Keyed):
    """Of secret keys, which have a ``public``."""

    public: Any

    @property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """The public key's."""
        return bytes(self.public.fingerprint)

    @property
    def parameters(self) -> Parameters:
        """The public key's."""
        parameters: Parameters = self.public.parameters
        return parameters

    @property
    def size(self) -> str:
        """The name of the parameters."""
        return self.parameters.name

    def nominal_seconds_encrypt(self, length: int) -> float:
        """Nominal seconds of one typical core to encrypt ``length`` values under the secret key."""
        return self.parameters.seconds(self.parameters.nominal.encrypt_symmetric, length)

    def nominal_seconds_decrypt(self, length: int) -> float:
        """Nominal seconds of one typical core to open ``length`` values: for virtual time."""
        return self.parameters.seconds(self.parameters.nominal.decrypt, length)

    def decrypt_integers(self, cipher: Any) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_INTEGERS)


class EvaluationHabits(Keyed):
    """Of evaluation keys."""

    parameters: Parameters

    @property
    def size(self) -> str:
        """The name of the parameters."""
        return self.parameters.name

    def belongs(self, fingerprint: bytes) -> None:
        """Whether it is for vectors under this key. Raises KeyMismatchError."""
        if fingerprint != self.fingerprint:
            raise KeyMismatchError(
                f"an evaluation key of {self.fingerprint.hex()[:8]} doesn't fit a vector under {fingerprint.hex()[:8]}"
            )


class VectorHabits(Tallied):
    """Of ciphertext vectors, which have a ``key``."""

    key: Any

    @property
    def most(self) -> int:
        """How many terms there is room for."""
        return self._parameters.room(self.tally.form)

    @property
    def _parameters(self) -> Parameters:
        parameters: Parameters = self.key.parameters
        return parameters

    def prepared(self, values: ArrayLike) -> tuple[Floats, Tally]:
        """Checked values to add in the clear, and the tally of the sum: one more term, of scalars |x| more."""
        form, terms = self.tally.form, 1
        if form.conjugated:
            raise CryptoError(f"a {form} takes no known values: add them before it is conjugated")
        if form.scalar:
            terms = _terms(float(np.abs(as_vector(values, kinds="fiu")).max()))
        array = self._parameters.checked(values, form, terms)
        return array, self.tally.plus(Tally(self.fingerprint, array.size, terms, form=form), self.most)

    def within(self, terms: int) -> Self:
        """The same vector with another number of terms, which the caller answers for: values within ``terms * reach``.

        For what is known to be bounded otherwise than by what it was summed up from, as the weights of a model are. If
        it isn't, it opens to nonsense.
        """
        made: Self = replace(cast(Any, self), tally=self.tally.bounded(integer_weight(terms), self.most))
        return made

    def product_tally(self, scalar: Tally, at_most: int | None) -> Tally:
        """The tally of a product with a scalar, not rescaled."""
        form = self.tally.form._replace(product=True)
        return self.tally.product(scalar, self._parameters.room(form), _bound(at_most))

    def plain_tally(self, number: float, at_most: int | None) -> Tally:
        """The tally of a product with a plaintext number, rescaled."""
        if not isinstance(number, Real) or not math.isfinite(number):
            raise CryptoError(f"a vector can be multiplied by a finite number, not by {number!r}")
        self.tally.multiplied()
        if abs(number) >= self._parameters.largest_factor(self.tally.form):
            raise CapacityError(f"{number} is too large a factor for a {self.tally.form}")
        form = self.tally.form._replace(level=self.tally.form.level - 1)
        terms = _bound(at_most) or _terms(self.terms * abs(float(number)))
        return self.tally.bounded(terms, self._parameters.room(form), form)

    def lower_tally(self, level: int) -> Tally:
        """The tally at a lower level, or at the same."""
        form = self.tally.form
        if not 0 <= level <= form.level:
            raise CapacityError(f"a {form} can't be brought to level {level}: levels only go down, to 0")
        if level < form.level:
            self.tally.multiplied()
        lower = form._replace(level=level)
        return self.tally.bounded(self.terms, self._parameters.room(lower), lower)

    def dot_tally(self, other: Tally, keys: EvaluationHabits) -> Tally:
        """The tally of a dot product."""
        keys.belongs(self.fingerprint)
        level = max(self.tally.form.level - 1, 0)
        return self.tally.dot(other, self._parameters.room(Form(level, scalar=True)))

    def conjugated_tally(self, keys: EvaluationHabits) -> Tally:
        """The tally of the second factor of a dot product."""
        keys.belongs(self.fingerprint)
        if self.tally.form.scalar or self.tally.form.conjugated:
            raise CryptoError(f"a {self.tally.form} has no use in a dot product: take a vector, once conjugated")
        self.tally.multiplied()
        return replace(self.tally, form=self.tally.form._replace(conjugated=True))

    def split_tallies(self, at: int) -> tuple[Tally, Tally]:
        """The tallies of the two halves."""
        return self.tally.split(at, self._parameters.degree)

    def joined_tally(self, other: Tally) -> Tally:
        """The tally of this vector and another behind it."""
        return self.tally.joined(other, self._parameters.degree)

    def multiplies(self) -> None:
        """Whether the key is one for products. Raises CryptoError."""
        if not self.key.products:
            raise CryptoError(f"{self.key!r} is one without products: make the key pair with them")

    def travels(self) -> None:
        """Whether it can leave, or be opened. Raises CryptoError."""
        if self.tally.form.conjugated:
            raise CryptoError("a conjugated vector is half of a dot product: send or open the vector itself")


def _bound(at_most: int | None) -> int | None:
    return None if at_most is None else integer_weight(at_most)


def _terms(magnitude: float) -> int:
    """Terms of values within +-1 for a magnitude: whole, and at least 1."""
    return max(1, math.ceil(magnitude)) if math.isfinite(magnitude) else 1
