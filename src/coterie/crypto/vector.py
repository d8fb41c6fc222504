"""What all schemes have in common: the vector API.

A *ciphertext vector* is an encrypted flat vector of d values with a ``Tally``: whose key it is under, how many vectors
it sums up (its terms), how many masks it carries (blinded) and its form. By it misuse is refused:

- vectors under different keys, of different lengths or forms, or with different masks are never combined silently;
- a sum with more terms or masks than there is room for is refused, so nothing overflows (a caller answers for bounds
  that it states, as with ``within`` and ``at_most``, and for the norms of what it takes dot products of);
- a vector that still carries masks is opened by ``open_blinded`` only, and one without masks by ``decrypt`` only.

The protocols below are what systems are written against: ``paillier`` and ``ckks``, and their twins ``exact`` and
``rounded``. What a scheme lacks, it refuses: Paillier has no products, CKKS no integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, SupportsIndex, TypeVar

from numpy.typing import ArrayLike

from coterie.crypto.packing import Floats, Integers, Layout
from coterie.crypto.tally import Form, Tally
from coterie.protocol.errors import CryptoError, PeerError

RandomBytes = Callable[[int], bytes]
NOT_OF_MODELS = "these two don't carry the same mask, or one is forged: their difference is not of two models"


class CiphertextError(PeerError):
    """A ciphertext that opens to something that no honest party encrypts: damaged, forged or wrongly unblinded."""


class Keyed:
    """Habits of keys: equal if their kind and fingerprint are, immutable, and shown by fingerprint only."""

    fingerprint: bytes
    scheme: str

    @property
    def size(self) -> str:
        """Which parameters, in words."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Keyed) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash((type(self), self.fingerprint))

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scheme} {self.size} {self.fingerprint.hex()[:8]}>"


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


class EvaluationKeyLike(Protocol):
    """Public keys for sums over a vector's own values; who computes on ciphertexts holds it."""

    @property
    def fingerprint(self) -> bytes: ...
    @property
    def scheme(self) -> str: ...
    @property
    def emulated(self) -> bool: ...
    def to_bytes(self) -> bytes: ...


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
    def times(self, scalar: CipherVectorLike, *, at_most: int | None = None) -> Self: ...
    def times_plain(self, number: float, *, at_most: int | None = None) -> Self: ...
    def rescaled(self) -> Self: ...
    def at_level(self, level: int) -> Self: ...
    def within(self, terms: int) -> Self: ...
    def sanitised(self) -> Self: ...
    def split(self, at: int) -> tuple[Self, Self]: ...
    def joined(self, other: CipherVectorLike) -> Self: ...
    def conjugated(self, keys: EvaluationKeyLike) -> Self: ...
    def dot(self, prepared: CipherVectorLike, keys: EvaluationKeyLike) -> Self: ...
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
    @property
    def fresh(self) -> Form: ...
    @property
    def fresh_scalar(self) -> Form: ...
    def encrypt(self, values: ArrayLike) -> CipherVectorLike: ...
    def encrypt_scalar(self, value: float, at_most: int = 1) -> CipherVectorLike: ...
    def encrypt_integers(self, integers: ArrayLike) -> CipherVectorLike: ...
    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVectorLike: ...
    def mask(self, length: int, random_bytes: RandomBytes) -> MaskLike: ...
    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> CipherVectorLike: ...
    def wire_bytes(self, length: int) -> int: ...
    def nominal_seconds_encrypt(self, length: int) -> float: ...
    def nominal_seconds_times(self, length: int) -> float: ...
    def nominal_seconds_rescale(self, length: int) -> float: ...
    def without_products(self) -> Self: ...
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
    def encrypt(self, values: ArrayLike) -> CipherVectorLike: ...
    def encrypt_scalar(self, value: float, at_most: int = 1) -> CipherVectorLike: ...
    def decrypt(self, cipher: Any) -> Floats: ...
    def decrypt_integers(self, cipher: Any) -> Integers: ...
    def open_blinded(self, cipher: Any) -> BlindedLike: ...
    def evaluation(self) -> EvaluationKeyLike: ...
    def nominal_seconds_encrypt(self, length: int) -> float: ...
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
