"""Attacks on MingledPie's identity sets, also of a client that changes its cluster and with sizes estimated from the
sets: Bayes by listing everything, closed forms, and simulated runs beside them.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.identity_coins import coin_sets
from coterie.clustering.identity_law import IdentityLaw
from coterie.privacy.attacks.identity import (
    change_posterior,
    cluster_posterior,
    common_false,
    estimated_sizes,
    expected_accuracy,
    expected_after_change,
    expected_by_estimates,
    identity_accuracy,
)
from coterie.privacy.attacks.result import AttackResult
from coterie.protocol.errors import UserError

DEFAULT = IdentityLaw(5, 0.5, 2)
UNEQUAL = np.array([10, 10, 10, 20, 70])
TRUTH = np.repeat(np.arange(5), UNEQUAL)


def seeded(seed):
    return np.random.default_rng(seed).bytes


def drawn(law, truth, rounds, source):
    """(rounds, clients, k) independent sets."""
    return np.stack([coin_sets(law, truth, source)[0] for _ in range(rounds)])


def agrees(measured, expected):
    """Whether a measured accuracy lies within three standard errors of its closed form."""
    return abs(measured.value - expected.accuracy) < 3 * expected.standard_error(measured.n) + 1e-9


def set_law(law, true):
    """Each set of a client of this cluster, with its probability."""
    k, p = law.clusters, law.p
    sets = [s for s in itertools.product((0, 1), repeat=k) if s[true] and sum(s) >= law.least]
    weights = [p ** (sum(s) - 1) * (1 - p) ** (k - sum(s)) for s in sets]
    return {s: weight / sum(weights) for s, weight in zip(sets, weights, strict=True)}


# ---------------------------------------------------------------- the posterior


def test_the_posterior_is_the_prior_cut_to_the_set():
    sets = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1]])
    assert cluster_posterior(sets).tolist() == pytest.approx(
        np.array([[1 / 2, 1 / 2, 0], [0, 1 / 2, 1 / 2], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    )
    by_size = cluster_posterior(sets.astype(bool), np.array([1, 3, 4]))
    assert by_size == pytest.approx(np.array([[1 / 4, 3 / 4, 0], [0, 3 / 7, 4 / 7], [0, 0, 1], [1 / 8, 3 / 8, 1 / 2]]))


@given(st.sampled_from([(3, 0.5, 1), (4, 0.25, 2), (4, 0.5, 3)]), st.sampled_from([1.0, 0.9, 0.6]), st.data())
def test_the_posterior_of_several_sets_is_that_of_bayes(parameters, home_share, data):
    """Every set's probability under every main cluster, multiplied by the prior. Equal sets are told apart first."""
    law = IdentityLaw(*parameters)
    k = law.clusters
    prior = np.array(data.draw(st.lists(st.integers(1, 9), min_size=k, max_size=k)), float)
    laws = [set_law(law, j) for j in range(k)]
    home = data.draw(st.integers(0, k - 1))
    rounds = data.draw(st.lists(st.sampled_from(list(laws[home])), min_size=1, max_size=4, unique=True))

    def likelihood(s, main):
        others = sum(laws[j].get(s, 0) for j in range(k) if j != main) / (k - 1)
        return home_share * laws[main].get(s, 0) + (1 - home_share) * others

    joint = np.array([prior[j] * math.prod(likelihood(s, j) for s in rounds) for j in range(k)])
    posterior = cluster_posterior(np.array(rounds)[:, None, :], prior, home_share)
    assert posterior[0] == pytest.approx(joint / joint.sum())


def test_sets_that_were_kept_say_nothing_new():
    rng = np.random.default_rng(0)
    sets = drawn(DEFAULT, TRUTH, 2, rng.bytes)
    kept = sets[[0, 0, 1, 0, 1, 1]]
    for home_share in (1.0, 0.7):
        once = cluster_posterior(sets, UNEQUAL, home_share)
        assert cluster_posterior(kept, UNEQUAL, home_share) == pytest.approx(once)


