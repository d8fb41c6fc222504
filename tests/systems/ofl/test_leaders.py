"""OFL's leaders: late uploads, hand-over, leaders that die. Nothing is counted twice, and a cluster loses one round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, misbehaving, planted
from matrix import few
from ofl_parts import WHOLE, counted, ofl, uploads

from coterie.crypto.threshold import Answered
from coterie.systems.ofl.messages import MODEL, Lead

TARGETS = planted([0, 0, 0, 1, 1, 1, 2, 2, 2], 24)


def test_every_upload_counts_once_when_nothing_goes_wrong() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=2, **WHOLE)
    notes = made.rounds(5)
    assert counted(made) == {(f"client/{i}", r): 1 for i in range(9) for r in range(1, 6)}
    assert [note["reclustered"] for note in notes] == [True, False, True, False, True]
    assert not made.refused
    assert len({tuple(note["leaders"].values()) for note in notes}) > 1  # office changes


def follower(made: Rig) -> str:
    """A member of a larger cluster that does not lead."""
    leaders = set(made.hub.state.leaders.values())
    return next(name for of in made.hub.members().values() if len(of) > 1 for name in of if name not in leaders)


def test_a_late_upload_is_taken_in_the_next_round_and_counts_once() -> None:
    """A member needs 12 s for everything, and leaders wait 5: its uploads are rounds late, each in one model."""
    made = ofl(TARGETS, clusters=3, recluster_every=9, leader_s=5.0, **WHOLE)
    made.round(1)
    slow = follower(made)
    made.links.slow[slow] = 12.0
    notes = [made.round(r) for r in range(2, 8)]
    found = counted(made)
    assert set(found.values()) == {1}
    late = [(name, r) for name, r in found if name == slow and r > 1]
    assert sum(note["late"] for note in notes) == len(late) >= 2
    assert {(name, r) for name, r in found if name != slow} == {
        (f"client/{i}", r) for i in range(9) for r in range(1, 8) if f"client/{i}" != slow
    }


def test_a_leader_that_loses_office_hands_late_uploads_over_and_each_counts_once() -> None:
    """Every second round has new clusters and new leaders. A member is late in each, so its uploads change hands."""
    made = ofl(TARGETS, clusters=3, recluster_every=2, leader_s=5.0, deadline_s=30.0, **WHOLE)
    made.round(1)
    slow = follower(made)
    made.links.slow[slow] = 12.0
    notes = [made.round(r) for r in range(2, 10)]
    found = counted(made)
    assert set(found.values()) == {1}
    assert sum(note["handed_over"] for note in notes) >= 1
    late = [(name, r) for name, r in found if name == slow]
    assert sum(note["late"] for note in notes) >= 1
    assert {2} < {r for _, r in late}  # it was uploaded to another leader than the one that counts it
    assert not [why for why in made.refused if "Inherited" in why]


@pytest.mark.parametrize("when", few(["collecting", "submitting", "spreading"], ["submitting"]))
def test_a_leader_that_dies_in_mid_round_costs_its_cluster_one_round_at_most(when: str) -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=6, **WHOLE)
    first = made.round(1)
    dead = first["leaders"]["1"]
    cluster = {name for name, r in counted(made) if r == 1} & members(made, 1)
    if when == "collecting":
        made.links.dies = {(dead, 2)}
    else:
        kind = {"submitting": "Submit", "spreading": "Spread"}[when]
        made.transport.intercept = lambda e, frame: [] if e.kind == kind and e.dst == dead and e.round == 2 else [frame]
    made.round(2)
    made.transport.intercept = None
    third = made.round(3)
    if when == "collecting":
        assert third["leaders"]["1"] != dead
        assert {third["leaders"][k] for k in "02"} == {first["leaders"][k] for k in "02"}
    found = counted(made)
    assert set(found.values()) == {1}
    assert {(name, 3) for name in cluster} <= set(found)
    assert all(made.party(name).state.heard == 3 for name in cluster)


def members(made: object, cluster: int) -> set[str]:
    return set(made.hub.members()[cluster])  # type: ignore[attr-defined]


def test_all_leaders_gone_is_a_skipped_round_and_others_lead_the_next() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=6, **WHOLE)
    first = made.round(1)
    before = made.hub.state.weights
    made.links.away = {(name, 2): "offline" for name in first["leaders"].values()}
    second = made.round(2)
    assert second["skipped"].startswith("no leader has answered")
    assert "offline" in second["skipped"]
    np.testing.assert_array_equal(made.hub.state.weights, before)
    third = made.round(3)
    assert not set(third["leaders"].values()) & set(first["leaders"].values())
    assert "skipped" not in third
    assert set(counted(made).values()) == {1}


def test_one_leader_alone_does_not_have_its_model_opened() -> None:
    made = ofl(TARGETS[:6], recluster_every=6, **WHOLE)
    leaders = made.round(1)["leaders"]
    made.links.away = {(leaders["0"], 2): "offline"}
    assert "a sum of one model would show it" in made.round(2)["skipped"]


def test_a_leader_goes_on_with_its_own_model_after_a_skipped_round() -> None:
    """What it took in the skipped round is in the model of the next, and is not taken again."""
    made = ofl(TARGETS[:6], recluster_every=6, **WHOLE)
    leaders = made.round(1)["leaders"]
    made.links.away = {(leaders["0"], 2): "offline"}
    made.round(2)
    held = made.party(leaders["1"]).secret.office.model.copy()
    made.round(3)
    cluster = made.hub.members()[1]
    sent = uploads(made)
    changes = [sent[name, 3].values for name in cluster if name != leaders["1"]]
    model = made.view("server")
    assert model
    assert len(changes) == len(cluster) - 1
    assert (held != 0).any()


def test_what_leaders_have_counted_in_a_skipped_first_round_stays_in_their_models() -> None:
    made = ofl(TARGETS[:6], recluster_every=6, **WHOLE)
    lost = {"Answer", "Partials"}
    made.transport.intercept = lambda e, frame: [] if e.kind in lost and e.round == 1 else [frame]
    assert "skipped" in made.round(1)
    made.transport.intercept = None
    assert made.hub.state.counted == {f"client/{i}": 1 for i in range(6)}
    asked: list[bool] = []
    for leader in made.hub.state.leaders.values():
        held = made.party(leader).secret.office.model
        misbehaving(made.party(leader), Lead, began_with(held, asked))
    assert "skipped" not in made.round(2)
    assert asked == [True, True]


def began_with(held: np.ndarray, asked: list[bool]) -> Any:
    """The leader says whether its new model is this one with its members' uploads, and answers as it should."""

    def say(self: Any, msg: Lead, led: Any) -> Any:
        sent = [self.secret.office.model - held]
        asked.append(msg.weights is None and np.abs(sent[0]).max() > 0)
        return led

    return say


