"""SEAL's objects as numpy arrays: the only file that knows how ``tenseal.sealapi`` stores them.

A ciphertext is an array of residues in NTT form, ``(2 or 3 polynomials, limbs, N) uint64``, below their primes: the
caller makes sure. ``form`` is that of the input.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property, lru_cache
from itertools import count
from typing import Any

import gmpy2
import numpy as np
import tenseal.sealapi as sealapi  # type: ignore[import-untyped]
import zstandard

from coterie.crypto import residues
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks_parameters import ParameterSet
from coterie.crypto.residues import Residues
from coterie.crypto.tally import Form
from coterie.protocol.arrays import Array, Doubles, Integers
from coterie.protocol.errors import RunError, UserError

Handle = Any  # an object of SEAL, which has no types

_HEADER = struct.Struct("<HBBBBHQ")  # magic, header size, version, subversion, compression, zero, total size
_U64 = struct.Struct("<Q")
_UNCOMPRESSED, _ZSTD = 0, 2
_SHORT = 8  # levels, for which SEAL's primes do
_PREFIX_MOST = 4096  # a template's bytes besides its numbers are far fewer
_STRUCT_MOST = 256  # bytes of SEAL's ciphertext object, besides its numbers


class Ring:
    """SEAL's context for one parameter set. Use ``ring(parameters)``."""

    def __init__(self, parameters: ParameterSet) -> None:
        self.parameters = parameters
        asked = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
        asked.set_poly_modulus_degree(parameters.degree)
        asked.set_coeff_modulus(_chain(parameters))
        level = sealapi.SEC_LEVEL_TYPE.TC128 if parameters.secure else sealapi.SEC_LEVEL_TYPE.NONE
        self.context = sealapi.SEALContext(asked, True, level)
        if not self.context.parameters_set():
            raise UserError(f"SEAL refuses {parameters.name}: {self.context.parameters_error_message()}")
        self.evaluator = sealapi.Evaluator(self.context)
        primes = [modulus.value() for modulus in asked.coeff_modulus()]
        self.moduli = np.array(primes, dtype=np.uint64)[:, None]
        self._templates: dict[tuple[Form, int, bool], bytes] = {}

    def moduli_at(self, level: int) -> Residues:
        return self.moduli[: level + 1]

    def scale(self, form: Form) -> float:
        if form.constant:
            return (
                self.scale(Form(form.level + 1)) ** 2
                / float(self.moduli[form.level + 1, 0])
                / (self.parameters.degree / 2)
            )
        scale = 2.0**self.parameters.scale_bits
        for dropped in range(self.parameters.levels, form.level, -1):
            scale = scale * scale / float(self.moduli[dropped, 0])
        return scale * scale if form.product else scale

    # ---- keys

    def keygen(self, products: bool, secret: Residues | None = None) -> tuple[Residues, Residues, Residues]:
        """``(limbs, N)`` secret, ``(2, limbs, N)`` public and ``(k, 2, limbs, N)`` relinearisation keys, modulo the
        whole chain. k is 0 without levels or products.
        """
        given = () if secret is None else (self._secret_object(secret),)
        generator, limbs = sealapi.KeyGenerator(self.context, *given), len(self.moduli)
        generator.create_public_key(public := sealapi.PublicKey())
        secret = self.numbers([generator.secret_key()], 1, limbs)[0]
        pair = self.numbers([public.data()], 1, 2, limbs)[0]
        if not (products and self.parameters.multiplies):
            return secret, pair, np.empty((0, *pair.shape), dtype=np.uint64)
        generator.create_relin_keys(relinearise := sealapi.RelinKeys())
        return secret, pair, self._switching(relinearise)

    def encryptor(self, public: Residues, secret: Residues | None = None) -> Handle:
        held = self._loaded(sealapi.PublicKey(), self._public_template, public)
        made = sealapi.Encryptor(self.context, held)
        if secret is not None:
            made.set_secret_key(self._secret_object(secret))
        return made

    def _secret_object(self, secret: Residues) -> Handle:
        return self._loaded(sealapi.SecretKey(), self._secret_template, secret)

    def _switching(self, keys: Handle, element: int = 0) -> Residues:
        """``(k, 2, limbs, N)`` for the automorphism X -> X^element; 0: relinearisation."""
        head, before, tail = self._around(element)
        with _scratch() as file:
            body = file.read(keys)
        shape = self.parameters.relinearisation_keys, 2, len(self.moduli), self.parameters.degree
        step = len(before) + 8 * math.prod(shape[1:])
        if len(body) != len(head) + shape[0] * step + len(tail) or not (body.startswith(head) and body.endswith(tail)):
            raise RunError("this version of SEAL stores key-switching keys in an unknown way")
        rows = np.frombuffer(body, np.uint8, shape[0] * step, len(head)).reshape(shape[0], step)
        return np.ascontiguousarray(rows[:, len(before) :]).view("<u8").reshape(shape)

    def switching_object(self, empty: Handle, keys: Residues, element: int = 0) -> Handle:
        """The inverse of ``_switching``."""
        head, before, tail = self._around(element)
        return self._loaded(empty, head, *(part for row in keys for part in (before, row)), tail)

    # ---- vectors

    def zeros(self, encrypt: Callable[[Handle, Handle], None], count: int, level: int) -> Residues:
        """Fresh encryptions of zero, ``(count, 2, limbs, N)``. encrypt: a method of an encryptor."""
        cipher = self._cipher()

        def each() -> Iterator[Handle]:
            for _ in range(count):
                encrypt(self.ids[level], cipher)
                yield cipher

        return self.numbers(each(), count, 2, level + 1)

    def unit(self, form: Form) -> float:
        return self.scale(form) / (1.0 if form.scalar else self.parameters.spread)

    def encoded(self, values: Doubles, form: Form) -> Residues:
        """``(ciphertexts, limbs, N)``: ``(d,)`` values as coefficients; a scalar as a constant."""
        moduli, scaled = self.moduli_at(form.level), values * self.unit(form)
        if form.scalar:
            numbers = np.array([[round(float(scaled[0])) % int(q)] for (q,) in moduli], dtype=np.uint64)
            return np.broadcast_to(numbers, (1, len(moduli), self.parameters.degree)).copy()
        padded = np.zeros(self.parameters.ciphertexts(values.size) * self.parameters.degree)
        padded[: values.size] = scaled
        return self.ntt(residues.of_floats(padded.reshape(-1, self.parameters.degree), moduli))

    def decoded(self, polynomials: Residues, unit: float) -> Doubles:
        """``(count, N)``: coefficients of ``(count, limbs, N)``, over ``unit``."""
        return residues.balanced(self.ntt(polynomials, inverse=True), self.moduli[: polynomials.shape[1]]) / unit

    def changed(
        self, ciphers: Residues, form: Form, polynomials: int, limbs: int, *steps: Callable[[Handle], None]
    ) -> Residues:
        """Each ciphertext after in-place steps, which leave so many polynomials and limbs."""

        def each() -> Iterator[Handle]:
            for cipher in self.objects(ciphers, form):
                for step in steps:
                    step(cipher)
                yield cipher

        with _forged():
            return self.numbers(each(), len(ciphers), polynomials, limbs)

    def objects(self, ciphers: Residues, form: Form) -> Iterator[Handle]:
        template, cipher = self._template(form, ciphers.shape[1]), self._cipher()
        with _scratch() as file:
            for row in ciphers:
                cipher.load(self.context, file.write(template, np.ascontiguousarray(row)))
                yield cipher

    def _cipher(self) -> Handle:
        return sealapi.Ciphertext(self.context)

    def numbers(self, handles: Iterable[Handle], *shape: int) -> Residues:
        """SEAL's objects as ``(*shape, N)``, one a row; each is read before the next is taken."""
        out, where = np.empty((*shape, self.parameters.degree), dtype=np.uint64), self._where
        with _scratch() as file, _memory() as memory:
            for row, handle in zip(out, handles, strict=True):
                if where is None or memory < 0 or not isinstance(handle, sealapi.Ciphertext):
                    file.numbers(handle, row)
                elif handle.size() * handle.coeff_modulus_size() * handle.poly_modulus_degree() != row.size:
                    raise RunError(f"a ciphertext of SEAL's has another size than {row.shape}")
                elif os.preadv(memory, [row.data.cast("B")], _pointer(memory, handle, where)) != row.nbytes:
                    file.numbers(handle, row)
        return out

    # How far into SEAL's ciphertexts lies the pointer to their numbers; a copy through a file takes ten times as long.
    # None where memory can't be read so.
    @cached_property
    def _where(self) -> int | None:
        sealapi.Encryptor(self.context, self._samples[1]).encrypt_zero(self.ids[0], cipher := self._cipher())
        wanted = np.empty((2, 1, self.parameters.degree), dtype=np.uint64)
        with _scratch() as file, _memory() as memory:
            file.numbers(cipher, wanted)
            for at in range(0, _STRUCT_MOST, 8) if memory >= 0 else ():
                with suppress(OSError, OverflowError, struct.error):
                    if os.pread(memory, wanted.nbytes, _pointer(memory, cipher, at)) == wanted.tobytes():
                        return at
        return None

    def samples(self, secret: Residues, count: int) -> Residues:
        """``(count, 2, primes, N)`` fresh pairs (-(a s + e), a)."""
        generator, public = sealapi.KeyGenerator(self.context, self._secret_object(secret)), sealapi.PublicKey()

        def each() -> Iterator[Handle]:
            for _ in range(count):
                generator.create_public_key(public)
                yield public.data()

        return self.numbers(each(), count, 2, len(self.moduli))

    # ---- dot products, flooding

    def automorphism_keys(self, secret: Residues) -> Iterator[Residues]:
        """``(k, 2, primes, N)`` of each of ``parameters.elements``."""
        generator = sealapi.KeyGenerator(self.context, self._secret_object(secret))
        for element in self.parameters.elements:
            generator.create_galois_keys([element], keys := sealapi.GaloisKeys())
            yield self._switching(keys, element)

    def dot(
        self,
        relineariser: Handle,
        keys: Sequence[Handle],
        vector: Residues,
        prepared: Residues,
        form: Form,
        constant: bool = False,
        taps: Integers | None = None,
    ) -> Residues:
        """The dot product with a conjugated vector, ``(1, 2, limbs - 1, N)``, as a constant.

        constant: the other coefficients may hold anything. Then no automorphisms are needed.
        taps: integers, ``(N,)``: a polynomial by which the product is multiplied first.  keys: of
        ``parameters.elements``, in their order.
        """
        limbs = form.level + 1
        with _forged():
            total = self._sum_of_products(vector, prepared, form)
            self.evaluator.relinearize_inplace(total, relineariser)
            if taps is not None:
                known = self.transformed(taps[None], form.level)[:, None]
                pair = residues.product(self.numbers([total], 1, 2, limbs), known, self.moduli_at(form.level))
                total = next(self.objects(pair, form._replace(product=True)))
            if constant:
                self.evaluator.rescale_to_next_inplace(total)
                return self.numbers([total], 1, 2, limbs - 1)
            # The automorphisms sum up to the trace of the field, which leaves N times the constant coefficient, twice
            # the dot product. So everything is halved modulo q first. Rescaling is last, so that their noise hardly
            # counts.
            halves = residues.halved(self.numbers([total], 1, 2, limbs), self.moduli_at(form.level))
            whole = next(self.objects(halves, form._replace(product=True)))
            times = [*(times for _, times in self.parameters.rotations), 1]
            for element, count, key in zip(self.parameters.elements, times, keys, strict=True):
                start = whole  # x + f(x) + f(f(x)) + ... for the automorphism f, ``count`` times applied
                for _ in range(count):
                    self.evaluator.apply_galois(whole, element, key, turned := self._cipher())
                    self.evaluator.add_inplace(turned, start)
                    whole = turned
            self.evaluator.rescale_to_next_inplace(whole)
            return self.numbers([whole], 1, 2, limbs - 1)

    def _sum_of_products(self, vector: Residues, prepared: Residues, form: Form) -> Handle:
        total, product = None, self._cipher()
        for x, y in zip(self.objects(vector, form), self.objects(prepared, form), strict=True):
            if total is None:
                self.evaluator.multiply(x, y, total := self._cipher())
            else:
                self.evaluator.multiply(x, y, product)
                self.evaluator.add_inplace(total, product)
        return total

    def transformed(self, coefficients: Integers, level: int) -> Residues:
        """Integer polynomials ``(count, N)`` in NTT form, ``(count, limbs, N)``."""
        moduli, each = self.moduli_at(level).astype(np.int64), coefficients[:, None]
        small = bool((np.abs(coefficients) < moduli.min()).all())
        return self.ntt(np.where(each < 0, each + moduli, each) if small else each % moduli)

    def ntt(self, polynomials: Array, inverse: bool = False) -> Residues:
        level, out = polynomials.shape[1] - 1, np.empty(polynomials.shape, dtype=np.uint64)
        turn = self.evaluator.transform_from_ntt_inplace if inverse else self.evaluator.transform_to_ntt_inplace
        template, cipher = self._template(Form(level), ntt=inverse), self._cipher()
        zeros = np.asarray(~polynomials.any(axis=(1, 2)))
        pairs = np.ones((-(-len(out) // 2), 2, *out.shape[1:]), dtype=np.uint64)  # SEAL refuses a second one of zeros
        flat = pairs.reshape(-1, *out.shape[1:])
        flat[: len(out)][~zeros] = polynomials[~zeros]

        def each() -> Iterator[Handle]:
            with _scratch() as file:
                for pair in pairs:
                    cipher.load(self.context, file.write(template, pair))
                    turn(cipher)
                    yield cipher

        out = self.numbers(each(), *pairs.shape[:-1]).reshape(flat.shape)[: len(out)]
        out[zeros] = 0
        return out

    # ---- templates: what SEAL writes before the numbers. The bindings only save to and load from files, so an array is
    # loaded by writing a template and its numbers to a file in memory.

    @cached_property
    def ids(self) -> dict[int, Any]:
        data, ids = self.context.first_context_data(), {}
        while data is not None:
            ids[data.chain_index()] = data.parms_id()
            data = data.next_context_data()
        return ids

    def _template(self, form: Form, polynomials: int = 2, *, ntt: bool = True) -> bytes:
        wanted = form, polynomials, ntt
        if wanted not in self._templates:
            cipher, level = self._cipher(), self.ids[form.level]
            sealapi.Encryptor(self.context, self._samples[1]).encrypt_zero(level, cipher)
            cipher.scale = self.scale(form)
            cipher.resize(self.context, level, polynomials)
            if not ntt:
                self.evaluator.transform_from_ntt_inplace(cipher)
            self._templates[wanted] = self._prefix(cipher, polynomials * (form.level + 1))
        return self._templates[wanted]

    @cached_property
    def _samples(self) -> tuple[Handle, Handle]:
        generator = sealapi.KeyGenerator(self.context)
        generator.create_public_key(public := sealapi.PublicKey())
        return generator.secret_key(), public

    @cached_property
    def _secret_template(self) -> bytes:
        return self._prefix(self._samples[0], len(self.moduli))

    @cached_property
    def _public_template(self) -> bytes:
        return self._prefix(self._samples[1], 2 * len(self.moduli))

    def _around(self, element: int) -> tuple[bytes, bytes, bytes]:
        place, table = (element // 2, self.parameters.degree) if element else (0, 1)
        public, count = self._public_template, self.parameters.relinearisation_keys
        head = public[:32] + _U64.pack(table) + bytes(8 * place) + _U64.pack(count)
        before = _header(len(public) + 16 * len(self.moduli) * self.parameters.degree) + public
        return head, before, bytes(8 * (table - 1 - place))

    def _prefix(self, sample: Handle, polynomials: int) -> bytes:
        with _scratch() as file:
            body = file.read(sample)
        size = len(body) - 8 * polynomials * self.parameters.degree
        if not 0 < size <= _PREFIX_MOST:
            raise RunError(
                f"this version of SEAL stores its objects in an unknown way ({size} bytes before the numbers)"
            )
        return body[:size]

    def _loaded(self, empty: Handle, *parts: Any) -> Handle:
        with _scratch() as file:
            empty.load(self.context, file.write(*parts))
        return empty


# SEAL's own primes are the largest below each power of two, so the scale drifts by twice as much at each level. In a
# long chain the middle ones are chosen on both sides, each to bring the scale back.
def _chain(parameters: ParameterSet) -> list[Any]:
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
    """Made once. Raises UserError if SEAL refuses it."""
    return Ring(parameters)


class _File:
    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def read(self, source: Handle) -> bytes:
        source.save(self.path)
        size = os.fstat(self._descriptor).st_size
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        data = os.read(self._descriptor, size)
        *_, compression, _, total = _HEADER.unpack_from(data)
        if not len(data) == size == total or compression not in (_UNCOMPRESSED, _ZSTD):
            raise RunError(f"{len(data)} of {total} bytes that SEAL saved can be read, with compression {compression}")
        body = memoryview(data)[_HEADER.size :]
        return bytes(body) if compression == _UNCOMPRESSED else zstandard.decompress(body)

    def numbers(self, source: Handle, out: Residues) -> None:
        body = self.read(source)
        out[...] = np.frombuffer(body, dtype="<u8", offset=len(body) - out.nbytes).reshape(out.shape)

    def write(self, *parts: Any) -> str:
        views = [memoryview(part).cast("B") for part in parts]
        data = b"".join((_header(sum(view.nbytes for view in views)), *views))
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        if os.write(self._descriptor, data) != len(data):
            raise RunError(f"{len(data)} bytes can't be written for SEAL to load: is the disk or the memory full?")
        return self.path


def _header(size: int) -> bytes:
    known = sealapi.Serialization.SEALHeader()
    version = known.magic, _HEADER.size, known.version_major, known.version_minor
    return _HEADER.pack(*version, _UNCOMPRESSED, 0, _HEADER.size + size)


@cache
def _descriptors_have_paths() -> bool:
    return os.path.isdir("/proc/self/fd")


@contextmanager
def _scratch() -> Iterator[_File]:
    with ExitStack() as stack:
        if hasattr(os, "memfd_create") and _descriptors_have_paths():
            descriptor = os.memfd_create("coterie", os.MFD_CLOEXEC)
            path = f"/proc/self/fd/{descriptor}"
        else:
            path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="coterie-")), "object")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        stack.callback(os.close, descriptor)
        yield _File(path, descriptor)


@contextmanager
def _memory() -> Iterator[int]:
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pointer(memory: int, handle: Handle, at: int) -> int:
    start: int = _U64.unpack(os.pread(memory, 8, id(handle) + object.__basicsize__))[0]
    found: int = _U64.unpack(os.pread(memory, 8, start + at))[0]
    return found


@contextmanager
def _forged() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise CiphertextError(f"a product of these ciphertexts is refused, one is forged: {error}") from error
