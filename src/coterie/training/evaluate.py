"""Loss and accuracy of several models on the same samples."""

from __future__ import annotations

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


class Sums(NamedTuple):
    """Summed losses and numbers of right answers, (models,) each."""

    loss: NDArray[np.float64]
    hits: NDArray[np.float64]


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
    dtype, where = products(precision, device), torch.device(device)
    x, y = check_data(model, x, y, "evaluation")
    matrix = np.asarray(weights)
    if matrix.ndim != 2 or matrix.shape[1] != model.spec.size or not np.issubdtype(matrix.dtype, np.floating):
        raise UserError(
            f"evaluation: weights must be (models, {model.spec.size}) float32, got {matrix.shape} {matrix.dtype}"
        )
    layers = dense.chain(model)
    pieces = torch.get_num_threads() if where.type == "cpu" else 1
    rows = max(64, -(-len(x) // pieces))
    sums = _loop_sums if layers is None else partial(_dense_sums, layers)

    def work(*arguments: Any) -> list[Sums]:
        with torch.inference_mode():
            return [sums(*arguments)]

    tasks = [
        partial(work, model, matrix, x[at : at + rows], y[at : at + rows], dtype, where)
        for at in range(0, len(x), rows)
    ]
    done = run_all(tasks)
    loss = np.sum([part.loss for (part,) in done], axis=0) / len(x)
    hits = np.sum([part.hits for (part,) in done], axis=0) / len(x)
    return [Evaluated(float(a), float(b), len(x)) for a, b in zip(loss, hits, strict=True)]


def _dense_sums(
    layers: tuple[dense.Layer, ...],
    model: Model,
    matrix: NDArray[Any],
    x: Tensor,
    y: Tensor,
    dtype: torch.dtype,
    device: torch.device,
) -> Sums:
    """Some models and some samples at a time, all models of a chunk in one batched product."""
    widest = max(layer.fan_out for layer in layers)
    models = max(1, min(len(matrix), 16, _CHUNK_BYTES // (4 * model.spec.size)))
    rows = max(1, min(len(x), _CHUNK_BYTES // (4 * widest * models)))
    total = Sums(np.zeros(len(matrix)), np.zeros(len(matrix)))
    for first in range(0, len(matrix), models):
        some = slice(first, first + models)
        chunk = torch.from_numpy(np.ascontiguousarray(matrix[some], np.float32)).to(device)
        for start in range(0, len(x), rows):
            samples = x[start : start + rows].flatten(1).to(device)
            labels = y[start : start + rows].to(device).expand(len(chunk), -1)
            logits = dense.logits(layers, chunk, samples, dtype)
            nll = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
            total.loss[some] += nll.sum(1, dtype=torch.float64).cpu().numpy()
            total.hits[some] += (logits.argmax(2) == labels).sum(1).cpu().numpy()
    return total


def _loop_sums(
    model: Model, matrix: NDArray[Any], x: Tensor, y: Tensor, dtype: torch.dtype, device: torch.device
) -> Sums:
    """One model after the other."""
    rows = max(1, min(256, _CHUNK_BYTES // (4 * max(1, x[0].numel()))))
    total = Sums(np.zeros(len(matrix)), np.zeros(len(matrix)))
    for at, vector in enumerate(matrix):
        module = placed(model.module_with(vector), device)
        for start in range(0, len(x), rows):
            samples, labels = x[start : start + rows].to(device), y[start : start + rows].to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                output = module(samples)
            output = output.float()
            total.loss[at] += float(model.loss(output, labels)) * len(labels)
            if output.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point():
                total.hits[at] += int((output.argmax(1) == labels).sum())
            else:
                total.hits[at] = np.nan
    return total
