"""What Paillier and its emulated twin have in common: the vector API, and the book-keeping that refuses misuse.

A *ciphertext vector* is an encrypted flat vector of d values with a ``Tally``: whose key it is under, how many vectors
it sums up (its terms) and how many masks it carries (blinded). The same rules hold for both schemes because both
follow the same tally:

- vectors under different keys, of different lengths, or with different masks are never combined silently;
- a sum with more terms or masks than the lanes can hold is refused, so lanes never overflow;
- a vector that still carries masks is opened by ``open_blinded`` only, and one without masks by ``decrypt`` only.

The protocols below are what systems are written against; ``paillier`` and ``exact`` are the two implementations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, Self, SupportsIndex, TypeVar

from numpy.typing import ArrayLike

from coterie.crypto.packing import Floats, Integers, Layout
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError, PeerError

RandomBytes = Callable[[int], bytes]
NOT_OF_MODELS = "these two don't carry the same mask, or one is forged: their difference is not of two models"


class CiphertextError(PeerError):
    """A ciphertext that opens to something that no honest party encrypts: damaged, forged or wrongly unblinded."""


@dataclass(frozen=True)
class Tally:
    """The public facts about a vector under encryption, which travel in its header.

    fingerprint: 16 bytes of the key that it is under (for an opened blinded vector: was under).
    length: d, the number of values.  terms: how many vectors it sums up, integer weights counted.
    blinded: how many times a mask is inside.
    """

    fingerprint: bytes
    length: int
    terms: int = 1
    blinded: int = 0

    def plus(self, other: Tally, most: int) -> Tally:
        """The tally of a sum. most: terms, and masks, that the lanes can hold."""
        if self.fingerprint != other.fingerprint:
            raise KeyMismatchError(
                f"vectors under two keys can't be added: {self.fingerprint.hex()[:8]}, {other.fingerprint.hex()[:8]}"
            )
        if self.length != other.length:
            raise CryptoError(f"vectors of {self.length} and {other.length} values can't be added")
        return self._holding(self.terms + other.terms, self.blinded + other.blinded, most)

    def times(self, weight: int, most: int) -> Tally:
        """The tally after multiplication by an integer weight."""
        return self._holding(self.terms * weight, self.blinded * weight, most)

    def masked(self, most: int) -> Tally:
        """The tally after blinding."""
        return self._holding(self.terms, self.blinded + 1, most)

    def unmasked(self, times: int) -> Tally:
        """The tally after ``times`` masks are taken off."""
        if not 1 <= times <= self.blinded:
            raise CryptoError(f"{times} masks can't be taken off a vector that carries {self.blinded}")
        return replace(self, blinded=self.blinded - times)

    def _holding(self, terms: int, blinded: int, most: int) -> Tally:
        if terms > most or blinded > most:
            raise CapacityError(
                f"{terms} terms with {blinded} masks don't fit lanes made for {most}: "
                "add fewer vectors, use smaller weights or choose more guard_bits"
            )
        return replace(self, terms=terms, blinded=blinded)


class Tallied:
    """Habits of everything that has a tally: immutable (copies are itself), never compared, shows only the tally."""

    tally: Tally

    @property
    def fingerprint(self) -> bytes:
        """16 bytes of the key that this is under."""
        return self.tally.fingerprint

    @property
    def length(self) -> int:
        """d, the number of values."""
        return self.tally.length

    @property
    def terms(self) -> int:
        """How many vectors are summed up in this one, integer weights counted."""
        return self.tally.terms

    @property
    def blinded(self) -> int:
        """How many masks are inside."""
        return self.tally.blinded

    def __len__(self) -> int:
        return self.tally.length

    def __eq__(self, other: object) -> NoReturn:
        raise CryptoError(f"two {type(self).__name__}s can't be compared: equal values have different ciphertexts")

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        t = self.tally
        return (
            f"<{type(self).__name__} key {t.fingerprint.hex()[:8]} length {t.length} terms {t.terms} masks {t.blinded}>"
        )


class Keyed:
    """Habits of keys: equal if their kind and fingerprint are, immutable, and shown by fingerprint only."""

    fingerprint: bytes
    layout: Layout
    scheme: str

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Keyed) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash((type(self), self.fingerprint))

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        bits = self.layout.key_bits
        return f"<{type(self).__name__} {self.scheme} {bits} bits {self.fingerprint.hex()[:8]}>"


class MaskLike(Protocol):
    """A fresh random vector to add before opening and to take off later; secret to whoever drew it."""

    @property
    def length(self) -> int: ...


class BlindedLike(Protocol):
    """An opened vector that still carries its masks: all that the key's holder sees."""

    @property
    def tally(self) -> Tally: ...
    @property
    def length(self) -> int: ...
    @property
    def terms(self) -> int: ...
    @property
    def blinded(self) -> int: ...
    def minus(self, other: BlindedLike) -> Integers: ...
    def plus(self, other: BlindedLike) -> Self: ...
    def __add__(self, other: BlindedLike) -> Self: ...


class CipherVectorLike(Protocol):
    """An encrypted ``(d,)`` vector; the operations return new ones."""

    @property
    def tally(self) -> Tally: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def length(self) -> int: ...
    @property
    def terms(self) -> int: ...
    @property
    def blinded(self) -> int: ...
    @property
    def emulated(self) -> bool: ...
    def add(self, other: CipherVectorLike) -> Self: ...
    def __add__(self, other: CipherVectorLike) -> Self: ...
    def add_plain(self, values: ArrayLike) -> Self: ...
    def scale(self, weight: SupportsIndex) -> Self: ...
    def blind(self, mask: MaskLike) -> Self: ...
    def unblind(self, mask: MaskLike, times: int) -> Self: ...
    def to_bytes(self) -> bytes: ...


