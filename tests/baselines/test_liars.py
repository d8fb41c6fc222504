"""One client that lies in valid messages: what is beyond the bounds is refused, and what is within them is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import every_system
import msgspec
import numpy as np
import pytest
from every_system import model_for
from federation import misbehaving, spec_of
from matrix import few

import coterie.method as fl
from coterie.protocol.messages import forms
from coterie.protocols.averaging import MOST_SAMPLES, OUTLYING
from coterie.report import render
from coterie.report.summary import results
from coterie.runs import Experiment, Interrupted, RunConfig, build, run, runner
from coterie.training.engine import fit_many
from coterie.training.jobs import DivergedError, Job
from coterie.training.solvers import MOST_WEIGHT

LIAR = "client/2"  # which is no head in RFL-HA
BASELINES = [name for name in every_system.BASELINES if name != "local"]  # which sends no model
BUFFERLESS = ("dp_fedavg", "dp_ftrl")  # which take no model with buffers
SHOWING = [name for name in BASELINES if name != "secagg"]
"""Whose server sees each update. Nobody bounds one in a sum: ``test_secagg.py`` has the lies that are noticed there."""
SENDING = [name for name in SHOWING if name not in (*BUFFERLESS, "fedbn")]  # running variances
ROBUST = ["flame", "fltrust", "krum", "median", "multi_krum", "trimmed_mean"]
Lie = Callable[[fl.Message], fl.Message]


def config(name: str, clients: int = 5, rounds: int = 8, **settings: Any) -> RunConfig:
    settings = {"participation": 1.0, "max_epochs": 1, "batch_size": 20, **settings}
    if name == "rfl_ha":
        settings["clusters"] = 2  # so that the liar has a head
    return RunConfig(
        name,
        clients=clients,
        rounds=rounds,
        partition="iid",
        model=model_for(name, "mlp"),
        delta=0.0,
        settings=settings,
    )


def lying(experiment: Experiment, lie: Lie, name: str = LIAR) -> Experiment:
    """A client that trains as it should and then answers something else."""
    party = experiment.federation.parties[name]
    (request,) = (kind for kind in party.handlers if kind.__name__ == "Train")
    misbehaving(party, request, lambda self, message, answer: lie(answer))
    return experiment


def attacked(wanted: RunConfig, lie: Lie) -> Experiment:
    made = lying(build(wanted), lie)
    made.set_up()
    return made


def weights(value: float) -> Lie:
    """All of its numbers are of this size, with signs of their own."""

    def lie(update: fl.Message) -> fl.Message:
        arrays = {name: getattr(update, name) for name in forms(type(update)).arrays}
        source = np.random.default_rng(0)
        made = {n: (value * source.choice([-1, 1], a.shape)).astype(a.dtype) for n, a in arrays.items()}
        return msgspec.structs.replace(update, **made)

    return lie


def samples(value: int) -> Lie:
    return lambda update: msgspec.structs.replace(update, samples=value)


# -- beyond the bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(SHOWING, ["fedavg", "rfl_ha"]))
def test_weights_beyond_measure_are_refused_with_their_sender_and_the_round_goes_on(name: str) -> None:
    """``test_every.py`` has all other lies."""
    made = attacked(config(name), weights(-3e38))
    for r in (1, 2):
        line = made.round(r)
        ((reason, count),) = line["refused"].items()
        assert count == 1
        assert f"{LIAR}: a model with a weight of 3e+38" in reason
        assert line["notes"]["participants"] == 4
        assert "outliers" not in line["notes"]
        assert np.isfinite(line["global_loss"])
    made.close()


def test_samples_that_no_client_has_are_refused_with_their_sender() -> None:
    made = attacked(config("fedavg"), samples(MOST_SAMPLES + 1))
    ((reason, count),) = made.round(1)["refused"].items()
    assert count == 1
    assert f"{LIAR}: an update of {MOST_SAMPLES + 1} samples; from 1 to {MOST_SAMPLES} are taken" in reason
    made.close()


@pytest.mark.parametrize("name", few(SENDING, ["fedavg", "scaffold"]))
def test_a_negative_running_variance_is_refused_with_its_sender(name: str) -> None:
    """Its square root is no number: the loss of everybody who takes the mean would be none."""

    def lie(update: fl.Message) -> fl.Message:
        field = "values" if hasattr(update, "values") else "weights"
        made = getattr(update, field).copy()
        made.reshape(-1, spec.size)[-1, np.flatnonzero(spec.variances)[-1]] = -1e-3
        return msgspec.structs.replace(update, **{field: made})

    made = build(replace(config(name, batch_size=40), model="batch_norm_models:small"))
    spec = made.parties["server"].spec  # FedRep's is that of the body
    lying(made, lie)
    made.set_up()
    for r in (1, 2):
        line = made.round(r)
        ((reason, count),) = line["refused"].items()
        assert (count, line["notes"]["participants"]) == (1, 4)
        assert f"{LIAR}: a model with a running variance of -0.001; variances are at least 0" in reason
        assert np.isfinite(line["global_loss"])
    made.close()


def test_a_negative_running_variance_of_any_model_is_refused_and_parameters_may_be_negative() -> None:
    parts = (
        fl.Part("w", (3,), "float32", "parameter", "", 0),
        fl.Part("bn.running_var", (2,), "float32", "buffer", "", 3),
    )
    spec = fl.ModelSpec(parts)
    just = np.array([-1, -2, -3, 0, -0.0] * 2, np.float32)
    assert fl.check_model(spec, spec.digest, just, 2) is just
    for place in (3, 4, 8, 9):
        below = just.copy()
        below[place] = -1e-30
        with pytest.raises(fl.PeerError, match="running variance of -1e-30"):
            fl.check_model(spec, spec.digest, below, 2)


def test_the_bounds_themselves_are_taken() -> None:
    spec = spec_of(5)
    updates = fl.Gather(spec, np.zeros(5, np.float32))
    whole = np.full(5, MOST_WEIGHT, np.float32)
    assert updates.checked("a", spec.digest, whole, MOST_SAMPLES) is whole
    assert updates.checked("a", spec.digest, -whole, 1) is not None
    beyond = whole.copy()
    beyond[3] = np.nextafter(np.float32(MOST_WEIGHT), np.float32(np.inf))
    for values, n in ((beyond, 1), (-beyond, 1), (whole, 0), (whole, MOST_SAMPLES + 1), (whole[:4], 1)):
        with pytest.raises(fl.PeerError, match="a: "):
            updates.checked("a", spec.digest, values, n)
    with pytest.raises(fl.PeerError, match="nan"):
        fl.check_model(spec, spec.digest, np.array([0, np.nan, 0, 0, 0], np.float32))
    assert np.isnan(fl.largest(np.array([1.0, np.nan])))


def test_an_honest_training_never_gives_what_would_be_refused() -> None:
    """Finite weights beyond the bound count as diverged, so that it is the settings that are blamed for them."""
    experiment = build(config("fedavg"))
    own = experiment.effects.data["client/0"]
    start = experiment.common.initial
    rates, outcomes = (1e-1, 1e16), []
    for lr in rates:
        job = Job(start, fl.Sgd(lr, batch_size=1 << 20), 1, 0, own.x, own.y)
        try:
            outcomes.append(fl.largest(fit_many(experiment.model, [job])[0].weights) <= MOST_WEIGHT)
        except DivergedError:
            outcomes.append(False)
    assert outcomes == [True, False]
    experiment.close()


# -- within the bounds -------------------------------------------------------------------------------------------------


def error_of(made: Experiment, rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """What ends the run, if anything does, and the rounds before."""
    lines: list[dict[str, Any]] = []
    try:
        for r in range(1, rounds + 1):
            lines.append(made.round(r))
    except fl.RunError as error:
        return str(error), lines
    finally:
        made.close()
    return "", lines


@pytest.mark.parametrize("name", few(ROBUST, ["krum", "fltrust"]))
def test_a_robust_rule_withstands_a_lie_within_the_bounds(name: str) -> None:
    """FLTrust does by the length that it takes of each update, not by leaving it out."""
    said, lines = error_of(attacked(config(name), weights(1e12)), 4)
    assert said == ""
    assert len(lines) == 4
    assert lines[0]["notes"]["outliers"] == {LIAR: pytest.approx(1e12)}
    assert lines[-1]["global_loss"] < lines[0]["global_loss"] < 5
    if name != "fltrust":
        assert all(LIAR in line["notes"]["flagged"] for line in lines)


BOUNDED = (*BUFFERLESS, "fedadam", "fedyogi")  # no lie moves their models by more than the server's step
NAMING = [name for name in SHOWING if name not in (*ROBUST, *BOUNDED, "rfl_ha", "fednova")]  # see below


@pytest.mark.parametrize("name", few(NAMING, ["fedavg", "ifca"]))
def test_the_error_names_the_poisoned_model_and_not_the_learning_rate(name: str) -> None:
    """IFCA's clients leave a poisoned cluster for another, until there is none left."""
    said, lines = error_of(attacked(config(name), weights(1e12)), 6)
    assert lines[0]["notes"]["outliers"] == {LIAR: pytest.approx(1e12)}
    assert len(lines) >= (3 if name == "ifca" else 1)
    assert f"{LIAR}'s update of round 1 (a weight of 1e+12)" in said
    assert "the model that these clients were sent is poisoned, with a weight of" in said
    assert "learning rate" not in said


