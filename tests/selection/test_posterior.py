"""The bandit's kernel and posterior against closed forms and a slow twin; the printed ones, and where they fail."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.selection import posterior as post
from coterie.selection.bandit import Bandit
from coterie.selection.contexts import standardised_rewards

NUMBERS = {"length_scale": 2.0, "noise": 0.5, "slope": 0.7, "sigma": 0.8}


def random_past(sets: int, seed: int, scale: float = 1.0, most: int = 6) -> post.Past:
    """Random sets with random rewards, their features summed."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, most + 1, sets)
    contexts = scale * draw.normal(size=(int(sizes.sum()), 5))
    parts = np.split(contexts, np.cumsum(sizes)[:-1])
    features = np.array([post.phi(x).sum(axis=0) / 10 for x in parts]).reshape(sets, 11)
    return post.Past(contexts, sizes, features, draw.normal(size=sets))


def as_sums(sets: list[np.ndarray], past: post.Past) -> post.SetSums:
    """What kernels need of these sets of contexts, one by one."""
    return post.SetSums(
        np.array([len(x) for x in sets], float),
        np.array([post.distances(x, x).sum() for x in sets]),
        np.array([post.mean_distances(x, past.contexts, past.sizes).sum(axis=0) for x in sets]),
        np.array([post.phi(x).sum(axis=0) / 10 for x in sets]),
    )


def slow_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The energy distance's root by loops."""

    def mean(a: np.ndarray, b: np.ndarray) -> float:
        return sum(float(np.linalg.norm(u - v)) for u in a for v in b) / (len(a) * len(b))

    return max(0.0, 2 * mean(x, y) - mean(x, x) - mean(y, y)) ** 0.5


def slow_kernel(x: np.ndarray, y: np.ndarray) -> float:
    s = 3**0.5 * slow_distance(x, y) / NUMBERS["length_scale"]
    linear = float(post.phi(x).sum(axis=0) @ post.phi(y).sum(axis=0)) / 100
    return NUMBERS["sigma"] ** 2 * (1 + s) * np.exp(-s) + NUMBERS["slope"] ** 2 * linear


def sets_of(past: post.Past) -> list[np.ndarray]:
    return np.split(past.contexts, np.cumsum(past.sizes)[:-1])


# -- the kernel --------------------------------------------------------------------------------------------------------


def test_the_distance_of_hand_made_sets():
    a, b = np.zeros((1, 5)), np.zeros((2, 5))
    b[:, 0] = (0, 4)  # {0} and {0, 4}: cross 2, within 0 and 2, so the energy distance is 2
    assert slow_distance(a, b) == pytest.approx(2**0.5)
    assert post.energy_distance(2.0, 0.0, 2.0) == pytest.approx(2**0.5)
    assert post.matern(0.0, 3.0) == 1
    assert post.matern(3.0, 3.0) == pytest.approx((1 + 3**0.5) * np.exp(-(3**0.5)))


def test_a_set_is_at_distance_0_from_itself_and_from_its_copies():
    past = random_past(6, 0)
    for x in sets_of(past):
        own = post.distances(x, x).mean()
        assert post.energy_distance(post.distances(x, x).mean(), own, own) == 0
        assert slow_distance(x, np.tile(x, (3, 1))) == pytest.approx(0, abs=1e-7)
        assert post.printed_distance(post.distances(x, x).sum(), len(x), len(x)) == pytest.approx(
            own
        )  # as printed it is not 0


@given(st.integers(1, 14), st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 50.0]), st.floats(0.1, 10))
def test_gram_matrices_have_no_negative_eigenvalue(sets, seed, scale, length_scale):
    past = random_past(sets, seed, scale)
    gram = post.covariance(past, post.between(past.contexts, past.sizes), length_scale, slope=0.0, sigma=1.0)
    assert np.abs(gram - gram.T).max() == 0
    assert np.linalg.eigvalsh(gram).min() > -1e-9


def test_the_printed_kernel_is_not_positive_semi_definite():
    least, right = np.inf, np.inf
    for seed in range(40):
        past = random_past(12, seed)
        sets, sizes = sets_of(past), past.sizes.astype(float)
        total = np.array([[post.distances(x, y).sum() for y in sets] for x in sets])
        printed = post.matern(post.printed_distance(total, sizes[:, None], sizes), 2.0)
        least = min(least, float(np.linalg.eigvalsh(printed).min()))
        right = min(
            right,
            float(
                np.linalg.eigvalsh(post.covariance(past, post.between(past.contexts, past.sizes), 2.0, 0.0, 1.0)).min()
            ),
        )
    assert least < -0.05
    assert right > 0