def test_absent_clients_are_followed_through_the_rounds_that_they_joined():
    sets = np.array([[[1, 1, 0], [0, 1, 1]], [[0, 0, 0], [1, 0, 1]], [[0, 1, 1], [0, 0, 0]]])
    for home_share in (1.0, 0.8):
        first = cluster_posterior(sets[[0, 2], :1], None, home_share)
        second = cluster_posterior(sets[:2, 1:], None, home_share)
        together = cluster_posterior(sets, None, home_share)
        assert together == pytest.approx(np.concatenate([first, second]))
    assert cluster_posterior(sets).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_client_that_strays_is_found_where_it_mostly_is():
    """Nine of twelve sets drawn for the main cluster: the intersection breaks, the mixture finds it."""
    rng = np.random.default_rng(0)
    truth = np.arange(100) % 10
    law = IdentityLaw(10, 0.25, 2)
    stray = (truth + rng.integers(1, 10, (3, 100))) % 10
    sets = np.concatenate([drawn(law, truth, 9, rng.bytes), *(drawn(law, row, 1, rng.bytes) for row in stray)])
    with pytest.raises(UserError, match="home_share below 1"):
        cluster_posterior(sets)
    result = identity_accuracy(cluster_posterior(sets, home_share=0.75), truth)
    assert result.value > 0.95
    assert result.chance == pytest.approx(0.1)


# ---------------------------------------------------------------- scores


def test_the_score_shares_ties_and_knows_what_chance_is():
    posterior = np.array([[0.5, 0.5, 0], [0, 0.2, 0.8], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.9, 0]])
    truth = np.array([1, 2, 0, 0])
    result = identity_accuracy(posterior, truth)
    sd = math.sqrt(1 / 3 * 2 / 3 / 4)
    expected = (1 / 2 + 1 + 1 / 3 + 0) / 4
    name = "true cluster guessed (share)"
    assert result == AttackResult(name, pytest.approx(expected), pytest.approx(1 / 3), 1.0, 4, pytest.approx(sd))
    by_size = identity_accuracy(posterior, truth, np.array([5, 1, 5]))
    assert (by_size.chance, by_size.chance_sd) == (pytest.approx(3 / 4 / 2), pytest.approx(math.sqrt(3 / 4) / 4))
    largest = identity_accuracy(posterior, truth, np.array([5, 1, 2]))
    assert (largest.chance, largest.chance_sd) == (pytest.approx(2 / 4), 0)


def test_rounding_does_not_decide_ties():
    posterior = np.array([[0.1 + 0.2, 0.3, 0.4 - 0.1 + 1e-16]])
    assert identity_accuracy(posterior, np.array([1])).value == pytest.approx(1 / 3)


# ---------------------------------------------------------------- the closed form


@given(
    st.sampled_from([(2, 0.5, 1), (3, 0.5, 1), (3, 0.3, 2), (4, 0.25, 2), (4, 0.5, 3)]), st.integers(1, 2), st.data()
)
def test_the_closed_form_is_the_mean_over_all_sets(parameters, m, data):
    """Every cluster, every m sets, scored by the attack itself; priors with ties, right and wrong ones."""
    law = IdentityLaw(*parameters)
    k = law.clusters
    weights = st.lists(st.integers(1, 3), min_size=k, max_size=k).map(lambda x: np.array(x, float))
    prior, shares = data.draw(weights), data.draw(weights)
    mean, conditional, coin = 0.0, 0.0, 0.0
    for true in range(k):
        sets = list(itertools.product(set_law(law, true).items(), repeat=m))
        chances = np.array([math.prod(pr for _, pr in each) for each in sets])
        views = np.array([[s for s, _ in each] for each in sets]).transpose(1, 0, 2)
        posterior = cluster_posterior(views, prior)
        score = np.array([identity_accuracy(row[None], np.array([true])).value for row in posterior])
        share, first = shares[true] / shares.sum(), chances @ score
        mean += share * first
        conditional += share * (chances @ score**2 - first**2)
        coin += share * first * (1 - first)
    expected = expected_accuracy([law] * m, prior, shares)
    assert expected.accuracy == pytest.approx(mean)
    assert expected.sd == pytest.approx(math.sqrt(max(conditional, 0)), abs=1e-7)
    assert expected.drawn_sd == pytest.approx(math.sqrt(max(coin, 0)), abs=1e-7)


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_what_is_common_to_several_sets_by_inclusion_and_exclusion(m):
    """In exact fractions: s given false clusters are all in one set with probability E[C(F, s)] / C(k - 1, s)."""
    laws = [IdentityLaw(7, 0.5**n, 1 + n % 3) for n in (1, 2, 1, 3, 2, 1)[:m]]
    others = 6
    held = [Fraction(1)] * (others + 1)
    for law in laws:
        p = Fraction(law.p)
        pmf = [math.comb(others, f) * p**f * (1 - p) ** (others - f) * (f + 1 >= law.least) for f in range(others + 1)]
        for s in range(others + 1):
            mean = sum(weight * math.comb(f, s) for f, weight in enumerate(pmf)) / sum(pmf)
            held[s] *= mean / math.comb(others, s)
    exact = [
        sum((-1) ** (s - i) * math.comb(s, i) * math.comb(others, s) * held[s] for s in range(i, others + 1))
        for i in range(others + 1)
    ]
    assert common_false(laws) == pytest.approx([float(x) for x in exact], abs=1e-12)
    assert common_false(laws[::-1]) == pytest.approx(common_false(laws), abs=1e-12)


