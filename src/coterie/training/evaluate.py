"""Losses and accuracy of several models, or mixtures, on the same samples.

The last layer of a dense model, and all behind logits, is float32 or better. Other modules run under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.protocol.effects import Evaluated, Vector
from coterie.protocol.errors import UserError
from coterie.training import dense
from coterie.training.jobs import check_data, check_device
from coterie.training.model import Model, floats, placed, pooled_first, tensor
from coterie.training.workers import run_all

_CHUNK_BYTES = 4 << 20  # the widest activations of one chunk of samples
_MIXED_BYTES = 64 << 20  # probabilities of some samples under all models of a mixture


class Judged(NamedTuple):
    """Of k models on n samples.  losses: (k, n) float32 cross entropies; NaN if diverged.  right: (k, n) bool: the
    label is the likeliest.
    """

    losses: NDArray[np.float32]
    right: NDArray[np.bool_]


Score = Callable[[Tensor, Tensor], Tensor]
"""Of outputs (models, n, ...) float32 and labels (n,): (models, ...)."""


Outputs = Iterator[tuple[slice, int, Tensor]]
"""Some of the models, the first of some samples, and the outputs: (models, n, ...) float32."""


def evaluate_many(model: Model, weights: NDArray[Any], x: Tensor, y: Tensor, *, device: str = "cpu") -> list[Evaluated]:
    """Mean loss and accuracy of each model of ``weights`` (k, d) float32 on samples x (n, ...) with labels y (n,).

    Memory doesn't grow with k or n. Accuracy is NaN for an own loss unless outputs are (n, classes) and labels
    integers. Raises UserError for shapes or types that do not fit.
    """
    matrix = floats(weights, ("models", model.spec.size), "evaluation: weights")
    total = np.zeros((len(matrix), 2))
    for models, _, value in _pieces(model, matrix, x, y, device, partial(_summed, model)):
        total[models] += value
    return [Evaluated(float(loss), float(hits), len(x)) for loss, hits in total / len(x)]


def judge_many(
    model: Model,
    weights: NDArray[Any],
    x: Tensor,
    y: Tensor,
    *,
    shares: NDArray[np.float64] | None = None,
    device: str = "cpu",
) -> Judged:
    """Each model of ``weights`` (k, d) float32, or mixture of them, on every sample x (n, ...).

    shares: (s, k) float64 for s mixtures with probabilities shares @ softmax. Mixtures and right answers need cross
    entropy. Raises UserError for shapes or types that do not fit, and for a loss with one number a batch.
    """
    if shares is not None and not model.is_classifier:
        raise UserError(f"{model.name} is no classifier: a mixture mixes probabilities of classes")
    matrix = floats(weights, ("models", model.spec.size), "evaluation: weights")
    many = len(matrix) if shares is None else len(shares)
    judged = Judged(np.empty((many, len(x)), np.float32), np.empty((many, len(x)), np.bool_))
    if shares is None:
        for models, samples, value in _pieces(model, matrix, x, y, device, partial(_each, model)):
            judged.losses[models, samples], judged.right[models, samples] = value[:, 0], value[:, 1]
        return judged
    rows = max(1, _MIXED_BYTES // (12 * len(matrix) * (model.classes or 1)))
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        log_p = np.empty((len(matrix), len(x[block]), model.classes or 0), np.float32)
        for models, samples, value in _pieces(model, matrix, x[block], y[block], device, _log_p):
            log_p[models, samples] = value
        for one, (losses, right) in enumerate(_mixed(log_p, shares, y[block].numpy())):
            judged.losses[one, block], judged.right[one, block] = losses, right
    return judged


def judge_outputs(model: Model, outputs: NDArray[np.float32], y: Tensor) -> Judged:
    """As ``judge_many`` of a classifier's outputs (k, n, classes)."""
    with torch.inference_mode():
        losses, right = _each(model, torch.from_numpy(outputs), y).unbind(1)
    return Judged(losses.numpy(), right.bool().numpy())


