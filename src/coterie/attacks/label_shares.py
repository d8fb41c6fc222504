"""Label shares of clients from the last layer's bias.

Who: the cloud service provider of FedCAPrivacy, honest but curious. On: the blinded, shuffled rows of one round. It
proves that differences of models tell about data: the gradient of a softmax's bias is (predicted - true) share of each
class, so after local training from a common start a client's bias lies above the others' for the classes that it
has more of. The common mask cancels when the mean row is subtracted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.result import Result, real_rows, same_shape
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec


def last_bias(spec: ModelSpec) -> slice:
    """Where the last layer's bias lies in the flat vector: the last part of the model named ``bias`` or ``*.bias``."""
    for part in sorted(spec.parts, key=lambda p: p.offset, reverse=True):
        if part.kind == "parameter" and part.name.split(".")[-1] == "bias":
            return slice(part.offset, part.offset + part.size)
    raise UserError("the model has no parameter named '*.bias': the label-share attack needs the last layer's bias")


def label_shares_from_bias(bias: NDArray[Any]) -> NDArray[np.float64]:
    """(n, classes) last-layer biases, under a common mask or not -> (n, classes) deviations of the label shares.

    Row i is client i's shares minus the mean shares of all clients, up to one unknown positive factor for all. Rows
    sum to 0, for adding a constant to all classes of a softmax changes nothing.
    """
    bias = real_rows("bias", bias)
    across_clients = bias - bias.mean(axis=0)
    return np.asarray(across_clients - across_clients.mean(axis=1, keepdims=True))


def label_shares(rows: NDArray[Any], spec: ModelSpec) -> NDArray[np.float64]:
    """`label_shares_from_bias` on the last bias of whole rows (n, d) laid out by ``spec``."""
    if rows.ndim != 2 or rows.shape[1] != spec.size:
        raise UserError(f"rows of shape {rows.shape} do not fit a model of {spec.size} numbers")
    return label_shares_from_bias(rows[:, last_bias(spec)])


def share_correlation(estimate: NDArray[Any], label_counts: NDArray[Any]) -> Result:
    """Pearson correlation of estimated with true deviations of label shares, over all clients and classes.

    label_counts: (n, classes). Chance, with its exact standard deviation, hands the estimates to clients at random.
    """
    estimate, truth = real_rows("estimate", estimate), shares(label_counts)
    same_shape("estimate", estimate, "label counts", truth)
    a, b = estimate - estimate.mean(axis=0), truth - truth.mean(axis=0)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norm == 0 or len(a) < 2:
        raise UserError("estimates or label shares are the same for all clients: no correlation exists")
    products = a @ b.T  # zero row and column sums, so the permutation variance of the trace is |.|^2 / (n - 1)
    sd = float(np.linalg.norm(products)) / np.sqrt(len(a) - 1) / norm
    return Result("correlation with true label shares", float(np.trace(products)) / norm, 0.0, 1.0, len(a), float(sd))


def top_label_hit_rate(estimate: NDArray[Any], label_counts: NDArray[Any]) -> Result:
    """Share of clients of whose most frequent labels one is the class with the largest estimate.

    Chance is the mean hit rate when the same guesses are handed to the clients at random.
    """
    estimate, truth = real_rows("estimate", estimate), shares(label_counts)
    same_shape("estimate", estimate, "label counts", truth)
    n = len(truth)
    is_top = truth == truth.max(axis=1, keepdims=True)
    hits = is_top[:, estimate.argmax(axis=1)].astype(np.float64)  # (n, n): client i judged by guess j
    centred = hits - hits.mean(axis=0) - hits.mean(axis=1, keepdims=True) + hits.mean()
    sd = float(np.linalg.norm(centred)) / np.sqrt(max(n - 1, 1)) / n
    return Result("top label guessed (share)", float(np.trace(hits)) / n, float(hits.mean()), 1.0, n, float(sd))


def shares(label_counts: NDArray[Any]) -> NDArray[np.float64]:
    """(n, classes) counts -> shares that sum to 1 in each row."""
    counts = real_rows("label counts", label_counts)
    if (counts < 0).any() or (counts.sum(axis=1) <= 0).any():
        raise UserError("label counts must not be negative, and every client needs a sample")
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))