@given(st.integers(2, 9), st.floats(0.05, 0.95), st.data())
def test_without_a_prior_it_is_the_mean_of_one_over_the_size(k, p, data):
    law = IdentityLaw(k, p, data.draw(st.integers(1, k)))
    shares = np.array(data.draw(st.lists(st.integers(1, 9), min_size=k, max_size=k)))
    for expected in (expected_accuracy(law), expected_accuracy(law, None, shares), expected_accuracy([law])):
        assert expected.accuracy == pytest.approx(law.guess_accuracy)
        variance = law.sizes @ (1 / np.arange(1, k + 1) - law.guess_accuracy) ** 2
        assert expected.sd == pytest.approx(math.sqrt(variance), abs=1e-7)
        assert expected.drawn_sd == pytest.approx(math.sqrt(law.guess_accuracy * (1 - law.guess_accuracy)))


# ---------------------------------------------------------------- simulated runs


@pytest.mark.long
@pytest.mark.parametrize(
    "law",
    [DEFAULT, IdentityLaw(5, 0.5, 2, "false_positives"), IdentityLaw(5, 0.125, 3), IdentityLaw(10, 0.25, 2)],
    ids=str,
)
@pytest.mark.parametrize("sizes", [None, np.arange(1, 6)], ids=["equal", "unequal"])
def test_measured_accuracy_is_within_three_standard_errors(law, sizes):
    """24,000 clients with one set; with a prior their clusters are unequal, and the prior is right."""
    rng = np.random.default_rng(7)
    k = law.clusters
    prior = None if sizes is None else np.resize(sizes, k)
    truth = np.repeat(np.arange(k), 24_000 // k if prior is None else prior * 24_000 // prior.sum())
    sets, _ = coin_sets(law, truth, rng.bytes)
    posterior = cluster_posterior(sets, prior)
    expected = expected_accuracy(law, prior)
    assert agrees(identity_accuracy(posterior, truth, prior), expected)
    assert posterior.max(axis=1).mean() == pytest.approx(expected.accuracy, abs=0.01)  # as the attacker itself expects


def test_clusters_of_unequal_size_break_theorem_2():
    """Sizes 10, 10, 10, 20, 70: .68 with the sizes known, .66 with estimates, against .346 and a bound of 1/2."""
    source = seeded(0)
    prior, blind = expected_accuracy(DEFAULT, UNEQUAL), expected_accuracy(DEFAULT)
    assert (round(prior.accuracy, 2), round(blind.accuracy, 3)) == (0.68, 0.347)
    assert prior.accuracy > DEFAULT.bounds[1] == 0.5 > blind.accuracy
    known, estimated, uniform = [], [], []
    for _ in range(100):
        sets, _ = coin_sets(DEFAULT, TRUTH, source)
        known.append(identity_accuracy(cluster_posterior(sets, UNEQUAL), TRUTH, UNEQUAL).value)
        sizes = estimated_sizes(sets, DEFAULT.p_correct())
        estimated.append(identity_accuracy(cluster_posterior(sets, sizes), TRUTH, sizes).value)
        uniform.append(identity_accuracy(cluster_posterior(sets), TRUTH).value)
    assert np.mean(known) == pytest.approx(prior.accuracy, abs=3 * prior.standard_error(120) / 10)
    assert np.mean(uniform) == pytest.approx(blind.accuracy, abs=3 * blind.standard_error(120) / 10)
    assert np.mean(estimated) == pytest.approx(0.66, abs=0.02)
    # the standard error of one run of 120 clients is the spread over runs
    assert np.std(known) == pytest.approx(prior.standard_error(120), rel=0.25)
    assert np.std(uniform) == pytest.approx(blind.standard_error(120), rel=0.25)


@pytest.mark.long
def test_an_attacker_who_throws_coins_for_ties_has_a_larger_error():
    rng = np.random.default_rng(1)
    expected = expected_accuracy(DEFAULT)
    rates = []
    for _ in range(1000):
        posterior = cluster_posterior(coin_sets(DEFAULT, TRUTH, rng.bytes)[0])
        guess = (posterior * (1 + rng.random(posterior.shape))).argmax(axis=1)  # the entries of a row are equal or 0
        rates.append((guess == TRUTH).mean())
    assert np.mean(rates) == pytest.approx(expected.accuracy, abs=3 * expected.drawn_sd / math.sqrt(120 * 1000))
    assert np.std(rates) == pytest.approx(expected.drawn_sd / math.sqrt(120), rel=0.1)


@pytest.mark.parametrize(
    ("k", "p", "accuracies"), [(5, 0.5, (0.35, 0.56, 0.73, 0.84, 0.92)), (10, 0.25, (0.33, 0.72, 0.92))]
)
def test_fresh_sets_give_the_cluster_away(k, p, accuracies):
    """Numbers simulated elsewhere, the closed form, and the attack on 6000 clients after each set."""
    law, truth = IdentityLaw(k, p, 2), np.arange(6000) % k
    sets = drawn(law, truth, len(accuracies), seeded(11))
    for m, known in enumerate(accuracies, start=1):
        expected = expected_accuracy([law] * m)
        assert expected.accuracy == pytest.approx(known, abs=0.01)
        assert agrees(identity_accuracy(cluster_posterior(sets[:m]), truth), expected)


def test_every_change_of_p_costs_privacy_unless_sets_are_kept():
    """p .5, then .25, then .5 again. Sets that are kept stay what they were."""
    laws = [IdentityLaw(5, p, 2) for p in (0.5, 0.25, 0.5)]
    truth, source = np.arange(2000) % 5, seeded(2)
    fresh = np.stack([coin_sets(law, truth, source)[0] for law in laws])
    accuracy = [identity_accuracy(cluster_posterior(fresh[:m]), truth) for m in (1, 2, 3)]
    for m, result in enumerate(accuracy, start=1):
        assert agrees(result, expected_accuracy(laws[:m]))
    assert accuracy[0].value < 0.4 < 0.6 < accuracy[1].value < accuracy[2].value
    kept = np.stack([fresh[0]] * 3)
    assert agrees(identity_accuracy(cluster_posterior(kept), truth), expected_accuracy(laws[0]))


def test_estimated_sizes_are_right_on_average_with_the_corrected_equation_only():
    source = seeded(4)
    sizes = 10 * UNEQUAL
    truth = np.repeat(np.arange(5), sizes)
    rates = DEFAULT.p_correct(), DEFAULT.p_correct(printed=True)
    runs = [
        [estimated_sizes(sets, rate) for rate in rates]
        for sets in (coin_sets(DEFAULT, truth, source)[0] for _ in range(200))
    ]
    mended, printed = np.mean(runs, axis=0)
    noise = math.sqrt(1200 * rates[0] / (1 - rates[0]))
    assert np.abs(mended - sizes).max() < 3 * noise / math.sqrt(200)
    assert np.abs(printed - sizes).min() > 10 * noise / math.sqrt(200)
    assert np.std([run[0] for run in runs], axis=0).max() < 1.2 * noise


def test_estimated_sizes_by_hand():
    sets = np.array([[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 0, 0]])
    assert estimated_sizes(sets, 0).tolist() == [4, 2, 2]
    assert estimated_sizes(sets, 0.25).tolist() == pytest.approx([4, 4 / 3, 4 / 3])
    assert estimated_sizes(sets, 0.5).tolist() == [4, 1, 1]  # 0, which a cluster with a name is not


def test_equal_to_what_is_expected_where_nothing_is_random():
    law = IdentityLaw(3, 0.5, 3)
    expected = expected_accuracy(law)
    result = identity_accuracy(cluster_posterior(np.ones((4, 3))), np.zeros(4, int))
    assert expected.sd == 0
    assert agrees(result, expected)
    assert not agrees(identity_accuracy(np.eye(3), np.arange(3)), expected)


# ---------------------------------------------------------------- the registry, and what is refused


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cluster_posterior(np.array([[1, 1], [0, 0]])), "client 1 \\(1 in all\\) has no identity set"),
        (lambda: cluster_posterior(np.array([[1, 0]]), np.array([0, 1])), "no cluster is possible for client 0"),
        (lambda: cluster_posterior(np.array([[[1, 0]], [[0, 1]]])), "its cluster changed between the sets"),
        (lambda: identity_accuracy(np.full((1, 3), np.nan), np.array([0])), "NaN"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UserError, match=says):
        call()


