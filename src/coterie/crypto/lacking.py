"""What Paillier and its twin lack, refused in words: all schemes share one vector API, and no scheme has all of it."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from numpy.typing import ArrayLike

from coterie.crypto.tally import PLAIN, Form
from coterie.crypto.vector import CipherVectorLike, EvaluationKeyLike
from coterie.protocol.errors import CryptoError

_NO_PRODUCTS = "Paillier has no products of ciphertexts: choose a CKKS key with a level"
_NO_PARTS = "vectors under Paillier are taken as a whole: encrypt the parts one by one, or choose a CKKS key"


class PublicWithoutProducts:
    """A public key: additions only, so there is one form of vectors."""

    @property
    def fresh(self) -> Form:
        """The form of a fresh vector."""
        return PLAIN

    @property
    def fresh_scalar(self) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def encrypt_scalar(self, value: float, at_most: int = 1) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def without_products(self) -> Self:
        """Itself."""
        return self

    def nominal_seconds_times(self, length: int) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def nominal_seconds_rescale(self, length: int) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)


class EncryptsAsPublic:
    """A secret key, which encrypts as its public key does."""

    public: Any

    def encrypt(self, values: ArrayLike) -> Any:
        """``public.encrypt``."""
        return self.public.encrypt(values)

    def encrypt_scalar(self, value: float, at_most: int = 1) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def evaluation(self) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def nominal_seconds_encrypt(self, length: int) -> float:
        """``public.nominal_seconds_encrypt``."""
        return float(self.public.nominal_seconds_encrypt(length))


class VectorWithoutProducts:
    """A ciphertext vector."""

    def times(self, scalar: CipherVectorLike, *, at_most: int | None = None) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def times_plain(self, number: float, *, at_most: int | None = None) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError("Paillier has integer weights only: use scale, or choose a CKKS key with a level")

    def rescaled(self) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def at_level(self, level: int) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def within(self, terms: int) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError("a lane of Paillier holds an offset for every term: their number can't be set")

    def sanitised(self) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError("Paillier's plaintexts carry no noise that tells where they come from")

    def split(self, at: int) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PARTS)

    def joined(self, other: CipherVectorLike) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PARTS)

    def conjugated(self, keys: EvaluationKeyLike) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)

    def dot(self, prepared: CipherVectorLike, keys: EvaluationKeyLike) -> NoReturn:
        """Raises CryptoError."""
        raise CryptoError(_NO_PRODUCTS)
