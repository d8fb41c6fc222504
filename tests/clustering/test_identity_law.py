"""The law of MingledPie's identity sets against the list of all sets, and numbers that were computed elsewhere."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.identity_law import IdentityLaw
from coterie.protocol.errors import UserError


def all_sets(k, p, least):
    """Every set that holds cluster 0 and is large enough, with its weight: the probability that one try gives it."""
    sets = [s for s in itertools.product((0, 1), repeat=k) if s[0] and sum(s) >= least]
    return {s: p ** (sum(s) - 1) * (1 - p) ** (k - sum(s)) for s in sets}


@given(st.integers(2, 7), st.floats(0.05, 0.95), st.data())
def test_the_law_is_that_of_all_sets(k, p, data):
    """Every closed form against the list of all sets."""
    counts = data.draw(st.sampled_from(["identities", "false_positives"]))
    threshold = data.draw(st.integers(1, k - (counts == "false_positives")))
    law = IdentityLaw(k, p, threshold, counts)
    assert law.least == threshold + (counts == "false_positives")
    weights = all_sets(k, p, law.least)
    accepted = sum(weights.values())
    exact = {s: weight / accepted for s, weight in weights.items()}
    sizes = [sum(pr for s, pr in exact.items() if sum(s) == c) for c in range(1, k + 1)]
    assert law.sizes == pytest.approx(sizes, abs=1e-12)
    assert law.expected_size == pytest.approx(sum(pr * sum(s) for s, pr in exact.items()))
    assert law.guess_accuracy == pytest.approx(sum(pr / sum(s) for s, pr in exact.items()))
    assert law.p_correct() == pytest.approx(sum(pr for s, pr in exact.items() if s[k - 1]))
    assert law.expected_tries == pytest.approx(1 / accepted)
    lower, upper = law.bounds
    assert lower - 1e-12 <= law.guess_accuracy <= upper + 1e-12
    if law.least < k:
        pr = {c: math.comb(k - 1, c - 1) * p ** (c - 1) * (1 - p) ** (k - c) for c in range(law.least, k)}
        printed = sum(c * pr[c] for c in pr) / ((k - 1) * sum(pr.values()))
        assert law.p_correct(printed=True) == pytest.approx(printed)


@pytest.mark.parametrize(
    ("k", "p", "threshold", "accuracy", "false_positives"),
    [
        (5, 0.5, 2, 0.347, 0.291),
        (5, 0.5, 3, 0.291, 0.240),
        (5, 0.5, 4, 0.240, 0.200),
        (5, 0.25, 2, 0.430, 0.316),
        (5, 0.25, 3, 0.316, 0.246),
        (5, 0.25, 4, 0.246, None),
        (5, 0.125, 2, 0.467, 0.326),
        (5, 0.125, 3, 0.326, 0.248),
        (5, 0.125, 4, 0.248, None),
        (8, 0.5, 2, 0.243, 0.228),
        (8, 0.5, 3, 0.228, None),
        (8, 0.5, 4, 0.206, None),
        (10, 0.5, 2, 0.198, 0.193),
        (10, 0.5, 3, 0.193, None),
        (10, 0.5, 4, 0.182, None),
        (10, 0.25, 2, 0.327, 0.271),
        (10, 0.25, 3, 0.271, None),
        (10, 0.25, 4, 0.225, None),
    ],
)
def test_guess_accuracies_computed_elsewhere(k, p, threshold, accuracy, false_positives):
    """E[1/|CI|] with a threshold of identities, and of false positives, to the three digits known."""
    assert round(IdentityLaw(k, p, threshold).guess_accuracy, 3) == accuracy
    if false_positives is not None:
        assert round(IdentityLaw(k, p, threshold, "false_positives").guess_accuracy, 3) == false_positives


def test_other_quantities_computed_elsewhere():
    default = IdentityLaw(5, 0.5, 2)
    assert round(default.guess_accuracy, 4) == 0.3467
    assert round(IdentityLaw(5, 0.5, 2, "false_positives").guess_accuracy, 4) == 0.2909  # the paper's table II: ~29 %
    assert round(default.expected_size, 2) == 3.13
    assert round(default.p_correct(), 3) == 0.533
    assert round(default.p_correct(printed=True), 3) == 0.750
    assert round(IdentityLaw(10, 0.5, 2).expected_size, 2) == 5.51
    tries = {(0.5, 2): 1.07, (0.5, 4): 3.2, (0.25, 4): 19.7, (0.125, 4): 141}
    for (p, threshold), expected in tries.items():
        assert IdentityLaw(5, p, threshold).expected_tries == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("k", "p", "n", "seconds"), [(5, 0.5, 120, 10.2), (8, 0.5, 120, 14.8), (10, 0.25, 120, 11.2), (10, 0.5, 240, 36.0)]
)
def test_the_cost_of_mingled_aggregation_follows_from_the_sizes(k, p, n, seconds):
    """The paper's table IV is proportional to n E|CI|, scaled on k = 10, p = .5, n = 120 in 18.0 s."""
    cost = n * IdentityLaw(k, p, 2).expected_size / (120 * IdentityLaw(10, 0.5, 2).expected_size)
    assert round(18.0 * cost, 1) == pytest.approx(seconds, abs=0.1)


def test_extreme_laws_stay_finite():
    law = IdentityLaw(1024, 0.5, 2)
    assert law.sizes.sum() == pytest.approx(1)
    assert law.expected_size == pytest.approx(1 + 1023 / 2)
    assert IdentityLaw(5, 2.0**-32, 1).guess_accuracy == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: IdentityLaw(1, 0.5, 1), "2 to 1024 clusters, not 1"),
        (lambda: IdentityLaw(5.0, 0.5, 1), "not 5.0"),
        (lambda: IdentityLaw(True, 0.5, 1), "not True"),
        (lambda: IdentityLaw(5, 0.0, 2), "between 0 and 1, not be 0.0"),
        (lambda: IdentityLaw(5, 1.0, 2), "between 0 and 1, not be 1.0"),
        (lambda: IdentityLaw(5, math.nan, 2), "not be nan"),
        (lambda: IdentityLaw(5, "x", 2), "not be 'x'"),
        (lambda: IdentityLaw(5, 0.5, 6), "1 to 5, not at 6"),
        (lambda: IdentityLaw(5, 0.5, 0), "1 to 5, not at 0"),
        (lambda: IdentityLaw(5, 0.5, 2.5), "not at 2.5"),
        (lambda: IdentityLaw(5, 0.5, 5, "false_positives"), "of false positives lies in 1 to 4, not at 5"),
        (lambda: IdentityLaw(5, 0.5, 2, "both"), "not 'both'"),
        (lambda: IdentityLaw(5, 1e-200, 5), "no set ever has 5 of 5"),
        (lambda: IdentityLaw(3, 0.5, 3).p_correct(printed=True), "no others"),
    ],
)
def test_impossible_laws_are_refused(call, says):
    with pytest.raises(UserError, match=says):
        call()
