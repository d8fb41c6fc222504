"""The label prior at prediction: Bayes' rule, and a guard that keeps it from losing its bet."""

from __future__ import annotations

import numpy as np

from coterie.training.prior import LEAST_BATCH, bears_out, looks_like, prior_shift


def predicted(shares: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    return draw.multinomial(count, shares)


def test_logits_of_a_mixture_become_those_of_the_clients_own_labels() -> None:
    """log p(y | x) under either prior differs by the logarithm of the priors' ratio, up to a constant."""
    draw = np.random.default_rng(0)
    density = draw.dirichlet(np.ones(4), size=50)  # p(x | y), (x, y)
    own, mixture = np.array([60, 30, 10, 0]), np.array([100, 100, 200, 600])
    shares = [(counts + 0.5) / (counts + 0.5).sum() for counts in (own, mixture)]
    logits = np.log(density * shares[1])
    posterior = density * shares[0]
    shifted = np.exp(logits + prior_shift(own, mixture))
    normal = [p / p.sum(axis=1, keepdims=True) for p in (shifted, posterior)]
    assert np.allclose(*normal)


def test_a_client_whose_labels_are_the_mixtures_changes_nothing() -> None:
    assert not prior_shift(np.array([3, 5, 0]), np.array([3, 5, 0])).any()


def test_the_guard_is_quiet_on_the_clients_own_labels() -> None:
    alarms = 0
    for seed in range(400):
        draw = np.random.default_rng(seed)
        shares = draw.dirichlet(np.full(10, 0.3))
        own, batch = predicted(shares, 100, draw), predicted(shares, 40, draw)
        alarms += not looks_like(own, batch, draw)
    assert alarms <= 12


def test_the_guard_tells_other_labels() -> None:
    alarms = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        own = predicted(draw.dirichlet(np.full(10, 0.1)), 100, draw)
        alarms += not looks_like(own, predicted(np.full(10, 0.1), 60, draw), draw)
    assert alarms >= 190


def test_few_samples_are_not_checked() -> None:
    draw = np.random.default_rng(1)
    own, batch = np.array([100, 0]), np.array([0, LEAST_BATCH - 1])
    assert looks_like(own, batch, draw)
    assert not looks_like(own, batch + np.array([0, 1]), draw)


def test_a_clients_own_samples_speak_against_a_false_shift() -> None:
    """A shift towards the labels that they have is borne out, its reverse is not; one of nothing always is."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 200, p=[0.8, 0.15, 0.05])
    outputs = rng.normal(0, 1, (200, 3))
    shift = np.log([0.8, 0.15, 0.05]) - np.log(1 / 3)
    assert bears_out(outputs, labels, shift)
    assert not bears_out(outputs, labels, -shift)
    assert bears_out(outputs, labels, np.zeros(3))
    assert not bears_out(outputs[:0], labels[:0], shift)
