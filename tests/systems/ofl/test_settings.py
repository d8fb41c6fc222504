"""OFL's settings: what is refused with a clear error, what a budget does, and options that change no model's oracle."""

from __future__ import annotations

import warnings
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from federation import planted
from matrix import few
from ofl_parts import WHOLE, counted, ofl

from coterie.dp.ledger import Ledger
from coterie.protocol.errors import CoterieWarning, PeerError, UserError
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.protocols.key_centre import KEY_CENTRE
from coterie.protocols.reports import RANGES, SUMMARY, StatusReport
from coterie.runs import RunConfig, build, resolve
from coterie.systems.ofl import SYSTEM
from coterie.systems.ofl.config import OFLConfig, check_usual, shares, usual_samples

TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], 24)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clusters": 1}, "clusters must be at least 2"),
        ({"recluster_every": 0}, "recluster_every"),
        ({"epsilon": 8.0}, "heuristic"),
        ({"mechanism": "standard", "epsilon": 0.0}, "budget of epsilon 0"),
        ({"mechanism": "standard", "epsilon": 8.0, "dp_delta": 1.0}, "delta"),
        ({"mechanism": "standard", "noise": 0.0}, "noise_multiplier of uploads"),
        ({"mechanism": "standard", "clip": inf}, "clip"),
        ({"mechanism": "standard", "epsilon1": 2.0}, "no effect"),
        ({"clip": 2.0}, "no effect"),
        ({"epsilon2": 0.0}, "epsilon2 must be a finite number above 0"),
        ({"gamma_min": 1.5}, "gamma_min"),
        ({"threshold": 1}, "threshold"),
        ({"threshold": 9}, "threshold"),
        ({"leader_s": 0.0}, "leader_s"),
        ({"leader_s": 9.0, "deadline_s": 5.0}, "below deadline_s"),
        ({"step_s": inf}, "step_s"),
        ({"full_share": 0.0}, "full_share must be a finite number above 0"),
        ({"full_samples": 0}, "full_samples must be at least 1"),
        ({"full_samples": 50, "full_share": 0.2}, "full_share=0.2 has no effect with full_samples"),
        ({"penalty": -1.0}, "penalty"),
        ({"keys": "none"}, "keys must be one of"),
        ({"renew": "shares", "keys": "dealer"}, "renew"),
        ({"detection": "krum"}, "detection must be one of"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        OFLConfig(**settings)


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="4 clusters for 3 clients"):
        build(RunConfig("ofl", data="digits", clients=3, rounds=1))


def test_the_literal_text_has_the_papers_mechanism_only() -> None:
    with pytest.raises(UserError, match="mode literal"):
        build(RunConfig("ofl", data="digits", mode="literal", rounds=1, settings={"mechanism": "standard"}))


def test_a_run_has_16_clients_and_4_leaders_if_nothing_else_is_said() -> None:
    config = resolve(RunConfig("ofl", data="digits"))
    assert (config.clients, config.settings["clusters"]) == (16, 4)
    assert resolve(RunConfig("ofl", data="digits", clients=8)).clients == 8


def test_a_client_whose_budget_is_spent_uploads_nothing_and_downloads_all_the_same() -> None:
    config = {**WHOLE, "noise": 4.0, "epsilon": 2.0}
    made = ofl(TARGETS, clusters=3, recluster_every=9, **config)
    notes = made.rounds(8)
    sent = {name: len(made.party(name).state.released) for name in made.common.clients}
    standard = made.config.standard().release()
    fits = max(n for n in range(9) if Ledger((standard,) * n).epsilon(1e-5, "replace one client") <= 2.0)
    assert set(sent.values()) == {fits}
    assert 1 <= fits < 8
    assert set(counted(made).values()) == {1}
    assert notes[-1]["participants"] == 9  # they answer, with nothing
    assert all(made.party(name).state.heard == 8 for name in made.common.clients)
    model = made.hub.state.weights
    np.testing.assert_allclose(made.round(9)["gammas"][made.hub.state.leaders[0]][0], 0.0)
    np.testing.assert_allclose(made.hub.state.weights, model, atol=1e-4)


def test_a_small_clip_is_judged_as_a_large_one_is() -> None:
    """All that is opened of a leader is relative to the clip, so the noise of opening drowns no short change."""
    far = planted([0] * 8, 24, apart=10.0)
    whole = {**WHOLE, "clusters": 4, "detection": "norms", "smallest": 2}
    small, large = (ofl(far, **{**whole, "clip": clip}).round(1) for clip in (0.01, 1.0))
    assert "skipped" not in small
    assert "fallback" not in small
    assert small["s_factors"] == pytest.approx(large["s_factors"], abs=0.01)
    assert min(small["s_factors"].values()) > 0.9


@pytest.mark.parametrize(
    "settings",
    few(
        [{"threshold": 2}, {"renew": "shares"}, {"keys": "dealer"}, {"keys": "dealer", "threshold": 2}],
        [{"threshold": 2}],
    ),
)
def test_ways_to_hold_the_key_open_the_same_mean(settings: dict[str, Any]) -> None:
    """Leaders change in round 3."""
    plain, other = (ofl(TARGETS, clusters=3, recluster_every=2, **{**WHOLE, **more}) for more in ({}, settings))
    assert (KEY_CENTRE in other.federation.parties) == (settings.get("keys") == "dealer")
    for r in (1, 2, 3):
        assert "skipped" not in plain.round(r)
        assert "skipped" not in other.round(r)
    np.testing.assert_allclose(other.hub.state.weights, plain.hub.state.weights, atol=2e-4)


