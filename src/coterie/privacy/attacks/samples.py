"""Training samples from a model's losses, which are smaller on them (adversary 2 of Yeom et al., CSF 2018), or from an
update's gradient of a dense first layer.

Row k of the weights' gradient over entry k of the bias's is a sample if only one moves neuron k (Phong et al., TIFS
2018; Geiping et al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.spectral import unit_rows
from coterie.privacy.attacks.result import AttackResult, real_rows

Doubles = NDArray[np.float64]
_STILL = 1e-4  # of the largest move of a bias: below it a quotient is rounding


def dense_inputs(step: NDArray[Any], spec: fl.ModelSpec, features: int) -> Doubles:
    """A model's step (d,) -> (neurons that moved, features), one guess each.

    Raises UserError unless the first layer is dense, with a bias, on this many features, and has moved.
    """
    parts = [part for part in spec.parts if part.kind == "parameter"][:2]
    shapes = [part.shape for part in parts]
    if len(shapes) < 2 or len(shapes[0]) != 2 or shapes[0][1] != features or shapes[1] != shapes[0][:1]:
        raise fl.UserError(
            "the model's first layer is no dense layer with a bias, so no input can be read off its step"
        )
    weights, bias = (
        np.asarray(step[part.offset : part.offset + prod(part.shape)], np.float64).reshape(part.shape) for part in parts
    )
    moved = np.abs(bias) > _STILL * np.abs(bias).max()
    if not moved.any() or not np.isfinite(step).all():
        raise fl.UserError("the bias of the first layer did not move, or is not finite: there is nothing to divide by")
    return np.asarray(weights[moved] / bias[moved, None])


def best_correlation(guesses: NDArray[Any], samples: NDArray[Any]) -> float:
    """The largest Pearson correlation of a guess (k, f) with a sample (n, f)."""
    both = real_rows("guesses", guesses), real_rows("samples", samples)
    a, b = (unit_rows(rows - rows.mean(axis=1, keepdims=True)) for rows in both)
    return float((a @ b.T).max())


def recovery(
    guesses: Sequence[NDArray[Any]],
    own: Sequence[NDArray[Any]],
    alike: Sequence[Sequence[NDArray[Any]]],
    shares: Sequence[float] | None = None,
) -> AttackResult:
    """How well the best guess of each client fits one of its training samples; mean over the clients.

    guesses, own: by client, (k, f) and (n, f).  alike: two or more draws of n other samples of the same classes, whose
    best fit is chance.  shares: of all such samples in a draw, which widens the spread.
    """
    found = [best_correlation(guess, samples) for guess, samples in zip(guesses, own, strict=True)]
    drawn = [[best_correlation(guess, some) for some in draws] for guess, draws in zip(guesses, alike, strict=True)]
    clients = len(found)
    wider = [(1 + f) / (1 - f) for f in shares or [0.0] * clients]
    sd = float(np.sqrt(sum(np.var(one, ddof=1) * more for one, more in zip(drawn, wider, strict=True)))) / clients
    chance = float(np.mean([np.mean(one) for one in drawn]))
    return AttackResult("correlation of the best guess with a sample", float(np.mean(found)), chance, 1.0, clients, sd)


def membership_auc(
    trained: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]], *, same_pool: bool = True
) -> AttackResult:
    """Mean over clients of the area under the ROC curve of "a small loss means a training sample". Chance: 0.5.

    trained, others: by client, its model's losses (m,) on training samples and (n,) on others, which clients may share,
    so that their part of the variance is not divided by the clients.  same_pool: those are drawn as the training
    samples are; else chance is not known. Raises UserError for losses that are empty or NaN.
    """
    from scipy.stats import rankdata  # slow to import

    areas, own, shared = [], [], []
    for members, rest in zip(trained, others, strict=True):
        m, n = len(members), len(rest)
        if not m or not n:
            raise fl.UserError(
                "a client has no training samples or no other samples of its kind, so membership can't be scored: "
                "give it test data, or run with --fine-tune held_out"
            )
        losses = np.concatenate([members, rest]).astype(np.float64)
        if np.isnan(losses).any():
            raise fl.UserError("a model's loss is NaN: its weights have blown up; take a smaller learning rate")
        larger = rankdata(losses)[m:].sum() - n * (n + 1) / 2  # pairs in which the other sample's loss is the larger
        areas.append(float(larger) / (m * n))
        own.append((1 + 1 / n) / (12 * m))
        shared.append(1 / (12 * n))
    clients = len(areas)
    sd = float(np.sqrt(np.mean(own) / clients + np.mean(shared)))
    metric = f"AUC for samples that were trained on{'' if same_pool else ', beside test samples'}"
    return AttackResult(metric, float(np.mean(areas)), 0.5, 1.0, clients, sd, same_pool)


def beyond_references(losses: NDArray[Any], references: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) how far each sample's confidence is below that of models not trained on it; a member's is above.

    The offline likelihood ratio of Carlini et al., IEEE S&P 2022, with one variance.  losses: (n,) cross entropies
    under the model.  references: (m, n) under the others. Raises UserError without these.
    """
    if not len(references):
        raise fl.UserError("there is no model that was not trained on these samples to compare with")
    return np.asarray(_confidence(references).mean(axis=0) - _confidence(losses))


def _confidence(losses: NDArray[Any]) -> NDArray[np.float64]:
    bounded = np.clip(np.asarray(losses, np.float64), 1e-9, 1e3)
    return np.asarray(-bounded - np.log(-np.expm1(-bounded)))


def uploaded_model(start: fl.Vector, places: NDArray[np.int64], change: NDArray[Any]) -> fl.Vector:
    """A leader's model of a sparse upload: its own changed at these places, (d,) float32. Raises UserError unless each
    has one finite change.
    """
    if places.shape != np.shape(change) or not np.isfinite(change).all():
        raise fl.UserError(f"an upload of {np.shape(change)} finite changes for {places.shape} places")
    model = np.array(start, np.float32)
    model[places] += np.asarray(change, np.float32)
    return model


Losses = tuple[NDArray[Any], NDArray[Any]]
"""A client's samples' losses (m,) under the model that the leader sent, and the upload's."""


def upload_membership(trained: Sequence[Losses], others: Sequence[Losses], *, same_pool: bool = True) -> AttackResult:
    """Samples whose loss the upload has lowered the most are taken for training samples: the loss at the start is their
    difficulty (Watson et al., ICLR 2022). As ``membership_auc``. Chance: 0.5.
    """
    lowered = [[np.asarray(after, np.float64) - before for before, after in side] for side in (trained, others)]
    return membership_auc(*lowered, same_pool=same_pool)
