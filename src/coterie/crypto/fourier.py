"""Energies of encrypted vectors, of all frequencies and of the high ones (OFL, algorithm 3, FHE-DFT). See
docs/detection.md.

A block is N reals, one ciphertext, the last one filled up with zeros: n = N/2 neighbouring pairs x_j + i y_j, with the
spectrum, k = 0 to n - 1,

    Z_k = n^(-1/2) sum_j (x_j + i y_j) e^(-2 pi i j (k + 1/2) / n)

The frequency k + 1/2 is high if it lies between n/4 and 3n/4. With h the inverse transform of 1 where it is high, else
0, the energy of the high frequencies is the constant coefficient of h(X^2) v(X) v(1/X) modulo X^N + 1, and that of all
of v(X) v(1/X). h is rounded to multiples of 1 / TAPS: 2 % off, and less sharp near n/4 and 3n/4.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto.ckks import CipherVector, EvaluationKey
from coterie.crypto.ckks_parameters import DEVIATIONS, ParameterSet
from coterie.crypto.packing import as_vector
from coterie.crypto.tally import Form
from coterie.crypto.twins import filtered

TAPS = 1 << 8
"""An encrypted energy of the high frequencies is so many times what it is."""


@lru_cache(maxsize=4)
def taps(degree: int) -> NDArray[np.int64]:
    """``(N,)``: the coefficients of TAPS h(X^2)."""
    n = degree // 2
    m, h = np.arange(1, n), np.full(n, 0.5)
    h[1:] = (-1.0) ** m * np.sin(np.pi * m / 2) / (n * np.sin(np.pi * m / n))
    # Rounded, D is 1 or 0 up to 2 % at 87 % of the frequencies, and between -.14 and 1.14 near n/4 and 3n/4.
    made = np.zeros(degree, dtype=np.int64)
    made[0::2] = np.rint(TAPS * h)
    return made


# ---- under encryption


def high_energy(cipher: CipherVector, keys: EvaluationKey) -> CipherVector:
    """TAPS times the energy of the high frequencies, as ``energy``."""
    return inner(cipher, cipher, keys, high=True)


def energy(cipher: CipherVector, keys: EvaluationKey, at_most: int | None = None) -> CipherVector:
    """The sum of squares, a constant scalar at the lowest level. at_most: as in ``inner``."""
    return inner(cipher, cipher, keys, at_most)


def room(parameters: ParameterSet) -> int:
    """The largest energy whose TAPS fold there is room for."""
    return parameters.room(_scalar(parameters)) // TAPS


def _scalar(parameters: ParameterSet) -> Form:
    return Form(parameters.lowest, scalar=True, constant=True)


def inner(
    x: CipherVector, y: CipherVector, keys: EvaluationKey, at_most: int | None = None, *, high: bool = False
) -> CipherVector:
    """The dot product, a constant scalar at the lowest level. Raises CapacityError if no level is left.

    at_most: a public bound on its magnitude, by default all room. Larger values open to a CiphertextError.
    """
    parameters = x.key.parameters
    most = parameters.room(_scalar(parameters)) if at_most is None else at_most
    left, right = (each.at_level(min(each.tally.form.level, parameters.lowest + 1)) for each in (x, y))
    by = taps(parameters.degree) if high else None
    return left.dot(right.conjugated(keys), keys, constant=True, at_most=most, taps=by)


def deviation(parameters: ParameterSet, norm: float, *, summands: int = 1) -> float:
    """Of an energy's error before flooding: of the constant coefficient, at its scale.

    norm: of the vector, at most.  summands: ternary keys in the key.
    """
    scale = parameters.scale(_scalar(parameters))
    rounding = math.sqrt((2 + 2 * parameters.degree * summands / 3) / 12)
    return math.hypot(2 * norm * value_deviation(parameters, summands) * scale, rounding)


def value_deviation(parameters: ParameterSet, summands: int = 1) -> float:
    top = parameters.levels
    fresh = summands * parameters.deviation(parameters.scale(Form(top))) ** 2
    return math.sqrt(fresh + summands * parameters.switching_deviation(top) ** 2)


def error(parameters: ParameterSet, norm: float, length: int) -> float:
    """The bound on an energy's error, real or emulated, without flooding. norm, length: of the vector, at most."""
    e = DEVIATIONS * value_deviation(parameters) + parameters.twin_step + norm * 2.0**-46
    last = parameters.added(parameters.lowest) + DEVIATIONS * parameters.constant_deviation(parameters.lowest)
    return 2 * norm * e + parameters.ciphertexts(length) * parameters.degree * (e / DEVIATIONS) ** 2 + last


# ---- the same on plain numbers


def energies(values: ArrayLike, degree: int = 8192) -> tuple[float, float]:
    """Of the high frequencies of ``(d,)`` reals, and of all (the squared norm)."""
    array = as_vector(values, kinds="fiu").astype(np.float64)
    return float(filtered(array, taps(degree)) @ array) / TAPS, float(array @ array)