def test_mean_distances_in_chunks_are_those_of_loops(monkeypatch):
    past, x = random_past(5, 3), np.random.default_rng(1).normal(size=(9, 5))
    monkeypatch.setattr("coterie.selection.posterior._CHUNK", 30)
    slow = [[np.mean([np.linalg.norm(u - v) for v in y]) for y in sets_of(past)] for u in x]
    assert post.mean_distances(x, past.contexts, past.sizes) == pytest.approx(np.array(slow))


# -- the full posterior ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_posterior_is_that_of_a_gaussian_conditioned_by_inverses(seed):
    past = random_past(9, seed)
    sets = sets_of(random_past(7, seed + 50))
    train = sets_of(past)
    k = np.array([[slow_kernel(x, y) for y in train] for x in train]) + NUMBERS["noise"] ** 2 * np.eye(9)
    cross = np.array([[slow_kernel(x, y) for y in train] for x in sets])
    prior = np.array([slow_kernel(x, x) for x in sets])
    values, centre, unit = standardised_rewards(past.rewards)
    inverse = np.linalg.inv(k)
    mean, deviation = post.posterior(past, **NUMBERS)(as_sums(sets, past))
    assert mean == pytest.approx(centre + unit * cross @ inverse @ values)
    assert deviation == pytest.approx(unit * np.sqrt(prior - np.einsum("ij,jk,ik->i", cross, inverse, cross)))


def test_the_deviation_after_twenty_pulls_of_one_set_and_that_of_the_printed_recursion():
    """1 / (1 + t / noise^2) of the prior's variance is left; the printed recursion forgets all pulls but the last."""
    x = np.zeros((1, 5))
    past = post.Past(np.zeros((20, 5)), np.ones(20, np.int64), np.zeros((20, 11)), np.tile([-1.0, 1.0], 10))
    sums = as_sums([x], past)
    sums = post.SetSums(sums.size, sums.pairs, sums.past, np.zeros((1, 11)))
    _, right = post.posterior(past, 2.0, 0.5, 0.0, 1.0)(sums)
    _, printed = post.printed_posterior(past, 2.0, 0.5)(sums)
    assert float(right[0]) ** 2 == pytest.approx(0.25 / (20 + 0.25))  # .0123
    assert float(printed[0]) ** 2 == pytest.approx(0.25 / 1.25)  # .20, however often it is tried


def test_the_printed_recursion_is_algorithm_3_line_8():
    """The twin keeps mu as a function and updates it step by step, over sets whose kernel values are known."""
    past = random_past(6, 5, most=3)
    sets = sets_of(past)

    def k(x: np.ndarray, y: np.ndarray) -> float:
        return float(post.matern(post.distances(x, y).sum() / max(len(x), len(y)) ** 2, 2.0))

    others = sets_of(random_past(4, 6, most=3))
    everything = [*sets, *others]
    mean = np.zeros(len(everything))  # mu_0 = 0
    for t, (tried, reward) in enumerate(zip(sets, past.rewards, strict=True)):
        gain = np.array([k(x, tried) for x in everything]) / (k(tried, tried) + 0.25)
        mean = mean + gain * (reward - mean[t])
    last = sets[-1]
    variance = [k(x, x) - k(x, last) ** 2 / (k(last, last) + 0.25) for x in others]
    found, deviation = post.printed_posterior(past, 2.0, 0.5)(as_sums(others, past))
    assert found == pytest.approx(mean[len(sets) :])
    assert deviation == pytest.approx(np.sqrt(np.maximum(variance, 0)))


def test_before_any_reward_all_that_is_known_is_the_prior():
    empty = Bandit().past()
    sets = [np.ones((2, 5)), np.zeros((1, 5))]
    mean, deviation = post.posterior(empty, **NUMBERS)(as_sums(sets, empty))
    assert mean.tolist() == [0, 0]
    expected = [NUMBERS["sigma"] ** 2 + NUMBERS["slope"] ** 2 * n for n in (11 * 0.2**2, 0.1**2)]
    assert np.square(deviation) == pytest.approx(expected)
    mean, deviation = post.printed_posterior(empty, 2.0, 0.5)(as_sums(sets, empty))
    assert (mean.tolist(), deviation.tolist()) == ([0, 0], [1, 1])


def test_a_set_s_sums_over_all_subsets_agree_with_the_sets_themselves():
    from coterie.selection.search import Devices

    past, x = random_past(3, 8), np.random.default_rng(2).normal(size=(4, 5))
    devices = Devices(x, np.ones(4), post.mean_distances(x, past.contexts, past.sizes), post.phi(x) / 10)
    members = np.array([m for m in product([False, True], repeat=4) if any(m)])
    found, slow = devices.sums(members), as_sums([x[m] for m in members], past)
    for name in ("size", "pairs", "past", "features"):
        assert getattr(found, name) == pytest.approx(getattr(slow, name))
