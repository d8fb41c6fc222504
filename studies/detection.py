"""How well poisoned contributions are told by what OFL opens of them, attack by attack. ``docs/detection.md``.

    python -m studies.detection docs/detection/detection.json
    python -m studies.detection docs/detection/detection.json --show        # its tables

Eight leaders hold a Dir(.5) share of the data each. A model is trained by federated averaging for some rounds; then
each leader trains it once more, honestly and as each attack has it. Two of eight are poisoned; there are 16 such pairs,
every leader in four. Scores are computed on plain numbers, as the encrypted form computes them. Measured are the area
under the ROC curve of every score, what the weights leave the poisoned ones, and the accuracy of the mean they give.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.aggregation import detection
from coterie.attacks.active.samples import backdoored, flipped, triggered
from coterie.attacks.active.vectors import cosine, moved, noisy, within
from coterie.crypto.fourier import energies
from coterie.data import deal, load
from coterie.protocol.randomness import rng
from coterie.training.engine import fit_many
from coterie.training.evaluate import evaluate_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Sgd

Floats = NDArray[np.float64]

LEADERS, POISONED, PARTITION, TEST = 8, 2, "dirichlet:0.5", 2_000
PERMUTATIONS = 3


@dataclass(frozen=True)
class Setting:
    """samples: of a leader, at most.  warm: rounds before.  epochs: of every training."""

    model: str
    samples: int
    warm: int
    epochs: int
    batch: int


SETTINGS: Mapping[str, Setting] = {
    "fashion_mnist": Setting("mlp", 600, 3, 2, 50),
    "digits": Setting("mlp_small", 170, 5, 2, 10),
}
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
    "hardened": "one minus the weight that length and cosine give (mode hardened)",
}
"""Larger is more suspect."""
RULES = ("mean", "paper", "paper, energy", "hardened", "honest")


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
    setting, data = SETTINGS[name], load(name, data_dir)
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


def scores(start: Floats, models: Floats, spectra: Mapping[str, Floats]) -> dict[str, Floats]:
    """Every score of every leader, (leaders,). spectra: high energy of models, permuted ones and updates."""
    updates = models - start
    total, far = (models**2).sum(axis=1), (updates**2).sum(axis=1)
    share, permuted = detection.shares(spectra["high"], total), detection.shares(spectra["permuted"], total)
    mean = updates.mean(axis=0)
    factors = detection.cut(far)
    dots = updates @ (factors @ updates)
    return {
        "share": share,
        "share, permuted": permuted,
        "energy": spectra["high"],
        "energy, permuted": spectra["permuted"],
        "distance": far,
        "s-factor": detection.s_factors(share, far).suspicion,
        "s-factor, permuted": detection.s_factors(permuted, far).suspicion,
        "s-factor, energy": detection.s_factors(spectra["high"], far).suspicion,
        "update energy": spectra["updates"],
        "1 - cosine": np.array([1 - cosine(update, mean) for update in updates]),
        "1 - cosine, others": 1 - detection.others_cosines(far, dots, factors),
        "hardened": detection.robust(far, dots, factors).suspicion,
    }


def counted(start: Floats, models: Floats, spectra: Mapping[str, Floats], bad: Sequence[int]) -> dict[str, Floats]:
    """By rule, how much of each leader's update is in the mean, (leaders,): its weight over the divisor."""
    updates = models - start
    far, factors = (updates**2).sum(axis=1), detection.cut((updates**2).sum(axis=1))
    share, honest = detection.shares(spectra["high"], (models**2).sum(axis=1)), ~np.isin(np.arange(LEADERS), bad)
    judged = {
        "paper": detection.s_factors(share, far),
        "paper, energy": detection.s_factors(spectra["high"], far),
        "hardened": detection.robust(far, updates @ (factors @ updates), factors),
    }
    weighed = {rule: found.weights / found.divisor for rule, found in judged.items()}
    return {"mean": np.full(LEADERS, 1 / LEADERS), **weighed, "honest": honest / honest.sum()}


