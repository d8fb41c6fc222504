"""DP-FedAvg and DP-FTRL: slow twins without noise, closed forms of the noise, its secrecy, and the account."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, planted, rig

import coterie.method as fl
from coterie.baselines.central_noise import SYSTEMS, Clipped, multiplier, releases
from coterie.dp.gaussian import epsilon
from coterie.dp.ledger import Ledger
from coterie.privacy.attacks.noisy_uploads import lower_bound
from coterie.runs import Interrupted, RunConfig, build, run

EACH = pytest.mark.parametrize("name", SYSTEMS)
TARGETS = planted([0, 0, 1, 1, 2], 40)
WIDE = planted([0, 0, 1, 1], 20_000)


def made(name: str, targets: np.ndarray = TARGETS, **settings: Any) -> Rig:
    return rig(SYSTEMS[name], targets, **settings)


# -- without noise -----------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("settings", [{}, {"beta": 0.5, "participation": 0.5}], ids=["plain", "momentum, cohorts"])
def test_without_noise_it_is_averaging_of_clipped_changes(name: str, settings: dict[str, Any]) -> None:
    """By a fixed denominator: a client that does not answer counts as a change of 0."""
    run = made(name, noise=0.0, clip=1.5, links=Steady(away={("client/2", 3): "offline"}), **settings)
    w, v = run.common.initial.astype(np.float64), np.zeros(40)
    cohorts = [[0, 2, 4], [1, 3]] if settings else [[0, 1, 2, 3, 4]]
    for r in range(1, 6):
        cohort, total, lengths = cohorts[(r - 1) % len(cohorts)], np.zeros(40), []
        for i in cohort:
            change = 0.5 * (TARGETS[i] - w)
            lengths.append(np.linalg.norm(change))
            if (i, r) != (2, 3):
                total += change * min(1.0, 1.5 / lengths[-1])
        v = settings.get("beta", 0.0) * v + total / len(cohort)
        w = w + v
        notes = run.round(r)
        assert (notes["asked"], notes["participants"]) == (len(cohort), len(cohort) - (r == 3))
        assert max(lengths) > 1.5, "something is clipped"
        np.testing.assert_allclose(run.models(), np.tile(w, (5, 1)), atol=1e-5)


@EACH
def test_a_change_that_is_too_long_is_refused_with_its_sender(name: str) -> None:
    run, without = made(name), made(name, links=Steady(away={("client/1", 1): "offline"}))

    def longer(party: Any, request: Any, answer: Clipped) -> Clipped:
        length = np.linalg.norm(answer.weights.astype(np.float64))
        return msgspec.structs.replace(answer, weights=answer.weights * np.float32(1.00001 / length))

    misbehaving(run.party("client/1"), fl.Train, longer)
    without.round(1)
    assert run.round(1)["participants"] == 4
    (reason,) = run.refused
    assert "client/1: a change of length 1.00001; at most 1 is taken" in reason
    np.testing.assert_array_equal(run.models(), without.models())


# -- the noise ---------------------------------------------------------------------------------------------------------


def walked(name: str, rounds: int, **settings: Any) -> np.ndarray:
    """(rounds, d) how far the model is from its start after each round, where noise is a million times as long."""
    run = made(name, WIDE, clip=1e-6, noise=1e6, emulated=False, **settings)
    found = []
    for r in range(1, rounds + 1):
        run.round(r)
        found.append(run.models()[0] - run.common.initial)
    return np.array(found, np.float64)


def variance(t: int) -> float:
    """Of a tree's running sum after t rounds."""
    return sum(1 / (2 - 2.0**-j) for j in range(t.bit_length()) if t >> j & 1)


def test_the_noise_of_each_round_has_the_variance_of_its_closed_form() -> None:
    """In units of 2 C z / asked: independent, or a tree's of four rounds, one after the other."""
    unit = 2 / len(WIDE)
    independent, of_trees = walked("dp_fedavg", 6), walked("dp_ftrl", 6, restart_every=4)
    for t in range(1, 7):
        assert independent[t - 1].var() / unit**2 == pytest.approx(t, rel=0.05)
        expected = variance(min(t, 4)) + variance(max(t - 4, 0))
        assert of_trees[t - 1].var() / unit**2 == pytest.approx(expected, rel=0.05)


@EACH
def test_momentum_and_the_servers_step_are_of_the_noisy_changes(name: str) -> None:
    plain = np.diff(walked(name, 4), axis=0, prepend=0)
    moved = walked(name, 4, beta=0.5, server_lr=2.0, server_decay=1.0)
    v, w = np.zeros(plain.shape[1]), np.zeros(plain.shape[1])
    for r, change in enumerate(plain, 1):
        v = 0.5 * v + change
        w = w + 2.0 / r * v
        if r == 1:
            np.testing.assert_allclose(moved[0], w, rtol=1e-3, atol=1e-4)
        assert moved[r - 1].std() == pytest.approx(w.std(), rel=0.1)


