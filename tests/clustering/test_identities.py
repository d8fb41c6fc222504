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

from coterie.clustering.identities import ClusterKeys, coin_sets, identity_set
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
    drawn = [identity_set(keys, true, threshold, source, counts) for _ in range(1200)]
    coins, tries = coin_sets(law, [true] * 20_000, source)
    assert fit([s for s, _ in drawn], exact) > 0.01
    assert fit(coins, exact) > 0.01
    sd = math.sqrt(1 - law.accepted) / law.accepted
    for counted in ([t for _, t in drawn], tries):
        assert abs(np.mean(counted) - law.expected_tries) <= 4 * sd / math.sqrt(len(counted)) + 1e-12


def test_sets_that_are_not_emptied_have_another_distribution():
    """Algorithm 1 as printed could be read so that a set grows from try to try: the test above would tell."""
    k, p, source = 5, 0.25, seeded(3)
    grown = np.zeros((5000, k), bool)
    while len(small := np.flatnonzero(grown.sum(axis=1) < 3)):
        grown[small] |= coin_sets(IdentityLaw(k, p, 1), [2] * len(small), source)[0]
    exact = exact_law(k, p, 2, 3)
    assert fit(grown, exact) < 1e-6
    assert fit(coin_sets(IdentityLaw(k, p, 3), [2] * 5000, source)[0], exact) > 0.01


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
