"""FedEM: the E- and M-step in closed form, EM's guarantee, planted mixtures, and what doesn't fit is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import Pulled, Rig, Steady, misbehaving, on_the_wire, planted, rig
from hypothesis import given
from hypothesis import strategies as st
from matrix import few
from scipy.special import logsumexp

import coterie.method as fl
from coterie.baselines import fedavg, fedem
from coterie.baselines.fedem import responsibilities
from coterie.protocol.interpreters import each
from coterie.record.folder import read_lines
from coterie.report.html import render
from coterie.runs import Experiment, RunConfig, build
from coterie.runs.runner import run as run_to_the_end

GROUPS = [0, 1, 0, 1, 0, 1]
TARGETS = planted(GROUPS, 20)
SAMPLES = 7
change = msgspec.structs.replace


class Scattered(Pulled):
    """Every client has 7 samples around its target, each with the loss |w - sample|^2 / 2: a mixture of Gaussians."""

    def __init__(self, targets: Mapping[str, np.ndarray]) -> None:
        super().__init__(targets)
        noise = np.random.default_rng(1).normal(0, 1.0, (len(targets), SAMPLES, 20))
        self.samples = {name: targets[name] + noise[i] for i, name in enumerate(targets)}
        self.table[fl.Losses] = each(self.losses)

    def losses(self, party: str, effect: fl.Losses) -> np.ndarray:
        return (np.square(effect.weights[:, None] - self.samples[party]).sum(axis=2) / 2).astype(np.float32)

    def fit(self, party: str, effect: fl.Fit) -> fl.Fitted:
        q = np.ones(SAMPLES) if effect.sample_weights is None else effect.sample_weights.astype(float)
        w = effect.weights.astype(float)
        for _ in range(effect.epochs):
            w = w - effect.solver.lr * (q[:, None] * (w - self.samples[party])).mean(axis=0)
        return fl.Fitted(w.astype(np.float32), SAMPLES, effect.epochs, 0.0)


def toy(targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    return rig(fedem.SYSTEM, targets, effects=Scattered, **{"lr": 0.3, **options})


def mixtures(run: Rig) -> np.ndarray:
    """(clients, M): everybody's mixture weights."""
    return np.stack([run.party(name).state.mixture for name in run.common.clients])


def samples(run: Rig) -> np.ndarray:
    """(clients, n, d): everybody's data."""
    return np.stack(list(run.transport.effects.samples.values()))


def joint(run: Rig) -> np.ndarray:
    """(M, clients, n): log pi_tm - loss of every sample under every component."""
    theta = run.hub.state.weights.astype(float)
    losses = np.square(theta[:, None, None] - samples(run)).sum(axis=3) / 2
    return np.log(mixtures(run)).T[:, :, None] - losses


def test_the_e_step_by_hand() -> None:
    """Likelihoods (1/2, 1/5) and (1/10, 2/5) under two components in proportions 1 : 3."""
    likelihood = np.array([[0.5, 0.2], [0.1, 0.4]])
    q = responsibilities(np.array([0.25, 0.75]), -np.log(likelihood).astype(np.float32))
    np.testing.assert_allclose(q, [[5 / 8, 1 / 7], [3 / 8, 6 / 7]], rtol=1e-6)
    np.testing.assert_allclose(q.mean(axis=1), [43 / 112, 69 / 112], rtol=1e-6)


