"""Whether training together helps a client, by a paired bootstrap of its own predictions (``predictions.npz``,
private).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import coterie.method as fl
from coterie.data.formats import Arrays, read_npz
from coterie.data.targets import Targets
from coterie.protocol.arrays import Doubles
from coterie.record.comparison import Benefit, Gain
from coterie.record.files import FILE_MODE, atomic_write
from coterie.runs.experiment import Experiment
from coterie.runs.metrics import METRICS, Metric

PREDICTIONS = "predictions.npz"
FORMS = ("", "fine_tuned_")
"""A client's model as it is, and fine-tuned by it."""
DRAWS = 1000
SLOW_DRAWS, MOST_VALUES = 200, 100_000
"""Of a metric without a fast form: draws, and values in all. Fewer than half judge nothing."""
_ACCURACY = METRICS["classes"]["accuracy"]
_BLOCK = 1 << 22  # counts that are in memory together


@dataclass(frozen=True, eq=False)
class Predicted:
    """A client's own test samples. rows: (n,), equal for equal samples.

    labels: (n,) or (n, k) as in the data.  scores: by form, (n, k) (``Targets.scores``).
    """

    rows: NDArray[np.int64]
    labels: NDArray[Any]
    scores: Mapping[str, Doubles]


def write(folder: Path, experiment: Experiment, models: Mapping[str, fl.ClientModel]) -> None:
    """``predictions.npz``, of tuned models as last scored. Raises RunError."""
    if experiment.model.outputs is None or not models:
        return
    owns, observer = [experiment.data[name] for name in models], experiment.observer
    rows_of = experiment.tasks[0].dataset.rows_test
    labels = [observer.targets.stored(own.test_set.y[own.test].numpy()) for own in owns]
    arrays: Arrays = {
        "clients": np.array(list(models), np.str_),
        "sizes": np.array([len(own.test) for own in owns]),
        "rows": np.concatenate([own.test if rows_of is None else rows_of[own.test] for own in owns]),
        "labels": np.concatenate(labels),
        "outputs": np.concatenate(observer.own_outputs(models)),
    }
    if observer.tuned_outputs is not None:
        arrays[f"{FORMS[1]}outputs"] = np.concatenate([observer.tuned_outputs[name] for name in models])
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # a bool is expected by its stub
    atomic_write(folder / PREDICTIONS, content.getvalue(), FILE_MODE)


def read(folder: Path, task: fl.TaskKind) -> dict[str, Predicted]:
    """Predictions by client; empty without the file. Raises UserError for a damaged one."""
    path = folder / PREDICTIONS
    if not path.is_file():
        return {}
    found = read_npz(path)
    forms = [form for form in FORMS if f"{form}outputs" in found]
    try:
        clients, sizes = found["clients"], found["sizes"]
        each = [found[key] for key in ("rows", "labels", *(f"{form}outputs" for form in forms))]
        _check(task, clients, sizes, *each)
        ends = np.cumsum(sizes)[:-1]
        of_forms = [Targets(task).scores(array) for array in each[2:]]
        rows, labels, *scores = (np.split(array, ends) for array in (*each[:2], *of_forms))
        return {
            str(name): Predicted(rows[i], labels[i], {form: of[i] for form, of in zip(forms, scores, strict=True)})
            for i, name in enumerate(clients)
        }
    except (KeyError, ValueError, TypeError) as error:
        raise fl.UserError(f"{path} holds no clients' test samples ({error!r}): run again") from None


def _check(task: fl.TaskKind, *arrays: NDArray[Any]) -> None:
    """Outputs of a diverged model are not finite."""
    clients, sizes, rows, labels, *outputs = arrays
    if clients.ndim != 1 or clients.dtype.kind != "U" or len(set(clients.tolist())) < len(clients):
        raise ValueError("clients are no different names")
    for name, array in (("sizes", sizes), ("rows", rows)):
        if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 0).any():
            raise ValueError(f"{name} are no whole numbers of at least 0")
    if len(sizes) != len(clients) or (sizes > len(rows)).any() or sizes.sum() != len(rows):
        raise ValueError("sizes are not those of the clients' test samples")
    if not outputs or any(one.ndim != 2 or one.dtype.kind != "f" or one.shape != outputs[0].shape for one in outputs):
        raise ValueError("outputs are no rows of numbers")
    width = outputs[0].shape[1]
    shape = (len(rows),) if task == "classes" else (len(rows), width)
    if labels.shape != shape or len(outputs[0]) != len(rows) or labels.dtype.kind not in "iuf":
        raise ValueError("labels, outputs and rows do not fit together")
    if task == "classes" and (
        labels.dtype.kind == "f" or (len(labels) and not 0 <= labels.min() <= labels.max() < width)
    ):
        raise ValueError(f"labels are no numbers of {width} classes")
    if not np.isfinite(labels).all():
        raise ValueError("labels are not finite")


Runs = Mapping[int, Mapping[str, Predicted]]
"""Of a method: by seed, every client's test samples."""


