"""Weights from scalars: eq. (6) by hand, the robust form against vectors in the clear, fallbacks, hostile numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import few

from coterie.aggregation import detection as d
from coterie.crypto import ckks, fourier
from coterie.crypto.tally import Form
from coterie.crypto.threshold import Group
from coterie.protocol.errors import RunError, UserError

KEY = ckks.keygen("insecure-1024-high", allow_insecure=True)
KEYS = KEY.evaluation()


# ---- eq. (6)


def test_equation_6_by_hand():
    """Magnitudes 1, 2, 3, 5 normalise to 0, 1/4, 1/2, 1; distances 4, 0, 1, 2 to 1, 0, 1/4, 1/2."""
    found = d.s_factors([1, 2, 3, 5], np.square([4.0, 0, 1, 2]), bits=12)
    assert found.suspicion == pytest.approx([0, 0, 1 / 8, 1 / 2])
    assert found.weights.tolist() == [4095, 4095, round(4095 * 7 / 8), round(4095 / 2)]
    assert (found.fallback, found.divisor) == ("", int(found.weights.sum()))


def test_equal_leaders_get_equal_weights():
    found = d.s_factors([2.0] * 5, [3.0] * 5)
    assert found.weights.tolist() == [1023] * 5
    assert d.robust([1.0] * 4, [2.0] * 4, [1] * 4).weights.tolist() == [1023] * 4


def test_weights_of_many_leaders_fit_the_sum():
    assert [d.largest(k) for k in (2, 16, 17, 100, 16383)] == [1023, 1023, 963, 163, 1]
    assert d.s_factors(np.ones(100), np.ones(100)).divisor == 16300
    with pytest.raises(UserError, match="too many"):
        d.largest(16384)


def test_scaled_replacement_escapes_the_share_and_not_the_energy():
    """What the two readings of eq. (6)'s magnitude do: a smooth vector, enlarged, has a smaller share on top."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=4096)
    smooth = np.repeat(rng.normal(size=4), 1024)
    models = [start + 0.1 * smooth + 0.05 * rng.normal(size=4096) for _ in range(7)] + [start + 10 * smooth]
    high, total = np.transpose([fourier.energies(model, 1024) for model in models])
    distance = [((model - start) ** 2).sum() for model in models]
    assert d.s_factors(d.shares(high, total), distance).weights[-1] == 1023
    assert d.s_factors(total, distance).weights[-1] == 0


# ---- the robust form


def plain(updates, factors):
    total = factors @ updates
    return (updates**2).sum(axis=1), updates @ total


@given(st.integers(3, 9), st.integers(2, 40), st.integers(0, 2**32))
def test_cosines_with_the_others_follow_from_two_scalars(k, size, seed):
    rng = np.random.default_rng(seed)
    updates, factors = rng.normal(size=(k, size)), rng.integers(0, 64, k)
    squares, dots = plain(updates, factors)
    found = d.others_cosines(squares, dots, factors)
    for i in range(k):
        rest = factors @ updates - factors[i] * updates[i]
        size_of = np.linalg.norm(rest) * np.linalg.norm(updates[i])
        assert found[i] == pytest.approx(updates[i] @ rest / size_of if size_of > 1e-9 else 0.0, abs=1e-6)


def attacked(kind: str, rng, k: int = 8, size: int = 2000):
    common = rng.normal(size=size)
    updates = 0.1 * (common + 0.7 * rng.normal(size=(k, size)))
    bad = updates[0]
    updates[0] = {"scale": 10 * bad, "flip": -bad, "noise": 3 * rng.normal(size=size), "far": 1e4 * bad}[kind]
    return updates


