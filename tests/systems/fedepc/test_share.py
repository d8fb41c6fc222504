"""How many of FedEPC's devices train in a round, which can never train, and when a run ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving, planted, rig
from matrix import few
from msgspec.structs import replace

from coterie.systems.fedepc import SYSTEM
from coterie.systems.fedepc.messages import Describe, Described, Train, Update

GROUPS = [0] * 6 + [1] * 6
TARGETS = planted(GROUPS, 24)


def made(targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    return rig(SYSTEM, targets, **{"extractor": "random", "converged": 0.0, **options})


# -- the time budget ---------------------------------------------------------------------------------------------------


def test_a_slow_gateway_alone_in_its_cluster_is_skipped_and_told_and_costs_no_other_cluster_its_budget() -> None:
    """Devices cost 5. One gateway with data of its own costs 50, more than 5 median devices; another costs 20."""
    ghz = {"client/6": 0.2, "client/7": 0.5}
    targets = planted([0] * 6 + [1] + [2], 24)

    def slow(party: Any, msg: Describe, honest: Described) -> Described:
        return replace(honest, cpu_ghz=ghz[party.name])

    run = made(targets, wrap=lambda federation: [misbehaving(federation.alter(k), Describe, slow) for k in ghz])
    of = run.hub.state.cluster_of
    assert len({of["client/0"], of["client/6"], of["client/7"]}) == 3
    notes = run.rounds(6)
    reason = "the cheapest set of 1 costs 50, and the time budget is 25"
    for note in notes:
        assert note["choices"][str(of["client/6"])]["skipped"] == reason
        assert note["too_slow"] == ["client/6"]
        assert note["time_budget"] == dict.fromkeys(note["choices"], 25.0)
    assert (run.models()[6] == run.common.initial).all()
    assert sum("client/7" in note["selected"] for note in notes) > 0, "one that is merely slower has its turns"
    assert run.transport.drive(run.hub.finish(), 7)["too_slow"] == ["client/6"]
    patient = made(targets, straggler=10.0, wrap=lambda f: [misbehaving(f.alter(k), Describe, slow) for k in ghz])
    assert any("client/6" in note["selected"] for note in patient.rounds(6))


# -- the share of a round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", few([0.2, 0.5, 0.8], [0.2]))
def test_no_round_trains_more_than_the_share_and_every_cluster_has_its_turns(share: float) -> None:
    """Ten clusters: one of six devices, two of two and seven of one, so that a fifth of 17 has no room for all."""
    groups = [0] * 6 + [1] * 2 + [2] * 2 + [3, 4, 5, 6, 7, 8, 9]
    run = made(planted(groups, 30), participation=share, panel=2)
    assert len(run.hub.members()) == 10
    most, trained, rounds = round(share * 17), dict.fromkeys(range(10), 0), 30
    for r in range(1, rounds + 1):
        notes = run.round(r)
        assert len(notes["selected"]) <= most
        for k in notes["selected"].values():
            trained[k] += 1
        if r > 1:
            waiting = [k for k, choice in notes["choices"].items() if choice["skipped"]]
            assert all("takes its turn" in notes["choices"][k]["skipped"] for k in waiting)
            assert bool(waiting) == (most < 10) or share > 0.5
    alone = [count for k, count in trained.items() if len(run.hub.members()[k]) == 1]
    assert min(alone) >= share * rounds - 3, "a device alone has its share of the rounds"
    assert max(alone) <= share * rounds + 3
    assert max(trained.values()) > 2 * max(alone), "and six have more than one"


def test_a_cluster_that_waits_and_was_measured_sends_its_panel_no_model() -> None:
    run = made(planted(list(range(12)), 30), participation=0.25, panel=1)
    run.rounds(8)
    views = run.transport.transcript.of_role("device")
    models = sum(len(list(view.messages(Train))) for view in views)
    # three train in a round. A reward costs one model more in the round after, and each panel measures W^0 once
    assert models <= 8 * (3 + 3) + 12 < 8 * 12


# -- the end -----------------------------------------------------------------------------------------------------------


def until_it_ends(run: Rig, most: int = 60) -> list[dict[str, Any]]:
    notes = []
    for r in range(1, most + 1):
        notes.append(run.round(r))
        if "stopped" in notes[-1]:
            break
    return notes


def moves(notes: list[dict[str, Any]], k: str) -> np.ndarray:
    """By how much L_k has changed from round to round."""
    return np.abs(np.diff([note["loss"][k] for note in notes]))


@pytest.mark.parametrize("settle", few([1, 3], [3]))
def test_the_run_ends_when_the_clusters_losses_no_longer_move(settle: int) -> None:
    """L. 12 and 13, over the panel's losses: the mean of |change| over two clusters of six, so many times in a row."""
    run = made(converged=0.02, settle=settle, panel=12, participation=1.0, fill=1.0)
    notes = until_it_ends(run)
    change = (moves(notes, "0") + moves(notes, "1")) / 2
    times = "once" if settle == 1 else "3 times in a row"
    assert notes[-1]["stopped"] == f"the clusters' losses have moved by less than 0.02 {times}"
    assert (change[-settle:] < 0.02).all()
    assert (change[:-settle] >= 0.02).all()
    assert "stopped" not in str(made(converged=0.0).rounds(12))


