"""Attacks on hidden groups against closed forms: what was put in is found, and what was not is chance."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering import evidence
from coterie.clustering.correlation import Question
from coterie.clustering.evidence import ResidualSpread, twisted
from coterie.clustering.signature import FEATURES
from coterie.privacy.attacks import hidden_groups
from coterie.protocol.errors import UserError

CLIENTS, GROUPS, LENGTH = 24, 4, 30


def played(rounds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who was there (rounds, n), groups (n,), and updates (n, d) that are the same in every round."""
    rng = np.random.default_rng(seed)
    there = np.stack([rng.permutation(CLIENTS) < 19 for _ in range(rounds)]).astype(float)
    groups = rng.permutation(CLIENTS) % GROUPS
    return there, groups, 1 + rng.normal(size=(CLIENTS, LENGTH))


def counts(there: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.stack([there[:, groups == k].sum(axis=1) for k in range(GROUPS)], axis=1)


def test_counts_show_groups_once_there_are_as_many_rounds_as_clients() -> None:
    there, groups, _ = played(40)
    found = hidden_groups.groups_found(hidden_groups.by_names(there, counts(there, groups)), groups)
    assert (found.value, found.chance) == (1.0, pytest.approx(1 / GROUPS))
    few = hidden_groups.groups_found(hidden_groups.by_names(there[:8], counts(there, groups)[:8]), groups)
    assert 0.3 < few.value < 0.9


def test_counts_of_other_rounds_show_nothing() -> None:
    found = [
        hidden_groups.groups_found(hidden_groups.by_names(there, counts(played(40, seed + 100)[0], groups)), groups)
        for seed in range(10)
        for there, groups, _ in [played(40, seed)]
    ]
    assert np.mean([one.leak for one in found]) == pytest.approx(0, abs=2 * found[0].chance_sd / 0.75 / 10**0.5)


def test_sums_show_members_and_their_updates() -> None:
    there, groups, updates = played(60)
    member = groups == 1
    sums = there[:, member] @ updates[member]
    parts = hidden_groups.by_names(there, sums)
    true = updates * member[:, None]
    true -= true.mean(axis=0)  # as many clients in every round: what all have in common does not show
    assert np.linalg.norm(parts - true) < 0.1 * np.linalg.norm(true)
    alike = hidden_groups.by_names(there, sums, alike=True)
    assert hidden_groups.members_found(alike, sums, member).value == 1
    assert hidden_groups.members_found(alike, sums, np.roll(member, 1)).leak < 0.9


def test_without_absences_there_is_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="the same clients were added in all rounds"):
        hidden_groups.by_names(np.ones((5, 3)), np.random.default_rng(0).normal(size=(5, 2)))
    with pytest.raises(UserError, match="all clients are of one group"):
        hidden_groups.members_found(np.ones((3, 2)), np.ones((4, 2)), np.ones(3, bool))


def test_the_cosine_of_a_guess_is_compared_with_the_other_members() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = hidden_groups.update_cosine([np.array([3.0, 0.0]), np.array([0.0, 2.0])], [rows, rows], [0, 0])
    assert (found.value, found.n) == (0.5, 2)
    assert found.chance == pytest.approx((0 - 1 + 1 + 0) / 4)
    with pytest.raises(UserError, match="no other member"):
        hidden_groups.update_cosine([rows[0]], [rows[:1]], [0])


def test_what_choices_say_is_counted_by_hand() -> None:
    """0 joins 1, not alone; 2 stays alone; 0 prefers 1 to 2; and 1 stays where it is, or does not."""
    joins = Question([[((0,), ())], [((0,), (1,))]], [0, 1])
    alone = Question([[((2,), ())], [((2,), (0, 1))]], [0, 1])
    prefers = Question([[((0,), (1,))], [((0,), (2,))]], [0, 1])
    moves = Question([[((1,), ())], [((1,), (0,))], [((1,), (2,))]], [0, 1, 0])
    choices = [(joins, 1), (alone, 0), (prefers, 0), (moves, 0)]
    outcomes = [one for choice in choices for one in hidden_groups.outcomes_of(*choice)]
    assert len(outcomes) == 3, "that it moves does not say where"
    assert len(list(hidden_groups.outcomes_of(moves, 1))) == 2
    expected = np.array([[0.0, 1.0, -1.0], [1.0, 0.0, -1.0], [-1.0, -1.0, 0.0]])
    assert (hidden_groups.sides(choices, 3) == expected).all()
    assert hidden_groups.agreement(choices, np.array([0, 0, 1])) == pytest.approx([2 / 3] * 3)
    assert hidden_groups.agreement(choices, np.array([0, 1, 0])) == pytest.approx([-2 / 3, 0, 0])
    assert hidden_groups.surprises(choices, np.array([0, 0, 1])).tolist() == [0, 1, 0], "1 does not stay with 0"
    assert hidden_groups.surprises(choices, np.array([0, 1, 0])).tolist() == [1, 0, 1], "2 alone, and 0 with 1"


