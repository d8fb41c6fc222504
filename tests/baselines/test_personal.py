"""FedRep, Ditto, APFL, FedBN and FedLC: their equations by hand, and what they are where a part is switched off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import Rig, planted, rig
from torch.nn.functional import cross_entropy

import coterie.method as fl
from coterie.baselines import apfl, ditto, fedavg, fedbn, fedlc, fedrep
from coterie.runs import Experiment, RunConfig, build, run
from coterie.runs.audited import audited
from coterie.runs.budget import plan
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.solvers import Objective

SIZE, LR = 20, 0.5
TARGETS = planted([0, 0, 1, 1, 2], SIZE)
HEAD = slice(SIZE - 3, SIZE)
"""The last layer of the rig's model is its bias of three."""
NORMED = "batch_norm_models:small"


def experiment(name: str, rounds: int = 2, *, model: str = "mlp_small", **settings: Any) -> Experiment:
    given = {"max_epochs": 2, "batch_size": 20, "slowest": 1.0, "lr": 0.1, **settings}
    made = build(RunConfig(name, clients=4, rounds=rounds, partition="shards:3", model=model, settings=given))
    made.set_up()
    for r in range(1, rounds + 1):
        made.round(r)
    return made


def models(made: Experiment) -> np.ndarray:
    """(clients, d)."""
    return np.stack([np.asarray(made.models()[name]) for name in made.common.clients])


# -- FedRep ------------------------------------------------------------------------------------------------------------


def test_fedreps_rounds_by_hand() -> None:
    """Three steps of the head on the old body, then one of the body; the server averages bodies."""
    made = rig(fedrep.SYSTEM, TARGETS, lr=LR, head_epochs=3)
    start = made.common.initial.astype(float)
    body, heads = start[: HEAD.start], np.tile(start[HEAD], (5, 1))
    for r in range(1, 4):
        heads = TARGETS[:, HEAD] + (heads - TARGETS[:, HEAD]) * (1 - LR) ** 3
        body = (body - LR * (body - TARGETS[:, : HEAD.start])).mean(axis=0)
        made.round(r)
        np.testing.assert_allclose(made.models(), np.hstack([np.tile(body, (5, 1)), heads]), atol=1e-5)
        np.testing.assert_allclose(made.hub.state.weights, body, atol=1e-5)


def test_fedreps_server_is_sent_no_head() -> None:
    made = rig(fedrep.SYSTEM, TARGETS)
    made.rounds(2)
    for view in (made.view("server"), made.view("client/0")):
        assert {seen.message.weights.size for seen in view.seen} == {HEAD.start}
    assert made.common.spec.head == ("bias",)


def test_a_head_that_stays_away_for_a_round_is_still_its_clients() -> None:
    made = rig(fedrep.SYSTEM, TARGETS, participation=0.4)
    before = made.models()
    notes = made.round(1)
    trained = {seen.src for seen in made.view("server").seen}
    assert len(trained) == notes["participants"] == 2
    for name, old, new in zip(made.common.clients, before, made.models(), strict=True):
        assert np.array_equal(old[HEAD], new[HEAD]) == (name not in trained)
        np.testing.assert_array_equal(new[: HEAD.start], made.hub.state.weights)


@pytest.mark.parametrize(
    ("name", "what", "fits"),
    [("fedrep", "the output layer", "mlp_small"), ("fedbn", "batch normalisation", "cnn_bn")],
)
def test_a_model_without_such_parts_is_refused(name: str, what: str, fits: str) -> None:
    with pytest.raises(fl.UserError, match=f"keeps {what} to itself, and this model has no.*such as {fits}"):
        build(RunConfig(name, clients=4, model="linear"))


def test_fedreps_head_has_no_proof() -> None:
    with pytest.raises(fl.UserError, match="fedrep has no sample_noise"):
        fedrep.FedRepConfig(sample_noise=1.0)


def test_personal_heads_win_where_labels_mean_something_else_for_each_group() -> None:
    found = {}
    for name in ("fedrep", "fedavg"):
        given = {"max_epochs": 2, "batch_size": 20, "lr": 0.1}
        made = build(RunConfig(name, clients=8, rounds=8, partition="permute:4", settings=given))
        made.set_up()
        found[name] = [made.round(r) for r in range(1, 9)][-1]["local_accuracy"]
    assert found["fedrep"] > found["fedavg"] + 0.2


