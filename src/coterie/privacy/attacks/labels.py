"""Clients' labels from models, clusters, selections and sparsity vectors.

The gradient of a softmax's bias is each class's (predicted - true) share (`label_shares`). A sparsity vector ("FedEPC",
section 3.2) mixes the classes' means by label shares; its receiver has means of samples of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.privacy.attacks.result import AttackResult, handed_out, real_rows, shares_of

DRAWS = 50
"""Guesses of the same kind, for the luck of vectors without names."""
_SUM_TO_ONE = 1e3


def last_bias(spec: fl.ModelSpec) -> slice:
    """Where the last part named ``bias`` or ``*.bias`` lies. Raises UserError without one."""
    for part in sorted(spec.parts, key=lambda p: p.offset, reverse=True):
        if part.kind == "parameter" and part.name.split(".")[-1] == "bias":
            return slice(part.offset, part.offset + part.size)
    raise fl.UserError("the model has no parameter named '*.bias': the label-share attack needs the last layer's bias")


def label_shares_from_bias(bias: NDArray[Any]) -> NDArray[np.float64]:
    """(n, classes) last-layer biases, also under a common mask -> deviations from the mean label shares, up to one
    unknown positive factor.
    """
    bias = real_rows("bias", bias)
    across_clients = bias - bias.mean(axis=0)
    return np.asarray(across_clients - across_clients.mean(axis=1, keepdims=True))


def label_shares(rows: NDArray[Any], spec: fl.ModelSpec) -> NDArray[np.float64]:
    """`label_shares_from_bias` of rows (n, d) laid out by ``spec``."""
    return label_shares_from_bias(rows[:, last_bias(spec)])


def share_correlation(
    estimate: NDArray[Any], label_counts: NDArray[Any], groups: NDArray[Any] | None = None
) -> AttackResult:
    """Pearson correlation of estimated with true deviations of label shares, (n, classes).  label_counts: (n, classes)
    samples.

    Chance, with its exact standard deviation, hands the estimates to random clients.  groups: (n,) within which alone
    clients are compared.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    groups = np.zeros(len(estimate)) if groups is None else np.asarray(groups)
    parts = [part for one in np.unique(groups) if len(part := np.flatnonzero(groups == one)) > 1]
    sides = [[side[part] - side[part].mean(axis=0) for part in parts] for side in (estimate, truth)]
    norm = float(np.prod([np.sqrt(sum(float(np.square(one).sum()) for one in side)) for side in sides]))
    if norm == 0 or not parts:
        raise fl.UserError("estimates or label shares are the same for all clients: no correlation exists")
    found, variance = 0.0, 0.0
    for a, b in zip(*sides, strict=True):
        products = a @ b.T  # zero row and column sums, so the permutation variance of the trace is |.|^2 / (n - 1)
        found += float(np.trace(products))
        variance += float(np.square(products).sum()) / (len(a) - 1)
    n = sum(map(len, parts))
    return AttackResult(
        "correlation with true label shares", found / norm, 0.0, 1.0, n, float(np.sqrt(variance)) / norm
    )


def label_numbers(numbers: NDArray[Any], label_counts: NDArray[Any]) -> AttackResult:
    """Whether the label counts (n, classes) are among some numbers (n, m) of each client.

    A class is read off the number that correlates most with it, with counts, shares, counts at length 1 or logarithms.
    Chance: the rows in 100 random orders. Raises UserError if there is nothing to compare, or for too few clients.
    """
    numbers, counts = real_rows("numbers", numbers), real_rows("label counts", label_counts)
    shares = shares_of(counts)
    length = np.linalg.norm(counts, axis=1, keepdims=True)
    columns, forms = _standardised(numbers), [counts, shares, counts / length, np.log1p(counts)]
    truths = [standard for form in forms if (standard := _standardised(form)).shape[1]]
    if not columns.shape[1] or not truths:
        raise fl.UserError("all clients send the same numbers, or have the same labels: there is nothing to compare")

    def score(order: NDArray[np.intp]) -> float:
        return max(float(np.abs(truth[order].T @ columns).max(axis=1).mean()) for truth in truths)

    found = _beside_luck("correlation of numbers with label counts", len(columns), score, draws=100)
    if 2 * found.chance_sd >= found.room:
        raise fl.UserError(
            f"it compares clients, and {found.n} are too few here: label counts themselves could be luck"
        )
    return found


