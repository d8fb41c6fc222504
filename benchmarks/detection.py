"""How well poisoned contributions are told by what OFL opens of them, attack by attack. ``docs/detection.md``.

    python -m benchmarks.detection docs/detection/detection.json
    python -m benchmarks.detection docs/detection/detection.json --show        # its tables

Eight leaders hold a Dir(.5) share of the data each. A model is trained by federated averaging for some rounds; then
each leader trains it once more, honestly and as each attack has it. Two of eight are poisoned; there are 16 such pairs,
every leader in four. Scores are computed on plain numbers, as the encrypted form computes them. Measured are the area
under the ROC curve of every score, what the weights leave the poisoned ones, how many of the others are left out, and
the accuracy of the mean they give, with and without an attack. Seeds begin at 100: the rule was chosen on others
(``benchmarks.detection_choice``).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.markdown import grid
from coterie.aggregation import detection
from coterie.crypto.fourier import energies
from coterie.data import deal, load
from coterie.privacy.attacks.active.deviations import cosine, moved, noisy, within
from coterie.privacy.attacks.active.samples import backdoored, flipped, triggered
from coterie.protocol.randomness import rng
from coterie.record.provenance import write_record
from coterie.runs.intervals import mean_and_interval
from coterie.training.engine import fit_many
from coterie.training.evaluate import evaluate_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Sgd

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEADERS, POISONED, PARTITION, TEST = 8, 2, "dirichlet:0.5", 1_000
PERMUTATIONS = 3


@dataclass(frozen=True)
class Setting:
    """samples: of a leader, at most.  warm: rounds before.  epochs: of every training."""

    data: str
    model: str
    samples: int
    warm: int
    epochs: int
    batch: int


SETTINGS: Mapping[str, Setting] = {
    "fashion_mnist": Setting("fashion_mnist", "mlp", 600, 3, 2, 50),
    "digits": Setting("digits", "mlp_small", 170, 5, 2, 10),
    "fashion_mnist, later": Setting("fashion_mnist", "mlp", 600, 10, 2, 50),
    "digits, later": Setting("digits", "mlp_small", 170, 10, 2, 10),
}
SHOWN = ("fashion_mnist", "digits")
"""With all scores and rules in the tables. Of the others they have what concerns mode hardened."""
FIRST, SEEDS = 100, 5
ATTACKS: Mapping[str, str] = {
    "scale:10": "the update ten times as long",
    "noise:0.1": "normal noise of standard deviation .1 on every parameter",
    "update flipped": "the update times -1",
    "model flipped": "the model times -1",
    "label flip": "trained on labels that are all wrong",
    "backdoor": "half of the samples with a trigger and the label 0",
    "backdoor:10": "the same, the update ten times as long",
    "adaptive": "towards wrong labels as far as the own honest length, and cosine with the honest mean, allow",
}
SCORES: Mapping[str, str] = {
    "share": "share of the high frequencies in the model's energy (paper)",
    "share, permuted": "the same after a random permutation of the parameters",
    "energy": "energy of the high frequencies",
    "energy, permuted": "the same after a permutation",
    "distance": "squared distance to the global model",
    "s-factor": "eq. (6) with the share (mode paper)",
    "s-factor, permuted": "the same after a permutation",
    "s-factor, energy": "eq. (6) with the energy",
    "update energy": "energy of the high frequencies of the update",
    "1 - cosine": "1 - cosine with the mean update",
    "1 - cosine, others": "1 - cosine with the others' mean of cut updates",
    "hardened, before": "the same with agreements cos / med, as mode hardened had it",
    "hardened": "one minus the weight that length and cosine give (mode hardened)",
}
"""Larger is more suspect."""
RULES = ("mean", "paper", "paper, energy", "hardened, before", "hardened", "honest")
NONE = "no attack"
LOW = 0.1
"""Of the largest weight: a leader with no more is as good as left out."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What a seed gives: the global model (d,), each leader's honest model and its poisoned ones (leaders, d)."""

    model: Model
    start: NDArray[np.float32]
    honest: NDArray[np.float32]
    poisoned: Mapping[str, NDArray[np.float32]]
    x: torch.Tensor
    y: torch.Tensor