def spectra_of(models: Floats, start: Floats, orders: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """High energies (leaders,) of models, of permuted ones (a row a permutation), and of updates."""
    return {
        "high": np.array([energies(model)[0] for model in models]),
        "permuted": np.array([[energies(model[order])[0] for model in models] for order in orders]),
        "updates": np.array([energies(model - start)[0] for model in models]),
    }


def trials(found: Ground, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each attack: the area under the curve of each score, and share and accuracy of each rule, means of trials."""
    start, honest = found.start.astype(np.float64), found.honest.astype(np.float64)
    draw = rng(seed, "study", "permutations")
    orders = [draw.permutation(len(start)) for _ in range(PERMUTATIONS)]
    usual = spectra_of(honest, start, orders)
    for attack, wrong in found.poisoned.items():
        unusual = spectra_of(wrong.astype(np.float64), start, orders)
        rows: list[dict[str, Any]] = []
        for pair in pairs():
            bad = np.isin(np.arange(LEADERS), pair)
            models = np.where(bad[:, None], wrong, honest)
            rows.append(_trial(found, start, models, bad, pair, usual, unusual, attack))
        yield (
            attack,
            {
                kind: {name: float(np.mean([row[kind][name] for row in rows])) for name in rows[0][kind]}
                for kind in rows[0]
            },
        )


def _trial(
    found: Ground,
    start: Floats,
    models: Floats,
    bad: NDArray[np.bool_],
    pair: tuple[int, int],
    usual: Mapping[str, Floats],
    unusual: Mapping[str, Floats],
    attack: str,
) -> dict[str, Any]:
    mixed = {name: np.where(bad, unusual[name], usual[name]) for name in usual}
    areas: dict[str, list[float]] = {}
    for permuted in mixed["permuted"]:
        for name, score in scores(start, models, {**mixed, "permuted": permuted}).items():
            areas.setdefault(name, []).append(detection.auroc(score, bad))
    weights = counted(start, models, mixed, pair)
    means = np.stack([start + w @ (models - start) for w in weights.values()]).astype(np.float32)
    judged = evaluate_many(found.model, means, found.x, found.y)
    row: dict[str, Any] = {
        "auroc": {name: float(np.mean(area)) for name, area in areas.items()},
        "share": {rule: float(w[bad].sum() / w.sum()) for rule, w in weights.items()},
        "accuracy": {rule: one.accuracy for rule, one in zip(weights, judged, strict=True)},
    }
    if attack.startswith("backdoor"):
        others = found.y != 0
        seen = evaluate_many(found.model, means, triggered(found.x[others]), torch.zeros_like(found.y[others]))
        row["backdoor"] = {rule: one.accuracy for rule, one in zip(weights, seen, strict=True)}
    return row


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(content: Mapping[str, Any]) -> str:
    """The tables of docs/detection.md, as Markdown."""
    lines: list[str] = []
    for data, attacks in content["data"].items():
        lines += [f"### {data}: area under the ROC curve", ""]
        lines += _table(["score", *attacks], [[name, *_row(attacks, "auroc", name, 2)] for name in SCORES])
        lines += [f"### {data}: the poisoned leaders' share of the weights, %", ""]
        lines += _table(["rule", *attacks], [[rule, *_row(attacks, "share", rule, 1, 100)] for rule in RULES[:-1]])
        lines += [f"### {data}: accuracy of the mean, %", ""]
        lines += _table(["rule", *attacks], [[rule, *_row(attacks, "accuracy", rule, 1, 100)] for rule in RULES])
        doors = {name: cells for name, cells in attacks.items() if "backdoor" in cells}
        lines += [f"### {data}: samples with the trigger that are taken for class 0, %", ""]
        lines += _table(["rule", *doors], [[rule, *_row(doors, "backdoor", rule, 1, 100)] for rule in RULES])
    return "\n".join(lines)


def _row(attacks: Mapping[str, Any], kind: str, name: str, digits: int, times: int = 1) -> list[str]:
    return [f"{times * float(np.mean(cells[kind][name])):.{digits}f}" for cells in attacks.values()]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the tables; or show those of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m studies.detection", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the tables of the file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", action="append", choices=SETTINGS)
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if not given.show:
        found: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
        for data in given.data or SETTINGS:
            for seed in range(given.seeds):
                for attack, kinds in trials(ground(data, seed, given.data_dir), seed):
                    for kind, cells in kinds.items():
                        for name, value in cells.items():
                            cell = found.setdefault(data, {}).setdefault(attack, {}).setdefault(kind, {})
                            cell.setdefault(name, []).append(round(value, 4))
                sys.stderr.write(f"{data}, seed {seed}\n")
        options = [f"--seeds={given.seeds}"] if given.seeds != 5 else []
        options += [f"--data={data}" for data in given.data or ()]
        command = shlex.join(["python", "-m", "studies.detection", given.out.as_posix(), *options])
        facts = {"leaders": LEADERS, "poisoned": POISONED, "partition": PARTITION, "seeds": given.seeds}
        settings = {data: vars(SETTINGS[data]) for data in found}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"command": command, **facts, "trials": len(pairs()), "settings": settings, "data": found}
        given.out.write_text(json.dumps(content) + "\n")
    sys.stdout.write(tables(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