def _standardised(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = rows - rows.mean(axis=0)
    length = np.linalg.norm(centred, axis=0)
    some = length > 1e-9 * np.abs(rows).max(axis=0, initial=0.0)
    return np.asarray(centred[:, some] / length[some])


def last_rows(spec: fl.ModelSpec) -> tuple[slice, int]:
    """Where the last layer's weights lie, and its classes, each with a row before the bias. Raises UserError for other
    models.
    """
    bias = last_bias(spec)
    classes = bias.stop - bias.start
    rows = [part for part in spec.parts if part.name.endswith("weight") and part.offset + part.size == bias.start]
    if not rows or rows[0].shape[0] != classes:
        raise fl.UserError("the model's last layer has no row of weights for each class before its bias")
    return slice(rows[0].offset, bias.start), classes


def label_shares_by_rows(steps: NDArray[Any], spec: fl.ModelSpec) -> NDArray[np.float64]:
    """(n, classes) deviations of the label shares, by the last layer's rows in updates (n, d): a row moves further, the
    more samples its class has, whatever happens to the bias.
    """
    where, classes = last_rows(spec)
    lengths = np.linalg.norm(real_rows("steps", steps)[:, where].reshape(len(steps), classes, -1), axis=2)
    whole = np.linalg.norm(lengths, axis=1, keepdims=True)
    return label_shares_from_bias(lengths / np.where(whole > 0, whole, 1.0))


def selected_by_class(chosen: NDArray[np.bool_], spec: fl.ModelSpec) -> NDArray[np.float64]:
    """(n, d) chosen parameters -> (n, classes) each class's share in the last layer. Raises UserError
    as ``last_rows``.
    """
    where, classes = last_rows(spec)
    weights = chosen[:, where].reshape(len(chosen), classes, -1)
    bias = chosen[:, last_bias(spec), None]
    return np.asarray(np.concatenate([weights, bias], axis=2).mean(axis=2), np.float64)


def top_label_hit_rate(estimate: NDArray[Any], label_counts: NDArray[Any]) -> AttackResult:
    """Share of clients whose largest estimate is one of their most frequent labels.

    Chance hands the guesses to random clients. Raises UserError where all have the same one.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    is_top = truth == truth.max(axis=1, keepdims=True)
    if (is_top == is_top[0]).all():
        raise fl.UserError("the most frequent label is the same for all clients")
    hit, chance, sd = handed_out(is_top[:, estimate.argmax(axis=1)].astype(np.float64))
    return AttackResult("top label guessed (share)", hit, chance, 1.0, len(truth), sd)


def similar_pairs(membership: NDArray[Any]) -> NDArray[np.float64]:
    """phi (n, c) -> (n, n) guess of similarity in [0, 1]: shared over all clusters of a pair."""
    phi = real_rows("membership", membership)
    shared = phi @ phi.T
    size = phi.sum(axis=1)
    either = size[:, None] + size - shared
    return np.asarray(shared / np.where(either > 0, either, 1.0))


def pair_correlation(guess: NDArray[Any], label_counts: NDArray[Any]) -> AttackResult:
    """Pearson correlation of `similar_pairs` with the cosine of label counts (n, classes), over all pairs.

    Chance, and a constant guess, give 0.
    """
    truth = shares_of(label_counts)
    truth = truth / np.linalg.norm(truth, axis=1, keepdims=True)
    cosine, guess = truth @ truth.T, _pairs(guess, len(truth))
    upper = np.triu_indices(len(cosine), 1)
    if np.ptp(cosine[upper]) < 1e-12:
        raise fl.UserError("all clients have the same label shares: there is no similarity to find")

    target = cosine[upper] - cosine[upper].mean()
    centred = guess - guess[upper].mean()
    norm = float(np.linalg.norm(target) * np.linalg.norm(centred[upper])) if np.ptp(guess[upper]) else np.inf

    def score(order: NDArray[np.intp]) -> float:
        return float(centred[np.ix_(order, order)][upper] @ target) / norm

    return _beside_luck("correlation with label similarity of pairs", len(cosine), score, chance=0.0)


def pair_auc(guess: NDArray[Any], groups: NDArray[Any]) -> AttackResult:
    """Area under the ROC curve of `similar_pairs` as a test for "both clients are of one group" (n,). Chance: 0.5."""
    from scipy.stats import rankdata  # slow to import

    groups = np.asarray(groups).ravel()
    guess = _pairs(guess, len(groups))
    upper = np.triu_indices(len(groups), 1)
    same = (groups[:, None] == groups)[upper]
    if same.all() or not same.any():
        raise fl.UserError("an ROC curve needs pairs of one group and pairs of two groups")

    ranks = np.zeros_like(guess)
    ranks[upper] = rankdata(guess[upper])  # the Mann-Whitney form of the area, ties counting half
    ranks += ranks.T
    hits, misses = int(same.sum()), int((~same).sum())

    def score(order: NDArray[np.intp]) -> float:
        rank_sum = float(ranks[np.ix_(order, order)][upper][same].sum())
        return (rank_sum - hits * (hits + 1) / 2) / (hits * misses)

    return _beside_luck("AUC for pairs of one group", len(groups), score, chance=0.5)


def telling(labels: NDArray[Any]) -> bool:
    """Whether some pairs of clients share a label and some do not."""
    return 1 < len(np.unique(labels)) < len(labels)


def _beside_luck(
    metric: str, n: int, score: Callable[[NDArray[np.intp]], float], *, draws: int = 200, chance: float | None = None
) -> AttackResult:
    rng = np.random.default_rng(0)
    lucky = [score(rng.permutation(n)) for _ in range(draws)]
    usual = float(np.mean(lucky)) if chance is None else chance
    return AttackResult(metric, score(np.arange(n)), usual, 1.0, n, float(np.std(lucky, ddof=1)))


def _pairs(guess: NDArray[Any], n: int) -> NDArray[np.float64]:
    matrix = real_rows("guess", guess)
    if n < 3:
        raise fl.UserError(f"pairs are compared of at least 3 clients, not of {n}")
    return matrix


def label_entropy(label_counts: NDArray[Any]) -> NDArray[np.float64]:
    """(n,) entropy of label shares, in nats.  label_counts: (n, classes)."""
    shares = shares_of(label_counts)
    return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))


def rank_correlation(guess: NDArray[Any], truth: NDArray[Any], of: str) -> AttackResult:
    """Absolute Spearman correlation of a guess (n,) with the truth (n,), named ``of``.

    Chance hands the guesses to random clients (200 times, fixed seed). Raises UserError where one is constant.
    """
    from scipy.stats import rankdata  # slow to import

    values = [np.asarray(side, np.float64) for side in (guess, truth)]
    n = len(values[0])
    if not all(side.shape == (n,) and n >= 3 and np.isfinite(side).all() for side in values):
        raise fl.UserError(f"{of}: expected one finite number for each of at least 3 clients")
    if any(np.ptp(side) == 0 for side in values):
        raise fl.UserError(f"{of}: guesses or truth are the same for all clients, so no order exists")
    a, b = (rankdata(side) - (n + 1) / 2 for side in values)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))

    def score(order: NDArray[np.intp]) -> float:
        return min(abs(float(a[order] @ b)) / norm, 1.0)

    return _beside_luck(f"rank correlation with {of}, absolute", n, score)


def class_means(vectors: NDArray[Any], labels: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Vectors (m, C), clipped as the clients' are, and labels (m,) of the attacker's samples -> (classes, C) means, NaN
    for a class without any.
    """
    rows = real_rows("auxiliary vectors", vectors)
    means = np.full((classes, rows.shape[1]), np.nan)
    for k in np.unique(labels):
        means[k] = rows[labels == k].mean(axis=0)
    return means


def shares_by_nnls(vectors: NDArray[Any], means: NDArray[Any]) -> NDArray[np.float64]:
    """Vectors (n, C) and class means (classes, C) -> (n, classes) label shares: the w >= 0 with sum 1 that minimizes
    |w means - vector_i|; 0 for an unknown mean. Raises UserError where no class is known.
    """
    from scipy.optimize import nnls  # slow to import

    rows, known = real_rows("vectors", vectors), np.isfinite(means).all(axis=1)
    if not known.any():
        raise fl.UserError("no class means are known")
    columns = means[known].T
    heavy = _SUM_TO_ONE * max(1.0, float(np.abs(columns).max()))  # the sum is an equation that outweighs all others
    system = np.vstack([columns, np.full(columns.shape[1], heavy)])
    shares = np.zeros((len(rows), len(means)))
    for own, row in zip(shares, rows, strict=True):
        found, _ = nnls(system, np.append(row, heavy))
        own[known] = found / found.sum()
    return shares


def by_cluster(estimate: NDArray[Any], clusters: NDArray[Any]) -> NDArray[np.float64]:
    """The mean estimate (n, classes) of each client's cluster (n,)."""
    rows, own = real_rows("estimate", estimate), np.asarray(clusters)
    return np.stack([rows[own == one].mean(axis=0) for one in own])


def total_variation(estimate: NDArray[Any], label_counts: NDArray[Any], prior: NDArray[Any]) -> AttackResult:
    """Mean total variation between estimated and true label shares (n, classes); 0 is perfect.

    Chance guesses ``prior`` (classes,) for every client, with the spread of handing the estimates to random clients.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    value, _, sd = handed_out(_apart(truth, estimate))
    return AttackResult("label shares: total variation", value, _blind(truth, prior), 0.0, len(truth), sd)


def unnamed_total_variation(estimate: NDArray[Any], label_counts: NDArray[Any], prior: NDArray[Any]) -> AttackResult:
    """`total_variation` for estimates without names, in the best matching with the clients.

    Chance gives each estimate's numbers to random labels (`DRAWS` times, fixed seed) and matches them, or guesses the
    prior if that is better.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    rng = np.random.default_rng(0)
    by_luck = [_matched(truth, rng.permuted(estimate, axis=1)) for _ in range(DRAWS)]
    chance = min(float(np.mean(by_luck)), _blind(truth, prior))
    metric = "label shares of unnamed clients: total variation"
    return AttackResult(metric, _matched(truth, estimate), chance, 0.0, len(truth), float(np.std(by_luck, ddof=1)))


def _apart(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.spatial.distance import cdist  # slow to import

    return np.asarray(cdist(truth, estimate, "cityblock") / 2)


def _matched(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    from scipy.optimize import linear_sum_assignment  # slow to import

    apart = _apart(truth, estimate)
    return float(apart[linear_sum_assignment(apart)].mean())


def _blind(truth: NDArray[np.float64], prior: NDArray[Any]) -> float:
    guess = np.asarray(prior, np.float64)
    return float(_apart(truth, guess[None] / guess.sum()).mean())
