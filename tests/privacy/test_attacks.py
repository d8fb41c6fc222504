"""The passive attacks on planted views whose answer is known, and on views that hold nothing."""

import importlib
import inspect
import itertools
from pkgutil import iter_modules

import numpy as np
import pytest
from scalar_mask import unmask_scalar, unmasking_error
from scipy.stats import ortho_group
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import cosine_similarity

from coterie.clustering.affinity import pairwise_distances
from coterie.privacy import attacks, audits
from coterie.privacy.attacks import labels
from coterie.privacy.attacks.blinded_rows import (
    recover,
    recovery_error,
    relink,
    relink_accuracy,
    relink_by_profiles,
)
from coterie.privacy.attacks.joint_key import stolen_joint_key
from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits import Attack
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.runs.registry import SYSTEMS, audit_of

# ---------------------------------------------------------------- re-linking


def two_rounds(rng, n=20, d=60, movement=0.01, separation=1.0):
    """Rows of two rounds, each shuffled and under its own vector mask; truth[j]: the earlier row of later row j."""
    start = rng.normal(size=(n, d)) * separation
    later = start + rng.normal(size=(n, d)) * movement + rng.normal(size=d)  # all drift together, too
    first, second = rng.permutation(n), rng.permutation(n)
    truth = np.argsort(first)[second]
    return start[first] + rng.normal(size=d) * 50, later[second] + rng.normal(size=d) * 50, truth


@pytest.mark.parametrize("seed", range(2))
def test_clients_that_move_less_than_they_differ_are_re_linked(seed):
    before, after, truth = two_rounds(np.random.default_rng(seed))
    result = relink_accuracy(relink(before, after), truth, len(before))
    assert result == AttackResult("re-linked clients (share)", 1.0, 1 / 20, 1.0, 20, pytest.approx(1 / 20))
    assert result.leak == 1.0


@pytest.mark.parametrize(("n", "m"), [(20, 20), (12, 20), (20, 12)])
def test_independent_rows_are_re_linked_at_chance(n, m):
    """200 pairs of rounds without any relation; 8 clients of the smaller side count as present in both."""
    rng = np.random.default_rng(0)
    results = []
    for _ in range(200):
        truth = np.full(m, -1)
        truth[rng.permutation(m)[:8]] = rng.permutation(n)[:8]
        guess = relink(rng.normal(size=(n, 10)), rng.normal(size=(m, 10)))
        results.append(relink_accuracy(guess, truth, n))
    se = results[0].chance_sd / len(results) ** 0.5
    assert abs(np.mean([r.value for r in results]) - results[0].chance) < 3 * se
    assert np.std([r.value for r in results]) == pytest.approx(results[0].chance_sd, rel=0.25)
    assert results[0].n == 8


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (5, 3), (1, 1), (1, 3)])
def test_chance_of_re_linking_is_that_of_all_matchings(n, m):
    """Every one-to-one matching, listed."""
    truth = np.full(m, -1)
    truth[: min(n, m, 2)] = np.arange(min(n, m, 2))
    matchings = (
        [np.array(p) for p in itertools.permutations(range(n), m)]
        if m <= n
        else [np.array([p.index(j) if j in p else -1 for j in range(m)]) for p in itertools.permutations(range(m), n)]
    )
    results = [relink_accuracy(guess, truth, n) for guess in matchings]
    assert np.mean([r.value for r in results]) == pytest.approx(results[0].chance)
    assert np.std([r.value for r in results]) == pytest.approx(results[0].chance_sd, abs=1e-12)


def test_a_matching_gives_each_client_once_and_says_minus_one_for_the_rest():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 5))
    guess = relink(rows[:4], rows)
    assert sorted(guess) == [-1, -1, 0, 1, 2, 3]
    assert sorted(relink(rows, rows[:4])) == sorted(set(relink(rows, rows[:4])))


def test_newcomers_do_not_break_re_linking():
    rng = np.random.default_rng(1)
    before, after, truth = two_rounds(rng, n=30)
    keep = rng.permutation(30)[:25]
    lost = np.isin(truth, keep)
    place = {row: i for i, row in enumerate(keep)}
    known = np.array([place.get(t, -1) for t in truth])
    result = relink_accuracy(relink(before[keep], after), known, 25)
    assert result.n == lost.sum() == 25
    assert result.value == 1.0