@pytest.mark.parametrize("kind", ["scale", "flip", "noise", "far"])
def test_attacks_are_damped(kind):
    rng = np.random.default_rng(1)
    updates = attacked(kind, rng)
    squares, _ = plain(updates, np.ones(8))
    factors = d.cut(squares)
    found = d.robust(*plain(updates, factors), factors)
    honest = updates[1:].mean(axis=0)
    mean = found.weights @ updates / found.divisor
    assert found.weights[0] < 0.15 * np.median(found.weights)
    assert (found.weights[1:] > 0.5 * np.median(found.weights)).all()
    assert np.linalg.norm(mean - honest) < 0.25 * np.linalg.norm(honest)
    assert found.suspicion.argmax() == 0


def test_the_same_under_encryption():
    rng = np.random.default_rng(3)
    updates = attacked("scale", rng, k=4, size=1500)
    ciphers = [KEY.public.encrypt(update) for update in updates]
    squares = [float(KEY.decrypt(fourier.energy(cipher, KEYS))[0]) for cipher in ciphers]
    factors = d.cut(squares)
    mean = d.weighted(ciphers, factors)
    dots = [float(KEY.decrypt(fourier.inner(cipher, mean, KEYS))[0]) for cipher in ciphers]
    found, twin = d.robust(squares, dots, factors), d.robust(*plain(updates, factors), factors)
    assert found.weights.tolist() == twin.weights.tolist()
    opened = KEY.decrypt(d.weighted(ciphers, found.weights)) / found.divisor
    assert np.abs(opened - found.weights @ updates / found.divisor).max() < 1e-9
    assert not d.too_long(opened, found.weights, found.divisor, squares)


# ---- what liars can do


def mean_of(updates):
    """What the rule opens of these updates, (d,), and what it counts."""
    squares, _ = plain(updates, np.ones(len(updates)))
    factors = d.cut(squares)
    found = d.robust(*plain(updates, factors), factors)
    return found.weights @ updates / found.divisor, found


def lies(kind: str, updates, m: int, length: float, rng):
    """The first m of the updates (k, d) replaced."""
    made, common = updates.copy(), updates[m:].mean(axis=0)
    for i in range(m):
        made[i] = {
            "apart": rng.normal(size=updates.shape[1]),
            "together": updates[0],
            "against": -common,
            "cancelling": -updates[m:].sum(axis=0) / m,
            "one honest": updates[-1],
            "none": 0 * common,
        }[kind]
        made[i] *= length / max(float(np.linalg.norm(made[i])), 1e-300)
    return made


@given(
    st.integers(2, 9).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, (k - 1) // 2))),
    st.sampled_from(["apart", "together", "against", "cancelling", "one honest", "none"]),
    st.floats(-4, 4),
    st.sampled_from([1, 2, 3, 30]),
    st.floats(0, 10),
    st.integers(0, 2**32),
)
def test_liars_of_any_length_and_direction_move_the_mean_by_a_bounded_part(counts, kind, power, size, spread, seed):
    """m of k updates: their terms are at most 2 m / k of the longest honest length, and so is the whole mean at most 1.

    Beside the honest updates' own mean, cut and counted as they are here, the mean moves by at most twice as much.
    """
    (k, m), rng = counts, np.random.default_rng(seed)
    honest = (np.ones(size) + spread * rng.normal(size=(k, size))) * rng.uniform(0.2, 1, (k, 1))
    longest = float(np.linalg.norm(honest[m:], axis=1).max())
    updates = lies(kind, honest, m, longest * 10.0**power, rng)
    try:
        mean, found = mean_of(updates)
    except RunError as error:
        assert "too short or too long to hide" in str(error)  # noqa: PT017
        return
    most, share = longest * (1 + 1e-9), min(1.0, 2 * m / k)
    assert np.linalg.norm(mean) <= most
    assert np.linalg.norm(found.weights[:m] @ updates[:m]) / found.divisor <= share * most
    lengths = np.linalg.norm(updates, axis=1)
    with np.errstate(divide="ignore"):
        shorter = np.minimum(1, d.lower_median(lengths) / lengths)
    agreed = np.ones(k) if found.fallback else (1 - found.suspicion) / np.where(shorter > 0, shorter, 1)
    if agreed[m:].sum() > 0:
        own = (agreed * shorter)[m:] @ updates[m:] / agreed[m:].sum()
        assert np.linalg.norm(mean - own) <= (2 * share + k / 1023) * most  # weights are rounded down


