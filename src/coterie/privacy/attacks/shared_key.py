"""What opens a CKKS key that several parties hold shares of, if what protects it is left out: three attacks.

Each reads the joint secret, a sum of ternary polynomials, and says how much of it.

**From answers** (B. Li and D. Micciancio, EUROCRYPT 2021). Who: the server, or whoever sees c_1 and what the holders'
partial decryptions add up to, c_1 s. Without flooding it divides by c_1 and has s. With flooding it has noise, unless a
holder answers for the same c_1 again and again: the mean of many answers has less and less of it.

**From a sum** (``attacks.key_in_sum``). Who: one sender, and whoever sees what its sum opens to. A ciphertext
(c_0, c_1 + K) opens to K s more. Neither flooding far below K nor the number of holders changes that; that senders
don't choose c_1 does (``crypto.threshold_pads``): what they add to c_0 comes out as it went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import residues
from coterie.crypto.residues import Residues
from coterie.crypto.threshold_group import Group
from coterie.privacy.attacks.key_in_sum import coefficients

Guess = NDArray[np.int64]
"""(N,) coefficients of the joint secret: within +-1 for each of those who made it."""


def from_answers(group: Group, c1: Residues, totals: Sequence[Residues], row: int = 0) -> Guess:
    """The likeliest secret, from c_1 ``(count, limbs, N)`` and the sums of all answers for it, one or more of them.

    Of more than one the noise of the first is estimated: their mean difference to it, as answers are right on average.
    """
    moduli, first = group.moduli(c1.shape[1]), totals[0][row : row + 1]
    if len(totals) > 1:
        differences = [_coefficients(group, group.minus(total[row : row + 1], first)) for total in totals[1:]]
        noise = np.rint(np.sum(differences, axis=0) / len(totals)).astype(np.int64)  # minus that of the first
        first = group.plus(first, group.ring.transformed(noise[None], len(moduli) - 1))
    secret = residues.product(first, inverse(c1[row : row + 1], moduli), moduli)
    return likeliest(group, _coefficients(group, secret))


def from_sum(group: Group, change: NDArray[Any], share: float) -> Guess:
    """The likeliest secret, from by how much the (N,) opened values of a forged ciphertext are other than expected.

    share: scale over K, as of ``key_in_sum.forged``, over the weight of the ciphertext in the sum.
    """
    return likeliest(group, coefficients(change, group.space) * share)


def likeliest(group: Group, found: NDArray[Any]) -> Guess:
    """Coefficients that a secret can have, nearest to what was found."""
    return np.asarray(np.clip(np.rint(found), -group.secrets, group.secrets).astype(np.int64))


def inverse(a: Residues, moduli: Residues) -> Residues:
    """``1 / a`` modulo the primes, by Fermat; of zero zero."""
    out = np.empty_like(a)
    for limb, (prime,) in enumerate(moduli.tolist()):
        base, result, modulus = a[:, limb : limb + 1], np.ones_like(a[:, limb : limb + 1]), moduli[limb : limb + 1]
        for bit in bin(prime - 2)[2:]:
            result = residues.product(result, result, modulus)
            if bit == "1":
                result = residues.product(result, base, modulus)
        out[:, limb : limb + 1] = result
    return out


def _coefficients(group: Group, polynomials: Residues) -> NDArray[np.float64]:
    """Of one polynomial ``(1, limbs, N)`` in NTT form, the nearest to zero."""
    values = group.ring.decoded(polynomials, polynomials.shape[1] - 1, 1.0).view(np.float64).ravel()
    return coefficients(values, group.space)
