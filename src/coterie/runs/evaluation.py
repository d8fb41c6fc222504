"""The observer scores the clients' models, without messages, bytes or views.

More than ``FEW_MODELS`` distinct models of one task are scored on the same sample of the test set, with a standard
error of at most ``STANDARD_ERROR``, and all on all of a client's own test samples. As many training samples count of
each client, at most ``TRAIN_SAMPLES`` of all, or ``LEAST_TRAINED`` of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.targets import Targets
from coterie.privacy.attacks.active.samples import TARGET, triggered
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.protocol.system import ClientModel, Mixture
from coterie.record.schema import SampleRecord
from coterie.runs.digests import array_digest
from coterie.runs.metrics import Metric, metrics_of
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.evaluate import judge_many, judge_outputs, outputs_of_many
from coterie.training.model import Model

FEW_MODELS = 10
STANDARD_ERROR = 0.01
TRAIN_SAMPLES, LEAST_TRAINED = 10_000, 100
_ENOUGH = round(0.25 / STANDARD_ERROR**2)  # samples of a set without end; an accuracy's variance is at most 1/4
_BATCH_BYTES = 64 << 20  # of the weights, samples and judgements that are in memory together

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """(clients,) float64 by name: ``global_accuracy``, ``local_loss``, ``local_auroc``, ...

    global: on the whole test set.  local: on samples of the client's own distribution. NaN where a metric is undefined
    (AUROC of one class), which counts in no mean. A diverged model has the worst value.  sampled: stands for the whole
    test set, if any.
    """

    values: Mapping[str, Doubles]
    sampled: SampleRecord | None = None

    def beside(self, **others: Scores | None) -> Scores:
        """With the same clients' other scores, by these prefixes."""
        more = {f"{word}{name}": values for word, one in others.items() if one for name, values in one.values.items()}
        return replace(self, values={**self.values, **more})

    def means(self) -> dict[str, float]:
        """Over clients with a number. A diverged model's non-finite loss counts."""
        return {name: float(values.mean()) if len(values) else float("nan") for name, values in self._known().items()}

    def _known(self) -> dict[str, Doubles]:
        every = self.values.items()
        return {name: values if name.endswith("_loss") else values[~np.isnan(values)] for name, values in every}

    def line(self, prefix: str = "") -> dict[str, Any]:
        """For a round's line: accuracies and losses by name, other means in ``metrics``."""
        means = {f"{prefix}{name}": mean for name, mean in self.means().items()}
        plain = {f"{prefix}{part}_{name}" for part in ("global", "local") for name in ("accuracy", "loss")}
        found = {name: mean for name, mean in means.items() if name in plain}
        others = {name: mean for name, mean in means.items() if name not in plain}
        line: dict[str, Any] = {**found, "metrics": others} if others else {**found}
        return line | ({} if self.sampled is None else {f"{prefix}test_sample": structs.asdict(self.sampled)})

    def bands(self) -> dict[str, list[float]]:
        """Minimum, quartiles and maximum over clients with a number."""
        shares = (0, 0.25, 0.5, 0.75, 1)
        return {name: np.quantile(values, shares).tolist() for name, values in self._known().items() if len(values)}


class Trained(NamedTuple):
    """outputs: (n, classes) float32.  y: (n,) int64.  of: how many samples there are."""

    outputs: NDArray[np.float32]
    y: NDArray[np.int64]
    of: int


Some = slice | NDArray[np.int64]
Measured = Callable[[Some], dict[str, float]]
Outputs = NDArray[np.float32]


