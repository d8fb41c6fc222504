"""The ledger against hand-made sums, other relations, and what a run's result says of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coterie.method as fl
from coterie.baselines.fedavg import SYSTEM as FEDAVG
from coterie.dp.gaussian import epsilon, noise_multiplier
from coterie.dp.ledger import Ledger, statements
from coterie.privacy.attacks.noisy_uploads import lower_bound
from coterie.protocols.sparsity import Noise, describe
from coterie.runs import SYSTEMS, RunConfig, register, run
from coterie.training.model import Model

VECTOR = fl.Release("sparsity vector", "gaussian", 4.0, 0.1)
MODEL = fl.Release("update", round=1)


def test_a_ledger_of_equal_releases_is_their_number():
    assert round(Ledger((VECTOR,) * 50).epsilon(1e-5), 2) == 8.60
    assert Ledger().epsilon(1e-5) == 0.0
    assert Ledger((VECTOR,) * 49).after(VECTOR).epsilon(1e-5) == Ledger((VECTOR,) * 50).epsilon(1e-5)


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=4))
@settings(max_examples=15)
def test_unequal_releases_compose_as_their_loss_distributions(noises):
    """By convolution of the distributions, not by the sum of 1 / z^2 that the ledger uses."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    step = 2e-3 * math.sqrt(sum(z**-2 for z in noises))
    composed, *others = (from_gaussian_mechanism(z, value_discretization_interval=step) for z in noises)
    for other in others:
        composed = composed.compose(other)
    found = Ledger(tuple(fl.Release("x", "gaussian", z, 1.0) for z in noises)).epsilon(1e-5)
    assert found == pytest.approx(composed.get_epsilon_for_delta(1e-5), rel=1e-3, abs=1e-5)


@given(st.permutations([0.7, 1.9, 4.0, 22.0]))
@settings(max_examples=10)
def test_the_order_of_releases_makes_no_difference(noises):
    def of(some):
        return Ledger(tuple(fl.Release("x", "gaussian", z, 1.0) for z in some)).epsilon(1e-5)

    assert of(noises) == of(sorted(noises))
    assert of(noises[:3]) < of(noises)


def test_a_release_without_a_proof_makes_epsilon_infinite():
    ledger = Ledger((VECTOR, MODEL))
    assert ledger.epsilon(1e-5) == math.inf
    assert ledger.of("sparsity vector").epsilon(1e-5) == epsilon(4.0, 1e-5)


def test_what_hides_a_sample_does_not_hide_a_client_but_the_other_way_round():
    client = replace(VECTOR, neighbours="replace one client")
    assert Ledger((VECTOR,)).epsilon(1e-5, "replace one client") == math.inf
    assert Ledger((client,)).epsilon(1e-5) == Ledger((client,)).epsilon(1e-5, "replace one client") < math.inf
    assert Ledger((client, VECTOR)).epsilon(1e-5) == pytest.approx(epsilon(4.0, 1e-5, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mechanism": "laplacian"},
        {"neighbours": "add one sample"},
        {"mechanism": "none"},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": None},
        {"noise_multiplier": math.nan},
        {"sensitivity_l2": math.inf},
        {"sensitivity_l2": None},
    ],
)
def test_a_release_that_proves_nothing_may_not_claim_to(wrong):
    with pytest.raises(fl.UserError, match="sparsity vector"):
        replace(VECTOR, **wrong)


def test_the_statement_groups_equal_releases_and_is_json():
    stated = Ledger((VECTOR, replace(VECTOR, round=3), MODEL, replace(MODEL, round=5))).statement(1e-6)
    assert json.loads(json.dumps(stated, allow_nan=False)) == stated
    assert stated["delta"] == 1e-6
    assert stated["epsilon"] == {"replace one sample": "infinite", "replace one client": "infinite"}
    vector, model = stated["releases"]
    assert (vector["count"], vector["rounds"], vector["noise_multiplier"]) == (2, [0, 3], 4.0)
    assert vector["epsilon"] == pytest.approx(epsilon(4.0, 1e-6, 2))
    assert vector["epsilon_after_one_more"] == pytest.approx(epsilon(4.0, 1e-6, 3))
    assert (model["mechanism"], model["epsilon"], model["rounds"]) == ("none", "infinite", [1, 5])
    assert statements({"a": [], "b": [VECTOR]})["a"] == {
        "delta": 1e-5,
        "epsilon": {"replace one sample": 0.0, "replace one client": 0.0},
        "epsilon_after_one_more_round": {"replace one sample": 0.0, "replace one client": 0.0},
        "against": {},
        "releases": [],
    }


