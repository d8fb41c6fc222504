"""MingledPie's identity sets against P-256 by hand, the exact law of all sets, the paper's numbers and hostile keys."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tampering import flipped

from benchmarks.identity_coins import coin_sets
from coterie.clustering.identities import ClusterKeys, identity_set
from coterie.clustering.identity_law import IdentityLaw
from coterie.protocol.errors import CryptoError, DecodeError, UserError

# NIST P-256 (SP 800-186, 3.2.1.3) in affine coordinates
PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)


def add(a, b):
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % PRIME == 0:
        return None
    slope = (3 * a[0] ** 2 - 3) * pow(2 * a[1], -1, PRIME) if a == b else (b[1] - a[1]) * pow(b[0] - a[0], -1, PRIME)
    x = (slope**2 - a[0] - b[0]) % PRIME
    return x, (slope * (a[0] - x) - a[1]) % PRIME


def power(point, scalar):
    result = None
    for bit in bin(scalar)[2:]:
        result = add(result, result)
        result = add(result, point) if bit == "1" else result
    return result


def compressed(point):
    return bytes([2 + point[1] % 2]) + point[0].to_bytes(32, "big")


def one_bit(point):
    return hashlib.sha256(b"coterie/cluster identity/1" + point[0].to_bytes(32, "big")).digest()[0] % 2


def seeded(seed):
    return np.random.default_rng(seed).bytes


def exact_law(k, p, true, least):
    """Every set that holds the true cluster and is large enough, with its probability."""
    sets = [s for s in itertools.product((0, 1), repeat=k) if s[true] and sum(s) >= least]
    weights = np.array([p ** (sum(s) - 1) * (1 - p) ** (k - sum(s)) for s in sets])
    return dict(zip(sets, weights / weights.sum(), strict=True))


def fit(sets, law):
    """p-value of Pearson's test that the sets follow the law."""
    seen = Counter(tuple(map(int, s)) for s in sets)
    assert set(seen) <= set(law)
    return chisquare([seen[s] for s in law], [len(sets) * pr for pr in law.values()]).pvalue


# ---------------------------------------------------------------- the group form


def test_the_group_and_equation_3_by_hand():
    """Keys and sets once more, in plain integer arithmetic: h^r and u^x are the same point for the true cluster."""
    k, n, true = 4, 2, 1
    keys = ClusterKeys.generate(k, n, seeded(0))
    numbers, draws = seeded(0), seeded(1)
    x = [[1 + int.from_bytes(numbers(48), "big") % (ORDER - 1) for _ in range(n)] for _ in range(k)]
    h = [[power(BASE, scalar) for scalar in row] for row in x]
    scalars = [scalar.to_bytes(32, "big") for row in x for scalar in row]
    points = [compressed(point) for row in h for point in row]
    assert keys.data == b"CoCI\1\2\4\0" + b"".join(scalars + points)

    attempts = []
    while not attempts or sum(attempts[-1]) < 3:
        r = 1 + int.from_bytes(draws(48), "big") % (ORDER - 1)
        u = power(BASE, r)
        bits = [one_bit(power(point, r)) for point in h[true]]
        attempts.append([all(one_bit(power(u, x[j][i])) == bits[i] for i in range(n)) for j in range(k)])
    joined, tries = identity_set(keys, true, 3, seeded(1))
    assert joined.tolist() == attempts[-1]
    assert tries == len(attempts) > 1
    assert all(attempt[true] for attempt in attempts)
    assert joined.dtype == bool


def test_equation_3_as_printed_is_a_tautology():
    keys = ClusterKeys.generate(5, 3, seeded(0))
    for seed in range(5):
        joined, tries = identity_set(keys, seed, 2, seeded(seed), printed=True)
        assert joined.all()
        assert tries == 1


@pytest.mark.parametrize(
    ("k", "n", "true", "threshold", "counts"),
    [(4, 1, 2, 2, "identities"), (4, 1, 0, 1, "identities"), (3, 2, 1, 1, "false_positives")],
)
def test_group_and_coins_have_the_same_distribution(k, n, true, threshold, counts):
    """Both against the probability of every single set."""
    law = IdentityLaw(k, 0.5**n, threshold, counts)
    exact = exact_law(k, 0.5**n, true, law.least)
    keys, source = ClusterKeys.generate(k, n, seeded(1)), seeded(2)
    drawn = [identity_set(keys, true, threshold, source, counts) for _ in range(400)]
    coins, tries = coin_sets(law, [true] * 20_000, source)
    assert fit([s for s, _ in drawn], exact) > 0.01
    assert fit(coins, exact) > 0.01
    sd = math.sqrt(1 - law.accepted) / law.accepted
    for counted in ([t for _, t in drawn], tries):
        assert abs(np.mean(counted) - law.expected_tries) <= 4 * sd / math.sqrt(len(counted)) + 1e-12


def test_each_client_gets_its_own_true_cluster_and_enough_others():
    truth = np.arange(2000) % 10
    for counts, least in (("identities", 3), ("false_positives", 4)):
        sets, tries = coin_sets(IdentityLaw(10, 0.125, 3, counts), truth, seeded(0))
        assert sets[np.arange(2000), truth].all()
        assert sets.sum(axis=1).min() == least
        assert tries.min() == 1 < tries.max()


# ---------------------------------------------------------------- keys


KEYS = ClusterKeys.generate(3, 2, seeded(0))
DATA = KEYS.data
HEADER = 8


