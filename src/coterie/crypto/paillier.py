"""Paillier's additively homomorphic encryption of packed fixed-point vectors, over ``gmpy2``.

P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999, with g = N + 1
(then g^m = 1 + mN mod N^2, one product), decryption by the Chinese remainder theorem, and many values a plaintext.

**Randomness.** A ciphertext is ``(1 + mN) * r^N mod N^2``. ``randomness="full"`` draws r uniformly. ``"short"``, the
default, is the variant of I. Damgard, M. Jurik and J. B. Nielsen, "A generalization of Paillier's public-key system
with applications to electronic voting" (2010): p and q are 3 mod 4 with gcd(p-1, q-1) = 2, ``h = -x^2 mod N`` is part
of the public key, and ``r = h^s mod N`` for a random s of half as many bits as N. It is over ten times as fast, with a
table of powers of h^N. It assumes more than Paillier's problem: that powers of h with such short exponents can't be
told from random numbers of Jacobi symbol 1 (for half-length exponents Goldreich and Rosen derive the like from
factoring). Vectors of both kinds can be mixed freely.

**Secrecy is not integrity.** Ciphertexts can be changed by anyone; sign them. A sender who lies about his values within
the plaintext can spoil a sum, and is noticed at decryption only if a lane leaves the range of its terms. A number that
is no unit modulo N would open to a factor of N, so ``from_bytes`` refuses it. Decryption is not constant in time.

Parameters are named: ``paillier-2048`` (112-bit security) and ``paillier-3072`` (128-bit).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, SupportsIndex

import gmpy2
from gmpy2 import mpz
from numpy.typing import ArrayLike

from coterie.crypto import wire
from coterie.crypto.bigint import (
    Number,
    blum_prime,
    fixed_base_table,
    not_a_unit,
    random_unit,
    short_noise,
    spread,
    threads,
)
from coterie.crypto.blinding import Blinded, Mask
from coterie.crypto.lacking import EncryptsAsPublic, PublicWithoutProducts, VectorWithoutProducts
from coterie.crypto.packing import Floats, Integers, Lanes, Layout
from coterie.crypto.tally import Form, Tallied, Tally, integer_weight, openable
from coterie.crypto.vector import (
    BlindedLike,
    CiphertextError,
    CipherVectorLike,
    Keyed,
    MaskLike,
    RandomBytes,
    nominal_decrypt_s,
    nominal_encrypt_s,
)
from coterie.protocol.errors import DecodeError, KeyMismatchError, UserError

__all__ = [
    "Blinded",
    "CipherVector",
    "Mask",
    "PublicKey",
    "SecretKey",
    "insecure_for_tests",
    "keygen",
    "threads",
]

SCHEME = "paillier"
Randomness = Literal["short", "full"]


def keygen(bits: int = 2048, lanes: Lanes | None = None, *, randomness: Randomness = "short") -> SecretKey:
    """A fresh key from the operating system's randomness. bits: 2048 or 3072. Raises UserError for other sizes."""
    if bits not in wire.PARAMETERS.values():
        raise UserError(f"key_bits={bits} is no secure Paillier key: choose one of {sorted(wire.PARAMETERS.values())}")
    return _generate(bits, lanes or Lanes(), randomness)


def insecure_for_tests(bits: int = 512, lanes: Lanes | None = None, *, randomness: Randomness = "short") -> SecretKey:
    """A key of any size from 256 bits, breakable in minutes or hours: for tests only."""
    return _generate(bits, lanes or Lanes(), randomness)