def outputs_of_many(
    model: Model, weights: NDArray[Any], x: Tensor, y: Tensor, *, device: str = "cpu"
) -> NDArray[np.float32]:
    """(k, n, outputs) float32 of models ``weights`` (k, d) float32 for samples x (n, ...). Raises UserError."""
    matrix = floats(weights, ("models", model.spec.size), "evaluation: weights")
    found = np.empty((len(matrix), len(x), model.outputs or 0), np.float32)
    for models, samples, value in _pieces(model, matrix, x, y, device, lambda outputs, _: outputs):
        found[models, samples] = value
    return found


def _mixed(
    log_p: NDArray[np.float32], shares: NDArray[np.float64], labels: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Losses and right answers (n,) of each mixture, by log-sum-exp in float64.  log_p: (k, n, classes).  shares: (s,
    k).  labels: (n,).
    """
    of_label = np.take_along_axis(log_p, labels[None, :, None], axis=2)[..., 0].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):  # a share of 0; a model that has blown up
        p = np.exp(log_p, dtype=np.float64)
        for own in shares:
            losses = -np.logaddexp.reduce(np.log(own)[:, None] + of_label, axis=0)
            yield losses, np.tensordot(own, p, 1).argmax(axis=1) == labels


def _each(model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
    if not model.is_classifier:
        losses = torch.stack([model.losses(output, labels) for output in outputs])
        return torch.stack([losses, torch.zeros_like(losses)], 1)
    same = labels.expand(len(outputs), -1)
    nll = nn.functional.cross_entropy(outputs.transpose(1, 2), same, reduction="none")
    return torch.stack([nll, (outputs.argmax(2) == labels).float()], 1)


def _log_p(outputs: Tensor, labels: Tensor) -> Tensor:
    return torch.log_softmax(outputs, 2)


def _summed(model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
    if model.is_classifier:
        return _each(model, outputs, labels).sum(2, dtype=torch.float64)
    loss = torch.stack([model.mean_loss(output, labels).double() * len(labels) for output in outputs])
    hits = torch.full_like(loss, torch.nan)
    if outputs.dim() == 3 and labels.dim() == 1 and not labels.is_floating_point():
        hits = (outputs.argmax(2) == labels).sum(1).double()
    return torch.stack([loss, hits], 1)


def _pieces(
    model: Model, matrix: Vector, x: Tensor, y: Tensor, device: str, score: Score
) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
    check_device(device)
    where = torch.device(device)
    x, y = check_data(model, x, y, "evaluation")
    layers = dense.chain(model)
    outputs = _loop_outputs if layers is None else partial(_dense_outputs, layers)
    workers = torch.get_num_threads() if where.type == "cpu" else 1
    rows = max(64, -(-len(x) // workers))

    def work(start: int) -> list[tuple[slice, slice, NDArray[Any]]]:
        with torch.inference_mode():
            pieces = []
            for models, first, output in outputs(model, matrix, x[start : start + rows], where):
                at = slice(start + first, start + first + output.shape[1])
                pieces.append((models, at, score(output, y[at].to(where)).cpu().numpy()))
            return pieces

    for done in run_all([partial(work, start) for start in range(0, len(x), rows)]):
        yield from done


def _dense_outputs(
    layers: tuple[dense.Layer, ...], model: Model, matrix: Vector, x: Tensor, device: torch.device
) -> Outputs:
    widest = max(layer.weight.shape[0] for layer in layers)
    models = max(1, min(len(matrix), 16, _CHUNK_BYTES // (4 * model.spec.size)))
    rows = max(1, min(len(x), _CHUNK_BYTES // (4 * widest * models)))
    for first in range(0, len(matrix), models):
        some = slice(first, first + models)
        chunk = tensor(matrix[some]).clone().to(device)  # torch's own memory is aligned: the same bits in every process
        for start in range(0, len(x), rows):
            samples = x[start : start + rows].flatten(1).to(device)
            yield some, start, dense.logits(layers, chunk, samples)


def _loop_outputs(model: Model, matrix: Vector, x: Tensor, device: torch.device) -> Outputs:
    rows = max(1, min(256, _CHUNK_BYTES // (4 * max(1, x[0].numel()))))
    for at, vector in enumerate(matrix):
        module = placed(pooled_first(model.module_with(vector)), device)
        for start in range(0, len(x), rows):
            samples = x[start : start + rows].to(device)
            yield slice(at, at + 1), start, module(samples).float().unsqueeze(0)