# -- Ditto -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.3, 2.0])
def test_dittos_rounds_by_hand(lam: float) -> None:
    """The pull goes towards the model that was sent, and not towards the one that the client has trained."""
    made = rig(ditto.SYSTEM, TARGETS, lr=0.1, lam=lam)
    w = made.common.initial.astype(float)
    v = np.tile(w, (5, 1))
    for r in range(1, 5):
        v = v - 0.1 * ((v - TARGETS) + lam * (v - w))
        w = (w - 0.1 * (w - TARGETS)).mean(axis=0)
        made.round(r)
        np.testing.assert_allclose(made.models(), v, atol=1e-5)
        np.testing.assert_allclose(made.hub.state.weights, w, atol=1e-5)


def test_ditto_is_fedavg_at_the_server_and_with_no_pull_training_alone() -> None:
    own, alone, together = (
        experiment(name, **more) for name, more in [("ditto", {"lam": 0.0}), ("local", {}), ("fedavg", {})]
    )
    np.testing.assert_allclose(models(own), models(alone), atol=1e-6)
    np.testing.assert_array_equal(own.parties["server"].state.weights, together.parties["server"].state.weights)
    assert np.abs(models(experiment("ditto", lam=1.0)) - models(alone)).max() > 1e-3


# -- APFL --------------------------------------------------------------------------------------------------------------


def test_apfls_rounds_by_hand() -> None:
    """Eq. 4 and 10, one step each; alpha moves by the gradient at the mixture."""
    eta = 0.02
    made = rig(apfl.SYSTEM, TARGETS, lr=eta, alpha=0.4)
    w = made.common.initial.astype(float)
    v, alpha = np.tile(w, (5, 1)), np.full((5, 1), 0.4)
    for r in range(1, 5):
        own = w - eta * (w - TARGETS)
        gradient = alpha * v + (1 - alpha) * own - TARGETS
        turned = alpha - eta * ((v - own) * gradient).sum(axis=1, keepdims=True)
        v, alpha, w = v - eta * alpha * gradient, np.clip(turned, 0.01, 1), own.mean(axis=0)
        made.round(r)
        np.testing.assert_allclose(made.models(), alpha * v + (1 - alpha) * own, atol=1e-4)
        np.testing.assert_allclose(made.hub.state.weights, w, atol=1e-5)
        shares = [made.party(name).state.alpha for name in made.common.clients]
        np.testing.assert_allclose(shares, alpha[:, 0], atol=1e-4)
    assert np.ptp(alpha) > 0.01


def test_with_a_fixed_share_of_one_apfl_trains_alone() -> None:
    own, alone = experiment("apfl", alpha=1.0, adaptive=False), experiment("local")
    np.testing.assert_allclose(models(own), models(alone), atol=1e-5)


def trained_twice(made: Experiment, name: str, solver: fl.Sgd) -> tuple[np.ndarray, np.ndarray]:
    """Of APFL's first round with a share of a half: w_i, and where v~ goes, (d,) both."""
    data, party, spec = made.dealt.data[name], made.federation.parties[name], made.model.spec
    first = made.common.initial

    def trained(start: np.ndarray, solver: fl.Sgd) -> np.ndarray:
        fit = fl.fit(party, start, 1, solver)
        job = Job(fit.weights, solver, fit.epochs, fit.seed, data.x, data.y)
        (found,) = fit_many(made.model, [job], precision=made.config.precision)
        return np.asarray(found.weights)

    w = trained(first, solver)
    mixed = np.where(spec.buffers, first, (first + w) / 2)
    return w, trained(mixed, replace(solver, lr=solver.lr / 4))