def benefits(metric: Metric, alone: Runs, others: Mapping[str, Runs], names: Mapping[str, str]) -> list[Benefit]:
    """Of each method and form, every client's gain over its model ``alone``.

    names: the clients' own, by party. A named client is the same with every seed; others count once for each.
    """
    seeds = list(alone)
    units = [(client, [seed]) for seed in seeds for client in alone[seed]]
    if names:
        units = [(client, seeds) for client in dict.fromkeys(client for client, _ in units)]
    values = 2 * len(FORMS) * len(others) * sum(len(own) for _, own in units)
    draws = DRAWS if metric.drawn else min(SLOW_DRAWS, MOST_VALUES // max(1, values))
    found = []
    for method, runs in others.items():
        of_both = [one for by_seed in (alone, runs) for of in by_seed.values() for one in of.values()]
        for form in (form for form in FORMS if all(form in one.scores for one in of_both)):
            gains = []
            for client, own in units:
                both = [seed for seed in own if client in alone[seed] and client in runs[seed]]
                pairs = [(alone[seed][client], runs[seed][client]) for seed in both]
                if pairs:
                    seed = None if names else both[0]
                    one = gain(metric, pairs, form, draws if 2 * draws >= SLOW_DRAWS else 0, client)
                    gains.append(replace(one, name=names.get(client), seed=seed))
            found.append(Benefit(method, form == FORMS[1], tuple(gains)))
    return found


def gain(metric: Metric, pairs: Sequence[tuple[Predicted, Predicted]], form: str, draws: int, client: str) -> Gain:
    """A client's metric alone and together, means over runs where it is defined, or its accuracy if it never is. pairs:
    of each run, both models on the same test samples.  draws: 0 for no interval.
    """
    sign = 1 if metric.higher else -1
    values = np.array([[metric(one.labels, one.scores[form]) for one in pair] for pair in pairs])
    known = values[~np.isnan(values).any(axis=1)]
    rows, first = np.unique(np.concatenate([one.rows for one, _ in pairs]), return_index=True)
    samples, labels = len(rows), np.concatenate([one.labels for one, _ in pairs])[first]
    if not len(known):
        if labels.ndim == 1 and len(np.unique(labels)) == 1 and metric is not _ACCURACY:
            return replace(gain(_ACCURACY, pairs, form, draws, client), instead="accuracy")
        return Gain(client=client, samples=samples)
    alone, together = known.mean(axis=0).tolist()
    one = Gain(client=client, samples=samples, alone=alone, together=together, gain=sign * (together - alone))
    gains = sign * drawn_differences(metric, pairs, form, draws, client)
    gains = gains[~np.isnan(gains)]
    counted = metric.counted(labels, pairs[0][0].scores[form].shape[1])
    if not len(gains) or counted < 2:
        return one
    tail = _tail(counted)
    low, high = np.quantile(gains, (tail, 1 - tail)).tolist()
    return replace(one, low=low, high=high, verdict="better" if low > 0 else "worse" if high < 0 else "undecided")


def _tail(samples: float) -> float:
    """The share of draws beyond each end of a 95 % interval; below .025 for few samples (``Metric.counted``).

    "Expanded percentile" (Hesterberg, The American Statistician 2015, 5.3).
    """
    from scipy.special import ndtr, stdtrit

    return float(ndtr(-((samples / (samples - 1)) ** 0.5) * stdtrit(samples - 1, 0.975)))


def drawn_differences(
    metric: Metric, pairs: Sequence[tuple[Predicted, Predicted]], form: str, draws: int, client: str
) -> Doubles:
    """(draws,) differences of the metric, together less alone; NaN where undefined.

    A draw takes test samples with replacement, the same ones in every run, and draws among runs that test the same
    samples, too.
    """
    rows, places = np.unique(np.concatenate([one.rows for one, _ in pairs]), return_inverse=True)
    parts = np.split(places, np.cumsum([len(one.rows) for one, _ in pairs])[:-1])
    alike: dict[bytes, list[int]] = {}
    for i, part in enumerate(parts):
        alike.setdefault(np.sort(part).tobytes(), []).append(i)
    draw, found = fl.rng(0, client, "bootstrap"), []
    for start in range(0, draws, block := max(1, _BLOCK // len(rows))):
        some = min(block, draws - start)
        counts = draw.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=some)
        weights = np.ones((some, len(pairs)))
        for same in alike.values():
            weights[:, same] = draw.multinomial(len(same), np.full(len(same), 1 / len(same)), size=some)
        of_runs = np.empty((some, len(pairs)))
        for i, ((one, other), part) in enumerate(zip(pairs, parts, strict=True)):
            ours, theirs = (metric.on_draws(of.labels, of.scores[form], counts[:, part]) for of in (other, one))
            of_runs[:, i] = ours - theirs
        weights[np.isnan(of_runs)] = 0
        with np.errstate(invalid="ignore"):
            found.append((weights * np.nan_to_num(of_runs)).sum(axis=1) / weights.sum(axis=1))
    return np.concatenate(found) if found else np.empty(0)
