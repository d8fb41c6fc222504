"""The o-factor, the selection by it and the stalest parameters, against slow twins and exact laws."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets
from coterie.selection.parameters import between, count, density, gumbel_top_k, max_min, o_factor, stalest_first

ROWS = st.lists(st.floats(-100, 100), min_size=1, max_size=40).map(np.array)


def secrets(seed: int = 0) -> Secrets:
    return Secrets(np.random.default_rng(seed))


def slow_density(values: np.ndarray) -> np.ndarray:
    """All pairs, with Silverman's bandwidth."""
    low, high = np.percentile(values, [25, 75])
    spread = min(values.std(), (high - low) / 1.34) or values.std()
    h = 0.9 * spread * len(values) ** -0.2
    return np.exp(-0.5 * ((values[:, None] - values) / h) ** 2).mean(axis=1)


@pytest.mark.parametrize("seed", range(3))
def test_density_is_that_of_all_pairs_within_the_grid(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = np.concatenate([generator.normal(size=300), generator.normal(6, 0.3, size=100)])
    assert np.allclose(density(values), slow_density(values), rtol=0.05, atol=0.01)


@given(ROWS)
def test_density_lies_in_0_1_and_is_1_only_for_equal_values(values: np.ndarray) -> None:
    found = density(values)
    assert found.shape == values.shape
    assert (found > 0).all()
    assert (found <= 1).all()
    if np.ptp(values) == 0:
        assert (found == 1).all()


def test_density_bears_an_outlier_and_ignores_scale_and_place() -> None:
    values = np.append(np.linspace(-1, 1, 500), 1e6)
    assert density(values)[-1] < density(values)[:-1].min()
    near = np.random.default_rng(1).normal(size=200)
    assert np.allclose(density(near), density(near * 1e-6 + 3), atol=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_density_of_values_that_differ_by_their_last_digit(kind: type[np.floating]) -> None:
    values = np.full(7, 1e6, kind)
    for i in range(1, 7):
        values[i] = np.nextafter(values[i - 1], kind(np.inf)) if i % 3 else values[i - 1]
    found = density(values)
    assert ((found > 0) & (found <= 1)).all()


@pytest.mark.parametrize("seed", range(6))
def test_density_is_read_off_its_grid_as_numpy_interpolates(seed: int) -> None:
    """To the bit: else a change of the last digit would choose other parameters."""
    generator = np.random.default_rng(seed)
    row = [generator.normal, generator.laplace, generator.standard_cauchy][seed % 3](size=2_000) * 10.0**-seed
    cells = 16 + 50 * seed
    cell = np.ptp(row) / cells
    place = np.minimum(((row - row.min()) / np.ptp(row) * cells).astype(np.int64), cells - 1)
    centres = row.min() + (np.arange(cells) + 0.5) * cell
    heights = generator.uniform(size=cells)
    assert (between(row, place, centres, heights) == np.interp(row, centres, heights)).all()


def test_the_whole_model_is_chosen_without_a_draw() -> None:
    class Nothing(Secrets):
        def bytes(self, count: int) -> bytes:
            raise AssertionError

    assert gumbel_top_k(np.array([0.2, 1.0, 0.0]), 3, 1.0, Nothing(None)).tolist() == [0, 1, 2]


def test_the_o_factor_is_equation_5_by_hand() -> None:
    local, last, before = np.array([3.0, -1.0, 0.0]), np.array([1.0, -1.0, 2.0]), np.array([1.0, 2.0, -4.0])
    dense = np.array([0.5, 0.25, 1.0])
    assert o_factor(local, last, before, dense) == pytest.approx([1.0, 0.0, 2.0 / 3.0])
    printed = o_factor(local, last, before, dense, literal=True)
    assert printed[1:] == pytest.approx([0.0, 2.0 / math.log2(7)])
    assert printed[0] == pytest.approx(1e12), "its denominator is 0: it was not synced in between"


def test_the_printed_denominator_leaves_nothing_but_what_was_not_synced() -> None:
    """Before two syncs all states are 0: mended, the o-factor is a ranking; printed, the same one times 1e12.

    Afterwards, parameters that were not synced in between exceed the others by so much that these all have utility 0.
    """
    generator = np.random.default_rng(0)
    local, zeros = generator.normal(size=100), np.zeros(100)
    mended, printed = (max_min(o_factor(local, zeros, zeros, density(local), literal)) for literal in (False, True))
    assert np.allclose(mended, printed)
    last = np.where(np.arange(100) < 50, 0.1, 0.0)
    mended, printed = (max_min(o_factor(local, last, zeros, density(local), literal)) for literal in (False, True))
    assert printed[:50].max() < 1e-9 < 0.1 < mended[:50].max()


@given(ROWS)
def test_utilities_lie_in_0_1(values: np.ndarray) -> None:
    found = max_min(values)
    assert found.min() == 0
    assert found.max() == (1 if np.ptp(values) else 0)


def law(utility: np.ndarray, k: int, epsilon1: float) -> dict[tuple[int, ...], float]:
    """The probability of each set of k places, drawn one after the other without replacement."""
    weights = np.exp(epsilon1 * utility / 2)
    found: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(utility)), k):
        p, left = 1.0, weights.sum()
        for i in order:
            p, left = p * weights[i] / left, left - weights[i]
        key = tuple(sorted(order))
        found[key] = found.get(key, 0.0) + p
    return found


