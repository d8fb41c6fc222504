"""Discrete Fourier transforms and energies of encrypted vectors (OFL, algorithm 3, FHE-DFT).

J. H. Cheon, K. Han and M. Hhan, "Faster homomorphic discrete Fourier transforms and improved FHE bootstrapping", IEEE
Access 2019: log2(n) radix-2 butterflies are merged into few stages, each a matrix with few diagonals and one level.

    keys = key.evaluation()                          # of "threshold-16384-dft": six rotations and conjugation
    cipher = energy(dft(cipher, keys, high=True), keys)      # one scalar: the energy of the high frequencies
    key.decrypt(cipher)                              # about energies(values, degree)[0], to within error(...)

Every ciphertext is one block of n = N/2 complex slots; slot j holds two neighbouring reals, x_j and y_j. The transform
is unitary: Z_k = n^(-1/2) sum_j (x_j + i y_j) e^(-2 pi i jk/n), numpy's sign. Z is X + iY, the transforms of the even
and of the odd values among N neighbours. Over pairs of frequencies k, n - k the energy of Z is that of X and Y. The
last block is filled up with zeros.

A butterfly of Gentleman and Sande at distance h takes (a, b) to (a + b, (a - b) w). A stage of radix r merges log2(r)
of them. Its diagonals are at multiples of its smallest distance: r where they wrap around all n slots, else 2 r - 1.
Baby and giant steps sum them up with two Galois keys. Results stay rotated (``Plan.frame``) with frequencies in
bit-reversed order (``Plan.order``), which no energy depends on.

Energies are constant scalars (``ckks.CipherVector.dot``). docs/detection.md says what they tell about a model.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto.ckks import CipherVector, EvaluationKey
from coterie.crypto.ckks_parameters import DEVIATIONS, ParameterSet, Slots
from coterie.crypto.packing import as_vector
from coterie.crypto.stages import STAGES, is_high, plan
from coterie.crypto.tally import Form
from coterie.protocol.errors import CapacityError, CryptoError

_MILLISECONDS = 300.0
"""Nominal time for a ciphertext of N = 16384."""


# ---- under encryption


def dft(cipher: CipherVector, keys: EvaluationKey, *, high: bool = False) -> CipherVector:
    """The unitary transform of each block, ``STAGES`` levels lower, in the order ``plan(n).order``.

    high: zeros at the low frequencies. Raises CapacityError without so many levels, CryptoError for anything but a
        plain vector or for keys without the plan's rotations, and KeyMismatchError for another key's.
    """
    parameters = cipher.key.parameters
    made = plan(parameters.degree // 2, high)
    arrays, form = cipher._evaluating(keys), cipher.tally.form
    cipher._whole()
    if not set(made.steps) <= {step for step, _ in parameters.rotations}:
        raise CryptoError(f"{parameters.name} has no keys for the steps {made.steps}: choose threshold-16384-dft")
    if form.level < parameters.lowest + STAGES:
        raise CapacityError(
            f"a transform takes {STAGES} levels, which a {form} hasn't: the lowest is {parameters.lowest}"
        )
    array, tally = cipher.array, cipher.tally
    for stage in made.stages:
        terms = tally.terms * math.ceil(math.sqrt(stage.radix))
        array = cipher.key.arrays.stage(array, stage, arrays, tally.form)
        lower = tally.form._replace(level=tally.form.level - 1)
        tally = tally.bounded(terms, parameters.room, form=lower)
    length = parameters.ciphertexts(cipher.length) * parameters.degree
    return cipher._made(replace(tally, length=length), array)


def energy(cipher: CipherVector, keys: EvaluationKey, at_most: int | None = None) -> CipherVector:
    """The sum of squares, a constant scalar at the lowest level. at_most: as in ``inner``."""
    return inner(cipher, cipher, keys, at_most)


def inner(x: CipherVector, y: CipherVector, keys: EvaluationKey, at_most: int | None = None) -> CipherVector:
    """The dot product, a constant scalar at the lowest level. Both vectors are lowered first.

    at_most: a public bound on its magnitude, by default all that there is room for. Larger values open to a
        CiphertextError. Raises CapacityError if no level is left.
    """
    parameters = x.key.parameters
    scalar = Form(parameters.lowest, scalar=True, constant=True)
    most = parameters.room(scalar) if at_most is None else at_most
    left, right = (each.at_level(min(each.tally.form.level, parameters.lowest + 1)) for each in (x, y))
    return left.dot(right.conjugated(keys), keys, constant=True, at_most=most)


def deviation(parameters: ParameterSet, norm: float, *, transformed: bool = True, summands: int = 1) -> float:
    """Standard deviation of an energy's error: of the constant coefficient, at its scale, before flooding.

    norm: of the vector, at most.  summands: how many ternary keys the key sums up.  A slot's error e gives 2 sum
        Re(conj(Z) e), rescaling a coefficient's rounding.
    """
    scale = parameters.scale(Form(parameters.lowest, scalar=True, constant=True))
    rounding = math.sqrt((2 + 2 * parameters.degree * summands / 3) / 12)
    return math.hypot(2 * norm * slot_deviation(parameters, transformed, summands) * scale, rounding)


def slot_deviation(parameters: ParameterSet, transformed: bool = True, summands: int = 1) -> float:
    """Standard deviation of a transformed value's error before it is squared.

    Rotations and conjugation each add the noise of one switch of keys. A stage repeats up to ``baby - 1`` rotations
    whose noise counts (that of giant steps is divided by a prime), and is rescaled once.
    """
    top = parameters.levels
    stages = plan(parameters.degree // 2).stages if transformed else ()
    fresh = summands * parameters.deviation(parameters.scale(Form(top))) ** 2
    switches = 1 + sum(stage.baby - 1 for stage in stages)
    return math.sqrt((1 + len(stages)) * fresh + switches * summands * parameters.switching_deviation(top) ** 2)


def error(parameters: ParameterSet, norm: float, length: int, *, transformed: bool = True) -> float:
    """The bound on the error of an energy, real or emulated, without flooding.

    norm, length: of the vector, at most.  With e for a bound on a slot's error: 2 norm e, the sum of all e^2, and what
        the last rescaling and double precision add.
    """
    e = DEVIATIONS * slot_deviation(parameters, transformed) + (1 + STAGES * transformed) * parameters.twin_step
    e += norm * 2.0**-46
    last = parameters.added(parameters.lowest) + DEVIATIONS * parameters.constant_deviation(parameters.lowest)
    return 2 * norm * e + parameters.ciphertexts(length) * parameters.degree * (e / DEVIATIONS) ** 2 + last


def nominal_seconds(parameters: ParameterSet, length: int) -> float:
    """Nominal seconds of one typical core to transform ``length`` values: for virtual time."""
    return parameters.seconds(_MILLISECONDS * parameters.degree / 16384, length)


# ---- the same on plain numbers


def transformed(values: ArrayLike, degree: int) -> Slots:
    """The spectrum of each block of ``(d,)`` reals, ``(ciphertexts, N/2)``, in the natural order of frequencies."""
    array = as_vector(values, kinds="fiu").astype(np.float64)
    padded = np.zeros(-(-array.size // degree) * degree)
    padded[: array.size] = array
    spectrum: Slots = np.fft.fft(padded.view(np.complex128).reshape(-1, degree // 2), norm="ortho")
    return spectrum


def energies(values: ArrayLike, degree: int = 16384) -> tuple[float, float]:
    """The energy of the high frequencies of ``(d,)`` reals, and of all (the squared norm)."""
    power = np.abs(transformed(values, degree)) ** 2
    kept = is_high(np.arange(degree // 2), degree // 2)
    return float(power[:, kept].sum()), float(power.sum())
