"""Attacks on sparsity vectors, clusters and selections: planted answers, listed chances, and MNIST."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.data.partition import label_counts, partition
from coterie.data.sources import load
from coterie.dp.gaussian import clipped, mean_sensitivity, noise_multiplier, noised
from coterie.privacy import measures
from coterie.privacy.attacks.labels import (
    by_cluster,
    class_means,
    label_entropy,
    rank_correlation,
    share_correlation,
    shares_by_nnls,
    top_label_hit_rate,
    total_variation,
    unnamed_total_variation,
)
from coterie.privacy.attacks.result import handed_out
from coterie.protocol.errors import UserError
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.models import build
from coterie.training.solvers import Sgd
from coterie.training.sparsity import sparsities

Array = np.ndarray[Any, Any]
CLASSES, CHANNELS = 5, 12


def planted(n: int, seed: int, beta: float = 0.3, spread: float = 0.0) -> tuple[Array, Array, Array]:
    """Label counts (n, classes), class means, and the vectors that are their mixtures, plus noise."""
    rng = np.random.default_rng(seed)
    means = rng.random((CLASSES, CHANNELS))
    counts = np.stack([rng.multinomial(60, rng.dirichlet([beta] * CLASSES)) for _ in range(n)])
    return counts, means, counts / 60 @ means + spread * rng.normal(size=(n, CHANNELS))


# -- the attack --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
def test_mixtures_are_taken_apart_exactly(seed: int) -> None:
    counts, means, vectors = planted(6, seed)
    np.testing.assert_allclose(shares_by_nnls(vectors, means), counts / 60, atol=1e-4)


def test_the_estimate_is_the_nearest_mixture() -> None:
    """Against a general minimiser over the simplex, for vectors that are no mixtures."""
    _, means, vectors = planted(8, 3, spread=0.3)
    found = shares_by_nnls(vectors, means)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    assert (found >= 0).all()
    for row, vector in zip(found, vectors, strict=True):
        twin = minimize(
            lambda w, v=vector: float(((w @ means - v) ** 2).sum()),
            np.full(CLASSES, 1 / CLASSES),
            bounds=[(0, 1)] * CLASSES,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-12, "maxiter": 500},
        )
        np.testing.assert_allclose(row, twin.x, atol=1e-3)


def test_class_means_are_means_and_unknown_for_absent_classes() -> None:
    rows, labels = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([2, 0, 2])
    means = class_means(rows, labels, 4)
    np.testing.assert_array_equal(means[[0, 2]], [[0.0, 1.0], [1.0, 0.5]])
    assert np.isnan(means[[1, 3]]).all()


def test_a_class_without_a_known_mean_gets_no_share() -> None:
    counts, means, vectors = planted(6, 1)
    means[2] = np.nan
    found = shares_by_nnls(vectors, means)
    assert (found[:, 2] == 0).all()
    rest = counts[:, 2] == 0
    np.testing.assert_allclose(found[rest], counts[rest] / 60, atol=1e-4)


def test_dead_channels_and_alike_classes_have_a_defined_result() -> None:
    alike = np.ones((3, 4))
    found = shares_by_nnls(np.zeros((2, 4)), alike)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_hostile_input_is_refused() -> None:
    _, means, vectors = planted(4, 0)
    for call in (
        lambda: shares_by_nnls(vectors, np.full_like(means, np.nan)),
        lambda: shares_by_nnls(np.where(vectors > 0.5, np.nan, vectors), means),
        lambda: label_entropy(np.zeros((2, 3))),
        lambda: rank_correlation(np.ones(5), np.arange(5), "samples"),
        lambda: rank_correlation(np.arange(2), np.arange(2), "samples"),
        lambda: rank_correlation(np.arange(4), np.array([1, 2, 3, np.nan]), "samples"),
    ):
        with pytest.raises(UserError):
            call()


# -- scores ------------------------------------------------------------------------------------------------------------


def test_total_variation_of_a_hand_checked_toy() -> None:
    result = total_variation(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[1, 1], [1, 3]]), np.array([3, 1]))
    assert (result.value, result.perfect, result.n) == (pytest.approx((0.5 + 0.25) / 2), 0.0, 2)
    assert result.chance == pytest.approx((0.25 + 0.5) / 2)  # of 3/4, 1/4 for both
    assert result.leak == pytest.approx(0.0)


def test_luck_is_that_of_all_orders() -> None:
    scores = np.random.default_rng(0).random((4, 4))
    every = [np.mean([scores[i, j] for i, j in enumerate(order)]) for order in itertools.permutations(range(4))]
    value, chance, sd = handed_out(scores)
    assert value == every[0]
    assert (chance, sd) == (pytest.approx(np.mean(every)), pytest.approx(np.std(every)))


def test_unnamed_estimates_are_matched_as_well_as_any_order_matches_them() -> None:
    counts, means, vectors = planted(5, 2, spread=0.2)
    estimate = shares_by_nnls(vectors, means)
    apart = [
        np.abs(counts / 60 - estimate[list(order)]).sum(axis=1).mean() / 2 for order in itertools.permutations(range(5))
    ]
    shuffled = estimate[[3, 0, 4, 2, 1]]
    results = [unnamed_total_variation(some, counts, np.ones(CLASSES)) for some in (estimate, shuffled)]
    assert results[0].value == pytest.approx(results[1].value) == pytest.approx(min(apart))
    assert results[0].chance <= total_variation(estimate, counts, np.ones(CLASSES)).chance + 1e-12


def test_unnamed_estimates_that_know_nothing_are_at_chance() -> None:
    """Right shapes of rows, labels at random: within the stated spread on average over 20 federations."""
    gaps = []
    for seed in range(20):
        counts, _, _ = planted(30, seed, beta=0.1)
        guess = np.random.default_rng(seed + 99).permuted(counts / 60, axis=1)
        result = unnamed_total_variation(guess, counts, np.ones(CLASSES))
        gaps.append((result.value - result.chance) / result.chance_sd)
    assert abs(np.mean(gaps)) < 3 / np.sqrt(len(gaps)) * 1.5


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_clusters_of_one_give_names_and_one_cluster_the_mean(spread: float) -> None:
    _, means, vectors = planted(9, 4, spread=spread)
    estimate = shares_by_nnls(vectors, means)
    np.testing.assert_allclose(by_cluster(estimate, np.arange(9)), estimate)
    np.testing.assert_allclose(by_cluster(estimate, np.zeros(9)), np.tile(estimate.mean(axis=0), (9, 1)))
    two = by_cluster(estimate, np.array([7] * 4 + [3] * 5))
    np.testing.assert_allclose(two[[0, 8]], [estimate[:4].mean(axis=0), estimate[4:].mean(axis=0)])


def test_entropy_and_rank_correlation() -> None:
    np.testing.assert_allclose(
        label_entropy(np.array([[4, 0], [1, 1], [30, 10]])), [0, np.log(2), 0.5623351], atol=1e-6
    )
    up = rank_correlation(np.arange(20), np.arange(20.0) ** 3, "samples")
    assert (up.value, up.perfect) == (pytest.approx(1.0), 1.0)
    assert rank_correlation(-np.arange(20), np.arange(20), "samples").value == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    found = [rank_correlation(rng.random(20), rng.random(20), "samples") for _ in range(300)]
    assert np.mean([one.value for one in found]) == pytest.approx(found[0].chance, abs=0.03)
    assert np.std([one.value for one in found]) == pytest.approx(found[0].chance_sd, rel=0.2)


# -- what audits share -------------------------------------------------------------------------------------------------


def recorded(label_counts: Array, groups: Array | None) -> Any:
    return SimpleNamespace(label_counts=label_counts, groups=groups)


def test_an_audit_names_each_party_and_what_it_finds() -> None:
    counts, means, vectors = planted(12, 5)
    estimate, prior = shares_by_nnls(vectors, means), counts.sum(axis=0)
    clusters = np.arange(12) % 3
    found = [
        *measures.by_shares("server", estimate, prior, counts),
        *measures.by_shares("helper with the clusters", estimate, prior, counts, clusters),
        *measures.memberships(recorded(counts, clusters), "server", counts.argmax(axis=1), list(range(12))),
        measures.by_variety("server", "noise floors", np.ones(12), counts),
    ]
    by_name = {f"{one.who}: {one.what}": one for one in found}
    assert by_name["server: label shares"].result.leak > 0.99
    assert by_name["server: top label"].result.value == 1.0
    assert by_name["helper with the clusters: label shares"].result.leak < 0.6
    assert by_name["server: which pairs have one top label, by cluster"].result.value == 1.0
    same = by_name["server: variety of labels, by noise floors"]  # floors x samples are the same for all
    assert same.result is None
    assert "same for all" in same.why


def test_an_audit_of_what_cannot_be_attacked_says_why() -> None:
    counts, _, _ = planted(4, 0)
    (few,) = measures.memberships(recorded(counts, None), "server", np.zeros(2), [0, 1])
    assert few.result is None


# -- real data ---------------------------------------------------------------------------------------------------------


def federation(data: str, clients: int, samples: int, public: int, beta: float, seed: int) -> tuple[Any, ...]:
    """Sparsity vectors of samples, by client, of an extractor that is trained on the public samples; and these."""
    dataset, rng = load(data), np.random.default_rng(seed)
    x, y = dataset.inputs(), dataset.labels().astype(np.int64)
    order = rng.permutation(len(y))
    own, others = order[:public], order[public : public + clients * samples]
    model = build("mlp", x.shape[1:], dataset.classes)
    job = Job(model.initial(seed), Sgd(0.1, 50), 20, seed, torch.from_numpy(x[own]), torch.from_numpy(y[own]))
    weights = fit_many(model, [job])[0].weights
    split = partition(f"dirichlet:{beta}", y[others], y[others], clients, seed)
    per_sample = sparsities(model, weights, x[others])
    auxiliary = sparsities(model, weights, x[own])
    return (
        [per_sample[rows] for rows in split.train],
        label_counts(split, y[others], dataset.classes),
        auxiliary,
        y[own],
    )


def attacked(sent: Array, auxiliary: Array, labels: Array, counts: Array) -> tuple[float, float, float, float]:
    """Total variation, its chance, top labels guessed, correlation."""
    estimate = shares_by_nnls(sent, class_means(auxiliary, labels, counts.shape[1]))
    apart = total_variation(estimate, counts, np.bincount(labels, minlength=counts.shape[1]))
    hits, correlation = top_label_hit_rate(estimate, counts), share_correlation(estimate, counts)
    return apart.value, apart.chance, hits.value, correlation.value


def with_noise(vectors: list[Array], auxiliary: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """What ``protocols/sparsity.py`` sends: clipped about the public mean, noise on each half."""
    centre = auxiliary.mean(axis=0)
    clip, z = float(np.median(np.linalg.norm(auxiliary - centre, axis=1))), noise_multiplier(epsilon, 1e-5)
    sent = []
    for own in vectors:
        halves = np.array_split(clipped(own - centre, clip), 2)
        noisy = [
            noised(half.mean(axis=0), z, mean_sensitivity(clip, len(half)), rng.standard_normal) for half in halves
        ]
        sent.append(centre + np.average(noisy, axis=0, weights=[len(half) for half in halves]))
    return np.stack(sent)


def test_label_shares_are_read_off_on_digits_and_noise_makes_it_harder() -> None:
    vectors, counts, auxiliary, labels = federation("digits", 20, 50, 250, 0.3, 0)
    clear, chance, hits, correlation = attacked(
        np.stack([own.mean(axis=0) for own in vectors]), auxiliary, labels, counts
    )
    assert clear < 0.4 * chance
    assert hits >= 0.85
    assert correlation > 0.9
    by_epsilon = [
        attacked(with_noise(vectors, auxiliary, e, np.random.default_rng(1)), auxiliary, labels, counts)[0]
        for e in (8, 1, 0.01)
    ]
    assert clear < by_epsilon[0] < by_epsilon[1] < by_epsilon[2]
    assert by_epsilon[2] > 0.9 * chance


@pytest.mark.long
@pytest.mark.real_data
def test_label_shares_are_read_off_on_mnist_with_397_samples_of_ones_own() -> None:
    """50 devices x 200 samples, Dir(.1), three seeds."""
    for seed in range(3):
        vectors, counts, auxiliary, labels = federation("mnist", 50, 200, 397, 0.1, seed)
        apart, chance, hits, _ = attacked(np.stack([own.mean(axis=0) for own in vectors]), auxiliary, labels, counts)
        assert 0.05 < apart < 0.19
        assert 0.65 < chance < 0.77
        assert hits >= 0.9
        noisy = attacked(with_noise(vectors, auxiliary, 1.0, np.random.default_rng(seed)), auxiliary, labels, counts)[0]
        assert 2 * apart < noisy < chance