def test_rounds_without_answers_grow_the_tree_without_showing_it() -> None:
    run = made(
        "dp_ftrl", WIDE, clip=1e-6, noise=1e6, links=Steady(away={(f"client/{i}", 2): "offline" for i in range(4)})
    )
    run.rounds(2)
    first = run.models()[0]
    assert run.hub.secret.grown == 1
    run.round(4)  # and round 3 was given up
    found = run.models()[0] - run.common.initial
    assert found.var() / (2 / 4) ** 2 == pytest.approx(variance(4), rel=0.05)
    assert np.corrcoef(first - run.common.initial, found)[0, 1] < 0.5, "most of the first round's noise is gone"


@EACH
def test_noise_follows_from_a_secret_and_from_the_sum(name: str) -> None:
    """Equal sums get equal noise after a restart, also without the seed; others get noise of their own."""
    run = made(name, emulated=False)
    run.rounds(2)
    before = msgspec.structs.replace(run.hub.secret)

    def noise(of: bytes) -> np.ndarray:
        run.hub.secret = msgspec.structs.replace(before)
        return np.asarray(run.hub.noise(3, of))

    np.testing.assert_array_equal(noise(b"sum"), noise(b"sum"))
    assert abs(np.corrcoef(noise(b"sum"), noise(b"mus"))[0, 1]) < 0.6
    stranger = made(name, emulated=False, seed=1)
    stranger.hub.secret = msgspec.structs.replace(before)
    assert not np.allclose(stranger.hub.noise(3, b"sum"), noise(b"sum")), "another identity"
    assert "estimates" not in repr(run.hub.secret)


@EACH
def test_a_round_that_is_tried_again_has_the_same_models_and_one_release(name: str) -> None:
    once, twice = made(name), made(name, wire=lambda transport: setattr(transport, "retries", True))
    once.rounds(2)
    twice.round(1)
    for attempt in (0, 1):
        twice.transport.drive(twice.hub.round(2), 2, attempt)
    np.testing.assert_array_equal(once.models(), twice.models())
    assert once.system.ledger(once.federation) == twice.system.ledger(twice.federation)  # type: ignore[misc]


@EACH
@pytest.mark.filterwarnings("ignore:.*has learnt nothing")
def test_a_run_that_is_killed_and_resumed_has_the_same_models(name: str, tmp_path: Path) -> None:
    def wanted(folder: str) -> RunConfig:
        settings = {"max_epochs": 1, "epsilon": 8.0}
        options = {"clients": 4, "rounds": 4, "partition": "iid", "model": "linear", "settings": settings}
        return RunConfig(name, data="digits", samples=400, out=str(tmp_path / folder), checkpoint_every=1, **options)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    whole = run(wanted("whole"))
    with pytest.raises(Interrupted):
        run(wanted("killed"), stop)
    resumed = run(wanted("killed"), resume=True)
    assert resumed.rounds[-1]["models_sha256"] == whole.rounds[-1]["models_sha256"]
    assert resumed.summary["ledger"] == whole.summary["ledger"]


# -- the account -------------------------------------------------------------------------------------------------------


def spent(run: Rig, against: str = "public") -> set[float]:
    """Every client's epsilon."""
    found = run.system.ledger(run.federation)  # type: ignore[misc]
    return {Ledger(tuple(every)).epsilon(1e-5, against=against) for every in found.values()}


def test_the_ledger_is_the_closed_form() -> None:
    run = made("dp_fedavg", noise=2.0, participation=0.5)
    run.rounds(5)
    assert sorted(spent(run)) == pytest.approx([epsilon(2.0, 1e-5, k) for k in (2, 3)]), "each client's own rounds"
    assert spent(run, "server") == {math.inf}, "which sees the changes"
    assert spent(run, "other clients") == spent(run)
    run = made("dp_ftrl", noise=9.0, restart_every=4)
    run.rounds(4)
    (whole,) = spent(run)  # four leaves, two pairs with two parts each, and a root with four
    assert whole == pytest.approx(epsilon(9.0 / (4 + 2 * 4 + 16) ** 0.5, 1e-5))
    run.round(5)
    (further,) = spent(run)
    assert further == pytest.approx(epsilon(9.0 / (28 + 3) ** 0.5, 1e-5)), "the new tree is paid for at once"


@EACH
def test_with_dp_sgd_the_server_sees_another_training_if_it_has_another_model_trained(name: str) -> None:
    """A round that is tried again from the same model shows the same. The sum of a round is one release."""
    run = made(name, noise=2.0, sample_noise=1.5)

    def counts() -> set[tuple[int, int]]:
        every = run.system.ledger(run.federation).values()  # type: ignore[misc]
        seen = [[sum(one.seen_by(who) for one in own) for who in ("server", "public")] for own in every]
        return {(server, public) for server, public in seen}

    run.transport.drive(asking(run, 1), 1)
    alone = spent(run, "server")
    run.transport.drive(asking(run, 1), 1)
    assert (counts(), spent(run, "server")) == ({(1, 1)}, alone)
    run.hub.state.weights = run.hub.state.weights + np.float32(1)
    run.transport.drive(asking(run, 1), 1)
    assert counts() == {(2, 1)}
    assert math.inf > max(spent(run, "server")) > max(alone)


