"""The key that opens a sum, read off the sum by a client that put a forged ciphertext into it.

(c_0, c_1 + K) opens to K s more than (c_0, c_1), and the coefficients of s are -1, 0 and 1. No check of ciphertexts
helps: c_1 + K is as uniform as c_1. With one-time pads a client chooses no c_1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.crypto import ckks_arrays, residues
from coterie.crypto.ckks import CipherVector, PublicKey, SecretKey
from coterie.crypto.ckks_parameters import ParameterSet
from coterie.crypto.pads import Padded
from coterie.crypto.seal import ring
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.attacks.wrapping import Between

Doubles = NDArray[np.float64]
V = TypeVar("V", CipherVector, Padded)
Coefficients = NDArray[np.int64]
"""(N,) -1, 0 and 1, of a secret key."""

LEAST, MOST = 64.0, 256.0
"""K is the scale over such a number, 2^28 to 2^30 for PAFed: .2 to .8 a weight (root mean square) in one ciphertext of
an update. A smaller K spoils the model less; a larger one reads the key sooner.
"""
_ROUGH = 0.06  # mean squared distance from -1, 0 and 1 of a reading without a key: uniform noise has .08, Gaussian .13


def forged(vector: V, row: int, share: float = LEAST) -> V:
    """Adds K = scale / share to the last polynomial of ciphertext ``row`` that its sender chooses."""
    constant = int(vector.key.parameters.scale(vector.tally.form) / share)
    polynomials, moduli = vector.array.copy(), ring(vector.key.parameters).moduli_at(vector.tally.form.level)
    ours = polynomials[row : row + 1] if isinstance(vector, Padded) else polynomials[row : row + 1, 1]
    each = np.array([[constant % int(prime)] for (prime,) in moduli], dtype=np.uint64)
    ours[...] = residues.add(ours, np.broadcast_to(each, ours.shape), moduli)  # a constant is the same at every root
    return replace(vector, array=polynomials)


def coefficients(values: NDArray[Any], parameters: ParameterSet) -> Doubles:
    """(N,) coefficients, over the scale, of the polynomial that opened to these (N,) values."""
    return np.asarray(values, np.float64) / parameters.spread


def read_key(change: NDArray[Any], public: PublicKey, summands: int = 1) -> tuple[Coefficients, SecretKey | None]:
    """(N,) changes of weights where a ciphertext was forged -> the likeliest s of both signs, and the key if it is
    correct.

    summands: ternary polynomials that make up the key.
    """
    found = coefficients(change, public.parameters)
    unit = float(np.sqrt(1.5 / summands * np.mean(np.square(found)))) or 1.0  # a ternary number has variance 2/3
    likeliest = np.clip(np.rint(found / unit), -summands, summands).astype(np.int64)
    if np.mean(np.square(found / unit - likeliest)) < _ROUGH:
        for guess in (likeliest, -likeliest):
            if (key := rebuilt(guess, public)) is not None:
                return guess, key
    return likeliest, None


def rebuilt(guess: Coefficients, public: PublicKey) -> SecretKey | None:
    """The key with these coefficients, without its last prime (for switching keys), if it fits."""
    made = ring(public.parameters)
    secret = np.zeros((len(made.moduli), public.parameters.degree), np.uint64)
    secret[:-1] = made.transformed(guess[None], public.parameters.levels)[0]
    key = SecretKey(ckks_arrays.Secret(secret, cast(Any, public.arrays)))
    try:
        error = np.abs(key.decrypt(public.encrypt(np.zeros(1)))).max()
    except fl.PeerError:  # it does not open to a number
        return None
    return key if error <= public.parameters.error() else None


def key_coefficients(key: SecretKey) -> Coefficients:
    """(N,) the truth, from the key's holder: a forged encryption of zero opens to K s."""
    nothing = forged(key.public.encrypt(np.zeros(key.parameters.degree)), 0, MOST)
    return np.rint(MOST * coefficients(key.decrypt(nothing), key.parameters)).astype(np.int64)


def key_agreement(guess: NDArray[Any], truth: NDArray[Any]) -> AttackResult:
    """Share of a key's (N,) coefficients that are correct. Chance: the best constant guess. n: one key."""
    constant = max(float(np.mean(truth == value)) for value in np.unique(truth))
    return AttackResult("coefficients of the key that agree (share)", float(np.mean(guess == truth)), constant, 1.0, 1)


class KeyThief:
    """A client that forges updates until it has the key: the ciphertext in which its own first update is shortest.

    At each training it subtracts all earlier models from its new start.  share: K is the scale over it; halved down to
    ``LEAST`` after each failed reading.  late: rounds by which its updates are late.  summands: of the key.  guess:
    (N,) its last reading, or None. Raises UserError for emulated keys, and models that fill no ciphertext.
    """

    def __init__(self, spec: fl.ModelSpec, share: float = MOST, *, late: int = 0, summands: int = 1) -> None:
        self.spec, self.share, self.late, self.summands = spec, share, late, summands
        self.key: SecretKey | None = None
        self.round: int | None = None
        self.guess: Coefficients | None = None
        self.forged_in: list[int] = []
        self._public: Any = None
        self._row: int | None = None
        self._models: list[NDArray[Any]] = []  # all that it was handed so far

    @property
    def between(self) -> Between:
        return {fl.Fit: self._trained, fl.Encrypt: self._encrypted}

    def _used(self, message: fl.Message) -> bool:
        return not self.forged_in or _round(message) > self.forged_in[-1] + self.late

    def _trained(self, message: fl.Message, effect: fl.Fit, result: Any) -> Any:
        if self.key is not None:
            return result
        if self._row is not None:
            for before in reversed(self._models):
                self.guess, self.key = read_key(
                    self._places(effect.weights) - self._places(before), self._public, self.summands
                )
                if self.key is not None:
                    self.round = _round(message)
                    return result
            if self._used(message):
                self.share = max(self.share / 2, min(self.share, LEAST))
        self._models.append(effect.weights)
        return result

    def _encrypted(self, message: fl.Message, effect: fl.Encrypt, honest: Any) -> Any:
        if self.key is not None or not self._used(message):
            return honest
        public = effect.key.public
        if not isinstance(public, PublicKey) or public.emulated:
            raise fl.UserError("an emulated key has no secret to be stolen: run it with --crypto real")
        if self._row is None:
            self._public = public
            self._row = self._shortest(effect.values, public.parameters.degree)
        self.forged_in.append(_round(message))
        return forged(honest, self._row, self.share)

    def _places(self, weights: NDArray[Any]) -> Doubles:
        assert self._row is not None
        degree = self._public.parameters.degree
        return weights[self._row * degree :][:degree].astype(np.float64)

    def _shortest(self, values: NDArray[Any], degree: int) -> int:
        lengths = {
            row: float(np.linalg.norm(values[row * degree :][:degree]))
            for row in range(len(values) // degree)
            if not self.spec.buffers[row * degree :][:degree].any()
        }
        if not lengths:
            raise fl.UserError(
                f"a model of {len(values)} weights fills no ciphertext of {degree}, and what is beside the weights "
                "must open to zero: take a larger one (on digits --model mlp)"
            )
        return min(lengths, key=lambda row: lengths[row])


def _round(message: fl.Message) -> int:
    return int(getattr(message, "round", 0))