def test_fednova_names_it_at_once() -> None:
    """A change for one step, which is multiplied by all steps, is beyond what a model may have in the same round."""
    said, lines = error_of(attacked(config("fednova"), weights(1e12)), 6)
    assert (lines, f"updates that stand out: {LIAR} (a weight of 1e+12)" in said) == ([], True), said


def test_of_a_cluster_the_error_names_the_head() -> None:
    """RFL-HA's server sees the mean of a cluster, and not whose model spoilt it."""
    said, lines = error_of(attacked(config("rfl_ha"), weights(1e12)), 6)
    ((head, weight),) = lines[0]["notes"]["outliers"].items()
    assert head in lines[0]["notes"]["leaders"].values()
    assert 1e11 < weight < 1e12
    assert f"{head}'s update of round 1" in said


@pytest.mark.parametrize("name", few(["fedavg", "fedprox", "fedavg_stale", "fedem"], ["fedavg"]))
def test_a_lie_within_the_bounds_is_named_by_its_share_of_the_mean(name: str) -> None:
    """Weights below what stands out and more samples than all others have together: the mean is the liar's."""
    lie = weights(99.0)
    made = attacked(config(name), lambda update: samples(MOST_SAMPLES)(lie(update)))
    said, lines = error_of(made, 8)
    assert list(lines[0]["notes"]["outliers"]) == [LIAR]
    assert f"by {LIAR}'s update of round 1 (a weight of 99)" in said
    assert "the model that these clients were sent is poisoned, with a weight of" in said
    assert "learning rate" not in said


