"""Attacks on plain updates against closed forms: what leaks all is found whole, and what leaks nothing is chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.privacy.attacks.result import AttackResult, Expected, verdict
from coterie.privacy.attacks.samples import best_correlation, dense_inputs, membership_auc, recovery
from coterie.privacy.audits import Finding
from coterie.privacy.plain import like_samples
from coterie.protocol.errors import UserError
from coterie.training.model import Model

# -- verdicts ----------------------------------------------------------------------------------------------------------


def finding(*values: float, sd: float = 0.0, closed: float | None = None) -> Finding:
    results = tuple(AttackResult("share", value, 0.2, 1.0, 10, sd) for value in values)
    return Finding(
        "server", "it", "other", results, () if closed is None else (Expected(closed, 0.1, 0.1),) * len(values)
    )


def test_a_leak_has_one_direction_whatever_the_measure() -> None:
    assert AttackResult("error", 0.0, 2.0, 0.0, 1).leak == 1
    assert AttackResult("error", 2.0, 2.0, 0.0, 1).leak == 0
    assert finding(1.0).leak == 1
    assert finding(0.2, 0.6).leak == pytest.approx(0.25)
    assert Finding("a", "b", "other", (AttackResult("error", 1e9, 2.0, 0.0, 1),)).leak == -1
    assert Finding("a", "b", "other", (AttackResult("error", float("nan"), 2.0, 0.0, 1),)).verdict == "nothing found"


@pytest.mark.parametrize(
    ("leak", "noise", "words"),
    [
        (0.0, 0.0, "nothing found"),
        (0.01, 0.0, "nothing found"),
        (0.5, 0.6, "cannot tell"),  # -0.1 to 1.1: chance and everything
        (-0.5, 0.1, "nothing found"),
        (1.0, 1.155, "cannot tell"),
        (0.0, 0.5, "cannot tell"),  # as long as from chance to everything
        (0.2, 0.29, "nothing found"),
        (-0.67, 0.82, "cannot tell"),  # bad luck shows no more than good luck
        (0.2, 0.31, "cannot tell"),  # half of everything lies within
        (1.0, 0.98, "everything"),
        (0.1, 0.05, "a little"),
        (0.3, 0.05, "much"),
        (0.99, 0.05, "much"),
        (1.0, 0.05, "everything"),
    ],
)
def test_a_verdict_in_words(leak: float, noise: float, words: str) -> None:
    assert verdict(leak, noise) == words


def test_where_guessing_is_perfect_an_attack_cannot_tell() -> None:
    """Everybody has the label that is read: nothing is left to find, so nothing is proved."""
    sure = AttackResult("label read", 1.0, 1.0, 1.0, 3)
    assert (sure.room, sure.leak) == (0.0, 0.0)
    assert Finding("a", "b", "labels", (sure, sure)).verdict == "cannot tell"
    assert Finding("a", "b", "labels", (sure, AttackResult("label read", 0.5, 0.5, 1.0, 3))).verdict == "nothing found"


def test_luck_in_one_round_is_luck_in_all_of_them() -> None:
    """The same clients are guessed in every round, so many rounds make no chance result sure."""
    one, many = finding(0.6, sd=0.24), finding(*[0.6] * 50, sd=0.24)
    assert one.error == many.error == pytest.approx(0.3)
    assert one.verdict == many.verdict == "cannot tell"
    assert finding(0.6, sd=0.1).verdict == "much"


def test_rounds_that_differ_widely_prove_little() -> None:
    values = [0.2, 1.0, 0.1, 0.2]
    leaks = (np.array(values) - 0.2) / 0.8
    assert finding(*values).error == pytest.approx(np.std(leaks, ddof=1) / 2)
    assert finding(*values).verdict == "cannot tell"
    assert finding(0.2, 0.8, 0.1, 0.2).verdict == "cannot tell"


def test_random_guesses_are_seldom_called_a_leak() -> None:
    """At two standard errors, to one side: about one in forty. All clients have the same other samples."""
    rng = np.random.default_rng(0)
    drawn = [membership_auc([rng.random(20) for _ in range(5)], [rng.random(30)] * 5) for _ in range(300)]
    called = [Finding("a", "b", "other", (result,)).verdict != "nothing found" for result in drawn]
    assert 0 < sum(called) < 300 / 20


# -- membership --------------------------------------------------------------------------------------------------------


def auc_by_hand(trained: list[float], others: list[float]) -> float:
    return float(np.mean([1.0 if a < b else 0.5 if a == b else 0.0 for a in trained for b in others]))


losses = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8)


@given(st.lists(st.tuples(losses, losses), min_size=1, max_size=4))
def test_the_area_is_the_share_of_pairs(clients: list[tuple[list[float], list[float]]]) -> None:
    result = membership_auc(*([np.array(one[k]) for one in clients] for k in (0, 1)))
    assert result.value == pytest.approx(np.mean([auc_by_hand(*one) for one in clients]))
    assert (result.chance, result.perfect, result.n) == (0.5, 1.0, len(clients))


def test_a_model_that_knows_its_samples_by_heart_and_one_that_knows_none() -> None:
    zeros, ones = [np.zeros(9)] * 3, [np.ones(5)] * 3
    assert membership_auc(zeros, ones).leak == 1
    assert membership_auc(ones, ones).leak == 0
    assert membership_auc(ones, zeros).leak == -1


def test_the_spread_of_chance_is_mann_whitneys() -> None:
    rng, m, n = np.random.default_rng(0), 12, 30
    one = membership_auc([np.zeros(m)], [np.zeros(n)])
    assert one.chance_sd == pytest.approx(((m + n + 1) / (12 * m * n)) ** 0.5)
    drawn = [membership_auc([rng.random(m)], [rng.random(n)]).value for _ in range(1000)]
    assert np.std(drawn) == pytest.approx(one.chance_sd, rel=0.05)
    common = [rng.random(n) for _ in range(1000)]  # five clients score against the same samples
    five = [membership_auc([rng.random(m) for _ in range(5)], [some] * 5) for some in common]
    assert np.std([result.value for result in five]) == pytest.approx(five[0].chance_sd, rel=0.05)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(UserError, match="no other samples of its kind"):
        membership_auc([np.ones(3)], [np.ones(0)])
    with pytest.raises(UserError, match="blown up"):
        membership_auc([np.array([np.nan])], [np.ones(2)])


# -- gradient inversion ------------------------------------------------------------------------------------------------


def mlp() -> Model:
    return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3)), (1, 4, 4))


def gradient(model: Model, weights: np.ndarray, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    module = model.module_with(weights)
    model.loss(module(x), y).backward()
    return np.concatenate([p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None])


def test_the_gradient_of_one_sample_is_the_sample() -> None:
    model, rng = mlp(), torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, 4, 4, generator=rng)
    step = -0.1 * gradient(model, model.initial(1), x, torch.tensor([2]))
    guesses = dense_inputs(step, model.spec, 16)
    assert np.abs(guesses - x.numpy().reshape(1, 16)).max() < 1e-3
    assert best_correlation(guesses, x.numpy().reshape(1, 16)) == pytest.approx(1, abs=1e-6)


def test_the_gradient_of_many_samples_is_their_weighted_mean() -> None:
    """The closed form, for one layer: row k is sum_i delta_ik x_i over sum_i delta_ik, delta the error of softmax."""
    model = Model(lambda: nn.Linear(5, 3), (5,))
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(7, 5, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    weights = model.initial(1)
    delta = torch.softmax(model.module_with(weights)(x), 1).detach() - nn.functional.one_hot(y, 3)
    expected = (delta.T @ x / delta.sum(0)[:, None]).numpy()
    assert dense_inputs(gradient(model, weights, x, y), model.spec, 5) == pytest.approx(expected, rel=1e-3)


def test_one_sample_among_others_is_recovered_and_their_mean_is_not() -> None:
    rng = np.random.default_rng(0)
    own, others = rng.random((6, 40)), [rng.random((6, 40)) for _ in range(8)]
    whole = recovery([own[:1]] * 3, [own] * 3, [others] * 3)
    assert whole.value == pytest.approx(1)
    assert whole.leak == pytest.approx(1)
    assert whole.value - whole.chance > 5 * whole.chance_sd
    nothing = recovery([rng.random((1, 40)) for _ in range(3)], [own] * 3, [others] * 3)
    assert Finding("a", "b", "other", (nothing,)).verdict == "nothing found"


def test_models_without_a_dense_first_layer_are_not_attacked() -> None:
    conv = Model(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), (1, 4, 4))
    bare = Model(lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3)), (4,))
    for model, features in ((conv, 16), (bare, 4)):
        with pytest.raises(UserError, match="no dense layer with a bias"):
            dense_inputs(model.initial(0), model.spec, features)
    model = mlp()
    with pytest.raises(UserError, match="did not move"):
        dense_inputs(np.zeros(model.spec.size), model.spec, 16)


def test_chance_is_measured_on_as_many_samples_of_the_same_classes() -> None:
    pool = [
        (np.arange(6.0)[:, None], np.array([0, 0, 0, 1, 1, 2])),
        (10 + np.arange(5.0)[:, None], np.array([0, 0, 0, 1, 1])),
        (20 + np.arange(4.0)[:, None], np.array([1, 1, 2, 0])),
    ]
    labels = {10: 0, 11: 0, 12: 0, 13: 1, 14: 1, 20: 1, 21: 1, 22: 2, 23: 0}
    own, draws, share = like_samples(pool, 0, None, np.random.default_rng(0))
    assert own.ravel().tolist() == [0, 1, 3, 4]  # half of four of class 0 and of four of class 1, and none of class 2
    assert share == 0.5
    assert len({drawn.tobytes() for drawn in draws}) > 1
    for drawn in draws:
        values = [int(value) for value in drawn.ravel()]
        assert len(set(values)) == 4
        assert sorted(labels[value] for value in values) == [0, 0, 1, 1]
    own, draws, _ = like_samples(pool, 0, np.array([5, 6, 5]), np.random.default_rng(0))
    assert own.ravel().tolist() == [3]  # client 2 is of its group, and has two samples of class 1
    assert all(value in (20, 21) for drawn in draws for value in drawn.ravel())
    with pytest.raises(UserError, match="too few samples of the same classes"):
        like_samples([pool[0], (np.ones((2, 1)), np.array([9, 9]))], 0, None, np.random.default_rng(0))
    with pytest.raises(UserError, match="no other client"):
        like_samples(pool[:1], 0, None, np.random.default_rng(0))


@pytest.mark.parametrize("clients", [3, pytest.param(10, marks=pytest.mark.long)])
def test_guesses_that_know_nothing_are_seldom_called_a_leak(clients: int) -> None:
    """With few clients draws have half of the others' samples in common."""
    rng, called = np.random.default_rng(0), 0
    for _ in range(200):
        pool = [(rng.normal(size=(20, 6)), np.zeros(20, np.int64)) for _ in range(clients)]
        drawn = [like_samples(pool, i, None, rng) for i in range(clients)]
        result = recovery([rng.normal(size=(4, 6)) for _ in range(clients)], *map(list, zip(*drawn, strict=True)))
        called += Finding("a", "b", "other", (result,)).verdict not in ("nothing found", "cannot tell")
    assert called <= 200 * 0.07
