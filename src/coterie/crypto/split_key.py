"""A CKKS key of an opener and a committee: the opener opens what t members have switched to its own key.

    made = split_keygen("ckks-8192-deep", members=5, needed=3)      # by a dealer, who forgets it
    cipher = made.whole.public.encrypt(u)                            # under s = s_h + s_C
    parts = [share.partial(cipher, among, bits) for share in ...]    # by t members: c_1 lambda_i s_i + noise
    made.opener.decrypt(switched(cipher, parts, made.opener.public))

The opener holds the ternary key s_h, the members Shamir's shares of the ternary key s_C, modulo each prime. ``c_0 + sum
of the partials`` is a ciphertext of the same values under s_h. So only the opener learns them, of ciphertexts that t
members have answered for. The answering members are fixed first. Noise is uniform in +-2^bits a coefficient
(``ckks_arrays``, Flooding).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import urandom
from typing import Any

import numpy as np

from coterie.crypto import ckks_arrays, residues, twins
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.ckks import CipherVector, PublicKey, SecretKey, keygen
from coterie.crypto.ckks_parameters import ParameterSet, known
from coterie.crypto.pads import Polynomials
from coterie.crypto.residues import Residues
from coterie.crypto.seal import ring
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import CryptoError, DecodeError, UserError

_HEADER = struct.Struct("<4sBBH12s16s")  # magic, version, emulated, place, parameters, fingerprint
_MAGIC, _VERSION = b"CoSh", 1


@dataclass(frozen=True, eq=False, repr=False)
class Partial(Polynomials):
    magic = b"CoPt"

    @classmethod
    def from_bytes(cls, key: PublicKey, data: bytes, of: CipherVector) -> Partial:
        """For this ciphertext. Raises DecodeError."""
        tally, body = cls._split(key, data, of.length, of.tally.form)
        return cls(key, tally, key.arrays.unpack_pad(body, tally))


@dataclass(frozen=True, eq=False, repr=False)
class CommitteeShare:
    """SECRET: one member's share of s_C. place: from 1.  numbers: (primes, N), nothing if emulated."""

    space: ParameterSet
    fingerprint: bytes
    place: int
    numbers: Residues
    emulated: bool = False

    def to_bytes(self) -> bytes:
        head = _HEADER.pack(_MAGIC, _VERSION, self.emulated, self.place, self.space.identity, self.fingerprint)
        if self.emulated:
            return weighted(_HEADER.size + self.space.secret_bytes, head)
        return b"".join([head, *residues.pack(self.numbers, self.space.residue_bytes)])

    @classmethod
    def load(cls, data: bytes) -> CommitteeShare:
        held = content(data)
        if len(held) < _HEADER.size:
            raise DecodeError(f"{len(held)} bytes are no share of a committee")
        magic, version, emulated, place, identity, fingerprint = _HEADER.unpack_from(held)
        if (magic, version) != (_MAGIC, _VERSION) or emulated > 1 or not place:
            raise DecodeError(f"no share of a committee, version {_VERSION}")
        space: Any = known(identity)
        body = held[_HEADER.size :]
        if weighs(data) != _HEADER.size + space.secret_bytes or len(body) != (0 if emulated else space.secret_bytes):
            raise DecodeError(f"{weighs(data)} bytes are no share of a committee under {space.name}")
        shape = len(space.prime_bits), space.degree
        if emulated:
            return cls(space, fingerprint, place, np.zeros((0, 0), np.uint64), True)
        numbers = residues.unpack(body, shape, space.residue_bytes)
        if not residues.valid(numbers, ring(space).moduli):
            raise DecodeError("a residue of this share is not below its prime")
        return cls(space, fingerprint, place, numbers)

    def partial(self, cipher: CipherVector, among: Sequence[int], bits: int) -> Partial:
        """c_1 times this share and its Lagrange coefficient, with fresh noise: to be added to c_0. among: the places
        that answer.

        Raises CryptoError if it does not fit.
        """
        form, key = cipher.tally.form, cipher.key
        if cipher.fingerprint != self.fingerprint or form.product or form.conjugated:
            raise CryptoError(f"a share under key {self.fingerprint.hex()[:8]} has no part in {cipher!r}")
        if self.place not in among or len(set(among)) < len(among) or min(among) < 1:
            raise CryptoError(f"member {self.place} does not answer among {list(among)}")
        arrays, tally = key.arrays, replace(cipher.tally, terms=1, blinded=0)
        if isinstance(arrays, twins.Rounded):
            nothing = np.zeros(cipher.length, np.int64)
            seeded = replace(arrays, key_id=arrays.key_id + bytes([self.place]) + cipher.array[:8].tobytes())
            return Partial(key, tally, seeded.flooded(nothing, bits, form))
        moduli = arrays.ring.moduli_at(form.level)
        share = residues.product(
            self.numbers[None, : form.level + 1], residues.lagrange(self.place, among, moduli), moduli
        )
        made = residues.product(cipher.array[:, 1], np.broadcast_to(share, cipher.array[:, 1].shape), moduli)
        return Partial(key, tally, arrays.flooded(made, bits, form))

    def __repr__(self) -> str:
        return f"<CommitteeShare {self.place} of {self.fingerprint.hex()[:8]}>"


