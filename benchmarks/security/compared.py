"""Measurements over several runs: beside their closed forms, or as means with standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from coterie.privacy.attacks.result import AttackResult, Expected
from coterie.protocol.errors import UserError

MOST_ERRORS = 3.0
"""Standard errors within which a measured number and its closed form are said to agree."""


def compared(results: Sequence[AttackResult], expected: Sequence[Expected], *, spread: bool = False) -> dict[str, Any]:
    """Independent measurements of one attack (runs with different seeds) beside its closed form.

    standard_error: of the mean, by the closed form itself; by the spread of the runs around it, for closed forms that
    say no more than the mean; of one guess in all, where the closed form is certain.  errors_off: how many of them lie
    between the two.  agrees: whether these are at most ``MOST_ERRORS``.  clients: of all runs.

    Raises UserError for the spread of a single run.
    """
    if spread and len(results) < 2:
        raise UserError("one run has no spread: measure with 2 seeds or more")
    value, theory = (fmean(x) for x in ([r.value for r in results], [e.accuracy for e in expected]))
    variances = [e.standard_error(r.n) ** 2 for r, e in zip(results, expected, strict=True)]
    if spread:
        error = stdev(r.value - e.accuracy for r, e in zip(results, expected, strict=True)) / sqrt(len(results))
    else:
        error = sqrt(sum(variances)) / len(results)
    error = error or 1 / sum(r.n for r in results)
    off = 0.0 if abs(value - theory) < 1e-9 else (value - theory) / error
    return {
        "measured": value,
        "closed_form": theory,
        "standard_error": error,
        "errors_off": off,
        "agrees": abs(off) <= MOST_ERRORS,
        "chance": fmean(r.chance for r in results),
        "clients": sum(r.n for r in results),
        "runs": len(results),
    }


def summary(runs: Sequence[Mapping[str, Sequence[AttackResult]]]) -> dict[str, dict[str, float]]:
    """Runs with different seeds -> by attack: mean over a run's rounds, its mean over runs and standard error.

    value, standard_error (0 for one run), chance, perfect; first: the mean over runs of the first round alone.
    runs: in which the attack applies, if not in all.
    """
    table = dict[str, dict[str, float]]()
    for name in dict.fromkeys(name for run in runs for name in run):
        applied = [run[name] for run in runs if name in run]
        means = [fmean(result.value for result in one) for one in applied]
        every = [result for one in applied for result in one]
        table[name] = {
            "value": fmean(means),
            "standard_error": stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0,
            "first": fmean(one[0].value for one in applied),
            "chance": fmean(result.chance for result in every),
            "perfect": every[0].perfect,
        }
        if len(applied) < len(runs):
            table[name]["runs"] = len(applied)
    return table