def test_rotated_models_are_re_linked_by_their_distances_alone():
    """A secret rotation per round: vectors say nothing any more, profiles of distances still do."""
    by_vectors, by_profiles = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        before, after, truth = two_rounds(rng, movement=0.001)
        before, after = before @ ortho_group.rvs(60, random_state=rng), after @ ortho_group.rvs(60, random_state=rng)
        by_vectors.append(relink_accuracy(relink(before, after), truth, 20).value)
        guess = relink_by_profiles(pairwise_distances(before), pairwise_distances(after))
        by_profiles.append(relink_accuracy(guess, truth, 20).value)
    assert np.mean(by_profiles) == 1.0
    assert abs(np.mean(by_vectors) - 1 / 20) < 3 * (1 / 20) / 10**0.5


def test_profiles_of_unrelated_rounds_are_at_chance():
    rng = np.random.default_rng(0)
    values = []
    for _ in range(100):
        a, b = (pairwise_distances(rng.normal(size=(20, 5))) for _ in range(2))
        values.append(relink_accuracy(relink_by_profiles(a, b), rng.permutation(20), 20).value)
    assert abs(np.mean(values) - 1 / 20) < 3 * (1 / 20) / 100**0.5


def test_profiles_do_not_mind_outliers_or_a_different_number_of_clients():
    rng = np.random.default_rng(0)
    rows = np.vstack([rng.normal(size=(40, 30)) * 0.05, rng.normal(size=(4, 30)) * [[1], [2], [3], [4]]])
    guess = relink_by_profiles(pairwise_distances(rows), 7 * pairwise_distances(rows[5:]))
    assert list(guess[-4:]) == [40, 41, 42, 43]  # the outliers are told apart by how far out they are


# ---------------------------------------------------------------- label shares

SPEC = ModelSpec(
    (
        Part("net.0.weight", (2, 3), "float32", "parameter", "shared", 0),
        Part("net.0.bias", (2,), "float32", "parameter", "shared", 6),
        Part("net.2.weight", (4, 2), "float32", "parameter", "shared", 8),
        Part("net.2.bias", (4,), "float32", "parameter", "shared", 16),
        Part("net.3.running_mean.bias", (4,), "float32", "buffer", "shared", 20),
    )
)


def test_the_last_bias_is_found():
    assert labels.last_bias(SPEC) == slice(16, 20)
    assert labels.last_bias(ModelSpec((Part("bias", (3,), "float32", "parameter", "shared", 0),))) == slice(0, 3)
    with pytest.raises(UserError, match=r"no parameter named '\*.bias'"):
        labels.last_bias(ModelSpec((Part("debias", (3,), "float32", "parameter", "shared", 0),)))


def planted_biases(rng, n=25, classes=10):
    """Biases as one softmax step leaves them: start + step * shares, each client's own constant, one common mask."""
    counts = np.array([rng.multinomial(60, rng.dirichlet(np.full(classes, 0.3))) for _ in range(n)])
    shares = counts / counts.sum(axis=1, keepdims=True)
    return rng.normal(size=classes) * 100 + 0.37 * shares + rng.normal(size=(n, 1)), counts, shares


@pytest.mark.parametrize("seed", range(2))
def test_planted_shares_come_back_exactly(seed):
    bias, counts, shares = planted_biases(np.random.default_rng(seed))
    estimate = labels.label_shares_from_bias(bias)
    np.testing.assert_allclose(estimate, 0.37 * (shares - shares.mean(axis=0)), atol=1e-12)
    assert labels.share_correlation(estimate, counts).value == pytest.approx(1.0, abs=1e-12)
    hits = labels.top_label_hit_rate(estimate + 0.37 * shares.mean(axis=0), counts)
    assert hits.value == 1.0
    assert hits.chance < 0.25


def test_whole_rows_are_cut_at_the_last_bias():
    bias, counts, _ = planted_biases(np.random.default_rng(0), classes=4)
    rows = np.random.default_rng(1).normal(size=(25, 24)) * 1e3
    rows[:, 16:20] = bias
    assert labels.share_correlation(labels.label_shares(rows, SPEC), counts).value == pytest.approx(1.0)


