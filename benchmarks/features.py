"""Sparsity features on real data: which groups of devices AIDC finds by them, and which not. ``docs/features.md``.

    python -m benchmarks.features docs/fedepc/features.json

50 devices with 200 samples each (digits: what there is, 27). For each data set and seed a public share of 5 % is taken
away first, and an extractor is pre-trained on it or left as it was drawn. Then the rest is dealt by each partition.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_rand_score

from benchmarks.markdown import grid
from coterie.clustering.divergence import calibrated, modified_divergence
from coterie.clustering.isomorphic import Aidc, cluster
from coterie.data import deal, load
from coterie.data.dataset import Dataset
from coterie.data.schemes import even_sizes, proportional_sizes
from coterie.data.tasks import Task, of_clients
from coterie.protocol.effects import Fit
from coterie.protocol.randomness import rng
from coterie.protocols.sparsity import described, pretraining, split
from coterie.record.provenance import write_record
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.sparsity import Extractor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

DEVICES, SAMPLES, PUBLIC, POOL = 50, 200, 0.05, 20_000
FEATURES: Mapping[str, tuple[str, ...]] = {
    "digits": ("mlp_small dense", "cnn dense", "cnn conv"),
    "mnist": ("mlp dense", "lenet dense", "lenet conv"),
    "fashion_mnist": ("mlp dense", "lenet dense", "lenet conv"),
    "cifar10": ("mlp dense", "lenet dense", "lenet conv"),
}
"""Of each data set the models and layers (``training/sparsity.py: WORDS``)."""
EXTRACTORS: Mapping[str, Callable[[Fit], Fit] | None] = {
    "pretrained": lambda fit: fit,
    "random": None,
    "pretrained, 600 steps": lambda fit: replace(fit, epochs=4 * fit.epochs),
    "pretrained, momentum .9": lambda fit: replace(fit, solver=replace(fit.solver, momentum=0.9)),
}
"""What is made of the usual pre-training. The first two are the study's."""
SETS = ("sets:2", "sets:2:uneven", "sets:5", "sets:5:uneven", "sets:10", "sets:10:uneven")
PLANTED = ("iid", *SETS, "pairs", "shares:70")
TASKS = ("rotate:4", "permute:4", "swap:4")
SKEWS = tuple(f"{kind}:{amount}" for kind in ("hsu", "dirichlet") for amount in ("1.0", "0.5", "0.1", "0.05"))
READINGS: Mapping[str, Aidc] = {
    "aidc": Aidc(),
    "floors 20": Aidc(floors_per_scale=20),
    "floors 5": Aidc(floors_per_scale=5),
    "literal": Aidc(literal=True),
    "reference": Aidc(reference=True),
}


@dataclass(frozen=True, eq=False)
class Fleet:
    """Devices: each one's samples by number, its labels' shares (devices, classes), its task, and its group, if any."""

    devices: tuple[Ints, ...]
    shares: Doubles
    tasks: tuple[Task, ...]
    groups: Ints | None = None


@dataclass(frozen=True, eq=False)
class Ground:
    """Data to deal, and public samples that are taken away from them beforehand."""

    private: Dataset
    public: Dataset


def ground(name: str, seed: int, data_dir: str | None = None) -> Ground:
    """A data set cut in two by lot. Of the private part, a pool of 20,000 samples is kept at most."""
    whole = load(name, data_dir)
    order = rng(seed, "study", "public").permutation(len(whole.y_train))
    cut = round(PUBLIC * len(order))
    public, private = order[:cut], order[cut : cut + POOL]
    parts = [replace(whole, x_train=whole.x_train[rows], y_train=whole.y_train[rows]) for rows in (private, public)]
    return Ground(*parts)


def fleet(spec: str, data: Dataset, seed: int, devices: int = DEVICES, samples: int = SAMPLES) -> Fleet:
    """Devices by a partition of the package or by ``sets:K[:uneven]``, ``pairs`` or ``shares:P``.

    samples: of a device, at most.
    """
    draw = rng(seed, "study", f"deal {spec}")
    groups: Ints | None
    if spec.startswith("sets:"):
        parts, groups, tasks = *_sets(spec, data.y_train, devices, draw), (Task(data),) * devices
    elif spec == "pairs" or spec.startswith("shares:"):
        mixtures, groups = mixed(spec, data.classes, devices, draw)
        parts, tasks = _dealt(mixtures, data.y_train, samples, draw), (Task(data),) * devices
    else:
        dealt, kinds = deal(spec, data, devices, seed)
        parts, tasks = dealt.train, of_clients(dealt, kinds)
        groups = np.zeros(devices, np.int64) if spec == "iid" else dealt.groups
    own = tuple(draw.permutation(part)[:samples] for part in parts)
    labels = [task.labels(part) for task, part in zip(tasks, own, strict=True)]
    shares = np.stack([np.bincount(y, minlength=data.classes) / len(y) for y in labels])
    return Fleet(own, shares, tasks, groups)


