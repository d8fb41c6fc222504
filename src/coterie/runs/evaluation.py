"""The observer beside the protocol scores the clients' models. It adds no messages, no bytes and no views.

It also tells which rounds moved no model, bit for bit. Such a round is *skipped*, whatever its hub says of it. It may
be that no client took part, that every update was late or refused, or that all clients kept their models. If all rounds
of a run are skipped, it ends with the models of its start, and has no result.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.system import ClientModel, Federation, Mixture, System
from coterie.runs.interpreter import ClientData, Samples
from coterie.training.evaluate import judge_many
from coterie.training.model import Model

_BATCH_BYTES = 64 << 20  # of the weights and judgements of the models that are judged together
_SHOWN = 3  # reasons in a line

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """One number a client, (clients,) float64 each: on the whole test set, and on samples of its own distribution."""

    global_accuracy: Doubles
    local_accuracy: Doubles
    global_loss: Doubles
    local_loss: Doubles

    def means(self) -> dict[str, float]:
        """Means over the clients."""
        return {name: float(values.mean()) for name, values in vars(self).items()}

    def bands(self) -> dict[str, list[float]]:
        """Smallest, lower quartile, median, upper quartile and largest over the clients."""
        shares = (0, 0.25, 0.5, 0.75, 1)
        return {name: np.quantile(values, shares).tolist() for name, values in vars(self).items()}


class Observer:
    """Scores models on test sets. data: of every client; each is scored on the test set of its own task.

    precision: of the models' products, that of the run; losses and probabilities are float32 or better.
    """

    def __init__(
        self, model: Model, data: Mapping[str, ClientData], *, precision: str = "fp32", accelerator: str = "cpu"
    ) -> None:
        if not model.is_classifier:
            raise UserError(
                f"{model.name} is no classifier (it has a loss of its own), so accuracies cannot be observed"
            )
        self.model, self.data = model, data
        self.precision, self.accelerator = precision, accelerator

    def scores(self, models: Mapping[str, ClientModel]) -> Scores:
        """Scores of these clients' models, in their order. A model that clients of one task share is scored once."""
        owns, every = [self.data[name] for name in models], list(models.values())
        rows = np.empty((4, len(owns)))
        by_test_set: dict[Samples, list[int]] = {}
        for i, own in enumerate(owns):
            by_test_set.setdefault(own.test_set, []).append(i)
        for test_set, here in by_test_set.items():
            for same, losses, right in self._judged(test_set, [every[i] for i in here]):
                for i in (here[j] for j in same):
                    mine = owns[i].test
                    of_losses = (float(some.mean(dtype=np.float64)) for some in (losses, losses[mine]))
                    rows[:, i] = right.mean(), right[mine].mean(), *of_losses
        return Scores(*rows)

    def train_accuracies(self, models: Mapping[str, ClientModel]) -> Doubles:
        """Accuracy of each of these clients' models on its own training data, (clients,)."""
        found = np.empty(len(models))
        for i, (name, model) in enumerate(models.items()):
            own = Samples(self.data[name].x, self.data[name].y)
            ((_, _, right),) = self._judged(own, [model])
            found[i] = right.mean()
        return found

    def _judged(
        self, samples: Samples, models: Sequence[ClientModel]
    ) -> Iterator[tuple[list[int], NDArray[np.float32], NDArray[np.bool_]]]:
        """Every distinct model: the indices of the clients that have it, its losses and right answers, (n,) each."""
        judge = partial(
            judge_many, self.model, x=samples.x, y=samples.y, precision=self.precision, device=self.accelerator
        )
        singles: dict[int, Vector] = {}
        mixtures: dict[int, Mixture] = {}
        for i, model in enumerate(models):
            if isinstance(model, Mixture) and len(model.models) > 1:
                mixtures[i] = model
            else:
                singles[i] = model.models[0] if isinstance(model, Mixture) else model
        for some in self._batches(_sharing(singles), samples):
            judged = judge(np.stack([singles[same[0]] for same in some]))
            yield from zip(some, judged.losses, judged.right, strict=True)
        for group in _sharing({i: mixture.models for i, mixture in mixtures.items()}):
            for some in self._batches(_sharing({i: mixtures[i].weights for i in group}), samples):
                shares = np.stack([mixtures[same[0]].weights for same in some])
                judged = judge(mixtures[group[0]].models, shares=shares)
                yield from zip(some, judged.losses, judged.right, strict=True)

    def _batches(self, found: list[list[int]], samples: Samples) -> Iterator[list[list[int]]]:
        """Batches whose weights and results stay within ``_BATCH_BYTES``."""
        most = max(1, _BATCH_BYTES // (4 * self.model.spec.size + 5 * len(samples.y)))
        for start in range(0, len(found), most):
            yield found[start : start + most]


def models_digest(models: Mapping[str, ClientModel]) -> str:
    """Hexadecimal SHA-256 of all clients' models in order: equal for two runs whose models are equal bit for bit."""
    of = ((one.models, one.weights) if isinstance(one, Mixture) else (one,) for one in models.values())
    return arrays_digest(chain.from_iterable(of))


def arrays_digest(arrays: Iterable[NDArray[Any]]) -> str:
    """Hexadecimal SHA-256 of arrays in their order; one that occurs many times is read once."""
    arrays = list(arrays)
    digests = {id(array): _digest(array) for array in arrays}
    return hashlib.sha256(b"".join(digests[id(array)] for array in arrays)).hexdigest()


def _digest(array: NDArray[Any]) -> bytes:
    data: Any = np.ascontiguousarray(array)
    return hashlib.sha256(data).digest()


def _sharing(arrays: Mapping[int, NDArray[Any]]) -> list[list[int]]:
    """Groups of keys with equal arrays. The same object is recognised at once, and equal arrays by their bytes."""
    by_id: dict[int, list[int]] = {}
    for i, array in arrays.items():
        by_id.setdefault(id(array), []).append(i)
    by_bytes: dict[bytes, list[int]] = {}
    for keys in by_id.values():
        by_bytes.setdefault(_digest(arrays[keys[0]]), []).extend(keys)
    return [sorted(keys) for keys in by_bytes.values()]


class AllSkippedError(RunError):
    """Every round of a run was skipped. The same options would skip them again."""


def federation_digest(system: System, federation: Federation) -> str:
    """A digest of all models, bit for bit. If clients choose among models, these count and not the choice."""
    if system.pool is not None:
        return arrays_digest(system.pool(federation))
    models = system.models(federation).values()
    return arrays_digest(model.models if isinstance(model, Mixture) else model for model in models)


def shown(reasons: Sequence[str]) -> str:
    """The first few reasons, and how many more there are."""
    more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
    return "; ".join(reasons[:_SHOWN]) + more


def why_still(line: Mapping[str, Any], kept: Sequence[str]) -> str:
    """Why a round moved no model, in words. line: of ``metrics.jsonl``.  kept: clients' reasons to keep their models.

    Only the observer knows these reasons. Parties tell each other only that they refuse.
    """
    notes = line["notes"]
    reasons = list(kept)
    for found in (Counter(line["refused"]), Counter(line["lost"].values())):
        reasons += [f"{reason} ({count} times)" if count > 1 else reason for reason, count in found.most_common()]
    reasons += [f"{len(line['late'])} answers are late"] if line["late"] else []
    if notes.get("asked") == 0:
        head = "nobody was asked"
    elif notes.get("participants") == 0:
        head = "no update came"
    else:
        head = "no model changed"
    return f"{head}: {shown(reasons)}" if reasons else head


def check_not_all_skipped(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raises AllSkippedError, with the reason, if all rounds of a run (lines of ``metrics.jsonl``) were skipped."""
    skipped = Counter(line["notes"].get("skipped") for line in lines)
    if None in skipped or not lines:
        return
    (why, count), *others = skipped.most_common()
    rounds = "the only round was" if len(lines) == 1 else f"all {len(lines)} rounds were"
    often = f" ({count} of them for this reason, the others as metrics.jsonl says)" if others else ""
    refused: Counter[str] = sum((Counter(line["refused"]) for line in lines), Counter())
    (most, _), *_ = refused.most_common(1) or [("", 0)]
    often += f"; refused most often: {most}" if most and most not in why else ""
    if any(line["notes"].get("participants") for line in lines):
        advice = "change the mode or the setting that this names, the learning rate, or the data"
    else:
        advice = (
            "give clients more time (deadline_s, fewer or shorter delays, faster devices), ask more of them "
            "(participation), run more rounds, or change what they refuse"
        )
    raise AllSkippedError(f"{rounds} skipped, so there is no result: {why}{often}. To get one, {advice}")
