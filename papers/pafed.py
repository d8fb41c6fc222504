"""Table V and figures 5 to 8 of "PAFed", section VII: 100 clients, 10 a round, 10 epochs, batches of 50, 100 rounds.

What the paper leaves open is settled as follows. A delayed client answers 1 to 5 rounds late, all equally often. Its
FedAvg, FedProx and FedADMM drop what is late (section VII-A: "the dropped customers"); each also stands here in a form
that uses it, so that PAFed is not credited with what any use of late updates gives. Every method moves its model by
one schedule of server steps: ``constant``, 0.8 as printed, ``decaying``, 0.8 / (1 + (r - 1) / 20), or ``linear``, from
0.8 to 0 over the run. Three exceptions:
FedADMM sends twice the change of its model (eq. 16), so that 0.4 is the others' step; in its authors' form
(``fedadmm_own``) any other step than 1 leaves out what is never sent again; FedAsync mixes in one model after the
other, 0.2 of each.

Pixels lie between 0 and 1 (``scaling = unit``). The paper doesn't say how it scales them; where their mean is 0 and
their standard deviation 1, some trainings of its CNN diverge on Fashion-MNIST at its learning rate in the first round.

Accuracies are the global model's on the whole test set. "Average best accuracy" is, so the text, "the mean of the
highest accuracies recorded in each of the final 10 training rounds": the best so far, averaged over the last ten
rounds, or plainly their mean; both stand here. For machines without a GPU, ``fashion_mnist-mlp`` has the model
784-200-100-10 in the place of the paper's CNN, and ``fashion_mnist-bf16`` trains that CNN in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import isnan, nan
from statistics import fmean
from typing import Any

from coterie.reproductions.study import Curve, Row, percent, spread
from coterie.runs.intervals import mean_and_interval
from papers import tables

WINDOW = 10
COMPARISONS: Sequence[tuple[str, str, str]] = tables.load("pafed")["comparisons"]
"""What is tried, without it, with it."""


def best_so_far(curve: Curve) -> float:
    """The best accuracy up to each of the last ten rounds, averaged over them; NaN if the training diverged."""
    if curve.diverged:
        return nan
    return fmean(list(accumulate((v for v in curve.global_accuracy if v is not None), max))[-WINDOW:])


def mean_of_last(curve: Curve) -> float:
    """The mean accuracy of the last ten rounds; NaN if the training diverged."""
    return curve.last("global_accuracy", WINDOW)


def late_share(curve: Curve) -> float:
    """How many of the updates that the server used came late."""
    ages = [note["staleness"] for note in curve.notes]  # used, by rounds late
    used = sum(sum(age) for age in ages)
    return sum(sum(age[1:]) for age in ages) / used if used else 0.0


def best(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    return percent([best_so_far(curve) for curve in found])


def late(found: Sequence[Curve], cell: tables.Entry) -> float:
    """Percent of all used updates."""
    return round(100 * fmean(late_share(curve) for curve in found), 1)


def spread_of_last(found: Sequence[Curve], cell: tables.Entry) -> str:
    """The last ten rounds of all seeds, percent: a wide range has not settled."""
    last = [v for curve in found for v in curve.global_accuracy[-WINDOW:] if v is not None]
    return f"{100 * min(last):.1f} to {100 * max(last):.1f}" if last else "diverged"


def _points(without: Sequence[float], with_it: Sequence[float]) -> str:
    """Mean and deviation over the seeds of the difference within a seed, in points of a percent."""
    gains = [100 * (b - a) for a, b in zip(without, with_it, strict=True)]
    if any(map(isnan, gains)):
        return "diverged"
    mean, sd = spread(gains)
    return f"{mean:+.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def compared(curves: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """What each part gives: the same seeds with and without it, under one schedule."""
    rows: list[Row] = []
    for case in dict.fromkeys(name.rpartition("/")[0] for name in curves):
        data, setting, schedule = case.split("/")
        for part, *pair in COMPARISONS:
            found = [curves.get(f"{case}/{method}", ()) for method in pair]
            if not all(found):
                continue
            means, bests = ([[of(c) for c in one] for one in found] for of in (mean_of_last, best_so_far))
            row: dict[str, Any] = {"data": data, "delta": setting, "server step": schedule, "part": part}
            row |= dict(zip(("without", "with"), pair, strict=True))
            row |= {f"{way}: mean %": percent(a) for way, a in zip(("without", "with"), means, strict=True)}
            row |= {"gain: mean, points": _points(*means), "gain: best so far, points": _points(*bests)}
            rows.append(row | {"seeds": len(found[0])})
    return rows


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    """A step that falls linearly reaches its end with the run."""
    if words.get("schedule") == "linear":
        found["settings"]["server_rounds"] = found["rounds"]


def at_best_steps(steps: Mapping[str, Sequence[Curve]]) -> list[float]:
    """A method's accuracy with each seed, at the step that is best on the other seeds, so that none chooses for itself.

    steps: by step, the curves of all seeds. With one step, or one seed, there is nothing to choose.
    """
    values = [[mean_of_last(curve) for curve in found] for found in steps.values()]

    def elsewhere(one: Sequence[float], seed: int) -> float:
        """NaN, of what diverged, counts as the worst."""
        return sum(-1.0 if isnan(v) else v for at, v in enumerate(one) if at != seed)

    return [max(values, key=lambda one: elsewhere(one, seed))[seed] for seed in range(len(values[0]))]


def judged(lead: Sequence[float]) -> tuple[str, str]:
    """A lead over the seeds as points with its 95 % interval (Student's t), and what it shows."""
    if any(map(isnan, lead)):
        return "diverged", "undecided"
    mean, half = mean_and_interval([100 * one for one in lead])
    if half is None:
        return f"{mean:+.1f}", "undecided"
    shows = "ahead" if mean > half else "behind" if mean < -half else "no difference shown"
    return f"{mean:+.1f} ± {half:.1f}", shows


def decided(curves: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """PAFed less every other method, paired by seed, under one schedule and with the same use of the models."""
    cases: dict[str, dict[str, dict[str, Sequence[Curve]]]] = {}
    for name, found in curves.items():
        case, method, step = name.rsplit("/", 2)
        cases.setdefault(case, {}).setdefault(method, {})[step] = found
    rows: list[Row] = []
    for case, methods in cases.items():
        data, setting, schedule = case.split("/")
        for method, steps in methods.items():
            other, ema, _ = method.partition("_ema")
            if other == "pafed" or f"pafed{ema}" not in methods:
                continue
            ours, theirs = at_best_steps(methods[f"pafed{ema}"]), at_best_steps(steps)
            lead, shows = judged([a - b for a, b in zip(ours, theirs, strict=True)])
            row: dict[str, Any] = {"data": data, "delta": setting, "server step": schedule}
            row |= {"clients predict with": "their average" if ema else "the last model", "opponent": other}
            row |= {"pafed: mean %": percent(ours), "opponent: mean %": percent(theirs)}
            rows.append(row | {"lead, points": lead, "pafed is": shows, "seeds": len(ours)})
    return rows


ITEMS = tables.items("pafed", globals())