def test_with_t_of_n_a_leader_that_goes_while_a_sum_is_opened_stops_nothing() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=9, **{**WHOLE, "threshold": 2})
    made.round(1)
    gone = made.hub.state.leaders[1]
    made.transport.intercept = lambda e, frame: [] if e.kind == "Decrypt" and e.dst == gone else [frame]
    assert "skipped" not in made.round(2)
    made = ofl(TARGETS, clusters=3, recluster_every=9, **{**WHOLE, "detection": "norms"})
    made.round(1)
    gone = made.hub.state.leaders[1]
    made.transport.intercept = lambda e, frame: [] if e.kind == "Decrypt" and e.dst == gone else [frame]
    assert "opened by 3 of 3 holders" in made.round(2)["skipped"]  # n-of-n
    made.transport.intercept = None
    assert "skipped" not in made.round(3)


def test_a_leader_that_vanishes_before_it_sends_is_left_out_and_the_others_make_another_key() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=9, **WHOLE)
    made.round(1)
    gone = made.hub.state.leaders[1]
    made.transport.intercept = lambda e, frame: [] if e.kind == "Submit" and e.dst == gone else [frame]
    note = made.round(2)
    assert set(note["s_factors"]) == set(note["leaders"].values()) - {gone}


def test_newcomers_join_the_nearest_cluster_at_once() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=9, founders=6, newcomers=1, join_every=1, **WHOLE)
    sizes = [sum(made.round(r)["clusters"]["sizes"]) for r in range(1, 5)]
    assert sizes == [6, 7, 8, 9]
    assert ("client/8", 4) in counted(made)


def test_the_ledger_says_of_the_papers_mechanism_that_it_has_no_proof() -> None:
    made = ofl(TARGETS, clusters=3, detection="none")
    made.rounds(2)
    releases = SYSTEM.ledger(made.federation)["client/4"]  # type: ignore[misc]
    assert [one.mechanism for one in releases] == ["heuristic", "heuristic"]
    assert Ledger(tuple(releases)).epsilon(1e-5) == inf


def test_a_budget_that_allows_no_upload_is_warned_of() -> None:
    """With a noise of 0.01 one upload has an epsilon of 5,426, so a budget of 8 ends all uploads at once."""
    with pytest.warns(
        CoterieWarning, match=r"epsilon=8 allows no upload: a single one with noise=0\.01 spends 5,4\d\d"
    ):
        ofl(TARGETS, mechanism="standard", epsilon=8.0, noise=0.01, clusters=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoterieWarning)
        ofl(TARGETS, mechanism="standard", epsilon=8.0, noise=4.0, clusters=2)
        ofl(TARGETS, mechanism="standard", epsilon=8.0, clusters=2)


# -- data enough for the whole model -----------------------------------------------------------------------------------


def reported(samples: int) -> StatusReport:
    """A report of a device that has all it needs, and so many samples."""
    said = {field: high for field, (_, high) in RANGES.items()} | {"samples": samples}
    return StatusReport(1, "client/0", np.array([*said.values()], np.float64), np.zeros(SUMMARY, np.float32))


@pytest.mark.parametrize("scale", [1, 100])
def test_what_is_data_enough_follows_from_the_median_of_the_clients(scale: int) -> None:
    """Shares are the same for clients with nine samples each as with nine hundred: min(1, samples / (.5 median))."""
    spec = ModelSpec((Part("w", (10, 10), "float32", "parameter", "shared", 0),), flops_per_sample=1e-9)
    config, counts = OFLConfig(), [2, 8, 9, 10, 200]
    usual = usual_samples(config, [reported(scale * n) for n in counts])
    assert usual == 9 * scale
    ups = [shares(reported(scale * n), spec, config, usual).up for n in counts]
    assert ups == pytest.approx([2 / 4.5, 1, 1, 1, 1])
    fixed = OFLConfig(full_samples=50)
    assert usual_samples(fixed, [reported(9)]) == 0
    assert shares(reported(9), spec, fixed, 0.0).up == pytest.approx(9 / 50)


def test_clients_with_few_samples_upload_whole_models_unless_a_number_says_otherwise() -> None:
    """All have ten samples here. 50 of them were needed for a whole model, so each sent a fifth of its own."""
    made = ofl(TARGETS, clusters=3)
    assert made.round(1)["participants"] == 9
    assert {made.party(name).state.ratios for name in made.common.clients} == {(1.0, 1.0)}
    assert made.hub.state.usual == 10
    given = ofl(TARGETS, clusters=3, full_samples=50)
    given.round(1)
    for name in given.common.clients:
        assert given.party(name).state.ratios == pytest.approx((0.2, 1.0))
    assert given.hub.state.usual == 0  # nobody is told the median


@pytest.mark.parametrize("usual", [nan, inf, -1.0, 0.0, 0.5, 1e300])
def test_a_median_that_is_none_is_refused(usual: float) -> None:
    with pytest.raises(PeerError, match="median"):
        check_usual(OFLConfig(), usual)
    if usual:
        with pytest.raises(PeerError, match="median"):
            check_usual(OFLConfig(full_samples=9), usual)
    assert check_usual(OFLConfig(), 9.5) == 9.5
    assert check_usual(OFLConfig(full_samples=9), 0.0) == 0