@pytest.mark.parametrize("length", [0.1, 1.0, 10.0, 500.0])
@pytest.mark.parametrize("k", [2, 3, 4, 5, 8])
def test_one_liar_against_all_others_takes_its_share_and_no_more(k: int, length: float) -> None:
    """Equal honest updates u, and one backwards of any length: with k > 3 it counts nothing, and u is what is left."""
    updates = np.tile([3.0, 4.0], (k, 1))
    updates[0] *= -length
    mean, found = mean_of(updates)
    assert np.linalg.norm(mean) <= 5.0 + 1e-9
    if k > 3:
        np.testing.assert_allclose(mean, [3.0, 4.0])
        assert found.weights[0] == 0


def test_the_longer_of_two_counts_as_much_as_the_shorter_one():
    """By their weights one leader is alone. The longer one had full weight then, and with that all of the mean."""
    mean, found = mean_of(np.array([[1.0, 0.5], [10.0, 0.0]]))
    assert not found.fallback
    np.testing.assert_allclose(mean, [(1 + math.sqrt(1.25)) / 2, 0.25], rtol=2e-2)
    assert found.weights[0] == 1023


def test_cut_updates_are_no_longer_than_the_lower_median():
    lengths = np.array([1.0, 1.001, 1.5, 77.7, 126.1, 1e6])
    assert (d.cut(lengths**2) * lengths <= 63 * d.lower_median(lengths)).all()


# ---- fallbacks


def test_the_effective_number_of_leaders():
    assert d.effective([2, 2, 2]) == pytest.approx(3)
    assert d.effective([0, 5, 0]) == 1
    assert d.effective([1, 3]) == pytest.approx(16 / 10)
    assert d.effective([0, 0]) == math.inf


def test_no_leader_stays_alone():
    found = d.s_factors([1, 2], [1, 2])  # the least and the largest of two: one of them would be alone
    assert found.weights.tolist() == [1023, 1023]
    assert "its model would be opened" in found.fallback
    assert d.s_factors([1, 2, 3], [1, 2, 3]).fallback == ""


def test_short_updates_hide_none():
    """What agrees is nearly as short as nothing: so the third one counts, too, though it points another way."""
    updates = np.array([[7e-4, -7e-4 + 1e-6], [1.0, 0.0], [0.0, 1.0]])
    mean, found = mean_of(updates)
    assert "its model would be opened" in found.fallback
    assert found.weights.tolist() == [1023] * 3
    np.testing.assert_allclose(mean, updates.mean(axis=0))
    assert d.effective(found.weights * np.linalg.norm(updates, axis=1)) > 1.9


@pytest.mark.parametrize("lengths", [[1.0, 5000.0], [1e-3, 1.0, 5000.0]])
def test_there_is_no_sum_that_would_open_one_update(lengths: list[float]) -> None:
    """The longest one's weight is rounded to nothing, and what is left is one leader's, or nearly."""
    with pytest.raises(RunError, match="too short or too long to hide"):
        mean_of(np.array(lengths)[:, None] * [0.6, 0.8])