def _generate(bits: int, lanes: Lanes, randomness: Randomness) -> SecretKey:
    if randomness not in wire.RANDOMNESS:
        raise UserError(f"randomness={randomness!r} is unknown: choose one of {list(wire.RANDOMNESS)}")
    layout = Layout(lanes, bits)
    while True:
        p, q = blum_prime(bits // 2), blum_prime(bits // 2)
        if p != q and gmpy2.gcd(p - 1, q - 1) == 2:
            break
    n = p * q
    return SecretKey(p, q, PublicKey(n, -(random_unit(n) ** 2) % n, layout, randomness))


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(PublicWithoutProducts, Keyed):
    """What encrypts. n: the modulus; h: base of the short randomness; randomness: "short" or "full" when encrypting."""

    n: Number
    h: Number
    layout: Layout
    randomness: Randomness = "short"

    scheme = SCHEME
    emulated = False

    @cached_property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """16 bytes that name the modulus, h and the lanes (not the kind of randomness: that is the sender's choice)."""
        return hashlib.sha256(b"coterie/key/" + replace(self, randomness="short").to_bytes()).digest()[:16]

    @property
    def size(self) -> str:
        """Bits of the modulus."""
        return f"{self.layout.key_bits} bits"

    @cached_property
    def n_squared(self) -> Number:
        """The modulus of ciphertexts."""
        return self.n * self.n

    def encrypt(self, values: ArrayLike) -> CipherVector:
        """``(d,)`` floats, eq. (4) and (5). Raises CapacityError naming a value that doesn't fit its lane."""
        return self.encrypt_integers(self.layout.lanes.quantise(values))

    def encrypt_integers(self, integers: ArrayLike) -> CipherVector:
        """``(d,)`` integers, in steps of ``2^-fraction_bits``. Raises CapacityError if one doesn't fit."""
        checked = self.layout.lanes.check(integers)
        return CipherVector(self, Tally(self.fingerprint, checked.size), self._seal(self.layout.pack(checked)))

    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVector:
        """A still masked vector that another key opened, under this key: the masks are then taken off by ``unblind``.

        Raises KeyMismatchError unless both keys have the same size and lanes, so that nothing wraps here either.
        """
        if not isinstance(blinded, Blinded) or blinded.layout != self.layout:
            raise KeyMismatchError(f"{blinded!r} was opened under a key of another scheme, size or lanes than {self!r}")
        tally = replace(blinded.tally, fingerprint=self.fingerprint)
        return CipherVector(self, tally, self._seal(blinded.plaintexts))

    def mask(self, length: int, random_bytes: RandomBytes) -> Mask:
        """A fresh mask for ``length`` values: per plaintext a uniform integer below ``2^mask_bits`` (eq. 6).

        random_bytes: n -> n secret random bytes (``os.urandom`` in a real run). Draw one a round and never use it for
        another: two vectors with one mask show their difference, which is what eq. (8) needs.
        """
        return Mask.draw(self.layout, length, random_bytes)

    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> CipherVector:
        """A ciphertext vector from another party's bytes, all of it checked. Raises DecodeError.

        length, terms, blinded: what must stand in its header (a fresh upload has terms=1, blinded=0); None: all that
        fits. Numbers are checked to lie in [1, N^2) and to be units modulo N. Anyone can make others: N itself is
        public, and what a multiple of N opens to factors it.
        """
        data = bytes(data)
        tally, body = wire.split_vector(
            data, SCHEME, self.fingerprint, self.layout, wire.Wanted(length, terms, blinded, form)
        )
        size = self.layout.ciphertext_bytes
        units = tuple(_number(body[at : at + size]) for at in range(0, len(body), size))
        for index, unit in enumerate(units):
            if not 1 <= unit < self.n_squared:
                raise DecodeError(f"ciphertext {index} is not in [1, N^2)")
        if (first := not_a_unit(units, self.n)) is not None:
            raise DecodeError(f"ciphertext {first} is no unit modulo N: no honest one is, and opening it betrays N")
        return CipherVector(self, tally, units)

    def wire_bytes(self, length: int) -> int:
        """Exact bytes of a vector of ``length`` values."""
        return wire.vector_bytes(self.layout, length)

    def nominal_seconds_encrypt(self, length: int) -> float:
        """Nominal seconds of one typical core to encrypt, or to blind, ``length`` values: for virtual time."""
        return nominal_encrypt_s(self.layout.key_bits, self.randomness, self.layout.plaintexts(length))

    def to_bytes(self) -> bytes:
        """The key for other parties; ``PublicKey.load`` reads it."""
        size = self.layout.key_bits // 8
        header = wire.KeyHeader(SCHEME, "public", self.randomness, self.layout).to_bytes()
        return header + int(self.n).to_bytes(size, "little") + int(self.h).to_bytes(size, "little")

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> PublicKey:
        """A key from ``to_bytes``. Raises DecodeError, also for a small key unless ``allow_insecure`` (tests)."""
        header, numbers = wire.split_key(bytes(data), SCHEME, "public", allow_insecure)
        half = len(numbers) // 2
        return _public(_number(numbers[:half]), _number(numbers[half:]), header)

    def _seal(self, plaintexts: Sequence[int]) -> tuple[Number, ...]:
        """One fresh encryption of each plaintext, on all cores."""
        n, modulus = self.n, self.n_squared
        if self.randomness == "full":

            def noise() -> Number:
                return gmpy2.powmod(random_unit(n), n, modulus)
        else:
            table = fixed_base_table(n, self.h)  # once, before the threads want it

            def noise() -> Number:
                return short_noise(table, modulus)

        return spread(lambda part: [(1 + m * n) * noise() % modulus for m in part], plaintexts)


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(EncryptsAsPublic, Keyed):
    """What decrypts: the two primes. Whoever has ``to_bytes`` can open everything; ``repr`` shows the fingerprint."""

    p: Number
    q: Number
    public: PublicKey

    scheme = SCHEME
    emulated = False

    @property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """The public key's."""
        return self.public.fingerprint

    @property
    def layout(self) -> Layout:
        """The public key's."""
        return self.public.layout

    @property
    def size(self) -> str:
        """The public key's."""
        return self.public.size

    def decrypt(self, cipher: CipherVectorLike) -> Floats:
        """The ``(d,) float64`` values, or sums of ``cipher.terms`` of them (divide for a mean).

        Raises KeyMismatchError for another key's vector, CryptoError if masks are still inside, and CiphertextError if
        what comes out isn't what honest parties encrypt.
        """
        return self.layout.lanes.dequantise(self.decrypt_integers(cipher))

    def decrypt_integers(self, cipher: CipherVectorLike) -> Integers:
        """As ``decrypt``: the ``(d,) int64`` values in steps of ``2^-fraction_bits``."""
        real = _real(cipher)
        openable(real.tally, self.fingerprint, masked=False)
        plaintexts = self._open(real)
        if max(plaintexts) >> self.layout.packed_bits:
            raise CiphertextError("a plaintext is larger than its lanes: damaged, forged or wrongly unblinded")
        lanes, terms = self.layout.lanes, cipher.terms
        sums = self.layout.unpack(plaintexts, terms * lanes.offset)
        values, unused = sums[: cipher.length], sums[cipher.length :]
        if unused.any() or not lanes.within(values, terms):
            raise CiphertextError(
                f"a lane holds what no sum of {terms} values is: damaged, forged or wrongly unblinded"
            )
        return values

    def open_blinded(self, cipher: CipherVectorLike) -> Blinded:
        """Eq. (7): the plaintexts with masks still on. Raises as ``decrypt`` does, and CryptoError without a mask."""
        real = _real(cipher)
        openable(real.tally, self.fingerprint, masked=True)
        plaintexts = self._open(real)
        if max(plaintexts) >= (1 << self.layout.packed_bits) + (cipher.blinded << self.layout.mask_bits):
            raise CiphertextError(f"a plaintext is larger than {cipher.blinded} masks make it: damaged or forged")
        return Blinded(self.layout, cipher.tally, plaintexts)

    def nominal_seconds_decrypt(self, length: int) -> float:
        """Nominal seconds of one typical core to open ``length`` values: for virtual time."""
        return nominal_decrypt_s(self.layout.key_bits, self.layout.plaintexts(length))

    def to_bytes(self) -> bytes:
        """SECRET: both primes, and h. ``SecretKey.load`` reads it. At rest: a file of mode 0600."""
        half = self.layout.key_bits // 16
        header = wire.KeyHeader(SCHEME, "secret", self.public.randomness, self.layout).to_bytes()
        numbers = (self.p, half), (self.q, half), (self.public.h, 2 * half)
        return header + b"".join(int(number).to_bytes(size, "little") for number, size in numbers)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> SecretKey:
        """A key from ``to_bytes``. Raises DecodeError, also for a small key unless ``allow_insecure`` (tests)."""
        header, numbers = wire.split_key(bytes(data), SCHEME, "secret", allow_insecure)
        half = len(numbers) // 4
        p, q, h = (_number(part) for part in (numbers[:half], numbers[half : 2 * half], numbers[2 * half :]))
        if p == q or not gmpy2.is_prime(p, 40) or not gmpy2.is_prime(q, 40):
            raise DecodeError("the numbers of this secret key are not two primes")
        return cls(p, q, _public(p * q, h, header))

    @cached_property
    def _crt(self) -> tuple[Number, Number, Number]:
        """What turns L_p, L_q into m mod p, q (g = N+1 gives L_p(g^(p-1)) = -q mod p), and p's inverse mod q."""
        p, q = self.p, self.q
        return gmpy2.invert(-q, p), gmpy2.invert(-p, q), gmpy2.invert(p, q)

    def _open(self, cipher: CipherVector) -> tuple[int, ...]:
        """m of every ciphertext: modulo p and q apart, each with half the exponent, then together."""
        p, q = self.p, self.q
        at_p, at_q, p_inverse = self._crt

        def part(units: Sequence[Number]) -> list[int]:
            powers_p = gmpy2.powmod_base_list(list(units), p - 1, p * p)
            powers_q = gmpy2.powmod_base_list(list(units), q - 1, q * q)
            halves_p = [(x - 1) // p * at_p % p for x in powers_p]
            halves_q = [(x - 1) // q * at_q % q for x in powers_q]
            return [int(a + p * ((b - a) * p_inverse % q)) for a, b in zip(halves_p, halves_q, strict=True)]

        return spread(part, cipher.units)


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(VectorWithoutProducts, Tallied):
    """An encrypted ``(d,)`` vector: its public key, its tally and ``(plaintexts,)`` numbers mod N^2."""

    key: PublicKey
    tally: Tally
    units: tuple[Number, ...]

    scheme = SCHEME
    emulated = False

    def add(self, other: CipherVectorLike) -> CipherVector:
        """The encrypted sum. Raises KeyMismatchError, CryptoError (other length) or CapacityError (too many terms)."""
        theirs, modulus = _real(other), self.key.n_squared
        tally = self.tally.plus(theirs.tally, self._most)
        return replace(
            self, tally=tally, units=tuple(a * b % modulus for a, b in zip(self.units, theirs.units, strict=True))
        )

    __add__ = add

    def add_plain(self, values: ArrayLike) -> CipherVector:
        """The encrypted sum with known ``(d,)`` floats: one more term.

        Not re-randomised: who sees the vector before and after learns the values.
        """
        integers = self.key.layout.lanes.quantise(values)
        tally = self.tally.plus(Tally(self.fingerprint, integers.size), self._most)
        return replace(self, tally=tally, units=self._shifted(self.key.layout.pack(integers)))

    def scale(self, weight: SupportsIndex) -> CipherVector:
        """The vector times an integer of at least 1, which counts as that many terms (and masks)."""
        factor, modulus = integer_weight(weight), self.key.n_squared
        tally = self.tally.times(factor, self._most)
        units = spread(lambda part: gmpy2.powmod_base_list(list(part), factor, modulus), self.units)
        return replace(self, tally=tally, units=units)

    def blind(self, mask: MaskLike) -> CipherVector:
        """Eq. (6): the vector plus the mask, freshly randomised, so that the result can't be linked to this vector."""
        numbers, modulus = self._matching(mask), self.key.n_squared
        fresh = self.key._seal(numbers)
        units = tuple(a * b % modulus for a, b in zip(self.units, fresh, strict=True))
        return replace(self, tally=self.tally.masked(self._most), units=units)

    def unblind(self, mask: MaskLike, times: int) -> CipherVector:
        """Eq. (10), with sums and counts: adds a fresh encryption of minus the mask, ``times`` times it.

        The fresh randomness is needed: whoever sees the vector before and after would else read the mask off their
        quotient. Raises CryptoError if fewer masks are inside; another mask than the one inside is noticed at opening.
        """
        numbers, modulus = self._matching(mask), self.key.n_squared
        factor = integer_weight(times)
        tally = self.tally.unmasked(factor)
        fresh = self.key._seal([-factor * number for number in numbers])
        units = tuple(a * b % modulus for a, b in zip(self.units, fresh, strict=True))
        return replace(self, tally=tally, units=units)

    def to_bytes(self) -> bytes:
        """The wire form, ``key.wire_bytes(d)`` bytes."""
        size = self.key.layout.ciphertext_bytes
        return wire.vector_header(self.tally, SCHEME) + b"".join([unit.to_bytes(size, "little") for unit in self.units])

    @property
    def _most(self) -> int:
        return self.key.layout.lanes.max_terms

    def _shifted(self, plaintexts: Sequence[int]) -> tuple[Number, ...]:
        """Every unit times g^m for its (signed) plaintext m."""
        n, modulus = self.key.n, self.key.n_squared
        return tuple(unit * (1 + m % n * n) % modulus for unit, m in zip(self.units, plaintexts, strict=True))

    def _matching(self, mask: MaskLike) -> tuple[int, ...]:
        if not isinstance(mask, Mask):
            raise KeyMismatchError(f"{mask!r} is no mask for Paillier")
        return mask.fitting(self.key.layout, self.length)


def _real(cipher: Any) -> CipherVector:
    if not isinstance(cipher, CipherVector):
        raise KeyMismatchError(f"{cipher!r} is no Paillier ciphertext")
    return cipher


def _public(n: Number, h: Number, header: wire.KeyHeader) -> PublicKey:
    """A public key of decoded numbers. Raises DecodeError if no honest party can have made them."""
    layout = header.layout
    if n.bit_length() != layout.key_bits or n % 4 != 1 or not 1 < h < n - 1 or gmpy2.jacobi(h, n) != 1:
        raise DecodeError("the numbers of this key can't be an honest Paillier key's")
    return PublicKey(n, h, layout, "full" if header.randomness == "full" else "short")


def _number(part: memoryview) -> Number:
    return mpz.from_bytes(bytes(part), "little")
