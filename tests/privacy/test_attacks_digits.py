"""Clustering and attacks on models that were really trained: handwritten digits, federated averaging, unequal clients.

A small trainer in plain numpy, independent of the package, so that these numbers say something about it. What
FedCAPrivacy's servers see is rebuilt here: rows under a vector mask that is fresh per round, freshly shuffled.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scalar_mask import unmask_scalar, unmasking_error
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.spectral import soft_spectral
from coterie.privacy.attacks import labels
from coterie.privacy.attacks.blinded_rows import recover, recovery_error, relink, relink_accuracy, relink_by_profiles
from coterie.protocol.model_spec import ModelSpec, Part

CLIENTS, ROUNDS = 30, 4
SHAPES = {"0.weight": (64, 32), "0.bias": (32,), "2.weight": (32, 10), "2.bias": (10,)}
ENDS = np.cumsum([np.prod(s) for s in SHAPES.values()])
SPEC = ModelSpec(
    tuple(
        Part(name, shape, "float32", "parameter", "shared", int(end - np.prod(shape)))
        for (name, shape), end in zip(SHAPES.items(), ENDS, strict=True)
    )
)


def train(w, x, y, epochs, rng, lr):
    """Local SGD in batches of 10, eq. (3): (d,) -> (d,)."""
    w = w.copy()
    W1, b1, W2, b2 = (v.reshape(s) for v, s in zip(np.split(w, ENDS[:-1]), SHAPES.values(), strict=True))
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for batch in np.split(order, range(10, len(y), 10)):
            h = np.maximum(x[batch] @ W1 + b1, 0)
            z = np.exp(h @ W2 + b2)
            g = z / z.sum(axis=1, keepdims=True)
            g[np.arange(len(batch)), y[batch]] -= 1
            g /= len(batch)
            gh = (g @ W2.T) * (h > 0)
            for v, step in ((W2, h.T @ g), (b2, g.sum(0)), (W1, x[batch].T @ gh), (b1, gh.sum(0))):
                v -= lr * step
    return w


@dataclass
class History:
    start: np.ndarray  # (d,)
    rounds: list[np.ndarray]  # (n, d) each, by client
    counts: np.ndarray  # (n, classes)
    groups: np.ndarray | None


def federated(kind: str, seed: int, lr: float = 0.05) -> History:
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean()) / x.std()
    rng = np.random.default_rng(seed)
    groups = np.arange(CLIENTS) % 5 if kind == "groups" else None
    if groups is not None:  # group g holds the digits 2g and 2g + 1
        own = [rng.choice(np.flatnonzero(y // 2 == g), 50, replace=False) for g in groups]
    else:
        shares = rng.dirichlet(np.full(10, 0.3), size=CLIENTS)
        own = [rng.choice(len(y), 60, p=s[y] / s[y].sum()) for s in shares]
    start = np.concatenate([rng.normal(0, s[0] ** -0.5, size=np.prod(s)) * (len(s) == 2) for s in SHAPES.values()])
    epochs = np.maximum(1, np.rint(5 * rng.uniform(0.2, 1, CLIENTS))).astype(int)
    rounds, current = [], start
    for _ in range(ROUNDS):
        rounds.append(np.array([train(current, x[i], y[i], e, rng, lr) for i, e in zip(own, epochs, strict=True)]))
        current = rounds[-1].mean(axis=0)
    return History(start, rounds, np.array([np.bincount(y[i], minlength=10) for i in own]), groups)


def blinded(rows, rng):
    """What the cloud service provider decrypts: (rows in a fresh order, under a fresh vector mask; the order)."""
    order = rng.permutation(len(rows))
    return rows[order] + rng.uniform(-1e3, 1e3, size=rows.shape[1]), order


@pytest.fixture(scope="module")
def uneven():
    return [federated("dirichlet", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def grouped():
    return [federated("groups", 0)]


def test_algorithm_2_finds_the_groups_and_its_literal_text_does_not(grouped):
    """On round 1 and the last; per client 1.0 to 1.2 clusters, where the literal text ends near an average of all."""
    for history in grouped:
        for rows in (history.rounds[0], history.rounds[-1]):
            for options in ({}, {"gamma": "median", "kernel": "rbf"}):
                soft = soft_spectral(rows, 5, **options)
                assert adjusted_rand_score(history.groups, soft.labels) >= 0.95
                assert soft.membership.sum(axis=1).mean() <= 1.2
            literal = soft_spectral(rows, 5, literal=True)
            assert adjusted_rand_score(history.groups, literal.labels) < 0.4
            assert literal.membership.sum(axis=1).mean() > 1.5


def test_a_sketch_of_16_numbers_is_enough_to_find_the_groups(grouped):
    for seed, history in enumerate(grouped):
        rows = history.rounds[0]
        projection = np.random.default_rng(seed).normal(size=(rows.shape[1], 16)) / 4
        soft = soft_spectral(rows @ projection, 5)
        assert adjusted_rand_score(history.groups, soft.labels) >= 0.9


def test_the_business_server_reads_similarity_off_phi(grouped):
    for history in grouped:
        phi = soft_spectral(history.rounds[0], 5).membership
        assert labels.pair_auc(labels.similar_pairs(phi), history.groups).value > 0.95
        assert labels.pair_correlation(labels.similar_pairs(phi), history.counts).value > 0.9


def test_shuffled_clients_are_re_linked(uneven):
    """Consecutive rounds; by vectors nearly always, by distance profiles far above 1/30."""
    vectors, profiles = [], []
    for seed, history in enumerate(uneven):
        rng = np.random.default_rng(seed)
        for before, after in zip(history.rounds, history.rounds[1:], strict=False):
            (a, first), (b, second) = blinded(before, rng), blinded(after, rng)
            truth = np.argsort(first)[second]
            vectors.append(relink_accuracy(relink(a, b), truth, CLIENTS).value)
            guess = relink_by_profiles(pairwise_distances(a), pairwise_distances(b))
            profiles.append(relink_accuracy(guess, truth, CLIENTS).value)
    assert np.mean(vectors) >= 0.93
    assert np.mean(profiles) >= 0.3


def test_clients_of_another_training_are_not_re_linked(uneven):
    """The negative control: rows of two unrelated populations."""
    values = []
    for r in range(ROUNDS):
        guess = relink(uneven[0].rounds[r], uneven[1].rounds[r])
        values += [
            relink_accuracy(guess, np.random.default_rng(s).permutation(CLIENTS), CLIENTS).value for s in range(20)
        ]
    assert np.mean(values) < 3 / CLIENTS


def test_the_last_bias_tells_the_labels(uneven):
    for seed, history in enumerate(uneven):
        rows, order = blinded(history.rounds[0], np.random.default_rng(seed))
        estimate, counts = labels.label_shares(rows, SPEC), history.counts[order]
        correlation, top = labels.share_correlation(estimate, counts), labels.top_label_hit_rate(estimate, counts)
        assert correlation.value > 0.7
        assert correlation.value > 10 * correlation.chance_sd
        assert top.value > 0.5
        assert top.value > top.chance + 5 * top.chance_sd
        control = labels.share_correlation(estimate, np.roll(counts, 1, axis=0))  # everybody judged by a neighbour
        assert abs(control.value) < 4 * control.chance_sd


def test_scalar_mask_and_public_start_open_the_weights(uneven):
    for history in uneven:
        rows = history.rounds[0]
        assert unmasking_error(unmask_scalar(rows + 12345.678), rows).value < 0.03
        recovered = recover(blinded(rows, np.random.default_rng(0))[0], history.start)
        order = np.random.default_rng(0).permutation(len(rows))
        result = recovery_error(recovered, rows[order], history.start)
        assert result.leak > 0.2
        assert result.value < 0.2
