"""Keys that several parties make together, so that nobody ever holds them; and the dealer's, who holds them once.

Each party draws a ternary secret s_i; the key is their sum s. Public parts are linear in the secrets, over polynomials
``a`` that nobody chose (``Group.common``):

    public key         b_i = -a s_i + e                                           one round: (sum of b_i, a)
    automorphism       b_i = -a s_i + e + P s_i(X^k), a row for each prime         one round: switches from s(X^k) to s
    relinearisation    h_i = -a u_i + e + P s_i, g_i = a s_i + e                   two rounds, for a fresh ternary u_i
                       d_i = h s_i + g (u_i - s_i) + e, of the sums h and g        (sum of d_i, g): switches from s^2

(C. Mouchet, J. Troncoso-Pastoriza, J.-P. Bossuat and J.-P. Hubaux, "Multiparty homomorphic encryption from
ring-learning-with-errors", PETS 2021; P stands at the prime of its row only.) Each round commits before it reveals, so
that the last party cannot choose the sum.

Two parts of one kind by one secret show their noise. So a party makes each part once and keeps its bytes; another try
takes another secret and another label. Nothing proves that a part is well-formed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from os import urandom
from typing import Any

import numpy as np

from coterie.crypto import ckks, ckks_arrays, residues, twins
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.residues import Residues
from coterie.crypto.threshold import Group, SecretNumbers, Share, gathered, handed, twin_common
from coterie.protocol.arrays import Integers
from coterie.protocol.errors import CryptoError, DecodeError, PeerError

NONCE_BYTES = 32


def commitment(data: bytes, nonce: bytes) -> bytes:
    """32 bytes that bind to ``data`` and hide it. nonce: 32 fresh secret bytes."""
    if len(nonce) != NONCE_BYTES:
        raise CryptoError(f"a commitment takes {NONCE_BYTES} fresh random bytes, not {len(nonce)}")
    return hashlib.sha256(b"coterie/commitment/" + nonce + data).digest()


def revealed(committed: bytes, data: bytes, nonce: bytes) -> None:
    """Raises PeerError unless ``data`` is what was committed to."""
    if len(nonce) != NONCE_BYTES or not secrets.compare_digest(commitment(data, nonce), committed):
        raise PeerError("what is revealed is not what was committed to")


class Secret(SecretNumbers):
    kind = "secret"

    @staticmethod
    def size(group: Group) -> tuple[int, int]:
        return group.space.degree, group.primes

    def public(self) -> bytes:
        return _packed(self.group, "public", self._public_row())

    def galois(self, elements: Iterable[int]) -> bytes:
        """This party's part of a key for these automorphisms X -> X^k."""
        group, every = self.group, tuple(elements)
        if group.emulated:
            return _packed(group, "galois", self._public_row(), _switching(group) * len(every))
        turned = (self.numbers[:, _turned(group.degree, k)] for k in every)
        rows = [self._rows(_rows_of(group, k), self._gadget(s)) for k, s in zip(every, turned, strict=True)]
        return _packed(group, "galois", np.concatenate(rows))

    def first(self, random_bytes: RandomBytes = urandom) -> tuple[bytes, Secret]:
        """h_i and g_i, to commit to, and u_i, to keep for the second round."""
        group, other = self.group, secret(self.group, random_bytes)
        if group.emulated:
            return _packed(group, "first", self._public_row(), 2 * _switching(group)), other
        rows = _rows_of(group, 0)
        ours = group.minus(np.zeros_like(rows), self._rows(rows))
        return _packed(group, "first", np.concatenate((other._rows(rows, self._gadget(self.numbers)), ours))), other

    def second(self, ephemeral: Secret, firsts: Mapping[str, bytes]) -> bytes:
        """d_i. ephemeral: the u_i of the first round. Raises DecodeError naming a holder."""
        group = self.group
        if group.emulated:
            return _packed(group, "second", self._public_row(), _switching(group))
        h, g = _halves(group, firsts)
        difference = group.minus(ephemeral.numbers[None], self.numbers[None])
        d = group.plus(group.times(h, self.numbers[None]), group.times(g, difference))
        noise = self.group.ring.samples(self.numbers, len(d))
        noise = group.plus(noise[:, 0], group.times(noise[:, 1], self.numbers[None]))  # -e
        return _packed(group, "second", group.plus(d, noise))

    def share(self) -> Share:
        if not self.group.additive:
            raise CryptoError("where t of n holders open, secrets are dealt() to all of them")
        return Share(self.group, self.numbers[: self.group.limbs])

    def dealt(self, random_bytes: RandomBytes = urandom) -> dict[str, bytes]:
        """SECRET: each holder's share, to be sealed to it."""
        return handed(self.group, self.numbers[: self.group.limbs], self.group.holders, random_bytes)

    def _public_row(self) -> Residues:
        return self._rows(_common(self.group))

    def _rows(self, a: Residues, added: Residues | None = None) -> Residues:
        group = self.group
        if group.emulated:
            rows = group.minus(np.zeros_like(a), group.times(a, self.numbers[None]))
        else:
            # SEAL's pairs (b', a') are brought to the common a.
            pairs = group.ring.samples(self.numbers, len(a))
            rows = group.plus(pairs[:, 0], group.times(group.minus(pairs[:, 1], a), self.numbers[None]))
        return rows if added is None else group.plus(rows, added)

    def _gadget(self, polynomial: Residues) -> Residues:
        group, rows = self.group, _switching(self.group)
        special, moduli = int(group.moduli(group.primes)[-1, 0]), group.moduli(rows)
        scaled = group.times(polynomial[None, :rows], np.array([special], dtype=np.uint64) % moduli)[0]
        gadget = np.zeros((rows, group.primes, group.degree), dtype=np.uint64)
        gadget[np.arange(rows), np.arange(rows)] = scaled
        return gadget