class PublicKeyLike(Protocol):
    """Encrypts; anyone may hold it."""

    @property
    def fingerprint(self) -> bytes: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def scheme(self) -> str: ...
    @property
    def emulated(self) -> bool: ...
    def encrypt(self, values: ArrayLike) -> CipherVectorLike: ...
    def encrypt_integers(self, integers: ArrayLike) -> CipherVectorLike: ...
    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVectorLike: ...
    def mask(self, length: int, random_bytes: RandomBytes) -> MaskLike: ...
    def from_bytes(
        self, data: bytes, length: int | None = None, *, terms: int | None = None, blinded: int | None = None
    ) -> CipherVectorLike: ...
    def wire_bytes(self, length: int) -> int: ...
    def nominal_seconds_encrypt(self, length: int) -> float: ...
    def to_bytes(self) -> bytes: ...


class SecretKeyLike(Protocol):
    """Opens; one party holds it."""

    @property
    def public(self) -> PublicKeyLike: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def scheme(self) -> str: ...
    @property
    def emulated(self) -> bool: ...
    def decrypt(self, cipher: Any) -> Floats: ...
    def decrypt_integers(self, cipher: Any) -> Integers: ...
    def open_blinded(self, cipher: Any) -> BlindedLike: ...
    def nominal_seconds_decrypt(self, length: int) -> float: ...
    def to_bytes(self) -> bytes: ...


_Cipher = TypeVar("_Cipher", bound=CipherVectorLike)
_Blinded = TypeVar("_Blinded", bound=BlindedLike)


class _Summable(Protocol):
    def __add__(self, other: Any) -> Self: ...


_Summand = TypeVar("_Summand", bound=_Summable)


def sum_ciphers(ciphers: Iterable[_Cipher]) -> _Cipher:
    """The sum of ciphertext vectors, folded one at a time (an iterator is consumed as it goes)."""
    return _folded(ciphers)


def sum_blinded(blinded: Iterable[_Blinded]) -> _Blinded:
    """The sum of blinded vectors (FedCAPrivacy eq. 9 without its division): terms and masks add up."""
    return _folded(blinded)


def _folded(items: Iterable[_Summand]) -> _Summand:
    iterator = iter(items)
    total = next(iterator, None)
    if total is None:
        raise CryptoError("an empty sum has no key and no length: give at least one vector")
    for item in iterator:
        total = total + item
    return total


def openable(tally: Tally, fingerprint: bytes, masked: bool) -> None:
    """Whether a key may open a vector. Raises KeyMismatchError, or CryptoError if masks are inside (or missing)."""
    if tally.fingerprint != fingerprint:
        raise KeyMismatchError(
            f"a vector under key {tally.fingerprint.hex()[:8]} can't be opened with {fingerprint.hex()[:8]}"
        )
    if tally.blinded and not masked:
        raise CryptoError(f"the vector still carries {tally.blinded} masks: unblind it first, or use open_blinded")
    if masked and not tally.blinded:
        raise CryptoError(
            "the vector carries no mask: opening it would show its values; blind it first, or use decrypt"
        )


def differences(a: Tally, b: Tally, most: int) -> None:
    """Whether the exact difference of two blinded vectors is defined. Raises CryptoError or CapacityError."""
    if a.fingerprint != b.fingerprint or a.length != b.length:
        raise KeyMismatchError("only vectors of one length, opened with one key, can be subtracted")
    if not a.blinded or a.blinded != b.blinded:
        raise CryptoError(f"masks cancel in equal numbers only, not {a.blinded} against {b.blinded}")
    if a.terms + b.terms > most:
        raise CapacityError(f"the difference of {a.terms} and {b.terms} terms doesn't fit lanes made for {most}")


def integer_weight(weight: SupportsIndex) -> int:
    """A weight for ``scale``. Raises CryptoError unless it is an integer of at least 1."""
    try:
        value = operator.index(weight)
    except TypeError:
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}: scale to integers first") from None
    if value < 1 or isinstance(weight, bool):
        raise CryptoError(f"weights are integers of at least 1, not {weight!r}")
    return value


def drawn(random_bytes: RandomBytes, size: int) -> bytes:
    """``random_bytes(size)``, refused if it gives another number of bytes."""
    data = random_bytes(size)
    if len(data) != size:
        raise CryptoError(f"the source of randomness gave {len(data)} bytes where {size} were asked for")
    return data


_ENCRYPT_MS = {("short", 2048): 1.35, ("short", 3072): 2.4, ("full", 2048): 14.5, ("full", 3072): 43.5}
_DECRYPT_MS = {2048: 3.5, 3072: 14.8}


def nominal_encrypt_s(key_bits: int, randomness: str, plaintexts: int) -> float:
    """Nominal seconds of a typical core for Paillier encryptions (measured per ciphertext; other sizes by the cube)."""
    known = _ENCRYPT_MS.get((randomness, key_bits))
    return plaintexts * 1e-3 * (known or _ENCRYPT_MS[randomness, 2048] * (key_bits / 2048) ** 3)


def nominal_decrypt_s(key_bits: int, plaintexts: int) -> float:
    """Nominal seconds of a typical core for Paillier decryptions with CRT, in the same way."""
    return plaintexts * 1e-3 * (_DECRYPT_MS.get(key_bits) or _DECRYPT_MS[2048] * (key_bits / 2048) ** 3)
