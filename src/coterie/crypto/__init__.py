"""Encryption, signing, sealing and sketches of flat vectors; usable without the rest.

    from coterie.crypto import paillier
    key = paillier.keygen(2048)
    total = key.public.encrypt(a) + key.public.encrypt(b)
    key.decrypt(total)                                       # a + b, to within fixed-point rounding

``paillier`` is real; ``exact`` is its emulated twin with the same API and bit-for-bit the same results, for studies of
hundreds of rounds. ``vector`` describes the API that both follow; ``schemes`` picks one of them.
"""

from __future__ import annotations

from coterie.crypto.packing import Lanes, Layout
from coterie.crypto.vector import (
    BlindedLike,
    CiphertextError,
    CipherVectorLike,
    EvaluationKeyLike,
    MaskLike,
    PublicKeyLike,
    SecretKeyLike,
    sum_blinded,
    sum_ciphers,
)
from coterie.crypto.wire import PARAMETERS

__all__ = [
    "PARAMETERS",
    "BlindedLike",
    "CipherVectorLike",
    "CiphertextError",
    "EvaluationKeyLike",
    "Lanes",
    "Layout",
    "MaskLike",
    "PublicKeyLike",
    "SecretKeyLike",
    "sum_blinded",
    "sum_ciphers",
]