@dataclass(frozen=True, eq=False)
class SplitKey:
    """SECRET, of the dealer. whole: the key that is split.  opener: s_h.  shares: of the members."""

    whole: SecretKey
    opener: SecretKey
    shares: tuple[CommitteeShare, ...]


def split_keygen(
    parameters: str,
    members: int,
    needed: int,
    *,
    emulated: bool = False,
    random_bytes: RandomBytes = urandom,
    allow_insecure: bool = False,
) -> SplitKey:
    """A fresh key. needed: t.  random_bytes: names an emulated key. Raises UserError for impossible numbers."""
    if not 1 <= needed <= members <= 255:
        raise UserError(f"{needed} of {members} members can't help to open: at least 1, and at most 255 members")
    given: Any = {"emulated": emulated, "random_bytes": random_bytes, "allow_insecure": allow_insecure}
    opener, rest = (keygen(parameters, products=False, **given) for _ in range(2))
    if emulated:
        whole = keygen(parameters, **given)
        empty = np.zeros((0, 0), np.uint64)
        fingerprint, space = whole.fingerprint, whole.parameters
        return SplitKey(
            whole, opener, tuple(CommitteeShare(space, fingerprint, i + 1, empty, True) for i in range(members))
        )
    made = ring(opener.parameters)
    secrets: list[Residues] = [key.arrays.secret for key in (opener, rest)]  # type: ignore[union-attr]
    secret, pair, relinearise = made.keygen(True, residues.add(secrets[0][None], secrets[1][None], made.moduli)[0])
    arrays = ckks_arrays.Secret(secret, ckks_arrays.Public(opener.parameters, pair, relinearise))
    whole = SecretKey(arrays)
    shape = needed - 1, len(made.moduli), opener.parameters.degree
    random = residues.uniform(residues.secret_words(drawn(urandom, 32)), shape, made.moduli)
    places = range(1, members + 1)
    given = residues.split(secrets[1], random, places, made.moduli)
    shares = (
        CommitteeShare(opener.parameters, whole.fingerprint, place, numbers)
        for place, numbers in zip(places, given, strict=True)
    )
    return SplitKey(whole, opener, tuple(shares))


def switched(cipher: CipherVector, parts: Sequence[Partial], opener: PublicKey) -> CipherVector:
    """The ciphertext of the same values under the opener's key, by the partials of t members."""
    array, arrays, form = cipher.array, cipher.key.arrays, cipher.tally.form
    if isinstance(arrays, twins.Rounded):
        array = array + sum(part.array for part in parts)
    else:
        array = array.copy()
        for part in parts:
            array[:, 0] = residues.add(array[:, 0], part.array, arrays.ring.moduli_at(form.level))
    return CipherVector(opener, replace(cipher.tally, fingerprint=opener.fingerprint), array)


def joined(public: PublicKey, opener: SecretKey, shares: Sequence[CommitteeShare]) -> SecretKey:
    """The whole key from an opener and t members; no protocol does this."""
    if isinstance(public.arrays, twins.Rounded):
        return SecretKey(twins.RoundedSecret(public.arrays.key_id, public.arrays.space, public.arrays.flag))
    moduli, secret = ring(public.parameters).moduli, opener.arrays.secret  # type: ignore[union-attr]
    others = residues.joined({share.place: share.numbers for share in shares}, moduli)
    return SecretKey(ckks_arrays.Secret(residues.add(secret[None], others[None], moduli)[0], public.arrays))