def secret(group: Group, random_bytes: RandomBytes = urandom) -> Secret:
    """From the system's randomness. random_bytes: for an emulated one."""
    if group.emulated:
        return Secret(group, group.uniform(drawn(random_bytes, 32), 1, group.limbs)[0])
    return Secret(group, group.ring.keygen(False)[0])


def joined(group: Group, parts: Mapping[str, bytes]) -> ckks.PublicKey:
    """Without products. Raises CryptoError unless all parts are there, DecodeError naming a holder."""
    b = _summed(group, "public", parts, 1)
    if group.emulated:
        return ckks.PublicKey(twins.Rounded(_twin_id(group, b), group.space, 0))
    pair = np.concatenate((b, _common(group)))
    none = np.empty((0, *pair.shape), dtype=np.uint64)
    return ckks.PublicKey(ckks_arrays.Public(group.space, pair, none))


def with_products(
    group: Group, key: ckks.PublicKey, firsts: Mapping[str, bytes], seconds: Mapping[str, bytes]
) -> ckks.PublicKey:
    """Raises as ``joined``, and CryptoError for a set without products."""
    if not group.space.multiplies:
        raise CryptoError(f"{group.parameters} has no level for products")
    arrays: Any = key.arrays
    if group.emulated:
        return ckks.PublicKey(twins.Rounded(arrays.key_id, group.space, 1))
    _, g = _halves(group, firsts)
    rows = np.stack((_summed(group, "second", seconds, _switching(group)), g), axis=1)
    return ckks.PublicKey(ckks_arrays.Public(group.space, arrays.pair, rows))


