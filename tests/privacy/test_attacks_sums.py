"""Attacks on sums over rounds and by likelihood ratio: closed forms, what they must find in FedAvg, and controls."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.privacy.attacks.samples import beyond_references
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.over_rounds import ATTACKS, NONE_SENT, SentModel, lines, sums_findings
from coterie.privacy.plain import plain_findings
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.runs import RunConfig
from coterie.runs.findings import merged
from coterie.runs.recorded import read_recorded, record

BY_NAMES, DIFFERENCES, MEMBERS = ATTACKS
SPEC = ModelSpec((Part("bias", (4,), "float32", "parameter", "shared", 0),))


def found(findings: list[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in findings}


def recorded(system: str = "fedavg", **options: Any) -> Recorded:
    usual = {"clients": 8, "rounds": 12, "model": "linear", "partition": "dirichlet:0.3", "crypto": "emulated"}
    return record(RunConfig(system, record=True, **{**usual, **options}))


# -- sums over rounds --------------------------------------------------------------------------------------------------


def made_up(counts: np.ndarray, there: list[set[int]]) -> tuple[Any, SentModel]:
    """A model of four weights that moves by the mean of its participants' label shares in every round."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    line, model = SentModel("server"), np.zeros(4)
    for r, answered in enumerate(there, 1):
        line.models[r], line.answered[r] = model.astype(np.float32), answered
        model = model + shares[sorted(answered)].mean(axis=0)
    line.models[len(there) + 1], line.answered[len(there) + 1] = model.astype(np.float32), set()
    roster = SimpleNamespace(by_name={"server": SimpleNamespace(role="server")})
    federation = SimpleNamespace(common=SimpleNamespace(roster=roster))
    return SimpleNamespace(spec=SPEC, label_counts=counts, federation=federation, lines=[{}] * len(there)), line


COUNTS = np.array([[9, 1, 0, 0], [0, 5, 5, 0], [2, 2, 2, 4], [0, 0, 1, 9]])


def test_a_difference_of_two_rounds_is_the_one_who_came() -> None:
    run, line = made_up(COUNTS, [{0, 1, 2}, {0, 1, 2, 3}, {1, 2, 3}, {1, 2}, {0, 1, 2}])
    results = found(DIFFERENCES(run, line))
    assert results["server: label shares, by differences of sums"].leak == pytest.approx(1, abs=1e-5)
    same, line = made_up(COUNTS, [{0, 1, 2}] * 4)
    with pytest.raises(UserError, match="exactly one client come or go"):
        DIFFERENCES(same, line)


def test_a_regression_on_names_finds_the_parts_unless_always_the_same_answer() -> None:
    draw = np.random.default_rng(0)
    there = [set(draw.choice(4, 2, replace=False).tolist()) for _ in range(40)]
    run, line = made_up(COUNTS, there)
    one = found(BY_NAMES(run, line))["server: label shares, by regression of sums on names"]
    assert one.leak > 0.9
    assert len(one.results) == 40
    always, line = made_up(COUNTS, [{0, 1, 2, 3}] * 5)
    with pytest.raises(UserError, match="the same clients were added in all rounds"):
        BY_NAMES(always, line)


def test_the_server_of_plain_averaging_reads_label_shares_off_its_own_sums() -> None:
    """The control: a third of the clients answers in each of 40 rounds."""
    run = recorded(rounds=40, partition="dirichlet:0.1", settings={"participation": 0.4, "lr": 0.1})
    findings, reasons = sums_findings(run)
    name = "server: label shares, by regression of sums on names"
    assert found(findings)[name].leak > 0.3
    assert found(findings)[name].verdict in ("much", "everything")
    assert set(reasons) <= {"differences-of-sums"}


def test_lines_are_the_models_that_clients_were_sent() -> None:
    run = recorded(rounds=3)
    (line,) = lines(run)
    assert sorted(line.models) == [1, 2, 3]
    assert np.array_equal(line.models[1], run.initial)
    assert all(line.answered[r] == set(range(8)) for r in (1, 2, 3))
    sent = [seen.message for seen in run.views["client/0"].seen if seen.round == 3]
    assert any(np.array_equal(getattr(one, "weights", None), line.models[3]) for one in sent)