def ground(name: str, seed: int, data_dir: str | None = None) -> Ground:
    """Trains everything that the trials of a seed need."""
    setting = SETTINGS[name]
    data = load(setting.data, data_dir)
    dealt, _ = deal(PARTITION, data, LEADERS, seed)
    draw, inputs = rng(seed, "study", "samples"), data.inputs()
    own = [draw.permutation(part)[: setting.samples] for part in dealt.train]
    xs = [torch.from_numpy(inputs[part]) for part in own]
    ys = [torch.from_numpy(data.y_train[part].astype(np.int64)) for part in own]
    model = build(setting.model, data.input_shape, data.classes)
    solver = Sgd(lr=0.1, batch_size=setting.batch)

    def trained(weights: NDArray[np.float32], turn: int, change: Callable[[int], tuple[Any, Any]]) -> Any:
        jobs = [Job(weights, solver, setting.epochs, 1000 * seed + 10 * turn + i, *change(i)) for i in range(LEADERS)]
        return np.stack([fitted.weights for fitted in fit_many(model, jobs)])

    start = model.initial(seed)
    for turn in range(setting.warm):
        start = trained(start, turn, lambda i: (xs[i], ys[i])).mean(axis=0, dtype=np.float64).astype(np.float32)
    last = setting.warm
    honest = trained(start, last, lambda i: (xs[i], ys[i]))
    wrong = trained(start, last, lambda i: (xs[i], flipped(ys[i], data.classes, 1.0, i)))
    trigger = trained(start, last, lambda i: backdoored(xs[i], ys[i], 3.0, i))
    mean = honest.mean(axis=0) - start
    poisoned = {
        "scale:10": [moved(start, one, 10) for one in honest],
        "noise:0.1": [noisy(one, 0.1, rng(seed, "study", f"noise {i}")) for i, one in enumerate(honest)],
        "update flipped": [moved(start, one, -1) for one in honest],
        "model flipped": [-one for one in honest],
        "label flip": wrong,
        "backdoor": trigger,
        "backdoor:10": [moved(start, one, 10) for one in trigger],
        "adaptive": [start + _bounded(one - start, bad - start, mean) for one, bad in zip(honest, wrong, strict=True)],
    }
    test = np.sort(draw.permutation(len(data.y_test))[:TEST])
    x, y = torch.from_numpy(data.inputs(test, "test")), torch.from_numpy(data.y_test[test].astype(np.int64))
    stacked = {attack: np.stack(models).astype(np.float32) for attack, models in poisoned.items()}
    return Ground(model, start, honest, stacked, x, y)


def _bounded(honest: NDArray[Any], wrong: NDArray[Any], mean: NDArray[Any]) -> Floats:
    """The update (d,) most towards ``wrong - honest`` that is as long as the honest one, and as near to the mean."""
    return within(wrong - honest, mean, max(0.0, cosine(honest, mean)), float(np.linalg.norm(honest)))


def pairs() -> list[tuple[int, int]]:
    """Who is poisoned, trial by trial: every leader twice."""
    return [(i, (i + step) % LEADERS) for step in (1, 3) for i in range(LEADERS)]


def before(squares: Floats, dots: Floats, factors: Integers) -> detection.LeaderWeights:
    """``detection.robust`` with its former agreements: cos / med where both are above 0, 0 for others below med."""
    found, cos = detection.robust(squares, dots, factors), detection.others_cosines(squares, dots, factors)
    usual, lengths = float(np.median(cos)), np.sqrt(squares)
    agreed = np.clip(cos, 0, usual) / usual if usual > 0 else (cos >= usual).astype(np.float64)
    shorter = np.minimum(1, detection.lower_median(lengths) / lengths)
    most = detection.largest(len(cos))
    return replace(
        found,
        weights=np.floor(most * agreed * shorter).astype(np.int64),
        suspicion=1 - agreed * shorter,
        divisor=most * float(agreed.sum()),
    )


@dataclass(frozen=True, eq=False)
class Facts:
    """What scores and rules need of models (leaders, d): their updates, and by leader the squared norms of both.

    factors: by which the mean of cut updates weighs them.  dots: of each update with that mean, not divided.
    cosines: with the plain mean update.
    """

    updates: Floats
    total: Floats
    far: Floats
    factors: Integers
    dots: Floats
    cosines: Floats

    @classmethod
    def of(cls, start: Floats, models: Floats) -> Facts:
        """Of these models around the global one (d,)."""
        updates = models - start
        gram = updates @ updates.T
        far = np.diag(gram)
        factors, sums = detection.cut(far), gram.sum(axis=1)
        cosines = sums / np.sqrt(far * sums.sum())
        return cls(updates, np.einsum("id,id->i", models, models), far, factors, gram @ factors, cosines)


def scores(facts: Facts, spectra: Mapping[str, Floats]) -> dict[str, Floats]:
    """Every score of every leader, (leaders,). spectra: high energy of models, permuted ones and updates."""
    share, far, of = detection.shares(spectra["high"], facts.total), facts.far, (facts.far, facts.dots, facts.factors)
    return {
        "share": share,
        "energy": spectra["high"],
        "distance": far,
        "s-factor": detection.s_factors(share, far).suspicion,
        **permuted_scores(spectra["permuted"], facts),
        "s-factor, energy": detection.s_factors(spectra["high"], far).suspicion,
        "update energy": spectra["updates"],
        "1 - cosine": 1 - facts.cosines,
        "1 - cosine, others": 1 - detection.others_cosines(*of),
        "hardened, before": before(*of).suspicion,
        "hardened": detection.robust(*of).suspicion,
    }


