"""Losses and accuracy of several models on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.protocol.effects import Evaluated
from coterie.protocol.errors import UserError
from coterie.training import dense
from coterie.training.jobs import check_data
from coterie.training.model import Model, placed
from coterie.training.precision import products
from coterie.training.workers import run_all

_CHUNK_BYTES = 4 << 20  # the widest activations of one chunk of samples


class Piece(NamedTuple):
    """What came of some of the models on some of the samples. value: (models, ...)."""

    models: slice
    samples: slice
    value: NDArray[Any]


Score = Callable[[Tensor, Tensor], Tensor]
"""Outputs (models, n, ...) float32 and labels (n,) to a value (models, ...)."""


def evaluate_many(
    model: Model,
    weights: NDArray[Any],
    x: Tensor,
    y: Tensor,
    *,
    precision: str = "fp32",
    device: str = "cpu",
) -> list[Evaluated]:
    """Mean loss and accuracy of each model of ``weights`` (k, d) float32 on samples x (n, ...) with labels y (n,).

    Memory grows neither with k nor with n. Accuracy is NaN where a loss of one's own goes with outputs that are not
    (n, classes) under integer labels. A model whose loss is not finite is reported so, not refused.
    Raises UserError for shapes or types that do not fit the model.
    """
    matrix = _matrix(model, weights)
    total = np.zeros((len(matrix), 2))
    for piece in _pieces(model, matrix, x, y, precision, device, partial(_loss_and_hits, model)):
        total[piece.models] += piece.value
    return [Evaluated(float(loss), float(hits), len(x)) for loss, hits in total / len(x)]


def sample_losses(
    model: Model,
    weights: NDArray[Any],
    x: Tensor,
    y: Tensor,
    *,
    precision: str = "fp32",
    device: str = "cpu",
) -> NDArray[np.float32]:
    """Cross entropy of every sample under each model of ``weights`` (k, d) float32: (k, n) float32.

    Raises UserError for shapes or types that do not fit the model, and for a loss of one's own, which gives one number
    for a whole batch.
    """
    if not model.is_classifier:
        raise UserError(f"{model.name}: a loss of one's own gives one number for a whole batch, not one a sample")
    matrix = _matrix(model, weights)
    result = np.empty((len(matrix), len(x)), np.float32)
    for piece in _pieces(model, matrix, x, y, precision, device, _nll):
        result[piece.models, piece.samples] = piece.value
    return result


def _matrix(model: Model, weights: NDArray[Any]) -> NDArray[Any]:
    """Weights (k, d), or UserError."""
    matrix = np.asarray(weights)
    if matrix.ndim != 2 or matrix.shape[1] != model.spec.size or not np.issubdtype(matrix.dtype, np.floating):
        raise UserError(
            f"evaluation: weights must be (models, {model.spec.size}) float32, got {matrix.shape} {matrix.dtype}"
        )
    return matrix


def _nll(outputs: Tensor, labels: Tensor) -> Tensor:
    """(models, n): cross entropy of each sample."""
    each = labels.expand(len(outputs), -1)
    return nn.functional.cross_entropy(outputs.transpose(1, 2), each, reduction="none")


def _loss_and_hits(model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
    """(models, 2) float64: summed loss and number of right answers."""
    if model.is_classifier:
        loss = _nll(outputs, labels).sum(1, dtype=torch.float64)
    else:
        loss = torch.stack([model.loss(output, labels).double() * len(labels) for output in outputs])
    if outputs.dim() == 3 and labels.dim() == 1 and not labels.is_floating_point():
        hits = (outputs.argmax(2) == labels).sum(1).double()
    else:
        hits = torch.full_like(loss, torch.nan)
    return torch.stack([loss, hits], 1)


def _pieces(
    model: Model, matrix: NDArray[Any], x: Tensor, y: Tensor, precision: str, device: str, score: Score
) -> Iterator[Piece]:
    """The score of every model on every sample, in pieces that are computed side by side."""
    dtype, where = products(precision, device), torch.device(device)
    x, y = check_data(model, x, y, "evaluation")
    layers = dense.chain(model)
    outputs = _loop_outputs if layers is None else partial(_dense_outputs, layers)
    workers = torch.get_num_threads() if where.type == "cpu" else 1
    rows = max(64, -(-len(x) // workers))

    def work(start: int) -> list[Piece]:
        with torch.inference_mode():
            pieces = []
            for models, first, output in outputs(model, matrix, x[start : start + rows], dtype, where):
                at = slice(start + first, start + first + output.shape[1])
                pieces.append(Piece(models, at, score(output, y[at].to(where)).cpu().numpy()))
            return pieces

    for done in run_all([partial(work, start) for start in range(0, len(x), rows)]):
        yield from done


Outputs = Iterator[tuple[slice, int, Tensor]]
"""Some of the models, the first of some samples, and what the ones give for the others: (models, n, ...) float32."""


def _dense_outputs(
    layers: tuple[dense.Layer, ...],
    model: Model,
    matrix: NDArray[Any],
    x: Tensor,
    dtype: torch.dtype,
    device: torch.device,
) -> Outputs:
    """All models of a chunk in one batched product."""
    widest = max(layer.fan_out for layer in layers)
    models = max(1, min(len(matrix), 16, _CHUNK_BYTES // (4 * model.spec.size)))
    rows = max(1, min(len(x), _CHUNK_BYTES // (4 * widest * models)))
    for first in range(0, len(matrix), models):
        some = slice(first, first + models)
        chunk = torch.from_numpy(np.ascontiguousarray(matrix[some], np.float32)).to(device)
        for start in range(0, len(x), rows):
            samples = x[start : start + rows].flatten(1).to(device)
            yield some, start, dense.logits(layers, chunk, samples, dtype)


def _loop_outputs(model: Model, matrix: NDArray[Any], x: Tensor, dtype: torch.dtype, device: torch.device) -> Outputs:
    """One model after the other."""
    rows = max(1, min(256, _CHUNK_BYTES // (4 * max(1, x[0].numel()))))
    for at, vector in enumerate(matrix):
        module = placed(model.module_with(vector), device)
        for start in range(0, len(x), rows):
            samples = x[start : start + rows].to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                output = module(samples)
            yield slice(at, at + 1), start, output.float().unsqueeze(0)
