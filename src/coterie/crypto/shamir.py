"""Shamir's secret sharing of ring elements, modulo each prime (A. Shamir, "How to share a secret", 1979).

The share at place x is a polynomial's value at x, whose value at 0 is the secret. Shares times their Lagrange
coefficients add up to the secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coterie.crypto import residues
from coterie.crypto.residues import Residues


def split(secret: Residues, random: Residues, places: Iterable[int], moduli: Residues) -> list[Residues]:
    """What each place, 1 or more, gets of a secret ``(limbs, N)``.

    random: ``(t - 1, limbs, N)`` secret and uniform, so that t shares give the secret, and fewer say nothing.
    """
    shares = []
    for place in places:
        value = np.zeros_like(secret)[None]
        for coefficient in (*reversed(random), secret):  # Horner's rule
            value = residues.add(residues.multiple(value, place, moduli), coefficient[None], moduli)
        shares.append(value[0])
    return shares


def lagrange(place: int, among: Sequence[int], moduli: Residues) -> Residues:
    """``(limbs, 1)``: the coefficient of one place where these answer."""
    coefficients = []
    for (prime,) in moduli.tolist():
        value = 1
        for other in among:
            if other != place:
                value = value * other * pow(other - place, -1, prime) % prime
        coefficients.append([value])
    return np.array(coefficients, dtype=np.uint64)