def adjusted_gradient(rng, shares, means, n=400):
    """(d,) the first step of a linear model whose logits have the logarithms of the client's own label shares added.

    Equal weights, so the predicted shares are the true ones, and the bias does not move.
    """
    y = np.repeat(np.arange(len(shares)), np.rint(shares * n).astype(int))
    x = means[y] + 0.1 * rng.normal(size=(len(y), means.shape[1]))
    true = np.eye(len(shares))[y]
    error = true.mean(axis=0) - true
    return -np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]) / len(y)


def test_rows_show_label_shares_where_the_bias_is_blind():
    """Closed form: row c moves by p_c (mean_c - mean of all)."""
    rng, classes, length = np.random.default_rng(0), 5, 40
    means = rng.normal(size=(classes, length))
    shares = rng.dirichlet(np.full(classes, 0.5), size=30)
    counts = np.rint(shares * 400)
    steps = np.stack([adjusted_gradient(rng, one, means) for one in shares])
    parts = (
        Part("weight", (classes, length), "float32", "parameter", "shared", 0),
        Part("bias", (classes,), "float32", "parameter", "shared", classes * length),
    )
    spec = ModelSpec(parts)
    assert np.abs(steps[:, -classes:]).max() < 1e-12
    noise = steps + 1e-9 * rng.normal(size=steps.shape)
    assert abs(labels.share_correlation(labels.label_shares(noise, spec), counts).leak) < 3 / 30**0.5
    true = counts / counts.sum(axis=1, keepdims=True)
    lengths = true * np.linalg.norm(means - (true @ means)[:, None], axis=2)
    lengths /= np.linalg.norm(lengths, axis=1, keepdims=True)
    np.testing.assert_allclose(
        labels.label_shares_by_rows(steps, spec), labels.label_shares_from_bias(lengths), atol=0.02
    )
    assert labels.share_correlation(labels.label_shares_by_rows(noise, spec), counts).value > 0.8


def test_rows_need_a_layer_with_one_for_each_class():
    with pytest.raises(UserError, match="no row of weights for each class"):
        labels.label_shares_by_rows(
            np.ones((2, 3)), ModelSpec((Part("bias", (3,), "float32", "parameter", "shared", 0),))
        )
    assert (labels.label_shares_by_rows(np.zeros((2, 24)), SPEC) == 0).all()


def test_unrelated_biases_say_nothing():
    """100 draws: the means must lie within three standard errors of chance, and chance_sd must be the spread."""
    rng = np.random.default_rng(0)
    correlations, hits = [], []
    for _ in range(100):
        _, counts, _ = planted_biases(rng)
        estimate = labels.label_shares_from_bias(rng.normal(size=counts.shape))
        correlations.append(labels.share_correlation(estimate, counts))
        hits.append(labels.top_label_hit_rate(estimate, counts))
    for results in (correlations, hits):
        gain = [r.value - r.chance for r in results]
        sd = np.mean([r.chance_sd for r in results])
        assert abs(np.mean(gain)) < 3 * sd / 100**0.5
        assert np.std(gain) == pytest.approx(sd, rel=0.25)


def test_chance_of_label_shares_is_that_of_all_permutations():
    bias, counts, _ = planted_biases(np.random.default_rng(3), n=5, classes=3)
    estimate = labels.label_shares_from_bias(bias + np.random.default_rng(4).normal(size=bias.shape) * 0.1)
    for score in (labels.share_correlation, labels.top_label_hit_rate):
        all_orders = [score(estimate[list(p)], counts) for p in itertools.permutations(range(5))]
        values = [r.value for r in all_orders]
        assert np.mean(values) == pytest.approx(all_orders[0].chance, abs=1e-12)
        assert np.std(values) == pytest.approx(all_orders[0].chance_sd, abs=1e-12)
        assert {round(r.chance_sd, 12) for r in all_orders} == {round(all_orders[0].chance_sd, 12)}


def test_correlation_is_pearson_s():
    rng = np.random.default_rng(0)
    bias, counts, shares = planted_biases(rng)
    estimate = labels.label_shares_from_bias(bias + rng.normal(size=bias.shape) * 0.1)
    truth = shares - shares.mean(axis=0)
    expected = np.corrcoef(estimate.ravel(), truth.ravel())[0, 1]
    assert labels.share_correlation(estimate, counts).value == pytest.approx(expected)


# ---------------------------------------------------------------- similarity


def test_similar_pairs_by_hand():
    phi = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(labels.similar_pairs(phi), [[1, 1 / 2, 0], [1 / 2, 1, 0], [0, 0, 1]])


