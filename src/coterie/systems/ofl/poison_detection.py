"""The weight of each leader's encrypted model (eq. 6), from opened scalars (docs/detection.md).

Detection "fourier": of each model the energy of its high frequencies, its squared norm, and its squared distance to the
global model. Detection "norms": of each change its squared norm, and its dot product with the changes' weighted sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.aggregation.detection import LeaderWeights, cut, largest, robust, s_factors, shares, too_long, weighted
from coterie.crypto import fourier
from coterie.crypto.ckks import CipherVector
from coterie.dp.uploads import eligible
from coterie.protocols.threshold import HubKey, open_sums
from coterie.systems.ofl.messages import MODEL

NORM = 2.0**10
"""The largest that noise on opened scalars is sized for. Of a larger one they show more."""


@dataclass(frozen=True)
class Judged:
    """weights: integers of at least 1, by leader; one without is left out of the sum.
    divisor: of the opened sum.  factors: s-factors in [0, 1], of all leaders.
    fallback: why weights are not those of the s-factors, or "".  scalars: opened, of each leader; infinite for
    nonsense.  squares: of these, the squared length of its change.
    """

    weights: dict[str, int]
    divisor: float
    factors: dict[str, float]
    fallback: str = ""
    scalars: Mapping[str, list[float]] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def alike(cls, leaders: tuple[str, ...]) -> Judged:
        return cls(dict.fromkeys(leaders, 1), len(leaders), dict.fromkeys(leaders, 1.0))

    def notes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"s_factors": self.factors, "weights": self.weights, "divisor": self.divisor}
        if self.scalars:
            most = max(self.weights.values())
            told = {name: [one if math.isfinite(one) else None for one in row] for name, row in self.scalars.items()}
            found["influence"] = {name: self.weights.get(name, 0) / most for name in self.factors}
            found["scalars"] = told
        return found | ({"fallback": self.fallback} if self.fallback else {})

    def check(self, mean: fl.Doubles) -> None:
        """Raises PeerError for a mean longer than the opened lengths allow."""
        if self.squares:
            weights = [self.weights.get(name, 0) for name in self.squares]
            if too_long(mean, weights, self.divisor, [*self.squares.values()]):
                raise fl.PeerError("the mean is longer than the opened lengths of what it is a mean of allow")


def judge(hub: Any, r: int, ciphers: Mapping[str, CipherVector]) -> fl.Steps[Judged]:
    """Raises NoAnswerError if scalars of fewer than two models open."""
    if hub.config.detection == "none":
        return Judged.alike(tuple(ciphers))
    by = by_frequencies if hub.config.detection == "fourier" else by_norms
    try:
        return (yield from by(hub, r, ciphers))
    except fl.RunError as error:
        raise fl.NoAnswerError(str(error)) from None


def by_frequencies(hub: Any, r: int, ciphers: Mapping[str, CipherVector]) -> fl.Steps[Judged]:
    keys, around = hub.keys.evaluation(MODEL), hub.state.weights[eligible(hub.spec)].astype(np.float64)
    largest = fourier.room(next(iter(ciphers.values())).key.parameters)
    wanted = {
        name: [
            fourier.high_energy(cipher, keys),
            fourier.energy(cipher, keys, largest),
            fourier.energy(cipher.add_plain(-around), keys, largest),
        ]
        for name, cipher in ciphers.items()
    }
    opened = yield from scalars(hub, r, wanted, 0, (fourier.TAPS, 1, 1))
    high, total, distances = np.array([opened[name] for name in ciphers]).T
    squares = dict(zip(ciphers, distances.tolist(), strict=True))
    return of_weights(hub, opened, squares, s_factors(shares(high, total), distances))


def by_norms(hub: Any, r: int, ciphers: Mapping[str, CipherVector]) -> fl.Steps[Judged]:
    """With dot products with a mean whose direction no long change decides."""
    keys = hub.keys.evaluation(MODEL)
    norms = yield from scalars(hub, r, {name: [fourier.energy(cipher, keys)] for name, cipher in ciphers.items()}, 0)
    squares = np.array([norms[name][0] for name in ciphers])
    factors = cut(squares)
    mean = weighted([*ciphers.values()], factors)
    wanted = {name: [fourier.inner(cipher, mean, keys)] for name, cipher in ciphers.items()}
    dots = yield from scalars(hub, r, wanted, len(ciphers))
    found = robust(squares, np.array([dots[name][0] for name in ciphers]), factors, deviations=5)
    opened = {name: [*norms[name], *dots[name]] for name in ciphers}
    return of_weights(hub, opened, dict(zip(ciphers, squares.tolist(), strict=True)), found)


def of_weights(
    hub: Any, opened: Mapping[str, list[float]], squares: Mapping[str, float], found: LeaderWeights
) -> Judged:
    weights = {name: w for name, w in zip(opened, found.weights.tolist(), strict=True) if w}
    factors = dict(zip(opened, (1 - found.suspicion).tolist(), strict=True))
    if hub.common.mode != "literal":
        return Judged(weights, found.divisor, factors, found.fallback, opened, squares)
    # algorithm 4, l. 15 as printed: 1/n of the sum, so that the model shrinks with every s-factor below 1
    return Judged(weights, len(opened) * largest(len(opened)), factors, found.fallback, opened)


def model_key(hub: Any, r: int) -> HubKey:
    return HubKey(hub, MODEL, r, hub.config.deadline_s)


def scalars(
    hub: Any, r: int, wanted: Mapping[str, list[CipherVector]], first: int, units: Sequence[int] = (1,)
) -> fl.Steps[dict[str, list[float]]]:
    """By leader; infinite for what opens to nonsense while others do not.

    first: the number of the first in this round.  units: by place, what each is a multiple of. Raises NoAnswerError if
    none open.
    """
    flat = [cipher for ciphers in wanted.values() for cipher in ciphers]
    numbered = {first + i: cipher for i, cipher in enumerate(flat)}
    space, summands = flat[0].key.parameters, hub.joint.terms(MODEL).summands
    error, places = fourier.deviation(space, NORM, summands=summands), len(units)
    errors = {first + i: error * units[i % places] for i in range(len(flat))}
    opened = yield from open_sums(model_key(hub, r), numbered, deviation=errors, partly=True)
    values = iter([float(opened[number].values[0]) if number in opened else math.inf for number in numbered])
    return {name: [next(values) / unit for unit in units] for name in wanted}