def test_apfls_share_moves_by_the_mean_gradient_with_momentum_too() -> None:
    """Three steps on all samples at once; a gradient counts as often as the velocity has carried it."""
    eta, m, steps = 0.1, 0.8, 3
    made = experiment("apfl", 1, momentum=m, batch_size=1 << 20, max_epochs=steps, lr=eta)
    for name in made.common.clients:
        data = made.dealt.data[name]
        x, y, first = data.x, data.y, made.common.initial
        w, end = trained_twice(made, name, fl.Sgd(eta, 1 << 20, m))
        module, place = made.model.module, torch.from_numpy((first + w) / 2)
        velocity, gradients = torch.zeros_like(place), []
        for _ in range(steps):
            torch.nn.utils.vector_to_parameters(place.clone(), module.parameters())
            loss = cross_entropy(module(x), y)
            parts = torch.autograd.grad(loss, list(module.parameters()))
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
            velocity = m * velocity + gradients[-1]
            place = place - eta / 4 * velocity
        np.testing.assert_allclose(place, end, atol=1e-5)
        weights = [sum(m**age for age in range(steps - t)) for t in range(steps)]
        mean = sum(c * g for c, g in zip(weights, gradients, strict=True)) / sum(weights)
        turn = eta * float(torch.from_numpy(first - w) @ mean)
        assert abs(turn) > 1e-4
        np.testing.assert_allclose(0.5 - made.federation.parties[name].state.alpha, turn, rtol=1e-3)


def test_apfls_running_statistics_are_those_of_the_second_training() -> None:
    made = experiment("apfl", 1, model=NORMED)
    b = made.model.spec.buffers
    for name in made.common.clients:
        w, end = trained_twice(made, name, fl.Sgd(0.1, 20))
        state = made.federation.parties[name].state
        np.testing.assert_allclose(state.own[b], end[b], atol=1e-6)
        np.testing.assert_array_equal(state.mixed[b], state.own[b])
        assert np.abs(w[b] - end[b]).max() > 1e-3


def test_apfl_has_no_weight_decay() -> None:
    with pytest.raises(fl.UserError, match="apfl has no weight_decay"):
        apfl.ApflConfig(weight_decay=0.1)


# -- FedBN -------------------------------------------------------------------------------------------------------------


def test_fedbn_averages_all_but_batch_normalisation() -> None:
    """After a round: the shared parts of FedAvg, and of each client's own training the others."""
    own, together = (experiment(name, 1, model=NORMED) for name in ("fedbn", "fedavg"))
    spec = own.common.spec
    normed = spec.of(spec.normalisation)
    assert normed.sum() == 4 * (4 + 8)  # scales, shifts, means and variances of two layers
    assert (normed & spec.buffers).sum() == spec.buffers.sum()
    np.testing.assert_allclose(own.parties["server"].state.weights, models(together)[0][~normed], atol=1e-6)
    found = models(own)
    assert (found[:, ~normed] == found[0, ~normed]).all()
    assert all(np.abs(found[0, normed] - other[normed]).max() > 1e-3 for other in found[1:])
    data = own.dealt.data["client/0"]
    party = own.federation.parties["client/0"]
    fit = fl.fit(party, own.common.initial, 1)
    job = Job(fit.weights, fit.solver, fit.epochs, fit.seed, data.x, data.y)
    (trained,) = fit_many(own.model, [job], precision=own.config.precision)
    np.testing.assert_allclose(found[0, normed], trained.weights[normed], atol=1e-6)


def test_names_of_a_normalising_layer_are_told_from_others() -> None:
    def part(name: str, at: int, kind: str = "parameter") -> fl.Part:
        return fl.Part(name, (1,), "float32", kind, "shared", at)

    names = ["1.weight", "1.running_mean", "1.running_var", "11.weight", "a.1.weight", "a.1.running_mean"]
    spec = fl.ModelSpec(tuple(part(name, at) for at, name in enumerate(names)))
    assert spec.normalisation == ("1.weight", "1.running_mean", "1.running_var", "a.1.weight", "a.1.running_mean")
    assert spec.without(spec.normalisation).names == ("11.weight",)
    assert spec.without(spec.normalisation).parts[0].offset == 0


# -- FedLC -------------------------------------------------------------------------------------------------------------


