"""Encryption, signing, sealing and sketches of flat vectors; usable without the rest.

    from coterie.crypto import paillier
    key = paillier.keygen(2048)
    total = key.public.encrypt(a) + key.public.encrypt(b)
    key.decrypt(total)                                       # a + b, to within fixed-point rounding

``paillier`` and ``ckks`` are the schemes; ``threshold`` shares a CKKS key among parties. ``emulated=True`` makes an
emulated twin's key.
"""

from __future__ import annotations

from coterie.crypto.arrays import CiphertextError
from coterie.crypto.packing import PARAMETERS, Lanes, Layout
from coterie.crypto.vector import sum_ciphers

__all__ = ["PARAMETERS", "CiphertextError", "Lanes", "Layout", "sum_ciphers"]