def told(federation):
    return {name: [VECTOR, MODEL] for name in federation.common.clients}


def test_a_run_says_what_its_clients_have_released(tmp_path, monkeypatch):
    """Of a system that says its releases; for one that does not, the ledger is unknown and not empty."""
    monkeypatch.setattr(SYSTEMS, "registered", {})
    register(replace(FEDAVG, name="telling", ledger=told, releases=None))
    register(replace(FEDAVG, name="silent", releases=None))
    options = {"data": "digits", "clients": 4, "rounds": 1}
    result = run(RunConfig("telling", out=str(tmp_path / "a"), **options))
    on_disk = json.loads((tmp_path / "a" / "result.json").read_text())["ledger"]
    assert on_disk == result.summary["ledger"] == statements({name: [VECTOR, MODEL] for name in on_disk})
    assert len(on_disk) == 4
    assert {own["delta"] for own in on_disk.values()} == {1e-5}
    assert run(RunConfig("silent", out=str(tmp_path / "b"), **options)).summary["ledger"] is None


def test_laplace_releases_come_to_at_most_the_sum_of_their_epsilons() -> None:
    """And to little less, if there are few; a release without a proof ends it."""
    once = fl.Release("counts", "laplace", sensitivity_l2=1.0, pure_epsilon=0.75)
    assert 1.499 < Ledger((once, once)).epsilon(0.0001) <= 1.5
    assert Ledger((once,)).epsilon(0.5) == 0.75
    noise = fl.Release("mean", "gaussian", 2.0, 1.0)
    assert Ledger((noise,)).epsilon(1e-5) < Ledger((noise, once)).epsilon(1e-5) <= 0.75 + Ledger((noise,)).epsilon(1e-5)
    assert Ledger((once,)).epsilon(1e-5, "replace one client") == math.inf
    assert Ledger((once, fl.Release("model"))).epsilon(1e-5) == math.inf
    row = Ledger((once, once)).statement()["releases"][0]
    assert (row["pure_epsilon"], row["count"]) == (0.75, 2)
    assert (row["epsilon"], row["epsilon_after_one_more"]) == pytest.approx((1.5, 2.25), rel=1e-3)
    for mechanism, multiplier, pure in (
        ("laplace", None, None), ("laplace", None, 0.0), ("laplace", None, math.inf), ("laplace", 1.0, 1.0),
        ("none", None, 1.0), ("gaussian", 1.0, 1.0),
    ):  # fmt: skip
        with pytest.raises(fl.UserError):
            fl.Release("counts", mechanism, multiplier, 1.0, pure_epsilon=pure)  # type: ignore[arg-type]


def test_a_heuristic_counts_as_no_proof_and_its_claim_stands_beside() -> None:
    claimed = fl.Release("values", "heuristic", claimed_epsilon=200.0, neighbours="replace one client")
    ledger = Ledger((claimed, replace(claimed, round=1)))
    assert ledger.epsilon(1e-5) == ledger.epsilon(1e-5, "replace one client") == math.inf
    (row,) = ledger.statement()["releases"]
    assert (row["claimed_epsilon"], row["epsilon"], row["count"]) == (200.0, "infinite", 2)
    for wrong in ({"claimed_epsilon": -1.0}, {"noise_multiplier": 1.0}, {"pure_epsilon": 1.0}, {"draws": 2}):
        with pytest.raises(fl.UserError, match="values"):
            replace(claimed, **wrong)
    with pytest.raises(fl.UserError, match="claim"):
        replace(VECTOR, claimed_epsilon=1.0)


def test_a_further_round_repeats_what_the_last_one_released() -> None:
    """Two uploads in the last round, one in the first, and a description in the set-up that is not repeated."""
    upload = fl.Release("upload", "gaussian", 5.0, 1.0, "replace one client", round=1)
    ledger = Ledger((VECTOR, upload, replace(upload, round=4), replace(upload, round=4)))
    after = ledger.further_round()
    assert after.releases[4:] == (replace(upload, round=5),) * 2
    assert ledger.statement()["epsilon_after_one_more_round"]["replace one sample"] == after.epsilon(1e-5)
    assert Ledger().further_round() == Ledger()


