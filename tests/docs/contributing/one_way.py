"""Attackers that agree on one direction: every weight grows by the mean length of their honest changes."""

from dataclasses import replace


def one_way(party, fit, strength):
    fitted = yield fit
    length = abs(fitted.weights - fit.weights).mean()
    return replace(fitted, weights=fit.weights + strength * length)