@given(st.integers(1, 5), st.integers(1, 9), st.floats(0, 1e4), st.integers(0, 99))
def test_the_e_step_is_bayes_rule_at_any_scale(m: int, n: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixture, losses = rng.dirichlet(np.ones(m)), (scale * rng.random((m, n))).astype(np.float32)
    q = responsibilities(mixture, losses)
    logs = np.log(mixture)[:, None] - losses
    np.testing.assert_allclose(q, np.exp(logs - logsumexp(logs, axis=0)), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(q.sum(axis=0), 1)


def test_a_component_that_was_given_up_stays_so() -> None:
    q = responsibilities(np.array([0.0, 1.0]), np.array([[0.0, 1.0], [1e5, 2.0]], np.float32))
    assert q.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_losses_that_are_not_finite_are_the_senders_fault(bad: float) -> None:
    losses = np.ones((3, 4), np.float32)
    losses[1, 2] = bad
    with pytest.raises(fl.PeerError, match="component 1"):
        responsibilities(np.full(3, 1 / 3), losses)


def test_rounds_by_hand() -> None:
    """Algorithm 1 in numpy; the mixtures of a round enter the next."""
    run = toy(components=3, seed=4)
    theta, pi = run.hub.state.weights.astype(float), np.full((6, 3), 1 / 3)
    own = samples(run)
    for r in range(1, 6):
        new = np.zeros_like(theta)
        for t in range(6):
            likelihood = pi[t][:, None] * np.exp(-np.square(theta[:, None] - own[t]).sum(axis=2) / 2)
            q = likelihood / likelihood.sum(axis=0)
            pi[t] = q.mean(axis=1)
            for m in range(3):
                new[m] += (theta[m] - 0.3 * (q[m][:, None] * (theta[m] - own[t])).sum(axis=0) / SAMPLES) / 6
        theta = new
        note = run.round(r)
        assert (note["participants"], note["asked"]) == (6, 6)
        np.testing.assert_allclose(run.hub.state.weights, theta, atol=1e-6)
        np.testing.assert_allclose(mixtures(run), pi, atol=1e-5)
    assert np.abs(pi - 1 / 3).max() > 0.1


def test_the_mean_is_weighted_by_samples() -> None:
    """Client 0 says that it has three times the samples of the others together."""
    run = toy(TARGETS[:2], components=2)
    sent: dict[str, np.ndarray] = {}

    def note(party: Any, request: fl.Train, update: fl.Update) -> fl.Update:
        sent[party.name] = update.weights
        return change(update, samples=3 if party.name == "client/0" else 1)

    for name in ("client/0", "client/1"):
        misbehaving(run.party(name), fl.Train, note)
    run.round(1)
    expected = (3 * sent["client/0"] + sent["client/1"]) / 4
    np.testing.assert_allclose(run.hub.state.weights.ravel(), expected, rtol=1e-6)


def test_the_likelihood_never_falls_and_ends_at_a_fixed_point() -> None:
    """What (generalised) EM promises, whatever the start; here one gradient step is a partial M-step."""
    run = toy(components=2, lr=0.9, seed=3)
    likelihoods = [logsumexp(joint(run), axis=0).sum()]
    for r in range(1, 41):
        run.round(r)
        likelihoods.append(logsumexp(joint(run), axis=0).sum())
    assert (np.diff(likelihoods) > -1e-3).all()  # float32 losses
    assert likelihoods[-1] > likelihoods[0] + 100
    found = mixtures(run).argmax(axis=1)
    assert (found == found[0]).tolist() == [g == 0 for g in GROUPS]
    q = np.exp(joint(run) - logsumexp(joint(run), axis=0))
    np.testing.assert_allclose(q.mean(axis=2).T, mixtures(run), atol=1e-4)
    means = np.tensordot(q, samples(run), 2) / q.sum(axis=(1, 2))[:, None]
    np.testing.assert_allclose(run.hub.state.weights, means, atol=1e-4)


def test_one_component_is_fedavg() -> None:
    one, other = toy(components=1), rig(fedavg.SYSTEM, TARGETS, effects=Scattered, lr=0.3)
    for r in (1, 2, 3):
        one.round(r)
        other.round(r)
        assert one.hub.state.weights[0].tobytes() == other.hub.state.weights.tobytes()


@pytest.mark.parametrize("model", few(["mlp_small", "cnn"], ["mlp_small"]))
def test_one_component_is_fedavg_on_digits_and_so_are_its_scores(model: str) -> None:
    lines = []
    for system, settings in (("fedem", {"components": 1}), ("fedavg", {})):
        own: dict[str, Any] = {"max_epochs": 1, "participation": 0.5, **settings}
        experiment = build(RunConfig(system, clients=4, rounds=2, samples=400, model=model, settings=own))
        experiment.set_up()
        lines.append([experiment.round(r) for r in (1, 2)])
        weights = experiment.federation.parties["server"].state.weights
        lines[-1].append({"weights": weights.ravel().tobytes()})
    same = ("global_accuracy", "local_accuracy", "global_loss", "local_loss", "bands", "message_bytes")
    for a, b in zip(*(rounds[:2] for rounds in lines), strict=True):
        assert {key: a[key] for key in same} == {key: b[key] for key in same}
    assert lines[0][2] == lines[1][2]


def flipped(system: str, rounds: int, **settings: Any) -> Experiment:
    """Half of the clients read every digit as the next one."""
    own = {"lr": 0.1, "batch_size": 10, **settings}
    config = RunConfig(system, clients=6, rounds=rounds, partition="iid", seed=2, settings=own, record=True)
    experiment = build(config)
    for i, data in enumerate(experiment.effects.data.values()):
        if i % 2:
            data.y.copy_((data.y + 1) % 10)
    experiment.set_up()
    for r in range(1, rounds + 1):
        experiment.round(r)
    return experiment


def accuracies(experiment: Experiment) -> list[float]:
    """How often each client's own model is right on its own training data."""
    found = []
    for name, model in experiment.models().items():
        data = experiment.effects.data[name]
        parts = model if isinstance(model, fl.Mixture) else fl.Mixture(np.ones(1), model[None])
        with torch.inference_mode():
            p = sum(
                share * torch.softmax(experiment.model.module_with(weights)(data.x), 1)
                for share, weights in zip(parts.weights, parts.models, strict=True)
            )
            found.append(float((p.argmax(1) == data.y).float().mean()))
    return found


def test_a_planted_mixture_is_found_where_one_model_cannot_serve_all() -> None:
    two, one = flipped("fedem", 12, components=2), flipped("fedavg", 12)
    mixture = np.stack([client.state.mixture for client in two.federation.of_role("client")])
    assert mixture.max(axis=1).min() > 0.95
    found = mixture.argmax(axis=1)
    assert (found == found[0]).tolist() == [True, False] * 3
    assert min(accuracies(two)) > 0.85
    assert max(accuracies(one)) < 0.7  # right for one half at best, and it cannot tell which


def test_how_far_the_components_moved_tells_the_mixture() -> None:
    """What the page says that the server can read off: the step is proportional to the responsibilities."""
    two = flipped("fedem", 9, components=2)
    transcript = two.transport.transcript
    assert transcript is not None
    (_, sent), *_ = transcript.views["client/0"].messages(fl.Train, 9)
    seen = {
        entry.src: update.weights - sent.weights for entry, update in transcript.views["server"].messages(fl.Update, 9)
    }
    assert len(seen) == 6
    for name, moved in seen.items():
        far = np.linalg.norm(moved.reshape(2, -1), axis=1)
        assert far.argmax() == two.federation.parties[name].state.mixture.argmax()


def test_who_is_away_keeps_its_mixture() -> None:
    links = Steady(away={("client/0", 2): "offline"})
    run = toy(components=2, links=links)
    run.round(1)
    before = mixtures(run)
    assert run.round(2)["participants"] == 5
    same = (mixtures(run) == before).all(axis=1)
    assert same[0]
    assert not same[1:].any()


def test_a_sample_of_the_clients_is_asked_and_newcomers_wait() -> None:
    run = toy(components=2, participation=0.5, founders=4, newcomers=2, join_every=2)
    assert [(note["participants"], note["asked"]) for note in run.rounds(4)] == [(2, 2), (2, 2), (3, 3), (3, 3)]


@pytest.mark.parametrize("count", [0, 20, 60])
def test_a_client_refuses_another_number_of_components(count: int) -> None:
    run = toy(components=2)
    on_the_wire(run.transport, fl.Train, lambda m: change(m, weights=np.zeros(count, np.float32)), dst="client/0")
    assert run.round(1)["participants"] == 5
    assert run.refusals("client", "Train") == 1


def test_a_client_refuses_components_that_have_blown_up_and_keeps_its_mixture() -> None:
    run = toy(components=2)
    huge = np.full(40, 3e38, np.float32)
    on_the_wire(run.transport, fl.Train, lambda m: change(m, weights=huge), dst="client/0")
    with np.errstate(over="ignore"):
        assert run.round(1)["participants"] == 5
    assert run.refusals("client", "Train") == 1
    assert mixtures(run)[0].tolist() == [0.5, 0.5]


def test_settings_and_what_travels() -> None:
    with pytest.raises(fl.UserError, match="components"):
        toy(components=0)
    assert fedem.FedEmConfig().components == 3
    assert not fedem.SYSTEM.fine_tunes
    assert fl.Update.__struct_fields__ == ("round", "spec", "weights", "samples")  # no mixture, no responsibilities


def test_the_clock_counts_every_component() -> None:
    """M epochs' training and M forward passes, each a third of a training step."""
    run = toy(components=3)
    cost = run.party("client/0").cost(fl.Train(1, b"", np.zeros(0, np.float32)))
    assert cost.samples == pytest.approx(10 * 3 * (1 + 1 / 3))


def test_a_run_and_its_report_and_to_go_on_changes_nothing(tmp_path: Path) -> None:
    config = RunConfig("fedem", clients=4, rounds=3, samples=400, settings={"max_epochs": 1}, out=str(tmp_path / "a"))
    whole = run_to_the_end(config).summary
    assert "FedEM" in render([tmp_path / "a"]).read_text()
    run_to_the_end(replace(config, rounds=2, out=str(tmp_path / "b")))
    run_to_the_end(replace(config, out=str(tmp_path / "b")), resume=True)
    lines = [read_lines(tmp_path / folder / "metrics.jsonl") for folder in "ab"]
    assert [line["models_sha256"] for line in lines[0]] == [line["models_sha256"] for line in lines[1]]
    assert [line["virtual_seconds"] for line in lines[0]] == [line["virtual_seconds"] for line in lines[1]]
    assert len({line["models_sha256"] for line in lines[0]}) == 3
    assert whole["crypto"] == "none"
    assert "fine_tuned_local_accuracy" not in whole
    observed = np.array(json.loads((tmp_path / "a" / "observed.json").read_text())["mixtures"])
    assert observed.shape == (4, 3)
    np.testing.assert_allclose(observed.sum(axis=1), 1, atol=1e-3)