def test_what_stands_out_is_measured_against_the_median_of_the_round() -> None:
    spec = spec_of(5)

    def outliers(*taken: tuple[float, int]) -> list[str]:
        updates = fl.Gather(spec, np.full(5, 0.5, np.float32))
        for i, (most, n) in enumerate(taken):
            updates.took(str(i), np.full(5, most, np.float32), samples=n)
        return list(updates.outliers())

    assert outliers() == outliers((1, MOST_SAMPLES)) == []
    assert outliers((1, 10), (1, 10), (1, 1000)) == []
    assert outliers((1, 10), (1, 10), (1, 1001)) == ["2"]
    assert outliers((1, 10), (1, 1001)) == ["1"], "of two it is the larger"
    assert outliers((1, 10), (99, 11), (1, 10)) == ["1"], "by the product"
    assert outliers((1, 10), (99, 10), (1, 10)) == []
    assert outliers((0, 10), (0, 10), (40, 10)) == [], "a change is measured against the model, too"
    assert outliers((0, 10), (0, 10), (60, 10)) == ["2"]
    assert outliers((90, 1100), (1, 10), (1, 10), (90, 1200)) == ["3", "0"], "the largest part comes first"


def test_a_poisoned_control_variate_is_named_as_a_poisoned_model_is() -> None:
    lie = weights(1e12)
    made = attacked(config("scaffold"), lambda change: msgspec.structs.replace(lie(change), weights=change.weights))
    said, lines = error_of(made, 6)
    assert lines[0]["notes"]["outliers"] == {LIAR: pytest.approx(1e12)}
    assert f"{LIAR}'s update of round 1 (a weight of 1e+12)" in said
    assert "learning rate" not in said