def permuted_scores(high: Floats, facts: Facts) -> dict[str, Floats]:
    """Those of one permutation, from the energies (leaders,) of high frequencies under it."""
    share = detection.shares(high, facts.total)
    factors = detection.s_factors(share, facts.far).suspicion
    return {"share, permuted": share, "energy, permuted": high, "s-factor, permuted": factors}


def counted(facts: Facts, spectra: Mapping[str, Floats], bad: NDArray[np.bool_]) -> dict[str, Floats]:
    """By rule, how much of each leader's update is in the mean, (leaders,): its weight over the divisor."""
    far, of = facts.far, (facts.far, facts.dots, facts.factors)
    judged = {
        "paper": detection.s_factors(detection.shares(spectra["high"], facts.total), far),
        "paper, energy": detection.s_factors(spectra["high"], far),
        "hardened, before": before(*of),
        "hardened": detection.robust(*of),
    }
    weighed = {rule: found.weights / found.divisor for rule, found in judged.items()}
    return {"mean": np.full(LEADERS, 1 / LEADERS), **weighed, "honest": ~bad / (~bad).sum()}


def spectra_of(models: Floats, start: Floats, orders: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """High energies (leaders,) of models, of permuted ones (a row a permutation), and of updates."""
    return {
        "high": np.array([energies(model)[0] for model in models]),
        "permuted": np.array([[energies(model[order])[0] for model in models] for order in orders]),
        "updates": np.array([energies(model - start)[0] for model in models]),
    }


def trials(found: Ground, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each attack, and of none: the area under the curve of each score, what each rule does, as means of trials."""
    start, honest = found.start.astype(np.float64), found.honest.astype(np.float64)
    draw = rng(seed, "study", "permutations")
    orders = [draw.permutation(len(start)) for _ in range(PERMUTATIONS)]
    usual, nobody = spectra_of(honest, start, orders), np.zeros(LEADERS, bool)
    facts = Facts.of(start, honest)
    weights = counted(facts, usual, nobody)
    yield NONE, {"left out": left_out(weights, nobody), **_judged(found, start, facts, weights, NONE)}
    for attack, wrong in found.poisoned.items():
        unusual = spectra_of(wrong.astype(np.float64), start, orders)
        rows: list[dict[str, Any]] = []
        for number, pair in enumerate(pairs()):
            bad = np.isin(np.arange(LEADERS), pair)
            facts = Facts.of(start, np.where(bad[:, None], wrong, honest))
            mixed = {name: np.where(bad, unusual[name], usual[name]) for name in usual}
            weights = counted(facts, mixed, bad)
            row = _told(facts, mixed, weights, bad)
            if number < LEADERS:  # every leader is poisoned in two of these
                row |= _judged(found, start, facts, weights, attack)
            rows.append(row)
        means: dict[str, dict[str, float]] = {}
        for kind, cells in rows[0].items():
            of = [row[kind] for row in rows if kind in row]
            means[kind] = {name: float(np.mean([one[name] for one in of])) for name in cells}
        yield attack, means


def _told(
    facts: Facts, mixed: Mapping[str, Floats], weights: Mapping[str, Floats], bad: NDArray[np.bool_]
) -> dict[str, Any]:
    """Of one trial: the areas of all scores, means of the permutations, and what every rule leaves to whom."""
    first, *others = mixed["permuted"]
    found = [scores(facts, {**mixed, "permuted": first}), *(permuted_scores(high, facts) for high in others)]
    areas: dict[str, list[float]] = {}
    for name, score in (pair for one in found for pair in one.items()):
        areas.setdefault(name, []).append(float(roc_auc_score(bad, score)))
    return {
        "auroc": {name: float(np.mean(area)) for name, area in areas.items()},
        "share": {rule: float(w[bad].sum() / w.sum()) for rule, w in weights.items()},
        "left out": left_out(weights, bad),
    }


def left_out(weights: Mapping[str, Floats], bad: NDArray[np.bool_]) -> dict[str, float]:
    """By rule, the share of the leaders that aren't poisoned that have at most a tenth of the largest weight."""
    return {rule: float((w[~bad] <= LOW * w.max()).mean()) for rule, w in weights.items()}


def _judged(
    found: Ground, start: Floats, facts: Facts, weights: Mapping[str, Floats], attack: str
) -> dict[str, dict[str, float]]:
    """Of each rule, the accuracy of its mean; of backdoors also how often it takes them."""
    means = (start + np.stack([*weights.values()]) @ facts.updates).astype(np.float32)
    judged = evaluate_many(found.model, means, found.x, found.y)
    row = {"accuracy": {rule: one.accuracy for rule, one in zip(weights, judged, strict=True)}}
    if attack.startswith("backdoor"):
        others = found.y != 0
        seen = evaluate_many(found.model, means, triggered(found.x[others]), torch.zeros_like(found.y[others]))
        row["backdoor"] = {rule: one.accuracy for rule, one in zip(weights, seen, strict=True)}
    return row


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(content: Mapping[str, Any]) -> str:
    """The tables of docs/detection.md, as Markdown."""
    lines: list[str] = []
    for name, cells in content["data"].items():
        shown = name in SHOWN
        attacks = {attack: kinds for attack, kinds in cells.items() if attack != NONE}
        scored = [one for one in SCORES if shown or "hardened" in one or one == "1 - cosine, others"]
        rules = [rule for rule in RULES if shown or "hardened" in rule]
        lines += [f"### {name}: area under the ROC curve", ""]
        lines.append(grid(["score", *attacks], [[one, *_row(attacks, "auroc", one, 2)] for one in scored]))
        lines += [f"### {name}: the poisoned leaders' share of the weights, %", ""]
        kept = [rule for rule in rules if rule != "honest"]
        lines.append(grid(["rule", *attacks], [[rule, *_row(attacks, "share", rule, 1, 100)] for rule in kept]))
        lines += [f"### {name}: honest leaders with at most a tenth of the largest weight, %", ""]
        kept = [rule for rule in kept if rule != "mean"]
        lines.append(grid(["rule", *cells], [[rule, *_row(cells, "left out", rule, 1, 100)] for rule in kept]))
        if shown:
            lines += [f"### {name}: accuracy of the mean, %", ""]
            lines.append(grid(["rule", *cells], [[rule, *_row(cells, "accuracy", rule, 1, 100)] for rule in RULES]))
        lines += [f"### {name}: accuracy of hardened less that of another rule, points", ""]
        pairs = [("mean", "hardened"), ("hardened, before", "hardened")]
        lines.append(grid(["less", *cells], [[less, *_differences(cells, less, rule)] for less, rule in pairs]))
        if shown:
            doors = {name: kinds for name, kinds in cells.items() if "backdoor" in kinds}
            lines += [f"### {name}: samples with the trigger that are taken for class 0, %", ""]
            lines.append(grid(["rule", *doors], [[rule, *_row(doors, "backdoor", rule, 1, 100)] for rule in RULES]))
    return "\n".join(lines)


def _differences(cells: Mapping[str, Any], less: str, rule: str) -> list[str]:
    """Paired over the seeds, with Student's 95 % interval."""
    found = []
    for kinds in cells.values():
        pairs = zip(kinds["accuracy"][rule], kinds["accuracy"][less], strict=True)
        mean, half = mean_and_interval([100 * (a - b) for a, b in pairs])
        found.append(f"{mean:+.1f}".replace("-", "−") + ("" if half is None else f" ± {half:.1f}"))
    return found


def _row(attacks: Mapping[str, Any], kind: str, name: str, digits: int, times: int = 1) -> list[str]:
    return [f"{times * float(np.mean(cells[kind][name])):.{digits}f}" for cells in attacks.values()]


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the tables; or show those of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the tables of the file")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--data", action="append", choices=SETTINGS)
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if not given.show:
        found: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
        for data in given.data or SETTINGS:
            for seed in range(given.first, given.first + given.seeds):
                for attack, kinds in trials(ground(data, seed, given.data_dir), seed):
                    for kind, cells in kinds.items():
                        for name, value in cells.items():
                            cell = found.setdefault(data, {}).setdefault(attack, {}).setdefault(kind, {})
                            cell.setdefault(name, []).append(round(value, 4))
                sys.stderr.write(f"{data}, seed {seed}\n")
        options = [f"--seeds={given.seeds}"] if given.seeds != SEEDS else []
        options += [f"--first={given.first}"] if given.first != FIRST else []
        options += [f"--data={data}" for data in given.data or ()]
        command = shlex.join(["python", "-m", "benchmarks.detection", given.out.as_posix(), *options])
        facts = {"leaders": LEADERS, "poisoned": POISONED, "partition": PARTITION}
        facts |= {"seeds": [*range(given.first, given.first + given.seeds)]}
        settings = {data: vars(SETTINGS[data]) for data in found}
        content = {**facts, "trials": len(pairs()), "settings": settings, "data": found}
        write_record(given.out, command, content, indent=None)
    sys.stdout.write(tables(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