def _sets(spec: str, y: Ints, devices: int, draw: np.random.Generator) -> tuple[tuple[Ints, ...], Ints]:
    """K disjoint sets of classes, each dealt evenly to its group of devices.

    The largest of uneven groups has three times the devices of the smallest.
    """
    _, number, *uneven = spec.split(":")
    k = int(number)
    weights = np.linspace(100, 300, k).astype(np.int64)
    members = proportional_sizes(devices, weights) if uneven else even_sizes(devices, k, draw)
    classes = np.array_split(draw.permutation(int(y.max()) + 1), k)
    parts = []
    for own, many in zip(classes, members, strict=True):
        parts += np.array_split(draw.permutation(np.flatnonzero(np.isin(y, own))), many)
    return tuple(parts), np.repeat(np.arange(k), members)


def mixed(spec: str, classes: int, devices: int, draw: np.random.Generator) -> tuple[Doubles, Ints]:
    """Shares of classes (devices, classes), and groups (devices,) of devices with the same shares.

    pairs: each device draws two classes, and has half of its samples of each.  shares:P: two groups of devices; P % of
    a device's samples are of one half of the classes, and the rest is of the other.
    """
    if spec == "pairs":
        shares = np.zeros((devices, classes))
        for own in shares:
            own[draw.choice(classes, 2, replace=False)] = 0.5
        return shares, np.asarray(np.unique(shares, axis=0, return_inverse=True)[1].reshape(-1), np.int64)
    first, groups = draw.permutation(classes)[: classes // 2], np.arange(devices) % 2
    share = float(spec.split(":")[1]) / 100
    two = np.zeros((2, classes))
    two[0], two[0, first] = (1 - share) / (classes - len(first)), share / len(first)
    two[1], two[1, first] = share / (classes - len(first)), (1 - share) / len(first)
    return two[groups], groups


def _dealt(mixtures: Doubles, y: Ints, samples: int, draw: np.random.Generator) -> tuple[Ints, ...]:
    """Devices with these shares of classes (devices, classes), as far as the samples go. No sample is dealt twice."""
    short = min(1.0, float((np.bincount(y) / np.maximum(mixtures.sum(axis=0) * samples, 1e-9)).min()))
    counts = np.floor(mixtures * samples * short + 1e-9).astype(np.int64)
    ends = np.cumsum(counts, axis=0)
    of_class = [draw.permutation(np.flatnonzero(y == c)) for c in range(mixtures.shape[1])]
    return tuple(
        np.concatenate([rows[end - n : end] for rows, end, n in zip(of_class, last, own, strict=True)])
        for last, own in zip(ends, counts, strict=True)
    )


def extractor_weights(data: Ground, model: Model, kind: str, seed: int) -> Floats:
    """(d,) of a model that is pre-trained on the public samples, or random. kind: one of ``EXTRACTORS``."""
    weights = model.initial(seed)
    if (changed := EXTRACTORS[kind]) is None:
        return weights
    x, y = torch.from_numpy(data.public.inputs()), torch.from_numpy(data.public.y_train.copy())
    fit = changed(pretraining(weights, len(y), seed))
    return fit_many(model, [Job(fit.weights, fit.solver, fit.epochs, fit.seed, x, y)])[0].weights


def describe_all(vectors: Sequence[Floats], seed: int) -> tuple[Doubles, Doubles]:
    """Sparsity vectors (devices, C) and noise floors (devices,) from those of each device's samples."""
    found = [described(split(one, seed + i)) for i, one in enumerate(vectors)]
    return np.stack([one.vector for one in found]), np.array([one.floor for one in found])


def measured(vectors: Doubles, floors: Doubles, devices: Fleet) -> dict[str, Any]:
    """What AIDC makes of them: clusters and adjusted Rand index, and how divergences follow the labels."""
    names = [f"device/{i}" for i in range(len(vectors))]
    row: dict[str, Any] = {}
    found = {reading: cluster(names, vectors, floors, settings)[0] for reading, settings in READINGS.items()}
    for reading, made in found.items():
        row[reading] = None if devices.groups is None else adjusted_rand_score(devices.groups, made.labels)
        row[f"{reading} clusters"] = len(made.members())
    d, _ = calibrated(modified_divergence(vectors), floors, found["aidc"].scale)
    pairs = np.triu_indices(len(d), 1)
    distance = np.abs(devices.shares[:, None] - devices.shares).sum(axis=2)[pairs] / 2
    row["spearman"] = float(spearmanr(d[pairs], distance)[0]) if np.ptp(distance) > 0 and np.ptp(d) > 0 else None
    if devices.groups is not None:
        same = (devices.groups[:, None] == devices.groups)[pairs]
        row["within"] = float(d[pairs][same].mean())
        row["between"] = float(d[pairs][~same].mean()) if not same.all() else None
    return row


def cells(
    data: Sequence[str],
    partitions: Sequence[str],
    extractors: Sequence[str],
    features: Sequence[str],
    seed: int,
    data_dir: str | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """``data/features/extractor/partition`` and what was measured there. features: empty for those of ``FEATURES``."""
    for name in data:
        base = ground(name, seed, data_dir)
        fleets = {spec: fleet(spec, base.private, seed) for spec in partitions}
        x = base.private.inputs()
        trained: dict[tuple[str, str], Floats] = {}
        for of in features or FEATURES[name]:
            model_name, layer = of.split()
            model = build(model_name, base.private.input_shape, base.private.classes)
            for kind in extractors:
                if (model.name, kind) not in trained:
                    trained[model.name, kind] = extractor_weights(base, model, kind, seed)
                extract = Extractor(model, trained[model.name, kind], layer)
                all_vectors = extract(x)
                for spec, one in fleets.items():
                    own = [
                        all_vectors[part] if task.change is None else extract(task.inputs(part))
                        for task, part in zip(one.tasks, one.devices, strict=True)
                    ]
                    yield f"{name}/{of}/{kind}/{spec}", measured(*describe_all(own, seed), one)


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(content: Mapping[str, Any]) -> str:
    """The tables of docs/features.md, as Markdown."""
    found: Mapping[str, Mapping[str, list[Any]]] = content["cells"]
    rows = list(dict.fromkeys(name.rpartition("/")[0] for name in found))

    def table(columns: Sequence[str], cell: Any) -> str:
        head = ["data", "features", "extractor", *columns]
        return grid(head, [[*row.split("/"), *(cell(found[f"{row}/{column}"]) for column in columns)] for row in rows])

    def part(title: str, specs: Sequence[str], cell: Any) -> list[str]:
        known = [spec for spec in specs if f"{rows[0]}/{spec}" in found]
        return [title, "", table(known, cell)] if known else []

    return "\n".join(
        [
            *part(
                "Adjusted Rand index, mean (least); iid: clusters", (*PLANTED, *TASKS), partial(_index, reading="aidc")
            ),
            *part("The same with floors_per_scale=20", (*PLANTED, *TASKS), partial(_index, reading="floors 20")),
            *part("The same with floors_per_scale=5", (*PLANTED, *TASKS), partial(_index, reading="floors 5")),
            *part("The same in reference mode", PLANTED, partial(_index, reading="reference")),
            *part("The same in literal mode", PLANTED, partial(_index, reading="literal")),
            *part("Clusters; Spearman correlation of divergence and label distance", SKEWS, _skew),
        ]
    )


def _index(cell: Mapping[str, list[Any]], reading: str) -> str:
    if all(between is None for between in cell["between"]):
        counts = cell[f"{reading} clusters"]
        return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    mean, least = (round(float(value), 2) + 0.0 for value in (np.mean(cell[reading]), min(cell[reading])))
    return f"{mean:.2f} ({least:.2f})"  # no minus zero


def _skew(cell: Mapping[str, list[Any]]) -> str:
    known = [value for value in cell["spearman"] if value is not None]
    counts = cell["aidc clusters"]
    many = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{many}; {np.mean(known):.2f}" if known else many


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the tables; or show those of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the tables of the file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", action="append", choices=FEATURES)
    parser.add_argument("--features", action="append", help="a model and a layer, for example 'cnn dense'")
    parser.add_argument("--partition", action="append", choices=(*PLANTED, *TASKS, *SKEWS))
    parser.add_argument("--extractor", action="append", choices=EXTRACTORS)
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if not given.show:
        outcomes: dict[str, dict[str, list[Any]]] = {}
        for seed in range(given.seeds):
            data, partitions = given.data or list(FEATURES), given.partition or (*PLANTED, *TASKS, *SKEWS)
            extractors = given.extractor or list(EXTRACTORS)[:2]
            for name, row in cells(data, partitions, extractors, given.features or (), seed, given.data_dir):
                for key, value in row.items():
                    rounded = round(value, 4) if isinstance(value, float) else value
                    outcomes.setdefault(name, {}).setdefault(key, []).append(rounded)
                sys.stderr.write(f"seed {seed}  {name}  ARI {row['aidc']}  clusters {row['aidc clusters']}\n")
        options = [f"--seeds={given.seeds}"] if given.seeds != 5 else []
        for option in ("data", "features", "partition", "extractor"):
            options += [f"--{option}={value}" for value in getattr(given, option) or ()]
        command = shlex.join(["python", "-m", "benchmarks.features", given.out.as_posix(), *options])
        content = {"devices": DEVICES, "samples": SAMPLES, "seeds": given.seeds, "cells": outcomes}
        write_record(given.out, command, content, indent=None)
    sys.stdout.write(tables(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
