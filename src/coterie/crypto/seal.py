"""SEAL's objects as numpy arrays: the only file that knows how ``tenseal.sealapi`` stores them.

SEAL makes the keys, encrypts, multiplies and decrypts; between these a ciphertext is an array of residues,
``(2 or 3 polynomials, limbs, N) uint64`` in NTT form, so that adding and checking need no SEAL object. The bindings
can only save to and load from files, so a *template* of each kind of object is saved once by SEAL itself: all that
comes before its numbers is kept, and an array is loaded by writing template and numbers, uncompressed, to a file in
memory (``memfd``; a private temporary folder where the system has none). SEAL writes compressed (zstd).

SEAL trusts its input. Nothing here checks residues: whoever calls makes sure that they are below their primes.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import Any

import gmpy2
import numpy as np
import tenseal.sealapi as sealapi  # type: ignore[import-untyped]
import zstandard

from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks_parameters import ParameterSet, Slots
from coterie.crypto.residues import Residues
from coterie.crypto.tally import Form
from coterie.protocol.errors import RunError, UserError

Handle = Any  # an object of SEAL, which has no types

_HEADER = struct.Struct("<HBBBBHQ")  # magic, header size, version, subversion, compression, zero, total size
_UNCOMPRESSED, _ZSTD = 0, 2
_SHORT = 8  # levels, for which SEAL's primes do
_PREFIX_MOST = 4096  # a template's bytes besides its numbers are far fewer


class Ring:
    """SEAL's context for one parameter set, and arrays in and out of it. Use ``ring(parameters)``."""

    def __init__(self, parameters: ParameterSet) -> None:
        self.parameters = parameters
        asked = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
        asked.set_poly_modulus_degree(parameters.degree)
        asked.set_coeff_modulus(_chain(parameters))
        level = sealapi.SEC_LEVEL_TYPE.TC128 if parameters.secure else sealapi.SEC_LEVEL_TYPE.NONE
        self.context = sealapi.SEALContext(asked, True, level)
        if not self.context.parameters_set():
            raise UserError(f"SEAL refuses {parameters.name}: {self.context.parameters_error_message()}")
        self.encoder = sealapi.CKKSEncoder(self.context)
        self.evaluator = sealapi.Evaluator(self.context)
        primes = [modulus.value() for modulus in asked.coeff_modulus()]
        self.moduli = np.array(primes, dtype=np.uint64)[:, None]
        self._cipher_templates: dict[tuple[int, Form], bytes] = {}

    def moduli_at(self, level: int) -> Residues:
        """``(level + 1, 1) uint64``: the primes of a ciphertext at this level."""
        return self.moduli[: level + 1]

    def scale(self, form: Form) -> float:
        """What the values of a vector of this form are multiplied by."""
        scale = 2.0**self.parameters.scale_bits
        for dropped in range(self.parameters.levels, form.level, -1):
            scale = scale * scale / float(self.moduli[dropped, 0])
        return scale * scale if form.product else scale

    # ---- keys

    def keygen(self, products: bool) -> tuple[Residues, Residues, Residues]:
        """A fresh key from the system's randomness: ``(limbs, N)`` secret, ``(2, limbs, N)`` public, and
        ``(k, 2, limbs, N)`` to relinearise with (k = 0 without levels or products), all modulo the whole chain.
        """
        generator = sealapi.KeyGenerator(self.context)
        public, relinearise = sealapi.PublicKey(), sealapi.RelinKeys()
        generator.create_public_key(public)
        shape = len(self.moduli), self.parameters.degree
        secret, pair = np.empty(shape, dtype=np.uint64), np.empty((2, *shape), dtype=np.uint64)
        pairs = np.empty((self.parameters.relinearisation_keys if products else 0, 2, *shape), dtype=np.uint64)
        with scratch() as file:
            file.numbers(generator.secret_key(), secret)
            file.numbers(public, pair)
            if len(pairs):
                generator.create_relin_keys(relinearise)
                body, (start, step) = file.read(relinearise), self._relinearisation_stride
                for i, out in enumerate(pairs):
                    _take(body[: start + (i + 1) * step], out)
        return secret, pair, pairs

    def encryptor(self, public: Residues, secret: Residues | None = None) -> Handle:
        """What encrypts: under the public key, and under the secret key if it is given."""
        made = sealapi.Encryptor(self.context, self._public(public))
        if secret is not None:
            made.set_secret_key(self.secret_object(secret))
        return made

    def decryptor(self, secret: Residues) -> Handle:
        """What decrypts."""
        return sealapi.Decryptor(self.context, self.secret_object(secret))

    def relineariser(self, keys: Residues) -> Handle:
        """What turns products back into two polynomials."""
        return self._loaded(sealapi.RelinKeys(), self.relinearisation_template, keys)

    # ---- vectors

    def encrypt(
        self, encryptor: Handle, plaintexts: Iterable[Handle], count: int, level: int, symmetric: bool
    ) -> Residues:
        """Fresh ciphertexts ``(count, 2, limbs, N)`` of plaintexts of this level."""
        encrypt = encryptor.encrypt_symmetric if symmetric else encryptor.encrypt
        out = np.empty((count, 2, level + 1, self.parameters.degree), dtype=np.uint64)
        cipher = sealapi.Ciphertext(self.context)
        with scratch() as file:
            for row, plaintext in zip(out, plaintexts, strict=True):
                encrypt(plaintext, cipher)
                file.numbers(cipher, row)
        return out

    def zeros(self, encryptor: Handle, count: int, level: int) -> Residues:
        """Fresh encryptions of zero under the public key, ``(count, 2, limbs, N)``."""
        out = np.empty((count, 2, level + 1, self.parameters.degree), dtype=np.uint64)
        cipher = sealapi.Ciphertext(self.context)
        with scratch() as file:
            for row in out:
                encryptor.encrypt_zero(self.ids[level], cipher)
                file.numbers(cipher, row)
        return out

    def encoded(self, slots: Slots, form: Form) -> Iterator[Handle]:
        """A plaintext of each row ``(N/2,)`` of complex slots, one at a time; it is reused for the next."""
        plaintext = sealapi.Plaintext()
        for row in slots:
            self.encoder.encode(row.tolist(), self.ids[form.level], self.scale(form), plaintext)
            yield plaintext

    def encoded_constant(self, value: float, form: Form) -> Iterator[Handle]:
        """One plaintext with the value in every slot."""
        plaintext = sealapi.Plaintext()
        self.encoder.encode(value, self.ids[form.level], self.scale(form), plaintext)
        yield plaintext

    def residues(self, plaintexts: Iterable[Handle], count: int, form: Form) -> Residues:
        """Plaintexts as ``(count, limbs, N)``."""
        out = np.empty((count, form.level + 1, self.parameters.degree), dtype=np.uint64)
        with scratch() as file:
            for row, plaintext in zip(out, plaintexts, strict=True):
                file.numbers(plaintext, row)
        return out

    def decrypt(self, decryptor: Handle, ciphers: Residues, form: Form) -> Slots:
        """``(count, N/2)`` complex slots."""
        slots = np.empty((len(ciphers), self.parameters.degree // 2), dtype=np.complex128)
        plaintext = sealapi.Plaintext()
        for row, cipher in zip(slots, self.objects(ciphers, form), strict=True):
            decryptor.decrypt(cipher, plaintext)
            row[...] = np.fromiter(self.encoder.decode_complex(plaintext), np.complex128, row.size)
        return slots

    def times(self, ciphers: Residues, scalar: Residues, form: Form) -> Residues:
        """Every ciphertext times one: ``(count, 3, limbs, N)``. Raises CiphertextError for forged ones."""
        factor = next(self.objects(scalar, form))
        product = sealapi.Ciphertext(self.context)
        out = np.empty((len(ciphers), 3, *ciphers.shape[2:]), dtype=np.uint64)
        with scratch() as file, forged():
            for row, cipher in zip(out, self.objects(ciphers, form), strict=True):
                self.evaluator.multiply(cipher, factor, product)
                file.numbers(product, row)
        return out

    def rescaled(self, relineariser: Handle, products: Residues, form: Form) -> Residues:
        """Products back to two polynomials, one prime less: ``(count, 2, limbs - 1, N)``."""
        out = np.empty((len(products), 2, form.level, self.parameters.degree), dtype=np.uint64)
        with scratch() as file, forged():
            for row, product in zip(out, self.objects(products, form), strict=True):
                self.evaluator.relinearize_inplace(product, relineariser)
                self.evaluator.rescale_to_next_inplace(product)
                file.numbers(product, row)
        return out

    def objects(self, ciphers: Residues, form: Form) -> Iterator[Handle]:
        """A SEAL ciphertext of each row, one at a time; it is reused for the next."""
        template, cipher = self._cipher_template(ciphers.shape[1], form), sealapi.Ciphertext(self.context)
        with scratch() as file:
            for row in ciphers:
                file.write(template, np.ascontiguousarray(row))
                cipher.load(self.context, file.path)
                yield cipher

    # ---- templates: what SEAL writes before the numbers

    @cached_property
    def ids(self) -> dict[int, Any]:
        """SEAL's name of each level."""
        data, ids = self.context.first_context_data(), {}
        while data is not None:
            ids[data.chain_index()] = data.parms_id()
            data = data.next_context_data()
        return ids

    @cached_property
    def _samples(self) -> tuple[Handle, Handle, Handle | None]:
        """A secret, a public and a relinearisation key to take templates from; never used to encrypt anything."""
        generator = sealapi.KeyGenerator(self.context)
        public, relinearise = sealapi.PublicKey(), sealapi.RelinKeys()
        generator.create_public_key(public)
        if self.parameters.levels:
            generator.create_relin_keys(relinearise)
        return generator.secret_key(), public, relinearise if self.parameters.levels else None

    def _cipher_template(self, polynomials: int, form: Form) -> bytes:
        if (polynomials, form) not in self._cipher_templates:
            self._cipher_templates[polynomials, form] = self._made_template(polynomials, form)
        return self._cipher_templates[polynomials, form]

    def coefficient_template(self, level: int) -> bytes:
        """Of two polynomials that are not in NTT form."""
        cipher = sealapi.Ciphertext(self.context)
        sealapi.Encryptor(self.context, self._samples[1]).encrypt_zero(self.ids[level], cipher)
        self.evaluator.transform_from_ntt_inplace(cipher)
        return self._template(cipher, 2 * (level + 1))

    def _made_template(self, polynomials: int, form: Form) -> bytes:
        cipher = sealapi.Ciphertext(self.context)
        sealapi.Encryptor(self.context, self._samples[1]).encrypt_zero(self.ids[form.level], cipher)
        cipher.scale = self.scale(form)
        cipher.resize(self.context, self.ids[form.level], polynomials)
        return self._template(cipher, polynomials * (form.level + 1))

    @cached_property
    def _secret_template(self) -> bytes:
        return self._template(self._samples[0], len(self.moduli))

    @cached_property
    def _public_template(self) -> bytes:
        return self._template(self._samples[1], 2 * len(self.moduli))

    @cached_property
    def _relinearisation_stride(self) -> tuple[int, int]:
        """Bytes before the first key, and of each key with what precedes its numbers."""
        with scratch() as file:
            total = len(file.read(self._samples[2]))
        count = self.parameters.relinearisation_keys
        step = _HEADER.size + len(self._public_template) + 16 * len(self.moduli) * self.parameters.degree
        return total - count * step, step

    @cached_property
    def relinearisation_template(self) -> list[bytes]:
        """What precedes the numbers of each key."""
        with scratch() as file:
            body = file.read(self._samples[2])
        (start, step), size = self._relinearisation_stride, 16 * len(self.moduli) * self.parameters.degree
        ends = [start + (i + 1) * step - size for i in range(self.parameters.relinearisation_keys)]
        return [body[: ends[0]]] + [body[before + size : end] for before, end in pairwise(ends)]

    def _template(self, sample: Handle, polynomials: int) -> bytes:
        with scratch() as file:
            body = file.read(sample)
        size = len(body) - 8 * polynomials * self.parameters.degree
        if not 0 < size <= _PREFIX_MOST:
            raise RunError(
                f"this version of SEAL stores its objects in an unknown way ({size} bytes before the numbers)"
            )
        return body[:size]

    def _public(self, numbers: Residues) -> Handle:
        return self._loaded(sealapi.PublicKey(), [self._public_template], numbers[None])

    def secret_object(self, numbers: Residues) -> Handle:
        """SEAL's form of a secret key."""
        return self._loaded(sealapi.SecretKey(), [self._secret_template], numbers[None])

    def _loaded(self, target: Handle, templates: list[bytes], numbers: Residues) -> Handle:
        with scratch() as file:
            file.write(b"".join(t + row.tobytes() for t, row in zip(templates, numbers, strict=True)))
            target.load(self.context, file.path)
        return target


def _chain(parameters: ParameterSet) -> list[Any]:
    """The primes. SEAL's own are the largest below each power of two, so that every scale is a little larger than the
    one before, and further from the mean of the primes by a factor of two: in a long chain the middle ones are chosen
    on both sides, each the nearest to what brings the scale back.
    """
    chain: list[Any] = sealapi.CoeffModulus.Create(parameters.degree, list(parameters.prime_bits))
    if parameters.levels <= _SHORT:
        return chain
    scale = wanted = 2.0**parameters.scale_bits
    used, step = {chain[0].value(), chain[-1].value()}, 2 * parameters.degree
    for place in range(parameters.levels, 0, -1):
        nearest = round(scale * scale / wanted) // step * step + 1
        around = (nearest + side * away * step for away in count() for side in (1, -1))
        prime = next(q for q in around if q not in used and gmpy2.is_prime(q))
        used.add(prime)
        chain[place], scale = sealapi.Modulus(prime), scale * scale / prime
    return chain


@lru_cache(maxsize=16)
def ring(parameters: ParameterSet) -> Ring:
    """The ring of a parameter set, made once per process. Raises UserError if SEAL refuses the set."""
    return Ring(parameters)


class _File:
    """One open file that SEAL saves to and loads from."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        header = sealapi.Serialization.SEALHeader()
        self._version = header.magic, _HEADER.size, header.version_major, header.version_minor
        self._decompressor = zstandard.ZstdDecompressor()

    def read(self, source: Handle) -> bytes:
        """The body of a SEAL object, uncompressed."""
        source.save(self.path)
        size = os.fstat(self._descriptor).st_size
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        data = os.read(self._descriptor, size)
        *_, compression, _, total = _HEADER.unpack_from(data)
        if not len(data) == size == total or compression not in (_UNCOMPRESSED, _ZSTD):
            raise RunError(f"{len(data)} of {total} bytes that SEAL saved can be read, with compression {compression}")
        body = memoryview(data)[_HEADER.size :]
        return bytes(body) if compression == _UNCOMPRESSED else self._decompressor.decompress(body)

    def numbers(self, source: Handle, out: Residues) -> None:
        """Fills an array with the numbers of a SEAL object."""
        _take(self.read(source), out)

    def write(self, *parts: Any) -> None:
        """A body for SEAL to load. What is left of a longer one stays behind it, and is not read."""
        views = [memoryview(part).cast("B") for part in parts]
        total = _HEADER.size + sum(view.nbytes for view in views)
        data = b"".join((_HEADER.pack(*self._version, _UNCOMPRESSED, 0, total), *views))
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        if os.write(self._descriptor, data) != total:
            raise RunError(f"{total} bytes can't be written for SEAL to load: is the disk or the memory full?")


@contextmanager
def scratch() -> Iterator[_File]:
    """A file that never reaches a disk where the system can do that."""
    with ExitStack() as stack:
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            descriptor = os.memfd_create("coterie", os.MFD_CLOEXEC)
            path = f"/proc/self/fd/{descriptor}"
        else:
            path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="coterie-")), "object")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        stack.callback(os.close, descriptor)
        yield _File(path, descriptor)


@contextmanager
def forged() -> Iterator[None]:
    """SEAL refuses results that hide nothing, which honest ciphertexts don't have."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise CiphertextError(f"a product of these ciphertexts is refused, one is forged: {error}") from error


def _take(body: bytes, out: Residues) -> None:
    """The numbers are the last of a body."""
    out[...] = np.frombuffer(body, dtype="<u8", offset=len(body) - out.nbytes).reshape(out.shape)
