"""The second polynomials of ciphertexts under a joint key, by which holders check what a sum is of: a sender without
a share, which can't use joint pads (``threshold_pads``), signs c_1 of its own vector (``Half``), and holders add
these up.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.crypto import ckks
from coterie.crypto.residues import Residues
from coterie.crypto.signing import SIGNATURE_BYTES
from coterie.crypto.threshold import Group
from coterie.protocol.errors import CryptoError, DecodeError

_FACTS = struct.Struct(f"<QHH{SIGNATURE_BYTES}s")  # length, part, bytes of the sender's name, signature


@dataclass(frozen=True, eq=False, repr=False)
class Half:
    """c_1 of one sender's fresh vector."""

    sender: str
    part: int  # which of the sender's vectors of a round
    length: int  # d
    array: Residues  # (count, limbs, degree)
    signature: bytes = bytes(SIGNATURE_BYTES)  # the sender's, over ``name`` and what it is for

    @classmethod
    def of(cls, group: Group, cipher: ckks.CipherVector, sender: str, part: int, signature: bytes = b"") -> Half:
        """Raises CryptoError for anything but one fresh vector."""
        if cipher.tally.form != group.space.fresh or cipher.terms != 1 or cipher.blinded:
            raise CryptoError(f"{cipher!r} is not one fresh vector")
        if group.emulated:
            array = group.uniform(hashlib.sha256(cipher.array.tobytes()).digest(), 1, group.limbs)
        else:
            array = np.ascontiguousarray(cipher.array[:, 1])
        return cls(sender, part, cipher.length, array, signature or bytes(SIGNATURE_BYTES))

    @cached_property
    def name(self) -> bytes:
        head = struct.pack("<QH", self.length, self.part)
        return hashlib.sha256(b"coterie/half/" + head + self.array.astype("<u8").tobytes()).digest()

    @property
    def kind(self) -> tuple[object, ...]:
        return self.length, self.part

    def digest(self, group: Group) -> bytes:
        return self.name

    def polynomials(self, group: Group) -> Residues:
        return self.array

    def to_bytes(self, group: Group) -> bytes:
        sender = self.sender.encode()
        facts = _FACTS.pack(self.length, self.part, len(sender), self.signature) + sender
        return group.pack("half", bytes(16), self.array, facts=facts, real=_real(group, self.length))

    @classmethod
    def read(cls, group: Group, data: bytes) -> Half:
        """By any sender: check the signature. Raises DecodeError."""
        _, held = group.opened_header("half", data)
        if len(held) < _FACTS.size:
            raise DecodeError("half a ciphertext that doesn't say of whom")
        length, part, letters, signature = _FACTS.unpack_from(held)
        facts = _FACTS.size + letters
        count = 1 if group.emulated else group.space.ciphertexts(length)
        shape = count, group.limbs, group.degree
        array, _ = group.unpack("half", data, shape, facts=facts, real=_real(group, length))
        try:
            return cls(bytes(held[_FACTS.size : facts]).decode(), part, length, array, signature)
        except UnicodeDecodeError:
            raise DecodeError("half a ciphertext of a sender whose name cannot be read") from None


def _real(group: Group, length: int) -> tuple[int, int]:
    numbers, primes = group.share_size
    return group.space.ciphertexts(length) * numbers, primes