# ---------------------------------------------------------------- what sets tell beyond one set


def by_listing(sets: np.ndarray) -> np.ndarray:
    """All ways to give each set a cluster of its own."""
    m, k = sets.shape
    ways = [c for c in itertools.permutations(range(k), m) if all(sets[i, j] for i, j in enumerate(c))]
    return np.array([[sum(c[i] == j for c in ways) / len(ways) for j in range(k)] for i in range(m)])


def test_the_posterior_after_changes_is_that_of_all_ways() -> None:
    source = np.random.default_rng(0)
    compared_sets = 0
    for _ in range(200):
        k = int(source.integers(2, 7))
        m = int(source.integers(1, min(k, 4) + 1))
        sets = (source.random((m, k)) < 0.6).astype(int)
        try:
            posterior = change_posterior(sets)
        except UserError:
            continue
        assert posterior == pytest.approx(by_listing(sets))
        compared_sets += 1
    assert compared_sets > 100


def test_what_is_in_one_set_only_is_likelier() -> None:
    posterior = change_posterior(np.array([[1, 1, 0, 0], [0, 1, 1, 0]]))
    assert posterior.tolist() == pytest.approx(np.array([[2 / 3, 1 / 3, 0, 0], [0, 1 / 3, 2 / 3, 0]]))
    alone = change_posterior(np.array([[0, 1, 1]]))
    assert alone.tolist() == pytest.approx(np.array([[0, 0.5, 0.5]]))


