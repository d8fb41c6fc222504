"""``samples``: a run uses so many training samples of its data set, and every method of a comparison the same ones."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.partition import kept_of
from coterie.data.sources import load
from coterie.data.tasks import deal, with_fewer_tests
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.experiment import build

DIGITS = load("digits")
N = len(DIGITS.y_train)


def test_classes_keep_their_shares_to_within_one_sample() -> None:
    strata = np.repeat([0, 1, 2], [100, 50, 10])
    kept = kept_of(strata, 80, 0)
    assert len(set(kept)) == 80
    assert np.abs(np.bincount(strata[kept]) - [50, 25, 5]).max() <= 1


def test_the_seed_decides_which() -> None:
    strata = np.zeros(100, int)
    assert kept_of(strata, 30, 1).tolist() == kept_of(strata, 30, 1).tolist() != kept_of(strata, 30, 2).tolist()


def test_without_a_number_all_are_kept() -> None:
    assert kept_of(np.zeros(7, int), None, 0).tolist() == list(range(7))


@pytest.mark.parametrize("samples", [0, 5, 161, 10**9])
def test_too_many_or_too_few_are_refused(samples: int) -> None:
    with pytest.raises(UserError, match="take 32 to 160"):
        kept_of(np.repeat([0, 1, 2], [100, 50, 10]), samples, 0)


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "rotate:2", "labelsets:2"])
def test_public_and_dealt_samples_are_those_that_are_kept(partition: str) -> None:
    split, _ = deal(partition, DIGITS, 6, 3, public=0.1, samples=400)
    dealt = np.concatenate([*split.train, split.public])
    assert len(split.public) == 40
    assert len(dealt) == len(set(dealt.tolist())) == 400
    assert set(dealt.tolist()) == set(kept_of(DIGITS.y_train, 400, 3).tolist())


def test_clients_with_data_of_their_own_keep_them() -> None:
    with pytest.raises(UserError, match="clients have samples of their own"):
        deal("by:client", DIGITS, None, 0, samples=100)


def test_a_run_trains_on_so_many() -> None:
    experiment = build(RunConfig("fedavg", clients=4, rounds=1, samples=200))
    try:
        assert sum(experiment.owns[name].samples for name in experiment.common.clients) == 200
    finally:
        experiment.close()


def test_a_run_is_scored_on_so_many_test_samples() -> None:
    experiment = build(RunConfig("fedavg", clients=4, rounds=1, test_samples=100))
    try:
        whole, some = len(DIGITS.y_test), experiment.data["client/0"].test_set
        assert len(some.y) == 100 < whole
        assert np.bincount(some.y.numpy(), minlength=10).min() >= 9
        assert sum(experiment.owns[name].samples for name in experiment.common.clients) == N
    finally:
        experiment.close()


def test_fewer_test_samples_are_some_of_all_by_the_seed() -> None:
    one, other = (with_fewer_tests(DIGITS, 50, seed) for seed in (0, 1))
    kept = kept_of(DIGITS.y_test, 50, 0, "test")
    np.testing.assert_array_equal(one.x_test, DIGITS.x_test[kept])
    np.testing.assert_array_equal(one.y_test, DIGITS.y_test[kept])
    assert one.digest != other.digest
    np.testing.assert_array_equal(one.inputs([0, 1]), DIGITS.inputs([0, 1]))


def test_test_samples_that_clients_own_are_not_fewer() -> None:
    with pytest.raises(UserError, match="the test samples of heart are those of its clients"):
        with_fewer_tests(load("heart"), 50, 0)
    with pytest.raises(UserError, match=r"test_samples=5 of [\d,]+ test samples: take"):
        with_fewer_tests(DIGITS, 5, 0)
