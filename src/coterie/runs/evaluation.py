"""The observer beside the protocol: how good the clients' models are. No messages, no bytes, nobody's view."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.system import ClientModel, Mixture
from coterie.runs.effects import ClientData, Samples
from coterie.training.model import Model, placed

_BATCH_BYTES = 64 << 20

Doubles = NDArray[np.float64]

_ALL = np.ones(1)  # the share of a client's only model


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
        return {
            name: [float(v) for v in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
            for name, values in vars(self).items()
        }


class Observer:
    """Scores models on test sets. data: of every client; each is scored on the test set of its own task."""

    def __init__(self, model: Model, data: Mapping[str, ClientData], accelerator: str = "cpu") -> None:
        if not model.is_classifier:
            raise UserError(f"{model.name} is no classifier (its loss is one's own): accuracies cannot be observed")
        self.model, self.data = model, data
        self.device = torch.device(accelerator)

    def scores(self, models: Mapping[str, ClientModel]) -> Scores:
        """Scores of these clients' models, in their order; what clients of one task share is run and judged once."""
        names = list(models)
        owns = [self.data[name] for name in names]
        rows = np.empty((4, len(names)))
        by_test_set: dict[Samples, list[int]] = {}
        for i, own in enumerate(owns):
            by_test_set.setdefault(own.test_set, []).append(i)
        for test_set, here in by_test_set.items():
            found = self._scores(test_set, [models[names[i]] for i in here], [owns[i].test for i in here])
            rows[:, here] = found
        return Scores(*rows)

    def _scores(
        self, test_set: Samples, models: Sequence[ClientModel], owns: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.float64]:
        """(4, models): accuracies and losses, as ``Scores`` has them, on one test set."""
        vectors = [model.models if isinstance(model, Mixture) else model for model in models]
        shares = [model.weights if isinstance(model, Mixture) else _ALL for model in models]
        rows = np.empty((4, len(owns)))
        for group in _sharing(vectors):
            log_p = np.stack([self._run(vector, test_set.x) for vector in np.atleast_2d(vectors[group[0]])])
            p = np.exp(log_p)
            for same in _sharing([shares[i] for i in group]):
                losses, right = self._judged(log_p, p, shares[group[same[0]]], test_set.y.numpy())
                for i in (group[j] for j in same):
                    mine = owns[i]
                    rows[:, i] = right.mean(), right[mine].mean(), losses.mean(), losses[mine].mean()
        return rows

    def _run(self, weights: Vector, x: Tensor) -> Doubles:
        """Log-probabilities of every sample, (n, classes)."""
        module = placed(self.model.module_with(weights), self.device)
        batch = max(1, min(1024, _BATCH_BYTES // (x[0].numel() * 4)))
        log_p = np.empty((len(x), self.model.classes or 0))
        with torch.inference_mode(), np.errstate(invalid="ignore"):  # a model that has blown up has no loss
            for start in range(0, len(log_p), batch):
                part = slice(start, start + batch)
                logits = module(x[part].to(self.device)).double().cpu().numpy()
                logits -= logits.max(axis=1, keepdims=True)
                log_p[part] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return log_p

    def _judged(
        self, log_p: Doubles, p: Doubles, shares: Doubles, labels: NDArray[np.int64]
    ) -> tuple[Doubles, NDArray[np.bool_]]:
        """Loss and correctness of every test sample, (n,) each, of a mixture. log_p, p: (m, n, classes).  shares: (m,).

        The loss is log-sum-exp of logs, so that a small probability is not rounded to none.
        """
        of_label = np.take_along_axis(log_p, labels[None, :, None], axis=2)[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):  # a share of 0; a model that has blown up
            losses = -np.logaddexp.reduce(np.log(shares)[:, None] + of_label, axis=0)
        return losses, np.tensordot(shares, p, 1).argmax(axis=1) == labels


def models_digest(models: Mapping[str, ClientModel]) -> str:
    """Hexadecimal SHA-256 of all clients' models in order: equal for two runs whose models are equal bit for bit."""
    arrays = [array for model in models.values() for array in _arrays(model)]
    digests = {id(array): _digest(array) for array in arrays}
    return hashlib.sha256(b"".join(digests[id(array)] for array in arrays)).hexdigest()


def _arrays(model: ClientModel) -> tuple[NDArray[Any], ...]:
    return (model.models, model.weights) if isinstance(model, Mixture) else (model,)


def _digest(array: NDArray[Any]) -> bytes:
    data: Any = np.ascontiguousarray(array)
    return hashlib.sha256(data).digest()


def _sharing(vectors: Sequence[NDArray[Any]]) -> list[list[int]]:
    """Indices of equal arrays together: the same array is seen at once, equal arrays by their bytes."""
    by_id: dict[int, list[int]] = {}
    for i, vector in enumerate(vectors):
        by_id.setdefault(id(vector), []).append(i)
    by_bytes: dict[bytes, list[int]] = {}
    for indices in by_id.values():
        by_bytes.setdefault(_digest(vectors[indices[0]]), []).extend(indices)
    return [sorted(indices) for indices in by_bytes.values()]