@pytest.mark.parametrize(("k", "p", "least"), [(3, 0.5, 2), (4, 0.5, 2), (4, 0.25, 1)])
def test_the_closed_form_after_a_change_is_that_of_all_pairs(k: int, p: float, least: int) -> None:
    law, seen, scores = IdentityLaw(k, p, least), 0.0, np.zeros(3)
    weights = {s: w for true in range(k) for s, w in set_law(law, true).items()}  # the same for any of its clusters
    for (a, wa), (b, wb) in itertools.product(weights.items(), repeat=2):
        if a == b:
            continue
        posterior = by_listing(np.array([a, b]))[0]
        top = posterior >= posterior.max() - 1e-9
        for one, two in itertools.permutations(range(k), 2):
            if a[one] and b[two]:
                score = top[one] / top.sum()
                seen += wa * wb
                scores += wa * wb * np.array([score, score**2, score])
    first, second, drawn = scores / seen
    expected = expected_after_change(law)
    assert expected.accuracy == pytest.approx(first)
    assert (expected.sd, expected.drawn_sd) == pytest.approx(
        (math.sqrt(second - first**2), math.sqrt(drawn - first**2))
    )


def test_what_are_no_sets_of_a_client_is_refused() -> None:
    with pytest.raises(UserError, match="no different clusters"):
        change_posterior(np.array([[1, 0, 0], [0, 0, 0]]))


def test_where_all_sets_are_alike_no_change_is_seen() -> None:
    with pytest.raises(UserError, match="no change can be seen"):
        expected_after_change(IdentityLaw(3, 0.5, 3))


def test_the_closed_form_with_estimated_sizes_is_that_of_many_rounds() -> None:
    """Equal sizes, where the estimates' order is all noise; taking them for given would be 2.4 points off."""
    truth, source, off, naive = np.arange(60) % 5, np.random.default_rng(3), [], []
    for _ in range(40):
        sets, _ = coin_sets(DEFAULT, truth, source.bytes)
        sizes = estimated_sizes(sets, DEFAULT.p_correct())
        result = identity_accuracy(cluster_posterior(sets, sizes), truth, sizes)
        off.append(result.value - expected_by_estimates(DEFAULT, sets, truth).accuracy)
        naive.append(result.value - expected_accuracy(DEFAULT, sizes, np.ones(5)).accuracy)
    assert abs(np.mean(off)) < 3 * np.std(off) / math.sqrt(40)
    assert np.mean(naive) < -3 * np.std(naive) / math.sqrt(40)
