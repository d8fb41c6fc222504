"""OFL's active attacks: with the defence they find nothing, and without it, or with the leak planted, everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, planted
from joint_parts import SMALL, small_keys
from matrix import few
from ofl_parts import WHOLE, ofl

from coterie.aggregation.contribution import contribution
from coterie.devices.resources import Status
from coterie.privacy.attacks.joint_key import LeaderThief
from coterie.privacy.attacks.key_in_sum import coefficients, key_agreement
from coterie.privacy.attacks.wrapping import wrap
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.audits.ofl_active import (
    COALITION,
    active,
    boasted,
    boasting,
    forging,
    stealing,
    subtracting,
    terms,
)
from coterie.protocol.effects import Compute
from coterie.protocol.errors import UserError
from coterie.protocols.reports import RANGES
from coterie.runs import RunConfig
from coterie.runs.attacked import attacked
from coterie.runs.recorded import record
from coterie.systems.ofl import config as settings_of
from coterie.systems.ofl.messages import MODEL

OPTIONS: dict[str, Any] = {"clients": 9, "rounds": 3, "samples": 800, "crypto": "emulated", "record": True}
SETTINGS = {"clusters": 3, "max_epochs": 2}
SUBTRACTED = f"{COALITION}: the last leader's model, subtracted"


def recorded(mode: str = "paper", settings: dict[str, Any] | None = None, **options: Any) -> Recorded:
    return record(RunConfig("ofl", mode=mode, settings={**SETTINGS, **(settings or {})}, **{**OPTIONS, **options}))


def named(found: list[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in found}


# -- the joint key -----------------------------------------------------------------------------------------------------


@pytest.fixture
def robbed(monkeypatch: pytest.MonkeyPatch) -> tuple[Rig, LeaderThief]:
    """Three rounds with small real keys, in which one leader is a thief from the second on."""
    monkeypatch.setitem(settings_of.PARAMETERS, "none", SMALL)
    with small_keys():
        run = ofl(planted([0, 0, 1, 1, 2, 2], 2 * 1024 + 300, apart=0.1), emulated=False, recluster_every=9, **WHOLE)
        run.round(1)
        parties = {name: run.party(name) for name in run.common.clients}
        leader = next(iter(run.hub.state.leaders.values()))
        thief = LeaderThief(parties[leader], parties, MODEL)
        wrap(parties[leader], thief.between)
        for r in (2, 3):
            assert "skipped" not in run.round(r)
    assert not run.refused
    return run, thief


def test_a_leader_that_adds_to_its_half_reads_nothing_of_the_joint_key(robbed: tuple[Rig, LeaderThief]) -> None:
    _, thief = robbed
    assert thief.forged_in == [2]
    assert thief.guess is not None
    assert thief.secret is not None
    found = key_agreement(thief.guess, thief.secret)
    assert found.value < found.chance + 5 * np.sqrt(found.chance * (1 - found.chance) / 1024)


def opened(secret: np.ndarray) -> np.ndarray:
    """(N,) what a polynomial with these coefficients opens to."""
    return secret * np.sqrt(len(secret) / 2)


def test_the_same_thief_reads_all_of_it_where_the_model_holds_k_times_the_secret(
    robbed: tuple[Rig, LeaderThief],
) -> None:
    """What a sum with its c_1 + K would open to, if leaders chose c_1."""
    _, thief = robbed
    assert thief.secret is not None
    assert thief._group is not None
    assert thief._base is not None
    assert thief._row is not None
    values = opened(thief.secret.astype(np.float64))
    assert coefficients(values, thief._group.space) == pytest.approx(thief.secret, abs=1e-6)
    model = thief._base.copy()
    model[thief._row * 1024 :][:1024] += values / 64 + np.random.default_rng(0).normal(0, 1e-4, 1024)
    thief.guess = None
    thief._contributed(Any, Compute(contribution, (model, model)), model)  # type: ignore[arg-type]
    assert thief.guess is not None
    assert key_agreement(thief.guess, thief.secret).value > 0.99  # type: ignore[unreachable]


def test_an_emulated_key_has_no_secret_and_the_audit_says_so() -> None:
    (found,) = stealing(recorded())
    assert not found.results
    assert "--crypto real" in found.why


@pytest.mark.long
def test_a_model_that_fills_no_ciphertext_is_no_reason_to_end_the_audit() -> None:
    (found,) = stealing(recorded("hardened", {"clusters": 2}, clients=6, crypto="real"))
    assert not found.results
    assert "fills no ciphertext" in found.why


# -- subtraction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "settings"),
    few([("paper", {}), ("literal", {}), ("hardened", {}), ("paper", {"detection": "none"})], [("paper", {})]),
    ids=["paper", "literal", "hardened", "none"],
)
def test_the_last_leader_s_model_is_what_it_has_in_its_memory(mode: str, settings: dict[str, Any]) -> None:
    found = named(subtracting(recorded(mode, settings)))[SUBTRACTED]
    assert len(found.results) == 3
    assert max(one.value for one in found.results) < 0.01


# -- status reports ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_boaster_leads_more_often_and_no_report_of_it_is_refused() -> None:
    run = recorded(settings={"recluster_every": 1, "full_samples": 50}, clients=12, rounds=6, devices="mixed", seed=1)
    (found,) = boasting(run)[0].results
    assert found.value > found.chance
    assert found.chance == min(terms(run)[name] for name in run.clients) / 6


def test_a_boast_is_the_device_times_ten_and_in_range() -> None:
    said = boasted(Status(1e9, 1.0, 2.0, 1e5, 1e6, 0.3, 10.0), 60.0)
    assert said == Status(1e10, 10.0, 20.0, 1e6, 1e7, 1.0, 60.0)
    assert said.compute_flops_per_s <= RANGES["compute_flops_per_s"][1]


# -- forged models -----------------------------------------------------------------------------------------------------


def weights_of(found: list[Finding]) -> float:
    (one,) = (one for one in found if "weight that a leader model keeps" in one.name)
    return one.results[0].value


@pytest.mark.long
def test_long_changes_are_damped_by_norms_and_not_without_detection() -> None:
    kept = {name: weights_of(forging(recorded("hardened", {"detection": name}), [10.0])) for name in ("norms", "none")}
    assert kept["none"] == 1.0
    assert kept["norms"] < 0.6


def test_a_backward_model_spoils_what_nobody_damps() -> None:
    found = forging(recorded("hardened", {"detection": "none"}), [-10.0])
    assert all(one.name.endswith("backwards") for one in found)
    (accuracy,) = found[1].results
    assert accuracy.value < accuracy.chance - 0.1
    assert found[1].leak > 0.1


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", few(["paper", "literal", "hardened"], ["hardened"]))
def test_all_are_played_in_every_mode(mode: str) -> None:
    run = recorded(mode)
    found, refused, _ = attacked(run, active=True)
    deviating = [one.name for one in found if "deviating" in one.name]
    assert len(deviating) == 5
    assert "one leader, deviating: the joint key" in refused


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(UserError, match="3 rounds or more"):
        active(recorded(rounds=2))
