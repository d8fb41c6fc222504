"""Evaluation keys of CKKS: what sums up the slots of a ciphertext and conjugates them, without opening anything.

Public material, but large: one key-switching key for each rotation of ``Parameters.rotations``, powers of the radix
only, and one for conjugation. Who computes on ciphertexts needs them, who encrypts or opens doesn't.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coterie.crypto import ckks_wire, residues, seal_products
from coterie.crypto.ckks_habits import EvaluationHabits
from coterie.crypto.ckks_parameters import Parameters
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle, ring
from coterie.protocol.errors import DecodeError, KeyMismatchError

SCHEME = "ckks"


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationKey(EvaluationHabits):
    """Rotation and conjugation keys under the key that the fingerprint names. parts: packed, one an automorphism."""

    parameters: Parameters
    fingerprint: bytes
    parts: tuple[bytes | memoryview, ...]

    scheme = SCHEME
    emulated = False

    @classmethod
    def made(cls, parameters: Parameters, fingerprint: bytes, secret: Residues) -> EvaluationKey:
        """A fresh one of a secret key, from the system's randomness."""
        widths = parameters.residue_bytes
        keys = seal_products.automorphism_keys(ring(parameters), secret)
        return cls(parameters, fingerprint, tuple(b"".join(residues.pack(key, widths)) for key in keys))

    def to_bytes(self) -> bytes:
        """The key for other parties; ``EvaluationKey.load`` reads it."""
        header = ckks_wire.key_header(self.parameters, SCHEME, "evaluation", products=True)
        return b"".join((header, self.fingerprint, *self.parts))

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> EvaluationKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        parameters, fingerprint, body = ckks_wire.split_evaluation(bytes(data), SCHEME, allow_insecure)
        size = len(body) // len(parameters.elements)
        parts = tuple(body[at : at + size] for at in range(0, len(body), size))
        made = ring(parameters)
        for part in parts:
            numbers = _unpacked(parameters, part)
            if not residues.valid(numbers, made.moduli) or not numbers.any(axis=(2, 3)).all():
                raise DecodeError("the numbers of this evaluation key can't be an honest CKKS key's")
        return cls(parameters, fingerprint, parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.to_bytes(),)

    @cached_property
    def handles(self) -> tuple[Handle, ...]:
        """SEAL's objects, one an automorphism, in the order of ``parameters.elements``."""
        made = ring(self.parameters)
        return tuple(
            seal_products.automorphism(made, element, _unpacked(self.parameters, part))
            for element, part in zip(self.parameters.elements, self.parts, strict=True)
        )


def evaluating(keys: Any) -> EvaluationKey:
    """A real evaluation key. Raises KeyMismatchError for anything else."""
    if not isinstance(keys, EvaluationKey):
        raise KeyMismatchError(f"{keys!r} is no evaluation key of CKKS")
    return keys


def _unpacked(parameters: Parameters, part: bytes | memoryview) -> Residues:
    shape = parameters.relinearisation_keys, 2, len(parameters.prime_bits), parameters.degree
    return residues.unpack(part, shape, parameters.residue_bytes)


def _restore(data: bytes) -> EvaluationKey:
    return EvaluationKey.load(data, allow_insecure=True)