@pytest.mark.parametrize("name", few(BASELINES, ["fedavg"]))
def test_a_learning_rate_that_is_too_high_is_blamed_for_what_it_does(name: str) -> None:
    """Also where trainings end finite for some rounds, with weights that all stand out: none of them is made up."""
    ends = []
    for lr in (3.0, 1e2, 1e3, 1e6):
        made = build(config(name, lr=lr))
        made.set_up()
        said, lines = error_of(made, 6)
        if said:
            ends.append(len(lines))
            assert "lower the learning rate" in said
            assert "poisoned" not in said
    assert min(ends) == (1 if name == "fedrep" else 0), "one of them ends the first round; a dead body still has a head"


def test_a_liar_that_is_alone_in_its_round_is_told_by_what_its_training_gave() -> None:
    wanted = config("fedavg", clients=4, participation=0.25)
    made = build(wanted)
    for name in made.common.clients:
        lying(made, weights(1e12), name)
    made.set_up()
    said, lines = error_of(made, 3)
    (first,) = lines[0]["notes"]["outliers"]
    assert f"poisoned, with a weight of 1e+12, by {first}'s update of round 1" in said


def test_a_server_whose_step_is_too_large_says_so() -> None:
    made = build(config("fedavg", server_lr=1e30))
    made.set_up()
    said, _ = error_of(made, 2)
    assert "round 1: the server's model would get a weight of" in said
    assert "no update stands out: lower server_lr" in said
    made = attacked(config("fedavg", server_lr=1e6), weights(1e12))
    said, _ = error_of(made, 2)
    assert f"updates that stand out: {LIAR} (a weight of 1e+12)" in said


def test_what_stands_out_is_measured_against_the_model_that_was_sent() -> None:
    spec = spec_of(5)
    for scale, usual in ((0.1, 1.0), (30.0, 30.0)):
        updates = fl.Gather(spec, np.array([scale, -scale, 0, 0, 0], np.float32))
        updates.took("just", np.full(5, usual * OUTLYING, np.float32))
        assert updates.notes() == {}
        updates.took("more", np.full(5, -usual * OUTLYING * 1.01, np.float32))
        assert list(updates.notes()["outliers"]) == ["more"]


# -- for those who watch -----------------------------------------------------------------------------------------------


def test_a_resumed_run_still_knows_whose_update_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    wanted = replace(config("fedavg", lr=1e-9), out=str(out), checkpoint_every=1)
    real = runner.build
    monkeypatch.setattr(runner, "build", lambda c, founded=None: lying(real(c, founded), weights(1e12)))

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(wanted, stop)
    monkeypatch.setattr(runner, "build", real)
    with pytest.raises(fl.RunError, match=rf"poisoned, .* by {LIAR}'s update of round 1") as caught:
        run(wanted, resume=True)
    assert "learning rate" not in str(caught.value)


def test_the_console_and_the_report_name_who_stands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runner.build
    monkeypatch.setattr(runner, "build", lambda c, founded=None: lying(real(c, founded), weights(1e3)))
    out = tmp_path / "run"
    result = run(replace(config("fedavg", rounds=2, lr=1e-6), out=str(out)))
    assert ("updates that stand out", f"{LIAR} in 1 rounds") in results(result.summary)
    render([out], out / "report.html")
    page = (out / "report.html").read_text()
    assert "hundred times the model" in page