def test_clients_are_linked_by_their_order_and_ties_are_luck() -> None:
    labels, draw = np.repeat([0, 1, 2], 20), np.random.default_rng(1)
    scores = draw.normal(size=60)
    assert hidden_groups.linked(scores, scores**3, labels).leak == 1
    constant = hidden_groups.linked(np.zeros(60), np.zeros(60), labels)
    assert constant.value == pytest.approx(constant.chance) == pytest.approx(3 / 60)
    ties = [draw.integers(0, 3, 60).astype(float) for _ in range(2)]
    broken = [[side + 1e-9 * draw.random(60) for side in ties] for _ in range(4000)]
    drawn = [hidden_groups.linked(*sides, labels).value for sides in broken]
    assert hidden_groups.linked(*ties, labels).value == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 4000**0.5)


def test_the_client_that_is_found_again_is_counted_over_pairs_that_have_one() -> None:
    found = hidden_groups.found_again(np.array([[0, 2, 1], [0, 0, 0], [0, 1, 0], [3, 3, 0]]))
    assert (found.value, found.n) == (pytest.approx((1 + 0.5 + 0.5) / 3), 3)
    assert found.chance == pytest.approx(1 / 3)
    drawn = [
        hidden_groups.found_again(np.eye(6)[draw.integers(0, 6, 3)]) for draw in map(np.random.default_rng, range(2000))
    ]
    assert (drawn[0].chance, drawn[0].chance_sd) == (
        pytest.approx(np.mean([one.value for one in drawn]), abs=0.02),
        pytest.approx(np.std([one.value for one in drawn]), rel=0.1),
    )
    with pytest.raises(UserError, match="no two groupings"):
        hidden_groups.found_again(np.array([[0, 0], [1, 0]]))


def test_chance_links_a_group_of_one_always() -> None:
    labels, draw = np.repeat([0, 1, 2], [20, 1, 3]), np.random.default_rng(2)
    found = [hidden_groups.linked(*draw.normal(size=(2, 24)), labels) for _ in range(2000)]
    values = [one.value for one in found]
    assert np.mean(values) == pytest.approx(found[0].chance, abs=0.005)
    assert np.std(values) == pytest.approx(found[0].chance_sd, rel=0.06)


@pytest.mark.parametrize("distinct", [2, 5, 1000])
def test_chance_of_a_link_is_that_of_numbers_in_random_order(distinct: int) -> None:
    labels, draw = np.repeat([0, 1, 2], [20, 6, 1]), np.random.default_rng(3)
    one, other = (draw.integers(0, distinct, 27).astype(float) for _ in range(2))
    orders = [np.concatenate([draw.permutation(np.flatnonzero(labels == k)) for k in range(3)]) for _ in range(4000)]
    values = [hidden_groups.linked(one, other[order], labels).value for order in orders]
    found = hidden_groups.linked(one, other, labels)
    assert (found.chance, found.chance_sd) == (
        pytest.approx(np.mean(values), abs=0.005),
        pytest.approx(np.std(values), rel=0.1),
    )


@pytest.mark.parametrize("ratio", [0.05, 1.0, 5.0])
def test_a_planted_row_asks_for_one_label(ratio: float) -> None:
    """Whatever else a client has, its gain with the row says whether it has the label, from one sample on."""
    of = ResidualSpread(evidence.parts(np.ones(4, bool)), np.array([ratio, ratio / 4]), np.ones(2))
    rng = np.random.default_rng(0)
    row = twisted(hidden_groups.planted_row(2, 4, of, 100.0)[None])[0]
    for held in (0, 1, 2, 3, 10, 100, evidence.MOST):
        counts = rng.integers(0, 40, 4)
        counts[2] = held
        tau = np.repeat(of.tau, [3, FEATURES - 3])
        spread = np.sqrt(counts[:, None] * (1 + counts[:, None] * tau))
        gain = evidence.row(counts, spread * rng.normal(size=(4, FEATURES)), of) @ row
        assert gain == pytest.approx(100 if held else -100, rel=0.6)


def test_bits_that_are_all_read_or_all_guessed() -> None:
    truth = np.array([True] * 5 + [False] * 5)
    assert hidden_groups.bits_read(truth, truth, "bits").leak == 1
    constant = hidden_groups.bits_read(np.ones(10, bool), truth, "bits")
    assert (constant.value, constant.leak) == (0.5, 0)
    assert constant.metric == "bits read (share)"