def evaluation(group: Group, key: ckks.PublicKey, parts: Mapping[str, bytes]) -> ckks.EvaluationKey:
    """For dot products, of parts for ``space.elements``. Raises as ``joined``."""
    elements, k = group.space.elements, _switching(group)
    rows = _summed(group, "galois", parts, k * len(elements))
    if group.emulated:
        return ckks.EvaluationKey(twins.RoundedEvaluation(key.fingerprint, group.space, 1))
    packed = []
    for element, b in zip(elements, rows.reshape(len(elements), k, group.primes, group.degree), strict=True):
        switching = np.stack((b, _rows_of(group, element)), axis=1)
        packed.append(b"".join(residues.pack(switching, group.space.residue_bytes)))
    return ckks.EvaluationKey(ckks_arrays.Evaluation(group.space, key.fingerprint, tuple(packed)))


def dealt(
    group: Group, *, products: bool = False, random_bytes: RandomBytes = urandom
) -> tuple[ckks.PublicKey, ckks.EvaluationKey | None, dict[str, Share]]:
    """A trusted dealer's key: public, evaluation (with products), and shares by holder."""
    numbers: Residues
    if group.emulated:
        own = secret(group, random_bytes)
        numbers, flag = own.numbers, int(products and group.space.multiplies)
        b = own._public_row()
        public = ckks.PublicKey(twins.Rounded(_twin_id(group, b), group.space, flag))
        keys = ckks.EvaluationKey(twins.RoundedEvaluation(public.fingerprint, group.space, 1)) if flag else None
    else:
        key = ckks.keygen(group.parameters, products=products, allow_insecure=group.allow_insecure)
        arrays: Any = key.arrays
        numbers, public = arrays.secret[: group.limbs], key.public
        keys = key.evaluation() if key.public.products else None
    parts = handed(group, numbers, ("",), random_bytes)
    return public, keys, {name: gathered(group, name, {"": part}) for name, part in parts.items()}


def _switching(group: Group) -> int:
    return group.primes - 1


def _common(group: Group) -> Residues:
    return twin_common(group) if group.emulated else group.common(b"public", 1, group.primes)


def _twin_id(group: Group, b: Residues) -> bytes:
    start = b.astype("<u8").tobytes()
    return start + hashlib.sha256(group.digest + start).digest()[: 32 - len(start)]


def _rows_of(group: Group, element: int) -> Residues:
    return group.common(b"switching/%d" % element, _switching(group), group.primes)


def _halves(group: Group, firsts: Mapping[str, bytes]) -> tuple[Residues, Residues]:
    rows = _switching(group)
    total = _summed(group, "first", firsts, 2 * rows)
    return total[:rows], total[rows:]


def _packed(group: Group, kind: str, rows: Residues, real: int = 1) -> bytes:
    return group.pack(kind, bytes(16), rows, real=(real * group.space.degree, group.primes))


def _summed(group: Group, kind: str, parts: Mapping[str, bytes], rows: int) -> Residues:
    if set(parts) != set(group.holders):
        missing = ", ".join(sorted(set(group.holders) ^ set(parts)))
        raise CryptoError(f"a key takes a {kind} part of every holder and of nobody else: see {missing}")
    shape = (1, group.limbs, 1) if group.emulated else (rows, group.primes, group.degree)
    total = np.zeros(shape, dtype=np.uint64)
    for name in group.holders:
        real = rows * group.space.degree, group.primes
        try:
            numbers, _ = group.unpack(kind, parts[name], shape, tag=bytes(16), real=real)
            if not numbers.any(axis=(1, 2)).all():
                raise DecodeError(f"a {kind} part of zeros")
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from None
        total = group.plus(total, numbers)
    return total


# Indices from the NTT form of f to that of f(X^k): place j holds f at root^(2 r(j) + 1), r reversing bits.
def _turned(degree: int, element: int) -> Integers:
    bits = degree.bit_length() - 1
    places = np.arange(degree)
    reverse = np.zeros(degree, dtype=np.int64)
    for bit in range(bits):
        reverse |= ((places >> bit) & 1) << (bits - 1 - bit)
    wanted = (element * (2 * reverse + 1)) % (2 * degree)
    return np.asarray(reverse[(wanted - 1) // 2])