class Evaluator:
    """data: of every client, scored on its own task's test set.  device: that computes outputs, in float32, since fewer
    bits would tie logits.  metrics: beside the loss, by default the task's (``runs.metrics.metrics_of``).  seed: of the
    sample for many models; None scores all on everything.
    """

    def __init__(
        self,
        model: Model,
        data: Mapping[str, ClientData],
        device: str = "cpu",
        *,
        targets: Targets | None = None,
        metrics: Sequence[Metric] = (),
        seed: int | None = None,
    ) -> None:
        self.model, self.data, self.device, self.seed = model, data, device, seed
        self.targets = targets or Targets()
        self.metrics = tuple(metrics) or metrics_of((), self.targets.task)
        measures = (*(metric.name for metric in self.metrics), "loss")
        self.names = [f"{part}_{name}" for name in measures for part in ("global", "local")]
        self._samples: dict[TensorSamples, TensorSamples] = {}  # by test set
        self._scored: dict[tuple[bytes, TensorSamples], Outputs] = {}  # of the last few models on whole test sets
        self._counts_hits = model.is_classifier and [metric.name for metric in self.metrics] == ["accuracy"]

    def scores(self, models: Mapping[str, ClientModel]) -> Scores:
        owns, every = [self.data[name] for name in models], list(models.values())
        rows = {name: np.empty(len(owns)) for name in self.names}
        sampled: SampleRecord | None = None
        self._scored.clear()

        def note(part: str, i: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                rows[f"{part}_{name}"][i] = value

        for test_set, here in _by_test_set(owns).items():
            some = [every[i] for i in here]
            looked_at, of = self._looked_at(test_set, some)
            sampled = of or sampled
            for same, outputs, measure in self._measured(looked_at, some):
                if of is None and outputs is not None:
                    self._remember(some[same[0]], test_set, outputs)
                whole = measure(slice(None))
                for i in (here[j] for j in same):
                    note("global", i, whole)
                    if of is None:
                        note("local", i, measure(owns[i].test))
            if of is not None:
                tests = [owns[i].test for i in here]
                for j, values in self._on_own(some, partial(_own_tests, test_set, tests)):
                    note("local", here[j], values)
        return Scores(rows, sampled)

    def _looked_at(
        self, test_set: TensorSamples, models: Sequence[ClientModel]
    ) -> tuple[TensorSamples, SampleRecord | None]:
        many = len(test_set.y)
        if self.seed is None or many <= _ENOUGH or len(alike(models)) <= FEW_MODELS:
            return test_set, None
        if test_set not in self._samples:
            some = -(-many * _ENOUGH // (many + _ENOUGH - 1))  # of a set with an end, fewer are enough
            chosen = np.sort(rng(self.seed, "observer", "test sample").choice(many, some, replace=False))
            self._samples[test_set] = test_set.at(chosen)
        found = self._samples[test_set]
        return found, SampleRecord(len(found.y), many, math.sqrt(_variance(len(found.y), many)))

    def backdoor_success(self, models: Mapping[str, ClientModel], value: float) -> float:
        """The share of other classes' test samples that a trigger of this value turns into class ``TARGET``; mean over
        the clients, each on its own task's.
        """
        owns, every = [self.data[name] for name in models], list(models.values())
        taken = 0.0
        for test_set, here in _by_test_set(owns).items():
            some = [every[i] for i in here]
            looked_at, _ = self._looked_at(test_set, some)
            x = triggered(looked_at.x[looked_at.y != TARGET], value)
            wanted = TensorSamples(x, torch.full((len(x),), TARGET, dtype=looked_at.y.dtype))
            for same, _, measure in self._measured(wanted, some):
                taken += len(same) * measure(slice(None))["accuracy"]
        return taken / len(models) if models else float("nan")

    def trained(self, models: Mapping[str, ClientModel]) -> dict[str, Trained]:
        """Of each model on its client's training samples, or some, drawn by the seed. Empty beyond classes."""
        if self.targets.task != "classes":
            return {}
        names, most = list(models), max(LEAST_TRAINED, TRAIN_SAMPLES // max(1, len(models)))
        found = {}
        for same in alike(list(models.values())):
            for together, places in _together(same, lambda i: self._trained_on(names[i], most)):
                outputs, labels = self.outputs(models[names[same[0]]], together), together.y.numpy()
                for i, place in places.items():
                    found[names[i]] = Trained(outputs[place], labels[place], len(self.data[names[i]].y))
        return {name: found[name] for name in names}

    def _trained_on(self, name: str, most: int) -> TensorSamples:
        own = self.data[name]
        found, many = TensorSamples(own.x, own.y), len(own.y)
        if self.seed is None or many <= most:
            return found
        return found.at(np.sort(rng(self.seed, name, "observed samples").choice(many, most, replace=False)))

    def held_out_loss(self, models: Mapping[str, ClientModel]) -> float:
        """On held-out samples, mean over the clients."""
        held = [(model, own) for name, model in models.items() if (own := self.data[name].held_out) and len(own.y)]
        found = self._on_own([model for model, _ in held], lambda i: held[i][1])
        return float(np.mean([values["loss"] for _, values in found]))

    def own_outputs(self, models: Mapping[str, ClientModel]) -> list[NDArray[Any]]:
        """(n, outputs) on each client's own test samples, for regression in stored units. Each once for a model."""
        owns, every = [self.data[name] for name in models], list(models.values())
        found: dict[int, NDArray[Any]] = {}
        for same in alike(every):
            for test_set, here in _by_test_set([owns[i] for i in same]).items():
                tests = [owns[same[j]].test for j in here]
                rows, places = np.unique(np.concatenate(tests), return_inverse=True)
                outputs = self.targets.stored(self._outputs_at(every[same[0]], test_set, rows))
                parts = np.split(outputs[places], np.cumsum([len(test) for test in tests])[:-1])
                found |= {same[j]: part for j, part in zip(here, parts, strict=True)}
        return [found[i] for i in range(len(every))]

    def _remember(self, model: ClientModel, test_set: TensorSamples, outputs: Outputs) -> None:
        held = sum(one.nbytes for one in self._scored.values())
        if len(self._scored) < FEW_MODELS and held + outputs.nbytes <= _BATCH_BYTES and not isinstance(model, Mixture):
            self._scored[array_digest(model), test_set] = outputs

    def _outputs_at(self, model: ClientModel, test_set: TensorSamples, rows: NDArray[np.int64]) -> Outputs:
        scored = None if isinstance(model, Mixture) else self._scored.get((array_digest(model), test_set))
        return self.outputs(model, test_set.at(rows)) if scored is None else scored[rows]

    def outputs(self, model: ClientModel, samples: TensorSamples) -> Outputs:
        """(n, outputs); of a mixture log probabilities. Raises UserError for other outputs."""
        ((_, found),) = self._outputs(samples, [model])
        return found

    def _on_own(
        self, models: Sequence[ClientModel], samples: Callable[[int], TensorSamples]
    ) -> Iterator[tuple[int, dict[str, float]]]:
        for same in alike(models):
            for together, places in _together(same, samples):
                ((_, _, measure),) = self._measured(together, [models[same[0]]])
                for i, place in places.items():
                    yield i, measure(place)

    def _measured(
        self, samples: TensorSamples, models: Sequence[ClientModel]
    ) -> Iterator[tuple[list[int], Outputs | None, Measured]]:
        """Which models are equal, with their outputs if these were computed as a whole."""
        if not self._counts_hits:
            labels = self.targets.stored(samples.y.numpy())
            for same, outputs in self._outputs(samples, models):
                measure = partial(self._by_outputs, samples.y, labels, outputs, self.targets.scores(outputs))
                yield same, outputs, measure
            return
        yield from self._judged(samples, models)

    def _by_outputs(
        self, y: Tensor, labels: NDArray[Any], outputs: NDArray[np.float32], scores: Doubles, some: Some
    ) -> dict[str, float]:
        found = {metric.name: metric(labels[some], scores[some]) for metric in self.metrics}
        with torch.inference_mode():
            return {**found, "loss": float(self.model.mean_loss(torch.from_numpy(outputs)[some], y[some]))}

    def _outputs(
        self, samples: TensorSamples, models: Sequence[ClientModel]
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        if self.model.outputs is None:
            raise UserError(f"{self.model.name} gives no vector for each sample, so metrics have nothing to measure")
        for same in _sharing({i: _weights(model) for i, model in enumerate(models)}):
            of = models[same[0]]
            found = outputs_of_many(self.model, np.atleast_2d(_weights(of)), samples.x, samples.y, device=self.device)
            if not isinstance(of, Mixture) or len(of.models) == 1:
                yield same, found[0]
                continue
            from scipy.special import log_softmax  # slow to import, and few systems mix models

            log_p = log_softmax(found.astype(np.float64), axis=-1)
            mixtures = {i: one.weights for i in same if isinstance(one := models[i], Mixture)}
            for here in _sharing(mixtures):
                with np.errstate(divide="ignore"):  # a share of 0
                    shares = np.log(mixtures[here[0]])[:, None, None]
                yield here, np.logaddexp.reduce(shares + log_p, axis=0).astype(np.float32)

    def _judged(
        self, samples: TensorSamples, models: Sequence[ClientModel]
    ) -> Iterator[tuple[list[int], Outputs | None, Measured]]:
        singles: dict[int, Vector] = {}
        mixtures: dict[int, Mixture] = {}
        for i, model in enumerate(models):
            if isinstance(model, Mixture) and len(model.models) > 1:
                mixtures[i] = model
            else:
                singles[i] = model.models[0] if isinstance(model, Mixture) else model
        for some in self._batches(_sharing(singles), samples):
            weights = np.stack([singles[same[0]] for same in some])
            found = outputs_of_many(self.model, weights, samples.x, samples.y, device=self.device)
            judged = judge_outputs(self.model, found, samples.y)
            for same, outputs, *of_one in zip(some, found, *judged, strict=True):
                yield same, outputs, partial(_by_hits, *of_one)
        for group in _sharing({i: mixture.models for i, mixture in mixtures.items()}):
            for some in self._batches(_sharing({i: mixtures[i].weights for i in group}), samples):
                shares = np.stack([mixtures[same[0]].weights for same in some])
                of_group = mixtures[group[0]].models
                judged = judge_many(self.model, of_group, samples.x, samples.y, shares=shares, device=self.device)
                for same, *of_one in zip(some, *judged, strict=True):
                    yield same, None, partial(_by_hits, *of_one)

    def _batches(self, found: list[list[int]], samples: TensorSamples) -> Iterator[list[list[int]]]:
        numbers = 2 * (self.model.outputs or 0)  # outputs, and their log probabilities
        most = max(1, _BATCH_BYTES // (4 * self.model.spec.size + (4 * numbers + 5) * len(samples.y)))
        for start in range(0, len(found), most):
            yield found[start : start + most]


def _by_hits(losses: NDArray[np.float32], right: NDArray[np.bool_], some: Some) -> dict[str, float]:
    right = right[some] & np.isfinite(losses[some])  # a model that has blown up is never right
    return {"accuracy": float(right.mean()), "loss": float(losses[some].mean(dtype=np.float64))}


def train_accuracies(trained: Mapping[str, Trained]) -> Scores | None:
    """``train_accuracy`` of clients, with the sample it is of. None without any."""
    if not trained:
        return None
    accuracies = np.array([hits(one.outputs, one.y) for one in trained.values()])
    seen = [(len(one.y), one.of) for one in trained.values()]
    samples, of = map(sum, zip(*seen, strict=True))
    error = math.sqrt(sum(_variance(*one) for one in seen)) / len(seen)  # of the mean over the clients
    return Scores({"train_accuracy": accuracies}, None if samples == of else SampleRecord(samples, of, error))


def hits(outputs: NDArray[Any], y: NDArray[np.int64]) -> float:
    """The accuracy of outputs (n, classes) for labels (n,), where numbers that are not finite are wrong; NaN without
    samples.
    """
    right = (outputs.argmax(axis=1) == y) & np.isfinite(outputs).all(axis=1)
    return float(right.mean()) if len(y) else float("nan")


def _weights(model: ClientModel) -> NDArray[np.float32]:
    return model.models if isinstance(model, Mixture) else model


def _sharing(arrays: Mapping[int, NDArray[Any]]) -> list[list[int]]:
    by_id: dict[int, list[int]] = {}
    for i, array in arrays.items():
        by_id.setdefault(id(array), []).append(i)
    if len(by_id) == 1:
        return [*by_id.values()]
    by_bytes: dict[bytes, list[int]] = {}
    for keys in by_id.values():
        by_bytes.setdefault(array_digest(arrays[keys[0]]), []).extend(keys)
    return [sorted(keys) for keys in by_bytes.values()]


def _variance(samples: int, of: int) -> float:
    return 0.25 / max(1, samples) * (of - samples) / max(1, of - 1)


def alike(models: Sequence[ClientModel]) -> list[list[int]]:
    found = []
    for same in _sharing({i: _weights(model) for i, model in enumerate(models)}):
        mixtures = {i: one.weights for i in same if isinstance(one := models[i], Mixture)}
        found += [group for group in ([i for i in same if i not in mixtures], *_sharing(mixtures)) if group]
    return found


def _own_tests(test_set: TensorSamples, tests: Sequence[NDArray[np.int64]], i: int) -> TensorSamples:
    return test_set.at(tests[i])


def _by_test_set(owns: Sequence[ClientData]) -> dict[TensorSamples, list[int]]:
    found: dict[TensorSamples, list[int]] = {}
    for i, own in enumerate(owns):
        found.setdefault(own.test_set, []).append(i)
    return found


def _together(
    indices: Sequence[int], samples: Callable[[int], TensorSamples]
) -> Iterator[tuple[TensorSamples, dict[int, slice]]]:
    parts: dict[int, TensorSamples] = {}
    held = 0
    for i in indices:
        own = parts[i] = samples(i)
        held += own.x.nbytes
        if held >= _BATCH_BYTES or i == indices[-1]:
            ends = np.cumsum([0, *(len(part.y) for part in parts.values())]).tolist()
            x, y = (torch.cat([getattr(part, key) for part in parts.values()]) for key in ("x", "y"))
            yield TensorSamples(x, y), dict(zip(parts, map(slice, ends, ends[1:]), strict=False))
            parts, held = {}, 0