def test_a_membership_that_follows_the_groups_gives_them_away():
    groups = np.repeat(np.arange(5), 4)
    phi = np.eye(5)[groups]
    counts = 10 * np.eye(10)[2 * groups] + 5 * np.eye(10)[2 * groups + 1]
    pairs = labels.similar_pairs(phi)
    assert labels.pair_auc(pairs, groups).value == 1.0
    assert labels.pair_correlation(pairs, counts).value == pytest.approx(1.0)
    for result in (labels.pair_auc(pairs, groups), labels.pair_correlation(pairs, counts)):
        assert result.leak == pytest.approx(1.0)
        assert 0 < result.chance_sd < 0.15


def test_random_memberships_are_at_chance():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 3)
    results = {"auc": [], "correlation": []}
    for _ in range(12):
        phi = np.eye(4)[rng.permutation(groups)]
        results["auc"].append(labels.pair_auc(labels.similar_pairs(phi), groups))
        results["correlation"].append(labels.pair_correlation(labels.similar_pairs(phi), np.eye(4)[groups]))
    for found in results.values():
        sd = np.mean([r.chance_sd for r in found])
        assert abs(np.mean([r.value - r.chance for r in found])) < 3 * sd / 12**0.5
        assert np.std([r.value for r in found]) == pytest.approx(sd, rel=0.7)


def test_scores_of_pairs_equal_the_libraries_own():
    rng = np.random.default_rng(0)
    groups, phi = rng.integers(0, 3, 15), rng.random((15, 4)) < 0.5
    pairs, upper = labels.similar_pairs(phi), np.triu_indices(15, 1)
    same_group = (groups[:, None] == groups)[upper]
    assert labels.pair_auc(pairs, groups).value == pytest.approx(roc_auc_score(same_group, pairs[upper]))
    counts = rng.integers(1, 9, size=(15, 6))
    expected = np.corrcoef(pairs[upper], cosine_similarity(counts)[upper])[0, 1]
    assert labels.pair_correlation(pairs, counts).value == pytest.approx(expected)


# ---------------------------------------------------------------- masks and models


def test_a_scalar_mask_comes_off():
    """Weights that average to 0 come back exactly; the mask is far beyond the range of float64's precision."""
    w = np.random.default_rng(0).normal(size=(4, 500)) * 0.05
    integers = np.rint(w * 2**16).astype(np.int64)
    integers[0, 0] -= integers.sum()
    blinded = integers.astype(object) + (2**120 + 12345)
    np.testing.assert_allclose(unmask_scalar(blinded), integers, atol=1e-6)
    assert unmasking_error(unmask_scalar(blinded), integers).value < 1e-9


def test_a_vector_mask_stays_on():
    rng = np.random.default_rng(0)
    w = rng.normal(0, 0.05, size=(10, 2000))
    result = unmasking_error(unmask_scalar(w + rng.uniform(-100, 100, size=2000)), w)
    assert result.value > 100
    assert result.leak < 0


def test_a_colluding_client_opens_every_model():
    rng = np.random.default_rng(0)
    w = rng.integers(-(2**16), 2**16, size=(6, 100)) / 2**16
    blinded = w + rng.integers(-(2**40), 2**40, size=100) / 2**16
    np.testing.assert_array_equal(recover(blinded, w[4], 4), w)
    assert recovery_error(recover(blinded, w[4], 4), w, np.zeros(100)).leak == 1.0
    wrong = recover(blinded, w[4], 3)  # taken for another row, all models are off by one difference
    np.testing.assert_array_equal(wrong - w, np.tile(w[4] - w[3], (6, 1)))