def test_who_sends_no_model_in_the_clear_is_not_attacked() -> None:
    findings, reasons = sums_findings(recorded("local", rounds=2))
    assert not findings
    assert reasons == {one.name: NONE_SENT for one in ATTACKS}


# -- membership --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-3, 8), min_size=1, max_size=5), st.floats(1e-3, 8))
def test_the_ratio_is_the_distance_of_confidences(references: list[float], loss: float) -> None:
    def confidence(of: float) -> float:
        return log(exp(-of) / (1 - exp(-of)))

    expected = np.mean([confidence(one) for one in references]) - confidence(loss)
    got = beyond_references(np.array([loss]), np.array(references)[:, None])
    assert got[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_extreme_losses_stay_finite_and_no_reference_is_refused() -> None:
    assert np.isfinite(beyond_references(np.array([0.0, 1e6]), np.array([[1e9, 0.0]]))).all()
    with pytest.raises(UserError, match="no model that was not trained"):
        beyond_references(np.ones(3), np.ones((0, 3)))


def test_models_that_learnt_their_samples_by_heart_are_found_out_and_others_are_not() -> None:
    """The control: one local training of 60 epochs on a few samples, against one without any effect."""
    name = "server: samples that were trained on, by likelihood ratio"
    leaks, options = [], {"model": "mlp_small", "samples": 240, "partition": "iid", "fine_tune": "held_out"}
    for lr in (0.3, 1e-9):
        settings = {"lr": lr, "max_epochs": 60, "slowest": 1.0, "batch_size": 10}
        run = recorded(rounds=1, settings=settings, **options)
        leaks.append(found(plain_findings(run)[0])[name])
    assert leaks[0].leak > 0.15
    assert leaks[0].verdict in ("a little", "much")
    assert leaks[1].verdict in ("nothing found", "cannot tell")


def heard_once(out: Path, **options: Any) -> tuple[Recorded, SentModel]:
    """The model that half of the clients have trained in round 1 on random labels, as it is sent in round 2."""
    draw = np.random.default_rng(0)
    data = draw.normal(size=(800, 60)), draw.integers(0, 2, 800), draw.normal(size=(400, 60)), draw.integers(0, 2, 400)
    settings = {"lr": 0.1, "max_epochs": 40, "slowest": 1.0, "batch_size": 10, "participation": 0.5}
    usual = {
        "clients": 8,
        "rounds": 2,
        "model": "mlp",
        "partition": "iid",
        "record": True,
        "seed": 3,
        "progress": False,
    }
    result = coterie.run("fedavg", data=data, out=out / "run", **{**usual, **settings, **options})
    run = read_recorded(result.folder)
    (line,) = lines(run)
    return run, line


def test_a_mean_tells_the_samples_of_who_trained_and_not_of_who_only_holds_it(tmp_path: Path) -> None:
    """The control: the same model, on clients that have trained it and on those that were only sent it after."""
    run, line = heard_once(tmp_path, fine_tune="held_out")
    trained = line.answered[1]
    (known,) = MEMBERS(run, replace(line, holders=trained))
    (never,) = MEMBERS(run, replace(line, holders=line.holders - trained))
    assert len(line.holders - trained) > 1
    assert known.leak > 0.1
    assert known.verdict in ("a little", "much")
    assert never.verdict == "nothing found"
    assert abs(never.leak) < 2 * never.error


def test_beside_test_samples_nothing_found_is_cannot_tell(tmp_path: Path) -> None:
    """They are of another pool, and may be harder or easier: chance is not known."""
    run, line = heard_once(tmp_path)
    (never,) = MEMBERS(run, replace(line, holders=line.holders - line.answered[1]))
    assert never.verdict == "cannot tell"
    row = never.row()
    assert row["metric"] == "AUC for samples that were trained on, beside test samples"
    assert not row["chance_known"]
    (known,) = MEMBERS(run, replace(line, holders=line.answered[1]))
    assert known.verdict in ("a little", "much")
    assert [one["verdict"] for one in merged([[row], [row]])] == ["cannot tell"]
