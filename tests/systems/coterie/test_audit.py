"""What an audit of Coterie finds: nothing at hub and helper alone, all at both together, and controls."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.security import coterie as study
from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.audits.coterie import AUDIT
from coterie.privacy.audits.hidden_coalitions import COUNTED, MEMBER, NO_KEYS, NO_NOISE, TOGETHER, WITH_MEMBER, added
from coterie.privacy.audits.hidden_grouping import PLANTED
from coterie.privacy.audits.hidden_places import found_groups
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig
from coterie.runs.recorded import record

Found = dict[tuple[str, str], Finding]


def ran(settings: dict[str, Any] | None = None, **options: Any) -> Recorded:
    base: dict[str, Any] = {"clients": 24, "rounds": 2, "partition": "permute:4+dirichlet:0.5", "crypto": "emulated"}
    settings = {"lr": 0.1, "max_epochs": 2, **(settings or {})}
    return record(RunConfig("coterie", **{**base, **options}, model="linear", settings=settings, record=True))


def audited(run: Recorded) -> Found:
    return {(one.who, one.what): one for one in AUDIT.passive(run)}


@cache
def found(crypto: str = "emulated") -> Found:
    return audited(ran(crypto=crypto, **({"clients": 12, "partition": "permute:2"} if crypto == "real" else {})))


@cache
def with_absences() -> tuple[Recorded, Found]:
    """In each round two or three clients of 16 are not asked, and some come two rounds late."""
    settings = {"min_cluster": 6, "fewest": 1, "max_epochs": 1, "participation": 0.85}
    run = ran(settings, clients=16, rounds=30, partition="permute:2", delta=0.04, delay="uniform:2-2")
    return run, audited(run)


def leak(who: str, what: str) -> float:
    return next(one.leak for (by, about), one in found().items() if by == who and about.startswith(what))


@pytest.mark.parametrize(("who", "least"), [("hub", 5), ("helper", 4)])
def test_a_server_finds_nothing(who: str, least: int) -> None:
    """A leak of uniform words is chance: its standard error is about .2 for 24 clients."""
    own = {what: one for (by, what), one in found().items() if by == who and one.results}
    assert "which pairs are of one group, by rows" in own
    assert len(own) >= least
    for what, one in own.items():
        assert abs(one.leak) < 0.4, what


def test_both_servers_together_learn_everything() -> None:
    """The control: else the other findings say nothing."""
    assert leak(TOGETHER, "which pairs are of one group") > 0.95
    assert leak(TOGETHER, "updates, by adding shares") == 1
    assert leak(TOGETHER, "label shares") > 0.4


def test_a_real_run_is_audited_with_the_helpers_own_key() -> None:
    """Real keys differ in each run, so its steps may tell all clients alike: then nothing orders them."""
    real = found("real")
    assert real["helper", "which pairs are of one group, by rows"].results
    steps = real["helper", "samples of unnamed clients, by steps"]
    assert steps.results or "so no order exists" in steps.why
    assert {one.why for (who, _), one in real.items() if who in (TOGETHER, MEMBER, WITH_MEMBER)} == {NO_KEYS}


def test_what_the_observer_reads_is_what_the_parties_have() -> None:
    """Members' rows are their models, updates add up to them but for the noise, and steps give the groups."""
    run, _ = with_absences()
    rounds = added(run, "hub", "helper")
    totals = sum(one.sums for one in rounds)
    assert any(one.weights.max() != one.weights.min() for one in rounds), "an upload was late"
    groups = dict[str, int]()
    for one in rounds:
        groups |= zip(one.names, one.groups.tolist(), strict=True)
        for k in range(2):
            noise = one.sums[k] - one.exact(k)
            grid = run.settings.grid(16, run.spec)
            expected = 2**0.5 * one.step * run.settings.noise_on(grid)
            assert np.std(noise) == pytest.approx(expected, rel=0.1)
    clients = {name: run.federation.look(name) for name in run.clients}
    latest = max(one.row.secret.round for one in clients.values())
    for name, client in clients.items():
        assert client.row.secret.group == groups[name]
        change = client.grid.change(totals[groups[name]].astype(np.int32), client.row.secret.total)
        if client.row.secret.round == latest:
            assert client.state.weights == pytest.approx(run.initial + change, abs=1e-6)
    placed = found_groups(run, "hub", "helper")
    assert {(groups[name], int(k)) for name, k in zip(placed.names, placed.labels, strict=True)} in (
        {(0, 0), (1, 1)},
        {(0, 1), (1, 0)},
    )


def test_counts_would_show_who_is_in_which_group() -> None:
    _, rows = with_absences()
    assert rows[COUNTED, "who is in which group, by regression on names"].leak > 0.9


def test_noise_keeps_a_member_from_the_update_of_another() -> None:
    _, rows = with_absences()
    bare, noisy = (rows[who, "update of one of its group who was away"] for who in (NO_NOISE, MEMBER))
    assert bare.leak > 0.45
    assert noisy.leak < 0.6 * bare.leak
    assert bare.results[0].n == noisy.results[0].n >= 10


def test_the_hub_with_a_member_learns_updates_in_time() -> None:
    """By assumption."""
    _, rows = with_absences()
    assert rows[WITH_MEMBER, "who is in the group, by regression on names"].leak > 0.7
    assert rows[WITH_MEMBER, "mean updates of members, by regression on names"].leak > 0.2


def test_without_absences_sums_are_not_compared() -> None:
    for who in (COUNTED, WITH_MEMBER, MEMBER, NO_NOISE):
        assert all(not one.results for (by, _), one in found().items() if by == who)


def test_a_planted_row_reads_one_label_of_everybody() -> None:
    """A client that works with the helper; docs/systems/coterie.md says that nothing stops it."""
    (one,) = AUDIT.active(ran(clients=12, rounds=1)) if AUDIT.active else ()
    assert one.who == PLANTED
    assert one.leak > 0.9
    assert one.results[0].n == 11


def test_no_row_is_planted_where_all_clients_have_all_labels() -> None:
    assert AUDIT.active
    (one,) = AUDIT.active(ran({"min_cluster": 2}, clients=6, rounds=1, partition="dirichlet:3"))
    assert (one.who, one.results) == (PLANTED, ())
    assert one.why == "all clients have all labels, so nothing is left to read"


def test_with_one_group_no_row_can_be_planted() -> None:
    run = ran({"clusters": 1}, rounds=1)
    assert audited(run)
    assert AUDIT.active
    with pytest.raises(UserError, match="no rows are compared"):
        AUDIT.active(run)


@pytest.mark.long
def test_the_study_has_controls_and_the_planted_row() -> None:
    """The documentation's numbers are made by ``benchmarks.security``."""
    rows = study.measured(6, 1, deviating=True, clients=14, partition="permute:2+dirichlet:0.5")["attacks"]
    counted, planted = (next(row for name, row in rows.items() if name.startswith(who)) for who in (COUNTED, PLANTED))
    assert counted["chance"] == pytest.approx(0.5, abs=0.1)
    assert planted["value"] > 0.9 > planted["chance"]
