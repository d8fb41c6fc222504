"""Fine-tuning: epochs chosen by each client's held-out loss, so that it never hurts; held-out samples train nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import SHIPPED

from coterie.data.partition import hold_out, partition
from coterie.protocol.errors import UserError
from coterie.runs import Experiment, RunConfig, build
from coterie.runs.on_data import TensorSamples
from coterie.runs.tuning import MOST_EPOCHS, PATIENCE
from coterie.training.evaluate import evaluate_many


@given(st.integers(1, 6), st.integers(0, 50), st.floats(0.05, 0.95))
def test_held_out_samples_are_the_clients_own_and_no_others(clients: int, seed: int, share: float) -> None:
    y = np.arange(60) % 3
    split = partition("dirichlet:1", y, y, clients, seed, min_samples=1)
    held = hold_out(split, share)
    for before, kept, given_up in zip(split.train, held.train, held.held_out, strict=True):
        assert sorted([*kept, *given_up]) == list(before)
        assert len(kept) >= 1
        assert len(given_up) == min(len(before) - 1, max(1, round(share * len(before))))
        assert list(kept) == sorted(kept)
        assert list(given_up) == sorted(given_up)
    assert all(np.array_equal(a, b) for a, b in zip(split.test, held.test, strict=True))
    again = hold_out(split, share)
    assert all(np.array_equal(a, b) for a, b in zip(held.held_out, again.held_out, strict=True))


def test_what_cannot_be_held_out() -> None:
    y = np.arange(20) % 2
    split = partition("iid", y, y, 2, 0)
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            hold_out(split, share)
    with pytest.raises(UserError, match="already"):
        hold_out(hold_out(split))


def experiment(**options: object) -> Experiment:
    given = {"clients": 4, "rounds": 1, "model": "linear", "partition": "shards:2", "fine_tune": "held_out"}
    return build(RunConfig("fedavg", samples=400, **{**given, **options}))  # type: ignore[arg-type]


def held_out(one: Experiment) -> dict[str, TensorSamples]:
    return {name: own.held_out for name, own in one.effects.data.items() if own.held_out is not None}


def held_out_losses(one: Experiment, models: dict[str, np.ndarray]) -> dict[str, float]:
    own = held_out(one)
    return {
        name: evaluate_many(one.model, np.array(weights)[None], own[name].x, own[name].y)[0].loss
        for name, weights in models.items()
    }


def test_the_chosen_epochs_have_the_lowest_held_out_loss() -> None:
    """Against a plain twin that trains every number of epochs from the start and looks at all of them."""
    one = experiment()
    one.set_up()
    one.round(1)
    start = {name: np.asarray(model) for name, model in one.models(1).items()}
    before = held_out_losses(one, start)
    _, tuned = one.observer.fine_tuned(1)
    after = held_out_losses(one, {name: found.weights for name, found in tuned.items()})
    assert all(after[name] <= before[name] for name in start)
    assert list(tuned) == list(start)
    assert all(0 <= found.epochs <= MOST_EPOCHS for found in tuned.values())
    assert any(found.epochs for found in tuned.values())
    for name, found in tuned.items():
        assert (after[name] == before[name]) == (found.epochs == 0)
    assert PATIENCE < MOST_EPOCHS


def test_fewer_epochs_draws_and_trials_are_of_fast_tests_alone() -> None:
    """docs/data.md and docs/audits.md promise what the package has."""
    assert SHIPPED == (50, 1000, 200, 4000)


def test_a_client_whose_tuning_only_hurts_keeps_its_model() -> None:
    """Its training labels are wrong, its held-out ones right: no epoch lowers the held-out loss."""
    one = experiment(rounds=3)
    one.set_up()
    for r in (1, 2, 3):
        one.round(r)
    name = "client/0"
    one.effects.data[name].y.copy_((one.effects.data[name].y + 1) % 10)
    start = np.asarray(one.models(3)[name])
    _, tuned = one.observer.fine_tuned(3)
    assert tuned[name].epochs == 0
    assert np.array_equal(tuned[name].weights, start)


def test_no_training_sees_what_is_held_out() -> None:
    """Garbage in the held-out samples changes no model, and all of a client's samples are in one of the two parts."""
    clean, spoilt = experiment(), experiment()
    for own in held_out(spoilt).values():
        own.x.fill_(1e6)
    digests = []
    for one in (clean, spoilt):
        one.set_up()
        digests.append(one.round(1)["models_sha256"])
    assert digests[0] == digests[1]
    whole = experiment(fine_tune="no")
    for name, own in whole.effects.data.items():
        assert len(own.y) == len(clean.effects.data[name].y) + len(held_out(clean)[name].y)


def test_a_line_says_how_long_each_client_tuned() -> None:
    one = experiment()
    one.set_up()
    line = one.round(1)
    assert len(line["fine_tuned_epochs"]) == 4
    assert line["fine_tuned_local_accuracy"] > line["local_accuracy"]
    other = build(RunConfig("fedem", samples=300, clients=4, rounds=1, model="linear", fine_tune="held_out"))
    other.set_up()
    assert "fine_tuned_local_accuracy" not in other.round(1)


def test_tuned_models_every_so_many_rounds_need_tuning() -> None:
    with pytest.raises(UserError, match="fine_tune"):
        build(RunConfig("fedavg", fine_tune_every=2))


def test_as_many_epochs_as_in_a_round_of_training() -> None:
    """After one round from the same start, tuning by the client's own epochs moves each client to data of its own."""
    one = experiment(fine_tune="own_epochs")
    assert not held_out(one)
    one.set_up()
    line = one.round(1)
    assert line["fine_tuned_epochs"] == [one.owns[name].epochs for name in one.common.clients]
    assert line["fine_tuned_local_accuracy"] > line["local_accuracy"] + 0.1