@pytest.mark.parametrize("k", [2, 4, 10])
def test_updates_of_zero_that_open_to_a_length_hide_none(k: int) -> None:
    """Noise on a squared norm of zero looks like an update of some length, which would pass for a second one.

    By opened lengths alone the only update had a weight in half of these sums. Two real updates still make one.
    """
    rng = np.random.default_rng(k)
    for seed in range(50):
        for there in (1, 2):
            updates = np.zeros((k, 50))
            updates[:there] = rng.normal(size=(there, 50)) / math.sqrt(50)
            noise = rng.normal(0, d._DEVIATION * k, (2, k))
            squares = (updates**2).sum(axis=1) + noise[0]
            factors = d.cut(squares)
            dots = updates @ (factors @ updates) + noise[1]
            try:
                found = d.robust(squares, dots, factors, deviations=5)
            except RunError:
                assert there == 1 or k > 2, seed
                continue
            assert d.effective(found.weights * np.linalg.norm(updates, axis=1)) >= d.FEWEST, seed
    nothing = d.robust([1e-4, -1e-4, 1e-5], [0.0, 0.0, 0.0], [1, 63, 63], deviations=5)
    assert nothing.weights.any()  # a federation that hardly learns any more goes on


def test_updates_of_zero_are_a_sum_of_zero():
    mean, found = mean_of(np.zeros((3, 5)))
    assert not mean.any()
    assert found.weights.all()
    mean, found = mean_of(np.array([[0.0, 0], [0, 0], [1, 0], [1, 1]]))  # half of them hold the others up
    assert not mean.any()
    assert found.weights.any()


@given(st.integers(2, 8), st.integers(0, 2**32), st.floats(0, 9), st.booleans())
def test_sums_are_of_two_leaders_at_least(k, seed, wide, nonsense):
    rng = np.random.default_rng(seed)
    high, far, dots = 10.0 ** rng.uniform(-wide, wide, (3, k)) * [[1], [1], [-1 if rng.random() < 0.5 else 1]]
    if nonsense and k > 2:
        high[rng.integers(k)] = math.inf
    whole = np.where(np.isfinite(high), high, 0)
    judged = [(d.s_factors(high, far), np.ones(k))]
    try:
        judged.append((d.robust(high, dots, rng.integers(0, 64, k)), np.sqrt(whole)))
    except RunError:
        weights = np.floor(1023 * np.minimum(1, np.sqrt(d.lower_median(high[np.isfinite(high)]) / high)))
        assert d.effective(weights * np.sqrt(whole)) < d.FEWEST
    for found, lengths in judged:
        assert d.effective(found.weights * lengths) >= d.FEWEST
        assert found.weights.sum() <= found.divisor
        assert (found.weights >= 0).all()
        assert ((found.suspicion >= 0) & (found.suspicion <= 1)).all()
        assert (found.weights[~np.isfinite(high)] == 0).all()


def test_all_suspect():
    """Updates that point away from each other agree alike, so they count alike. So do two sides of equal size."""
    updates = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert mean_of(updates)[1].weights.tolist() == [1023] * 4
    mean, found = mean_of(np.array([[1.0, 0], [0, 1], [-1, -1], [-1, -0.9]]))
    assert (found.weights > 500).all()
    assert np.linalg.norm(mean) <= 1


def test_what_does_not_open_gets_no_weight():
    found = d.s_factors([1, 2, math.inf, math.nan, 3], [1, 2, 3, 4, math.inf])
    assert found.weights[2:].tolist() == [0, 0, 0]
    with pytest.raises(RunError, match="1 of 3"):
        d.s_factors([1, math.inf, 2], [1, 2, math.nan])
    with pytest.raises(RunError, match="0 of 2"):
        d.cut([math.inf, math.nan])
    with pytest.raises(RunError, match="1 of 2"):
        d.robust([1, math.inf], [1, 1], [1, 1])
    assert d.cut([0.0, 0.0, math.inf]).tolist() == [63, 63, 0]


def test_a_mean_that_is_too_long_was_forged():
    """An energy that wrapped around said that an update is short; the mean that opens then says otherwise."""
    updates = np.ones((4, 100))
    assert not d.too_long(updates.mean(axis=0), [1] * 4, 4, [100.0] * 4)
    forged = np.concatenate([updates[:3], 1000 * updates[:1]])
    assert d.too_long(forged.mean(axis=0), [1] * 4, 4, [100.0] * 4)
    assert d.too_long(np.full(100, np.nan), [1] * 4, 4, [100.0] * 4)