def test_a_leader_whose_model_has_no_room_under_encryption_begins_anew() -> None:
    """Noise of 800 a value fits no cipher. Once the budgets are spent, all rounds are as they should be."""
    made = ofl(TARGETS[:6], recluster_every=9, **{**WHOLE, "noise": 4.0, "epsilon": 1.0})
    notes = made.rounds(6)
    assert "skipped" in notes[0]
    assert "skipped" not in notes[-1]


def test_former_leaders_erase_their_shares_also_those_that_were_away() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=1, **WHOLE)
    first = made.round(1)["leaders"]["0"]
    made.transport.intercept = lambda e, frame: [] if (e.kind, e.dst) == ("JointKey", first) else [frame]
    second = set(made.round(2)["leaders"].values())
    assert holders(made) == second | {first}
    made.transport.intercept = None
    third = set(made.round(3)["leaders"].values())
    assert holders(made) == third


def holders(made: Any) -> set[str]:
    """Who has a share of any key."""
    return {name for name in made.common.clients if made.party(name).secret.joint.held}


def test_a_key_whose_openings_are_spent_costs_one_round() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=9, **WHOLE)
    leaders = made.round(1)["leaders"].values()
    for name in leaders:
        party = made.party(name)
        party.secret.joint.account(MODEL, Answered(b"", party.joint.of(MODEL).openings))
    assert "refused" in made.round(2)["skipped"]
    assert "skipped" not in made.round(3)


def test_a_cluster_of_one_leads_itself() -> None:
    targets = planted([0, 0, 0, 1], 24)
    made = ofl(targets, clusters=4, **WHOLE)
    note = made.round(1)
    assert note["clusters"]["sizes"] == [1, 1, 1, 1]
    assert note["participants"] == 4
    assert "skipped" not in note


def test_members_that_leave_before_their_leader_are_missing_and_no_more() -> None:
    made = ofl(TARGETS, clusters=3, recluster_every=6, **WHOLE)
    made.round(1)
    gone = next(name for name in members(made, 0) if name not in made.hub.state.leaders.values())
    made.links.away = {(gone, 2): "dropped", (gone, 3): "offline"}
    made.round(2)
    made.round(3)
    assert {r for name, r in counted(made) if name == gone} == {1}
    made.links.away = {}
    made.round(4)
    assert {r for name, r in counted(made) if name == gone} == {1, 4}


def test_nobody_there_is_a_skipped_round_with_a_reason_and_the_next_begins_anew() -> None:
    made = ofl(TARGETS[:6], recluster_every=6, **WHOLE)
    made.links.away = {(name, 1): "offline" for name in made.common.clients}
    assert made.round(1)["skipped"] == "no client has reported, so there is no leader"
    note = made.round(2)
    assert note["participants"] == 6
    assert "skipped" not in note