def test_changes_of_two_clusters_that_cancel_do_not_end_a_run() -> None:
    """One cluster's loss falls by 1 in each round and the other's rises by 1, so that their sum stands still."""

    def told(party: Any, msg: Train, honest: Update) -> Update:
        number = int(party.name.split("/")[1])
        return replace(honest, loss=50.0 + msg.round if number < 6 else 50.0 - msg.round)

    lying = made(
        converged=0.5,
        settle=1,
        panel=12,
        wrap=lambda f: [misbehaving(f.alter(f"client/{i}"), Train, told) for i in range(12)],
    )
    assert len(until_it_ends(lying, 8)) == 8
    assert len(until_it_ends(made(converged=0.5, settle=1, panel=12), 40)) < 40, "and where none moves it ends"


def test_one_quiet_round_does_not_end_a_run() -> None:
    """The losses stand still in rounds 4 and 7, and from round 10 on."""
    still = {4, 7, *range(10, 40)}
    levels = np.cumsum([0.0 if r in still else 1.0 for r in range(40)]).tolist()

    def told(party: Any, msg: Train, honest: Update) -> Update:
        return replace(honest, loss=100.0 - levels[msg.round])

    run = made(
        converged=0.1, panel=12, wrap=lambda f: [misbehaving(f.alter(f"client/{i}"), Train, told) for i in range(12)]
    )
    assert len(until_it_ends(run)) == 12, "the third quiet round in a row"


def test_a_cluster_that_waits_for_its_turn_counts_with_its_last_change() -> None:
    """Ten devices alone, of which one trains in a round: nine that wait are no nine that stand still."""
    run = made(planted(list(range(10)), 30), converged=0.05, participation=0.1, panel=1)
    notes = until_it_ends(run, 200)
    trained = [name for note in notes for name in note["selected"]]
    assert len(set(trained)) == 10
    assert "stopped" in notes[-1]
    assert len(notes) > 20
    assert max(cluster.moved for cluster in run.hub.state.clusters.values()) < 0.5


def test_each_cluster_may_end_by_itself() -> None:
    slow = np.vstack([TARGETS[:6], 4 * TARGETS[6:]])  # has a longer way to go
    run = made(slow, converged=0.05, stop="cluster", panel=12, participation=1.0, fill=1.0)
    notes = until_it_ends(run)
    ends = {k: max(r for r, note in enumerate(notes, 1) if str(k) in note["choices"]) for k in (0, 1)}
    assert ends[0] != ends[1], "one goes on alone"
    assert notes[-1]["stopped"] == "the loss of every cluster has moved by less than 0.05 3 times in a row"
    for k, end in ends.items():
        change = moves(notes[:end], str(k))
        assert (change[-3:] < 0.05).all()
        assert not (change[-4:-1] < 0.05).all()


def test_no_run_ends_before_everybody_has_come_or_for_a_cluster_that_never_trains() -> None:
    run = made(converged=1e9, settle=1, founders=10, newcomers=1, join_every=2)
    notes = until_it_ends(run)
    assert len(notes) == 5, "the last joins in round 5"
    idle = made(converged=1e9, settle=1, time_budget=1.0)
    assert all("stopped" not in note for note in idle.rounds(6))