@pytest.mark.parametrize(
    "wrong",
    [{"sampled": 0.0}, {"sampled": 1.5}, {"sampled": math.nan}, {"draws": 0}, {"draws": 1.5}, {"pure_epsilon": 1.0}],
)
def test_numbers_that_a_gaussian_does_not_have_are_refused(wrong) -> None:
    with pytest.raises(fl.UserError, match="sparsity vector"):
        replace(VECTOR, **wrong)


def test_only_pure_mechanisms_are_not_sampled() -> None:
    with pytest.raises(fl.UserError, match="choice"):
        fl.Release("choice", "exponential", pure_epsilon=0.1, sampled=0.5, hidden=True)


# -- releases ----------------------------------------------------------------------------------------------------------


WIDTH, SAMPLES, DRAWS = 4, 10, 4_000
CENTRE = np.full(WIDTH, 0.5, np.float32)


class Device(fl.Party, role="client"):
    """Only what ``describe`` needs."""


def identity() -> tuple[Model, np.ndarray[Any, Any]]:
    """Its ReLU gives what it is given, so a sample's sparsity vector is where it is not positive."""
    model = Model(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)), (WIDTH,))
    weights = np.zeros(model.spec.size, np.float32)
    weights[: WIDTH**2] = np.eye(WIDTH, dtype=np.float32).ravel()
    return model, weights


def released(first: float, seed: int, noise: Noise) -> np.ndarray[Any, Any]:
    """Vectors (draws, C) of data whose first sample has the same sign everywhere and whose others are mixed.

    The halves are drawn once, for all samples but one are alike; the noise is drawn anew each time.
    """
    model, weights = identity()
    x = np.tile(np.array([1.0, -1.0] * (WIDTH // 2), np.float32), (SAMPLES, 1))
    x[0] = first
    device, halves, vectors = Device(fl.Own("c", fl.Randomness(seed, True))), None, []
    for r in range(DRAWS):
        work = describe(device, weights, "1", round=r, noise=noise)
        effect = next(work)
        assert isinstance(effect, fl.Local)
        if halves is None:
            halves = effect.registered(fl.OwnData(x, np.zeros(SAMPLES, np.int64), model), *effect.arguments)
        with pytest.raises(StopIteration) as stopped:
            work.send(halves)
        vectors.append(stopped.value.value.vector)
    return np.stack(vectors)


def proven(multiplier: float, delta: float, clip: float = 0.3) -> float:
    """The neighbours are as far apart as clipping allows: 2 clip along (1, ..., 1)."""
    noise = Noise(clip, multiplier, CENTRE)
    present, replaced = (released(first, seed, noise).sum(axis=1) for first, seed in ((-1.0, 1), (1.0, 2)))
    return lower_bound(present, replaced, delta)


@pytest.mark.long
def test_a_described_device_keeps_the_epsilon_that_is_claimed() -> None:
    """The vector shows half of the change and 1/sqrt(2) of the noise: it tells less than both halves, the release."""
    multiplier = noise_multiplier(3.0, 1e-5)
    assert 0.3 < proven(multiplier, 1e-5) <= 3.0
    assert proven(multiplier / 6, 1e-5) > 3.0  # the audit would notice a sixth of the noise


def test_a_release_of_noisy_data_has_the_better_of_both_proofs_for_a_sample() -> None:
    """DP-SGD covers a sample, and noise on the whole upload a client, which covers its samples, too."""
    training = fl.Release("upload", "gaussian", 2.0, 0.1, draws=50, sampled=0.05, hidden=True)
    upload = fl.Release("upload", "gaussian", 1.0, 2.0, neighbours="replace one client")
    both = replace(upload, sample=training)
    for count in (1, 4):
        of_client, of_sample = Ledger((upload,) * count), Ledger((training,) * count)
        assert Ledger((both,) * count).epsilon(1e-5, "replace one client") == of_client.epsilon(
            1e-5, "replace one client"
        )
        assert Ledger((both,) * count).epsilon(1e-5) == of_sample.epsilon(1e-5) < of_client.epsilon(1e-5)
    weak = replace(both, sample=replace(training, noise_multiplier=0.3, sampled=1.0))
    assert Ledger((weak,)).epsilon(1e-5) == Ledger((upload,)).epsilon(1e-5)
    assert Ledger((training,)).epsilon(1e-5, "replace one client") == math.inf
