"""What opens a CKKS key that several parties hold shares of, if what protects it is left out.

**From answers** (B. Li and D. Micciancio, EUROCRYPT 2021). Who: the server, or whoever sees c_1 and what the holders'
partial decryptions add up to, c_1 s. Without flooding it divides by c_1 and has s. With flooding it has noise, unless a
holder answers for the same c_1 again and again: the mean of many answers has less and less of it.

**From shares.** Who: the server, which has every ciphertext, with holders that give it their shares. With as many
holders as open a sum it opens everything; no protocol can refuse them. With fewer, what they have is independent of the
key, and the rest has to be guessed.

**From a sum**: ``coterie.privacy.attacks.joint_key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto import residues, threshold, threshold_opening
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.ckks import CipherVector
from coterie.crypto.residues import Residues
from coterie.privacy.attacks.joint_key import Guess, likeliest


def from_answers(group: threshold.Group, c1: Residues, totals: Sequence[Residues]) -> Guess:
    """The likeliest secret, from c_1 ``(count, limbs, N)`` and the sums of all answers for it, one or more of them.

    Of more than one the noise of the first is estimated: their mean difference to it, as answers are right on average.
    """
    moduli, first = group.moduli(c1.shape[1]), totals[0][:1]
    if len(totals) > 1:
        differences = [_coefficients(group, group.minus(total[:1], first)) for total in totals[1:]]
        noise = np.rint(np.sum(differences, axis=0) / len(totals)).astype(np.int64)  # minus that of the first
        first = group.plus(first, group.ring.transformed(noise[None], len(moduli) - 1))
    secret = residues.product(first, _inverse(c1[:1], moduli), moduli)
    return likeliest(group, _coefficients(group, secret))


def _inverse(a: Residues, moduli: Residues) -> Residues:
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


def _coefficients(group: threshold.Group, polynomials: Residues) -> NDArray[np.float64]:
    """Of one polynomial ``(1, limbs, N)`` in NTT form, the nearest to zero."""
    return group.ring.decoded(polynomials, 1.0).ravel()


def open_together(
    group: threshold.Group, shares: Mapping[str, threshold.Share], cipher: CipherVector
) -> NDArray[np.float64] | None:
    """The ``(d,)`` values, or None if these shares open to nonsense. Too few are made up with guesses.

    shares: by holder. Of more than needed, the first are used.
    """
    among = [name for name in group.holders if name in shares][: group.needed]
    among += [name for name in group.holders if name not in among][: group.needed - len(among)]
    prepared = threshold_opening.server_dec(group, cipher)
    request = threshold_opening.Request.load(group, prepared.request.to_bytes())
    answers = {}
    for name in among:
        share = shares[name] if name in shares else _guessed(group, next(iter(shares.values())))
        silent = threshold.Zero(name, {other: bytes(32) for other in among if other != name})
        answers[name], _ = threshold_opening.partial(group, share, request, name, among, silent, threshold.Answered())
    try:
        return threshold_opening.opened(group, prepared, answers)
    except CiphertextError:
        return None


def _guessed(group: threshold.Group, like: threshold.Share) -> threshold.Share:
    shape = 1, group.limbs, group.degree
    numbers: Any = residues.uniform(residues.secret_words(urandom(32)), shape, group.moduli(group.limbs))[0]
    return replace(like, numbers=numbers)
