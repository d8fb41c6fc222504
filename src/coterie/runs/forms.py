"""What a client can make of its model, on three mixes of test labels.

Forms: the model as it is; ``fine_tuned_``; ``prior_``, with the guarded prior of its own labels and the mixture's label
counts; ``mixed_``, the last two mixed by the likelihood of held-out samples. Mixes: ``local``, own test samples;
``own_classes`` and ``all_classes``, as many with uniform labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.record.comparison import MIXES
from coterie.runs.evaluation import Doubles, Evaluator, Scores, Trained, alike, hits
from coterie.runs.metrics import METRICS
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.mixing import mixing_shares
from coterie.training.prior import LEAST_BATCH, Counts, Prior, bears_out

Told = Mapping[str, Counts | None]
"""By client, (classes,) label counts of its model's training data, as told by messages, or None."""

BALANCED = METRICS["classes"]["balanced_accuracy"]


def of_mix(own: ClientData, mix: str, seed: int, name: str) -> TensorSamples:
    """As many test samples of this mix as its own, with replacement within a label."""
    if mix == "local":
        return own.test_set.at(own.test)
    y, draw = own.test_set.y.numpy(), fl.rng(seed, name, f"test labels, {MIXES[mix]}")
    held = np.unique(own.y.numpy()) if mix == "own_classes" else np.unique(y)
    labels = draw.choice(np.intersect1d(held, y), len(own.test))
    return own.test_set.at(np.array([draw.choice(np.flatnonzero(y == label)) for label in labels], np.int64))


def scored_forms(
    observer: Evaluator,
    models: Mapping[str, fl.ClientModel],
    seed: int,
    kept: Mapping[str, fl.Vector] | None = None,
    tuned: Mapping[str, fl.Vector] | None = None,
    told: Told | None = None,
    briefly: bool = False,
) -> dict[str, Scores]:
    """By form, scores beside those of ``Evaluator.scores``; none beyond classes.

    ``prior_`` and ``mixed_`` also have the run's metrics, and ``prior_local_dropped`` and the like: whether the guard
    has left the prior out, NaN for a batch too small to be checked. Clients without a prior have NaN.

    kept: models after fine-tuning.  tuned: those with the lowest held-out loss.  seed: of drawn samples and the guard's
    permutations.  told: as for ``priors_of``.  briefly: only the run's metrics on own test samples.
    """
    if not offered(observer):
        return {}
    priors = priors_of(observer, models, told)
    found: dict[str, dict[str, Doubles]] = {}
    for i, (name, model) in enumerate(models.items()):
        own, likeliest = (None if of is None else of[name] for of in (kept, tuned))
        for key, value in _Alone(observer, name, seed, model, own, likeliest, priors.get(name)).scores(briefly):
            form, _, score = key.partition("/")
            found.setdefault(form, {}).setdefault(score, np.full(len(models), np.nan))[i] = value
    return {form: Scores(values) for form, values in found.items()}


def priors_of(
    observer: Evaluator,
    models: Mapping[str, fl.ClientModel],
    told: Told | None = None,
    trained: Mapping[str, Trained] | None = None,
) -> dict[str, Prior]:
    """Priors by client; none for mixtures of models, nor beyond classes.

    told: label counts of a model's training data. Without them, or if own samples speak against them (``bears_out``), a
    client has no prior. None: those of the clients that hold the same model.  trained: of these models
    (``Evaluator.trained``), if they are computed already.
    """
    if not offered(observer) or any(isinstance(model, fl.Mixture) for model in models.values()):
        return {}
    labels, found = observer.model.outputs or 0, {}
    own = {name: np.bincount(observer.data[name].y.numpy(), minlength=labels) for name in models}
    mixtures = _supplied(models, own) if told is None else told
    known = {name: mixture for name in models if (mixture := mixtures.get(name)) is not None}
    seen = observer.trained({name: models[name] for name in known}) if trained is None else trained
    for name, mixture in known.items():
        outputs, y, _ = seen[name]
        prior = Prior(own[name], mixture, np.bincount(outputs.argmax(axis=1), minlength=labels))
        if told is None or bears_out(outputs, y, prior.shift):
            found[name] = prior
    return found


def _supplied(models: Mapping[str, fl.ClientModel], own: Mapping[str, Counts]) -> dict[str, Counts]:
    names, every = list(models), list(models.values())
    return {
        names[i]: np.sum([own[names[j]] for j in same], axis=0, dtype=np.int64) for same in alike(every) for i in same
    }


def offered(observer: Evaluator) -> bool:
    """Whether models are classifiers by cross entropy."""
    return observer.model.is_classifier and observer.targets.task == "classes"


@dataclass(eq=False)
class _Alone:
    observer: Evaluator
    name: str
    seed: int
    model: fl.ClientModel
    kept: fl.Vector | None
    tuned: fl.Vector | None
    prior: Prior | None

    def scores(self, briefly: bool) -> Iterator[tuple[str, float]]:
        own = self.observer.data[self.name]
        metrics = [one for one in self.observer.metrics if one.name != "accuracy"]
        balanced = [] if briefly or any(one.name == BALANCED.name for one in metrics) else [BALANCED]
        for mix in ("local",) if briefly else MIXES:
            batch = of_mix(own, mix, self.seed, self.name)
            labels, outputs = batch.y.numpy(), self._outputs(batch)
            if (dropped := outputs.pop("dropped", None)) is not None:
                yield f"prior_/{mix}_dropped", float(dropped)
            for form, of in outputs.items():
                adjusted = form in ("prior_", "mixed_")
                if mix != "local" or adjusted:
                    yield f"{form}/{mix}_accuracy", hits(of, labels)
                if mix == "local":
                    probabilities = self.observer.targets.scores(of)
                    for metric in (*metrics, *balanced) if adjusted else balanced:
                        yield f"{form}/{mix}_{metric.name}", metric(labels, probabilities)

    def _outputs(self, batch: TensorSamples) -> dict[str, Any]:
        """(n, classes) by form, and whether the guard has ``dropped`` the prior, or NaN."""
        plain = self.observer.outputs(self.model, batch)
        found: dict[str, Any] = {"": plain}
        if self.kept is not None:
            found["fine_tuned_"] = self.observer.outputs(self.kept, batch)
        if self.prior is None:
            return found
        fits = self.prior.fits(plain.argmax(axis=1), fl.rng(self.seed, self.name, "guard of the prior"))
        found["prior_"] = plain + self.prior.shift if fits else plain
        if self.tuned is not None:
            found["mixed_"] = self._mixed(batch) if fits else plain
        found["dropped"] = not fits if len(batch.y) >= LEAST_BATCH else np.nan
        return found

    @cached_property
    def _shares(self) -> Doubles:
        own = self.observer.data[self.name]
        held = own.held_out or TensorSamples(own.x[:0], own.y[:0])
        return mixing_shares(self._log_p(held)[:, np.arange(len(held.y)), held.y.numpy()])

    def _log_p(self, samples: TensorSamples) -> Doubles:
        """(2, n, classes) by the model with the prior, and by the tuned one."""
        from scipy.special import log_softmax  # slow to import

        assert self.tuned is not None
        assert self.prior is not None
        both = np.stack([self.observer.outputs(of, samples) for of in (self.model, self.tuned)]).astype(np.float64)
        both[0] += self.prior.shift
        return np.asarray(log_softmax(both, axis=-1))

    def _mixed(self, batch: TensorSamples) -> Doubles:
        with np.errstate(divide="ignore"):  # a share of 0
            return np.asarray(np.logaddexp.reduce(np.log(self._shares)[:, None, None] + self._log_p(batch), axis=0))