def test_the_public_start_opens_all_models_but_for_the_mean_update():
    """Updates of length .05 around their mean of length .01, on models of length 1."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=400)
    start /= np.linalg.norm(start)
    own = rng.normal(size=(8, 400))
    own -= own.mean(axis=0)
    own *= 0.05 / np.linalg.norm(own, axis=1, keepdims=True)
    own -= own.mean(axis=0)
    drift = np.zeros(400)
    drift[0] = 0.01
    w = start + own + drift
    recovered = recover(w + rng.normal(size=400) * 1e3, start)
    np.testing.assert_allclose(w - recovered, np.tile(drift, (8, 1)), atol=1e-11)
    result = recovery_error(recovered, w, start)
    assert result.value == pytest.approx(0.01, rel=0.02)
    assert result.chance == pytest.approx(0.05, rel=0.1)
    assert result.leak == pytest.approx(0.8, abs=0.03)


# ---------------------------------------------------------------- the same in every order


@pytest.mark.parametrize("seed", range(2))
def test_a_shuffled_view_gives_the_shuffled_guess(seed):
    rng = np.random.default_rng(seed)
    rows, order = rng.integers(-99, 99, size=(12, 30)) / 64, rng.permutation(12)
    start = rng.integers(-99, 99, size=30) / 64
    np.testing.assert_allclose(
        labels.label_shares_from_bias(rows[order]), labels.label_shares_from_bias(rows)[order], atol=1e-12
    )
    np.testing.assert_allclose(recover(rows[order], start), recover(rows, start)[order], atol=1e-12)
    following = rows + rng.normal(size=rows.shape) * 0.01
    np.testing.assert_array_equal(relink(rows, following[order]), relink(rows, following)[order])


# ---------------------------------------------------------------- listing and mistakes


def test_the_registry_lists_every_attack():
    listed = [attack for audit in filter(None, map(audit_of, SYSTEMS.values())) for attack in audit.attacks]
    assert len({attack.name for attack in listed}) >= len(listed) - 1  # two systems have similar pairs
    modules = [importlib.import_module(f"{audits.__name__}.{one.name}") for one in iter_modules(audits.__path__)]
    every = {one for module in modules for one in vars(module).values() if isinstance(one, Attack)}
    assert every - {*listed} == {stolen_joint_key}  # for systems of one's own
    for attack in listed:
        assert attack.summary[0].islower()
        parties = (
            "hub",
            "cloud service provider",
            "business server",
            "server",
            "helper",
            "aggregator",
            "leader",
            "client",
        )
        who = *parties, "all leaders but one", "one client, deviating", "one leader, deviating"
        assert attack.adversary.startswith(who)


def test_every_attack_is_described_and_every_score_says_what_chance_gives():
    modules = [importlib.import_module(f"coterie.privacy.attacks.{one.name}") for one in iter_modules(attacks.__path__)]
    members = dict(member for module in modules for member in inspect.getmembers(module, inspect.isfunction))
    functions = [members[name] for name in members if members[name].__module__.startswith(attacks.__name__)]
    functions = [function for function in functions if not function.__name__.startswith("_")]
    assert all(function.__doc__ for function in functions)
    scores = [function for function in functions if function.__annotations__["return"] == "AttackResult"]
    assert {"relink_accuracy", "identity_accuracy", "count_accuracy"} <= {score.__name__ for score in scores}
    assert all("hance" in score.__doc__ for score in scores)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: relink(np.full((2, 3), np.nan), np.ones((2, 3))), "not finite"),
        (lambda: relink_by_profiles(np.zeros((1, 1)), np.zeros((1, 1))), "at least 2 clients"),
        (lambda: relink_accuracy(np.array([0]), np.array([-1]), 2), "no client took part in both"),
        (lambda: labels.label_shares_from_bias(np.ones(3)), "bias must be"),
        (lambda: labels.share_correlation(np.ones((2, 3)), np.ones((2, 3))), "no correlation exists"),
        (lambda: labels.top_label_hit_rate(np.ones((2, 3)), np.zeros((2, 3))), "every client needs a sample"),
        (lambda: labels.top_label_hit_rate(np.ones((2, 3)), -np.ones((2, 3))), "not be negative"),
        (lambda: labels.pair_auc(np.eye(4), np.zeros(4)), "ROC curve needs"),
        (lambda: labels.pair_correlation(np.eye(4), np.ones((4, 2))), "no similarity to find"),
        (lambda: unmask_scalar(np.array([["a"]])), "array of numbers"),
        (lambda: unmasking_error(np.ones((1, 1)), np.zeros((1, 1))), "all models are 0"),
        (lambda: unmasking_error(np.array([[np.inf]]), np.ones((1, 1))), "NaN or infinity"),
        (lambda: recovery_error(np.ones((2, 3)), np.ones((2, 3)), np.ones(3)), "nothing to recover"),
        (lambda: recovery_error(np.ones((2, 3)), np.zeros((2, 3)), np.ones(3)), "a model is 0"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UserError, match=says):
        call()
