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
from coterie.training.model import Model, placed

_BATCH_BYTES = 64 << 20

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
        return {
            name: [float(v) for v in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
            for name, values in vars(self).items()
        }


class Observer:
    """Scores models on a test set. x: (n, ...) float32.  y: (n,) int64.  own: each client's indices into them."""

    def __init__(
        self, model: Model, x: Tensor, y: Tensor, own: Mapping[str, NDArray[np.int64]], accelerator: str = "cpu"
    ) -> None:
        if not model.is_classifier:
            raise UserError(f"{model.name} is no classifier (its loss is one's own): accuracies cannot be observed")
        self.model, self.x, self.y, self.own = model, x, y, own
        self.device = torch.device(accelerator)

    def scores(self, models: Mapping[str, Vector]) -> Scores:
        """Scores of these clients' models, in their order; a model that several share is run once."""
        clients = list(models)
        rows = np.empty((4, len(clients)))
        for group in _sharing([models[name] for name in clients]):
            losses, right = self._run(models[clients[group[0]]])
            for i in group:
                mine = self.own[clients[i]]
                rows[:, i] = right.mean(), right[mine].mean(), losses.mean(), losses[mine].mean()
        return Scores(*rows)

    def _run(self, weights: Vector) -> tuple[Doubles, NDArray[np.bool_]]:
        """Loss and correctness of every test sample, (n,) each."""
        module = placed(self.model.module_with(weights), self.device)
        batch = max(1, min(1024, _BATCH_BYTES // (self.x[0].numel() * 4)))
        labels = self.y.numpy()
        losses, right = np.empty(len(labels)), np.empty(len(labels), np.bool_)
        with torch.inference_mode(), np.errstate(invalid="ignore"):  # a model that has blown up has no loss
            for start in range(0, len(labels), batch):
                part = slice(start, start + batch)
                logits = module(self.x[part].to(self.device)).double().cpu().numpy()
                logits -= logits.max(axis=1, keepdims=True)
                of_label = np.take_along_axis(logits, labels[part, None], axis=1)[:, 0]
                losses[part] = np.log(np.exp(logits).sum(axis=1)) - of_label  # cross entropy
                right[part] = logits.argmax(axis=1) == labels[part]
        return losses, right


def models_digest(models: Mapping[str, Vector]) -> str:
    """Hexadecimal SHA-256 of all clients' models in order: equal for two runs whose models are equal bit for bit."""
    digests = {id(vector): _digest(vector) for vector in models.values()}
    return hashlib.sha256(b"".join(digests[id(vector)] for vector in models.values())).hexdigest()


def _digest(vector: Vector) -> bytes:
    data: Any = np.ascontiguousarray(vector)
    return hashlib.sha256(data).digest()


def _sharing(vectors: Sequence[Vector]) -> list[list[int]]:
    """Indices of equal vectors together: the same array is seen at once, equal arrays by their bytes."""
    by_id: dict[int, list[int]] = {}
    for i, vector in enumerate(vectors):
        by_id.setdefault(id(vector), []).append(i)
    by_bytes: dict[bytes, list[int]] = {}
    for indices in by_id.values():
        by_bytes.setdefault(_digest(vectors[indices[0]]), []).extend(indices)
    return [sorted(indices) for indices in by_bytes.values()]