def test_keys_survive_their_bytes():
    assert ClusterKeys(DATA) == KEYS
    assert len(DATA) == HEADER + 3 * 2 * (32 + 33)
    assert (KEYS.clusters, KEYS.bits, KEYS.p) == (3, 2, 0.25)
    assert ClusterKeys.generate(3, 2, seeded(0)) == KEYS
    assert ClusterKeys.generate(3, 2) != ClusterKeys.generate(3, 2)
    assert repr(KEYS) == "<ClusterKeys of 3 clusters with 2 bits>"


@given(st.integers(0, 8 * len(DATA) - 1))
def test_every_single_bit_counts(bit):
    with pytest.raises(DecodeError):
        ClusterKeys(flipped(DATA, bit // 8, 1 << bit % 8))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: DATA[:HEADER] + tail))
def test_bytes_that_are_no_keys_are_refused(data):
    with pytest.raises(DecodeError):
        ClusterKeys(data)


def replaced(at, piece):
    return DATA[:at] + piece + DATA[at + len(piece) :]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes are no cluster keys"),
        (DATA[:-1], "take 398 bytes, not 397"),
        (DATA + b"\0", "take 398 bytes, not 399"),
        (replaced(0, b"CoKy"), "no cluster keys of version 1"),
        (replaced(4, b"\2"), "no cluster keys of version 1"),
        (replaced(HEADER, bytes(32)), "no scalar"),
        (replaced(HEADER, ORDER.to_bytes(32, "big")), "no scalar"),
        (replaced(HEADER, b"\xff" * 32), "no scalar"),
        (replaced(HEADER, (5).to_bytes(32, "big")), "public key of cluster 0 is not that of its address"),
        (replaced(HEADER + 192, bytes(33)), "not on P-256"),
        (replaced(HEADER + 192, b"\2" + b"\xff" * 32), "not on P-256"),
        (replaced(HEADER + 192 + 132, compressed(BASE)), "public key of cluster 2 is not that of its address"),
        (
            replaced(HEADER + 192, flipped(DATA[HEADER + 192 : HEADER + 193])),
            "public key of cluster 0",
        ),  # the inverse point
        (b"CoCI\1\0\0\0", "equally many|0 clusters"),
        (b"CoCI\1\0\5\0", "5 clusters with 0 bits"),
        (b"CoCI\1\1\1\0" + DATA[HEADER : HEADER + 32] + DATA[HEADER + 192 : HEADER + 225], "1 clusters with 1 bits"),
    ],
)
def test_hostile_keys_are_refused_with_a_reason(data, says):
    with pytest.raises(DecodeError, match=says):
        ClusterKeys(data)


@pytest.mark.parametrize(("clusters", "bits"), [(1, 1), (0, 1), (-1, 1), (1025, 1), (5, 0), (5, -1), (5, 33)])
def test_impossible_keys_are_refused(clusters, bits):
    with pytest.raises(UserError, match="2 to 1024 clusters and 1 to 32 bits"):
        ClusterKeys.generate(clusters, bits, seeded(0))


# ---------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: identity_set(KEYS, 3, 2, seeded(0)), "no cluster 3: they count from 0 to 2"),
        (lambda: identity_set(KEYS, -1, 2, seeded(0)), "no cluster -1"),
        (lambda: identity_set(KEYS, 1.0, 2, seeded(0)), "whole numbers"),
        (lambda: identity_set(KEYS, 0, 4, seeded(0)), "1 to 3, not at 4"),
        (lambda: identity_set(KEYS, 0, 4, seeded(0), printed=True), "1 to 3, not at 4"),
        (lambda: identity_set(KEYS, 0, 3, seeded(0), "false_positives"), "1 to 2, not at 3"),
        (
            lambda: coin_sets(IdentityLaw(5, 2**-10, 4), [0], seeded(0)),
            "2.69e\\+08 tries on average, more than 10000: lower the thresh",
        ),
        (lambda: coin_sets(IdentityLaw(5, 0.5, 2), [], seeded(0)), "whole numbers"),
        (lambda: coin_sets(IdentityLaw(5, 0.5, 2), [[1]], seeded(0)), "whole numbers"),
        (lambda: coin_sets(IdentityLaw(5, 0.5, 2), [0, 5], seeded(0)), "no cluster 5"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UserError, match=says):
        call()


def test_a_source_that_repeats_itself_is_told():
    with pytest.raises(CryptoError, match="repeats itself"):
        coin_sets(IdentityLaw(5, 0.5, 2), [0], lambda n: b"\xff" * n)
    keys = ClusterKeys.generate(3, 4, seeded(0))
    stuck = next(s for s in range(50) if identity_set(keys, 0, 1, lambda n, s=s: bytes([s]) * n)[0].sum() == 1)
    with pytest.raises(CryptoError, match="repeats itself"):
        identity_set(keys, 0, 2, lambda n: bytes([stuck]) * n)


def test_a_source_that_gives_too_little_is_told():
    for call in (
        lambda: coin_sets(IdentityLaw(5, 0.5, 2), [0], lambda n: bytes(n - 1)),
        lambda: identity_set(KEYS, 0, 2, lambda n: bytes(n - 1)),
        lambda: ClusterKeys.generate(3, 2, lambda n: bytes(n + 1)),
    ):
        with pytest.raises(CryptoError, match="were asked for"):
            call()


# -- the law -----------------------------------------------------------------------------------------------------------


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