def calibrated(network: torch.nn.Module, start: Any, x: torch.Tensor, y: torch.Tensor, counts: tuple[int, ...]) -> Any:
    margins = torch.tensor([max(n, 0.5) ** -0.25 for n in counts])
    return cross_entropy(network(x) - 1.5 * margins, y)


def test_a_lowered_bias_is_the_calibrated_loss() -> None:
    """One round of FedLC against SGD on the paper's loss, written down."""
    made = experiment("fedlc", 1, tau=1.5, momentum=0.5)
    found, total = np.zeros(made.model.spec.size), 0
    for name in made.common.clients:
        data, party = made.dealt.data[name], made.federation.parties[name]
        counts = tuple(np.bincount(data.y, minlength=10).tolist())
        assert 0 in counts
        solver = Objective(0.1, 20, 0.5, loss=calibrated, settings=counts)
        fit = fl.fit(party, made.common.initial, 1, solver)
        (trained,) = fit_many(made.model, [Job(fit.weights, solver, fit.epochs, fit.seed, data.x, data.y)])
        found, total = found + len(data.y) * trained.weights.astype(float), total + len(data.y)
    np.testing.assert_allclose(models(made)[0], found / total, atol=1e-5)


def test_without_a_margin_fedlc_is_fedavg() -> None:
    plain, calibrating, none = (
        experiment(name, **more) for name, more in [("fedavg", {}), ("fedlc", {}), ("fedlc", {"tau": 0.0})]
    )
    np.testing.assert_array_equal(models(none), models(plain))
    assert np.abs(models(calibrating) - models(plain)).max() > 1e-3


def test_fedlc_needs_a_last_bias_and_has_no_weight_decay_nor_sample_noise() -> None:
    with pytest.raises(fl.UserError, match="fedlc has no weight_decay"):
        fedlc.FedLcConfig(weight_decay=0.1)
    with pytest.raises(fl.UserError, match="fedlc has no sample_noise"):
        fedlc.FedLcConfig(sample_noise=1.0)
    spec = fl.ModelSpec((fl.Part("w", (3, 4), "float32", "parameter", "shared", 0),), outputs=3)
    with pytest.raises(fl.UserError, match="this model has none"):
        fedlc.bias_of(spec)


# -- what the server sees ----------------------------------------------------------------------------------------------


def seen_by_the_server(made: Rig) -> set[int]:
    return {seen.message.weights.size for seen in made.view("server").seen}


@pytest.mark.parametrize(("name", "model"), [("fedrep", "mlp_small"), ("fedbn", NORMED)])
def test_the_audit_says_that_the_shared_parts_are_open(name: str, model: str, tmp_path: Path) -> None:
    given = {"max_epochs": 1, "batch_size": 20}
    options: dict[str, Any] = {"clients": 4, "rounds": 2, "model": model, "record": True, "out": str(tmp_path / "run")}
    run(RunConfig(name, settings=given, **options))
    found = {row["name"]: row["value"] for row in audited(tmp_path / "run")["attacks"]}
    assert found["server: models, as they are sent"] == 1.0


def test_what_stays_personal_is_never_sent() -> None:
    for system in (ditto.SYSTEM, apfl.SYSTEM, fedavg.SYSTEM):
        made = rig(system, TARGETS)
        made.rounds(2)
        assert seen_by_the_server(made) == {SIZE}
    assert fedbn.SYSTEM.learns["server"].startswith("every client's plain model but its batch normalisation")


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("fedrep", {"head_epochs"}),
        ("ditto", {"lam"}),
        ("apfl", {"alpha"}),
        ("fedlc", set()),
        ("flame", set()),
        ("fedbuff", {"buffer"}),
        ("ca2fl", {"buffer"}),
    ],
)
def test_a_comparison_shares_all_but_what_it_lists(name: str, beyond: set[str]) -> None:
    given = {"lr": "0.07", "participation": "0.5", "server_lr": "0.9", "max_epochs": "3", "batch_size": "17"}
    planned = plan(["fedavg", name], {"data": "digits", "clients": 12, "rounds": 2}, given)
    assert {one.setting for one in planned.differences if one.method == name} == beyond
    shared = {key: planned.methods[name].settings[key] for key in given}
    assert shared == {key: type(shared[key])(value) for key, value in given.items()}