def test_short_updates_are_no_forgery_when_their_energies_open_with_noise():
    """Opened energies are off by some 2e-4, which is more than the energy of an update of length .01."""
    source, updates = np.random.default_rng(0), np.full((4, 100), 1e-3)
    for _ in range(100):
        squares = (updates**2).sum(axis=1) + source.normal(0, 2e-4, 4)
        assert not d.too_long(updates.mean(axis=0), [1] * 4, 4, squares)


@pytest.mark.parametrize(("parameters", "times"), [("threshold-8192-high", 4), ("threshold-8192-mul", 1)])
@pytest.mark.parametrize("leaders", [2, 4, 20, 100])
def test_the_stated_deviation_of_an_opened_energy_is_that_of_the_flooding(parameters, times, leaders):
    group = Group(parameters, tuple(f"leader {i}" for i in range(leaders)))
    form = Form(group.space.lowest, scalar=True, constant=True)
    error = fourier.deviation(group.space, 1024.0, summands=leaders)
    flood = math.sqrt(leaders + 1) * group.flood(error, scalar=True) / group.switched(form).scale
    assert 0.7 < flood / leaders / d._DEVIATION / times < 1


# ---- scores, misuse


def test_misuse():
    for action in (
        lambda: d.s_factors([1, 2], [1, 2, 3]),
        lambda: d.s_factors([], []),
        lambda: d.cut([[1, 2]]),
        lambda: d.robust([1, 2], [1, 2], [1]),
        lambda: d.weighted([KEY.public.encrypt([1.0])], [0]),
    ):
        with pytest.raises(UserError):
            action()