@EACH
@pytest.mark.parametrize("participation", [1.0, 0.5, 0.25])
def test_a_budget_has_the_least_noise_for_its_rounds_and_then_stops(name: str, participation: float) -> None:
    run = made(name, epsilon=6.0, private_rounds=7, participation=participation)
    notes = run.rounds(7)
    assert not any("stopped" in one for one in notes)
    assert 5.999 < max(spent(run)) <= 6.0
    cohorts = round(1 / participation)
    later = [run.round(r) for r in range(8, 8 + cohorts)]
    assert any("beyond the budget of epsilon=6" in one.get("stopped", "") for one in later)
    assert max(spent(run)) <= 6.0
    less = replace(run.config, epsilon=None, noise=0.999 * multiplier(run.config), private_rounds=10)
    assert max(Ledger(tuple(releases(less, less.taken_by(r)))).epsilon(1e-5) for r in range(1, 8)) > 6.0


@EACH
def test_a_client_takes_part_no_more_often_than_its_budget_allows_whatever_it_is_asked(name: str) -> None:
    run = made(name, epsilon=6.0, private_rounds=3, participation=0.5)
    refused = list[str]()
    for r in range(1, 4):
        run.transport.drive(asking(run, r), r)
        refused += run.refused
    assert max(spent(run)) <= 6.0
    assert any("beyond the budget epsilon=6.0" in why for why in refused)


def asking(run: Rig, r: int) -> Any:
    """A server that asks every client in every round."""
    yield from fl.for_each(dict.fromkeys(run.common.clients, run.hub.train(r)), Clipped, lambda name, answer: None)
    return {}


@EACH
def test_an_audit_proves_no_more_than_the_ledger_says(name: str) -> None:
    """A client sends C or -C, alone in four rounds; the best test of the models proves little less than epsilon."""
    steps, trials = 4, 3000
    run = made(name, noise=2 * 7**0.5, restart_every=4) if name == "dp_ftrl" else made(name, noise=2.0)
    hub, source = run.hub, np.random.default_rng(0)
    hub.kept = lambda *_: type("Source", (), {"normal": staticmethod(source.standard_normal)})
    hub.spec = type("One", (), {"size": 2 * trials})
    noise = []
    hub.secret.estimates = np.zeros((hub.config.length.bit_length(), 2 * trials))
    for r in range(1, steps + 1):
        noise.append(multiplier(hub.config) * 2 * hub.noise(r, b""))
    changes = np.array(noise) + np.where(np.arange(2 * trials) < trials, 1, -1)
    best = np.linalg.solve(np.cov(np.array(noise)), np.ones(steps))  # Neyman and Pearson's test of two Gaussians
    claimed = Ledger(tuple(releases(hub.config, range(1, steps + 1)))).epsilon(1e-5)
    scores = best @ changes
    found = lower_bound(scores[:trials], scores[trials:], 1e-5)
    assert 0.3 < found < claimed
    louder = best @ (np.array(noise) / 6 + np.where(np.arange(2 * trials) < trials, 1, -1))
    assert lower_bound(louder[:trials], louder[trials:], 1e-5) > claimed, "a sixth of the noise would be noticed"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clip": 0.0}, "clip must be a finite number above 0"),
        ({"noise": -1.0}, "noise"),
        ({"epsilon": 0.0}, "a budget of epsilon 0.0"),
        ({"dp_delta": 1.0}, "delta lies between 0 and 1"),
        ({"epsilon": 8.0, "noise": 0.01}, "epsilon=8.0 allows no round: a single one with noise=0.01 spends"),
        ({"epsilon": 8.0, "noise": 0.0}, "allows no round"),
        ({"private_rounds": 5}, "private_rounds=5 has no effect with epsilon=None"),
        ({"private_rounds": 5, "epsilon": 8.0, "noise": 5.0}, "private_rounds=5 has no effect with a noise"),
        ({"beta": 1.0}, "beta"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(fl.UserError, match=why):
        SYSTEMS["dp_ftrl"].config(**settings)


@EACH
def test_models_with_buffers_and_empty_cohorts_are_refused(name: str) -> None:
    parts = (
        fl.Part("w", (37,), "float32", "parameter", "", 0),
        fl.Part("running_var", (3,), "float32", "buffer", "", 37),
    )
    system, run = SYSTEMS[name], made(name)
    with pytest.raises(fl.UserError, match="no model with running statistics"):
        system.check(run.config, replace(run.common, spec=fl.ModelSpec(parts)))
    with pytest.raises(fl.UserError, match="asks nobody in some rounds"):
        build(RunConfig(name, clients=4, settings={"participation": 0.2}))
