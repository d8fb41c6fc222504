"""Shares of models in a mixture: the likeliest, by another optimiser, and the default where nothing is gained."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from coterie.training.mixing import mixing_shares


def test_the_shares_of_two_models_are_the_likeliest() -> None:
    """A maximum a posteriori in one dimension: each share has one sample of its own."""
    draw = np.random.default_rng(0)
    p = draw.uniform(0.01, 1, (2, 60))
    p[1] += 0.3

    def loss(share: float) -> float:
        return -float(np.log((1 - share) * p[0] + share * p[1]).sum() + np.log(share) + np.log(1 - share))

    expected = minimize_scalar(loss, bounds=(1e-9, 1 - 1e-9), method="bounded").x
    assert mixing_shares(np.log(p)) == pytest.approx([1 - expected, expected], abs=1e-4)


@pytest.mark.parametrize("samples", [0, 1])
def test_too_few_samples_leave_the_default(samples: int) -> None:
    assert mixing_shares(np.log(np.full((3, samples), 0.5))).tolist() == [1, 0, 0]


def test_what_gains_less_than_a_standard_error_leaves_the_default() -> None:
    """The second model is right where the first is not, and the other way round; only one sample says for it."""
    p = np.array([[0.9] * 30 + [0.2], [0.5] * 30 + [0.9]])
    assert mixing_shares(np.log(p)).tolist() == [1, 0]
    assert mixing_shares(np.log(p[::-1]))[1] > 0.5


def test_a_model_without_numbers_leaves_the_default() -> None:
    assert mixing_shares(np.array([[-1.0, -2.0, -1.5], [np.nan] * 3])).tolist() == [1, 0]