@pytest.mark.parametrize("k", [4, 6, 8])
def test_half_of_the_leaders_gain_nothing_by_long_updates(k: int) -> None:
    """Scaled by any factor, what they add to the mean stays as long as what honest ones add."""
    rng = np.random.default_rng(k)
    updates = np.ones(40) + rng.normal(0, 0.3, (k, 40))
    added = []
    for scale in (10.0, 1000.0):
        lies = updates.copy()
        lies[: k // 2] *= scale
        squares = (lies**2).sum(axis=1)
        factors = d.cut(squares)
        found = d.robust(*plain(lies, factors), factors)
        assert not found.fallback
        parts = found.weights * np.sqrt(squares)
        assert parts[: k // 2].max() <= 1.3 * parts[k // 2 :].max()
        added.append(parts[: k // 2].max())
    assert added[1] <= 1.3 * added[0]
    assert d.lower_median([3, 1, 2, 4]) == 2
    assert d.lower_median([3, 1, 2]) == 2


# -- agreement ---------------------------------------------------------------------------------------------------------


def test_agreements_by_hand():
    """Median .3, absolute deviations .2, .1, 0, .1, .8, of which the median is .1: sd = .1 x 1.4826 x 1.206."""
    scale = 3 * 0.1 * 1.4826 * 1.206
    cosines = [0.5, 0.4, 0.3, 0.2, -0.5]
    np.testing.assert_allclose(d.agreements(cosines), [1, 1, 1, 1 - 0.1 / scale, 0])
    np.testing.assert_allclose(d.agreements(cosines, 0.04), [1, 1, 1, 1 - 0.06 / scale, 0])
    np.testing.assert_allclose(d.agreements(np.array(cosines) - 0.6), [1, 1, 1, 1 - 0.1 / scale, 0])  # nor the sign
    np.testing.assert_allclose(d.agreements([0.9, 0.9, 0.9, 0.6, -0.1]), [1, 1, 1, 0.6 / 0.9, 0])  # the median is more
    np.testing.assert_allclose(
        d.agreements([-0.2, -0.2, -0.2, -0.3]), [1, 1, 1, 0.5]
    )  # as far below it as it is from 0
    assert d.agreements([-0.2, -0.2, -0.2, -0.3], [0, 0, 0, math.inf]).tolist() == [1, 1, 1, 1]
    assert d.agreements([0.0, 0, 0, -0.1]).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("n", few([2, 3, 4, 5, 6, 7, 8, 9, 16, 40], {2, 7}))
def test_the_deviation_of_few_values_is_that_of_their_distribution(n: int) -> None:
    draws = np.random.default_rng(n).normal(3, 2, (20_000, n))
    assert np.mean([d.deviation_of(row) for row in draws]) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [4, 8, 16])
def test_honest_leaders_keep_their_weight_however_little_they_agree(k: int, common: float) -> None:
    """Near the end updates cancel (common=0): each points away from the mean of the others, by about -1 / (k - 1).

    Where an agreement was the cosine over the median, half of all leaders got no weight then.
    """
    rng, low, size = np.random.default_rng(k), [], 200
    for _ in range(100):
        updates = rng.normal(size=(k, size))
        updates += common * rng.normal(size=size) - updates.mean(axis=0)
        weights = mean_of(updates)[1].weights
        low.append(np.mean(weights <= 0.1 * weights.max()))
    assert np.mean(low) < (0.06 if k == 4 else 0.03)


@given(st.integers(2, 12), st.integers(0, 2**32), st.booleans())
def test_only_an_outlier_that_opposes_the_others_counts_nothing(k: int, seed: int, wild: bool) -> None:
    """And half of all count fully, whatever their cosines are."""
    rng = np.random.default_rng(seed)
    cosines = np.tanh(rng.standard_cauchy(k) if wild else rng.normal(rng.normal(), 0.1, k))
    found = d.agreements(cosines)
    assert ((found >= 0) & (found <= 1)).all()
    assert 2 * (found == 1).sum() >= k
    out = found == 0
    assert (cosines[out] <= 1e-12).all()
    assert (cosines[out] <= np.median(cosines) - 3 * d.deviation_of(cosines) + 1e-12).all()
    assert (cosines[out] <= np.median(cosines) - abs(np.median(cosines)) + 1e-12).all()


def test_the_stated_error_of_a_cosine_is_that_of_the_noise() -> None:
    """Opened numbers with noise: cosines are off by as much as stated, and by no more than five deviations."""
    rng = np.random.default_rng(0)
    updates = 0.15 * (np.ones(300) + rng.normal(size=(4, 300))) / math.sqrt(600) * np.array([[1], [1], [1.5], [2]])
    squares, _ = plain(updates, np.ones(4))
    factors = d.cut(squares)
    squares, dots = plain(updates, factors)
    exact, stated = d.others_cosines(squares, dots, factors), d.cosine_errors(squares, dots, factors, 1.0)
    off = []
    for _ in range(2000):
        noise = rng.normal(0, d._DEVIATION * 4, (2, 4))
        off.append(d.others_cosines(squares + noise[0], dots + noise[1], factors) - exact)
    np.testing.assert_allclose(np.std(off, axis=0), stated, rtol=0.1)
    assert not d.cosine_errors(squares, dots, factors, 0).any()
    assert np.isinf(d.cosine_errors([0.0, 1, 1], [0.0, 1, 1], [63, 63, 63], 5)[0])


def test_noise_of_the_opened_numbers_cuts_no_honest_leader() -> None:
    """Short updates that all point one way: their cosines differ by noise alone, as much as from 0 to 1."""
    rng, size = np.random.default_rng(1), 50
    updates = np.full((4, size), 0.04 / math.sqrt(size))
    for _ in range(200):
        noise = rng.normal(0, d._DEVIATION * 4, (2, 4))
        squares = (updates**2).sum(axis=1) + noise[0]
        factors = d.cut(squares)
        found = d.robust(squares, updates @ (factors @ updates) + noise[1], factors, deviations=5)
        agreed = (1 - found.suspicion) / np.minimum(1, np.sqrt(d.lower_median(squares) / squares))
        assert agreed == pytest.approx(1)