@pytest.mark.parametrize(("k", "epsilon1"), [pytest.param(1, 4.0, marks=pytest.mark.long), (2, 4.0), (3, 1.0)])
def test_gumbel_top_k_has_the_law_of_draws_without_replacement(k: int, epsilon1: float) -> None:
    utility, draws, source = np.array([0.0, 0.2, 0.7, 1.0]), 20_000, secrets()
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        key = tuple(gumbel_top_k(utility, k, epsilon1, source).tolist())
        seen[key] = seen.get(key, 0) + 1
    for key, p in law(utility, k, epsilon1).items():
        assert abs(seen.get(key, 0) / draws - p) < 5 * math.sqrt(p * (1 - p) / draws), key


def test_a_draw_has_at_most_its_epsilon_whatever_the_utilities() -> None:
    """By the law: the likelihood ratio of any place between any two utilities in [0, 1], worst at 0 against 1."""
    worst = 0.0
    generator = np.random.default_rng(3)
    for _ in range(200):
        a, b = generator.integers(0, 2, (2, 5)).astype(float)
        first, second = law(a, 1, 1.7), law(b, 1, 1.7)
        worst = max(worst, max(abs(math.log(first[key] / second[key])) for key in first))
    assert 1.0 < worst <= 1.7


def test_at_epsilon_1_a_selection_is_nearly_uniform_and_at_50_nearly_the_best() -> None:
    """So the o-factor needs much of the budget: the mean utility of a tenth of 2,000 parameters."""
    utility = max_min(np.random.default_rng(0).exponential(size=2000))
    means = {e: utility[gumbel_top_k(utility, 200, e, secrets(1))].mean() for e in (1.0, 50.0)}
    best = np.sort(utility)[-200:].mean()
    assert means[1.0] < utility.mean() * 1.2
    assert means[50.0] > 0.8 * best


def test_the_stalest_parameters_come_first() -> None:
    assert stalest_first(np.array([5, 0, 3, 0, 9]), 3).tolist() == [1, 2, 3]
    assert stalest_first(np.array([2, 2, 2]), 2).tolist() == [0, 1]


@pytest.mark.parametrize(("gamma", "size", "many"), [(1.0, 7, 7), (0.5, 7, 3), (1e-9, 7, 1)])
def test_a_share_is_rounded_down_but_never_to_nothing(gamma: float, size: int, many: int) -> None:
    assert count(gamma, size) == many


NAN = np.array([0.1, math.nan])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: count(0.0, 5),
        lambda: count(math.nan, 5),
        lambda: count(1.5, 5),
        lambda: density(np.zeros(0)),
        lambda: density(NAN),
        lambda: max_min(NAN),
        lambda: o_factor(NAN, NAN, NAN, NAN),
        lambda: o_factor(np.zeros(2), np.zeros(3), np.zeros(2), np.zeros(2)),
        lambda: gumbel_top_k(np.array([0.0, 2.0]), 1, 1.0, secrets()),
        lambda: gumbel_top_k(np.zeros(3), 4, 1.0, secrets()),
        lambda: gumbel_top_k(np.zeros(3), 0, 1.0, secrets()),
        lambda: gumbel_top_k(np.zeros(3), 1, 0.0, secrets()),
        lambda: gumbel_top_k(np.zeros(3), 1, math.nan, secrets()),
        lambda: gumbel_top_k(np.zeros(3), 1, math.inf, secrets()),
        lambda: stalest_first(np.zeros(3), 1),
        lambda: stalest_first(np.zeros(3, int), 4),
    ],
)
def test_bad_input_is_refused(wrong) -> None:
    with pytest.raises(UserError):
        wrong()
