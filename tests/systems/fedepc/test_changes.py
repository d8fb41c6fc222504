"""Devices that vanish, come later, leave, or change their data; how many train in a round, which clusters cannot; when
a run ends.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, Steady, misbehaving, planted, rig
from matrix import few
from msgspec.structs import replace

import coterie.method as fl
from coterie.runs import RunConfig, build, run
from coterie.selection.bandit import Bandit, Choice, Cics, choose
from coterie.systems.fedepc import SYSTEM
from coterie.systems.fedepc.clusters import Cluster, Pick, successor
from coterie.systems.fedepc.contexts import Known, room, time_budget
from coterie.systems.fedepc.messages import Describe, Described, Model, Train, Update

GROUPS = [0] * 6 + [1] * 6
TARGETS = planted(GROUPS, 24)


def made(targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    return rig(SYSTEM, targets, **{"extractor": "random", "converged": 0.0, **options})


def partition(run: Rig) -> set[frozenset[str]]:
    """The clusters, whatever their numbers."""
    return {frozenset(names) for names in run.hub.members().values()}


def named(*numbers: int) -> frozenset[str]:
    return frozenset(f"client/{i}" for i in numbers)


def asked(run: Rig) -> dict[str, int]:
    """How often each device was asked for a description."""
    views = run.transport.transcript.of_role("device")
    return {view.party: len(list(view.messages(Describe))) for view in views}


# -- who is there ------------------------------------------------------------------------------------------------------


def test_newcomers_are_described_when_they_join_and_only_they() -> None:
    order = [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    run = made(TARGETS[order], founders=8, newcomers=2, join_every=2)
    assert len(run.hub.state.cluster_of) == 8
    notes = run.round(1)
    assert notes["membership"][8:] == [[]] * 4
    assert notes["clustered"], "in the set-up"
    assert asked(run) == {f"client/{i}": 1 for i in range(8)}
    run.round(2)
    notes = run.round(3)  # two more
    assert [bool(k) for k in notes["membership"]] == [True] * 10 + [False] * 2
    assert notes["clustered"]
    assert {event["kind"] for event in notes["events"]} == {"joined"}
    assert not run.round(4)["clustered"]
    run.round(5)
    assert partition(run) == {named(*range(0, 12, 2)), named(*range(1, 12, 2))}
    assert asked(run) == {f"client/{i}": 1 for i in range(12)}
    assert fl.joined(run.common.clients, run.config, 5) == run.common.clients


def test_a_newcomer_begins_with_its_cluster_s_model() -> None:
    run = made(TARGETS, founders=11, newcomers=1, join_every=3)
    run.rounds(3)
    models = run.models()
    assert models[11].tobytes() == run.common.initial.tobytes()
    run.round(4)
    assert run.models()[11].tobytes() == run.models()[10].tobytes()


def test_a_device_that_vanishes_in_a_round_is_left_out_of_its_mean() -> None:
    first = made().round(1)["selected"]
    away = min(name for name, k in first.items() if k == 0)
    run = made(links=Steady(away={(away, 1): "vanished"}))
    notes = run.round(1)
    assert notes["selected"] == first
    assert notes["participants"] == len(first) - 1
    others = [name for name, k in first.items() if k == 0 and name != away]
    effects, start = Pulled(dict(zip(run.common.clients, TARGETS, strict=True))), run.common.initial
    fits = [effects.fit(name, fl.Fit(start, run.config.solver(), 1, 0)).weights for name in others]
    np.testing.assert_allclose(run.models()[0], np.mean(fits, axis=0), rtol=1e-6)


def test_where_all_chosen_devices_vanish_a_cluster_keeps_its_model_and_the_choice_brought_nothing() -> None:
    names = [f"client/{i}" for i in range(6)]
    run = made(links=Steady(away={(name, 2): "vanished" for name in names}))
    run.round(1)
    before = run.models()
    notes = run.round(2)
    assert (run.models()[:6] == before[:6]).all()
    assert (run.models()[6:] != before[6:]).any()
    assert run.hub.state.clusters[0].bandit.rewards.tolist() == [0.0]
    assert set(notes["selected"].values()) == {0, 1}
    run.round(3)
    assert (run.models()[:6] != before[:6]).any(), "and it goes on"


def test_a_device_that_is_gone_leaves_its_cluster_and_may_come_back() -> None:
    """After three requests without an answer. It is asked for a description in each round; old data cost nothing."""
    gone = "client/3"
    run = made(links=Steady(away={(gone, r): "offline" for r in range(1, 8)}), panel=12, leave_after=3)
    kinds = []
    for r in range(1, 11):
        notes = run.round(r)
        kinds += [(r, event["kind"], event["names"]) for event in notes["events"] if gone in event["names"]]
    assert kinds[-2:] == [(4, "left", (gone,)), (8, "joined", (gone,))]
    assert run.hub.state.cluster_of[gone] == run.hub.state.cluster_of["client/2"]
    ((r, sensitivity, _),) = run.party(gone).state.released  # it has described its data once, and said the same again
    assert (r, sensitivity) == (0, 0.0)
    assert run.models()[3].tobytes() == run.models()[2].tobytes()


def test_a_device_that_has_left_keeps_its_last_cluster_s_model() -> None:
    gone = "client/3"
    run = made(links=Steady(away={(gone, r): "offline" for r in range(1, 9)}), panel=12, leave_after=1)
    run.rounds(4)
    assert gone not in run.hub.state.cluster_of
    assert run.hub.membership()[3] == []
    assert run.models()[3].tobytes() == run.models()[2].tobytes()


def test_where_all_devices_are_gone_the_clusters_wait_for_those_that_come_back() -> None:
    everybody = [f"client/{i}" for i in range(12)]
    away = {(name, r): "offline" for name in everybody for r in range(2, 7)}
    run = made(links=Steady(away=away), panel=12, leave_after=2)
    run.round(1)
    before = partition(run)
    assert [note["participants"] for note in run.rounds(6)[1:]] == [0] * 5
    assert partition(run) == before
    assert run.round(7)["participants"] > 0
    assert {known.missed for known in run.hub.state.devices.values()} == {0}


# -- drift -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", few([0, 1, 3], [0, 3]))
def test_devices_that_change_their_data_move_when_they_are_described_again(every: int) -> None:
    run = made(describe_every=every)
    run.rounds(2)
    effects = run.transport.effects
    effects.targets = {**effects.targets, "client/0": TARGETS[7], "client/8": TARGETS[1]}
    moved = {r: run.round(r)["membership"] for r in range(3, 8)}
    old, new = [[g] for g in GROUPS], [[g] for g in [1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1]]
    first = {0: 99, 1: 3, 3: 4}[every]
    assert moved == {r: new if r >= first else old for r in range(3, 8)}
    again = [len([m for _, m in run.view("server").messages(Described) if m.vector is not None])]
    assert again == [12 + 2 * bool(every)], "only what has changed is described anew"


def test_unchanged_data_are_described_once_with_noise_too() -> None:
    run = made(send="noise", clip=1.0, epsilon=50.0, extractor="pretrained", describe_every=1, emulated=True)
    said = {name: run.party(name).state.said for name in run.common.clients}
    run.rounds(4)
    assert {name: run.party(name).state.said for name in run.common.clients} == said
    assert {len(run.party(name).state.released) for name in run.common.clients} == {1}
    assert run.round(5)["events"] == []
    described = [r for r in SYSTEM.ledger(run.federation)["client/0"] if r.mechanism == "gaussian"]
    assert [(r.round, r.sensitivity_l2) for r in described] == [(0, 2 * 1.0 / 5)]
    assert described[0].noise_multiplier == pytest.approx(run.config.multiplier())
    effects = run.transport.effects
    effects.targets = {**effects.targets, "client/0": TARGETS[7]}
    run.round(6)
    assert [len(run.party(name).state.released) for name in run.common.clients] == [2] + [1] * 11


def test_a_hub_that_has_lost_a_description_gets_the_same_again() -> None:
    run = made(send="noise", clip=1.0, extractor="pretrained")
    first = {seen.src: message.vector for seen, message in run.view("server").messages(Described)}
    run.hub.state.cluster_of, run.hub.state.groups, run.hub.state.clusters = {}, None, {}
    run.round(1)
    again = {seen.src: message.vector for seen, message in run.view("server").messages(Described)}
    assert all(first[name].tobytes() == again[name].tobytes() for name in run.common.clients)
    assert {len(run.party(name).state.released) for name in run.common.clients} == {1}


# -- clusters ----------------------------------------------------------------------------------------------------------


def test_devices_that_are_all_alike_are_one_cluster() -> None:
    run = made(np.tile(TARGETS[:1], (9, 1)))
    assert partition(run) == {named(*range(9))}
    run.rounds(5)
    assert np.abs(run.models() - TARGETS[0]).max() < 0.3


def test_one_device_alone_is_a_cluster_and_trains() -> None:
    run = made(TARGETS[:1])
    assert [note["selected"] for note in run.rounds(3)] == [{"client/0": 0}] * 3
    assert run.models()[0].tobytes() != run.common.initial.tobytes()


def test_a_new_cluster_begins_with_the_model_that_most_of_its_devices_had() -> None:
    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    known = {1: Cluster(weights=ones), 2: Cluster(weights=twos)}
    assert successor(["a", "b", "c"], {"a": 1, "b": 2, "c": 2}, known).weights is twos
    assert successor(["a", "b"], {"a": 2, "b": 1}, known).weights is ones, "of several the first"
    assert successor(["a", "b", "c"], {"c": 1}, known).weights is None, "most had W^0"
    assert successor(["a"], {"a": 7}, known).weights is None


def test_a_cluster_keeps_its_model_and_its_bandit_while_it_lives() -> None:
    run = made(founders=11, newcomers=1, join_every=4)
    run.rounds(4)
    before = run.hub.state.clusters
    learnt = {k: cluster.bandit.t for k, cluster in before.items()}
    run.round(5)
    assert run.hub.state.clusters.keys() == before.keys()
    assert all(run.hub.state.clusters[k].bandit.t > learnt[k] for k in before)


# -- the time budget ---------------------------------------------------------------------------------------------------


def test_a_cluster_that_cannot_meet_the_budget_is_skipped_and_picked_up_again() -> None:
    """10 samples at 2 GHz cost 5. A round of a budget of 4 has no device; when a device has less to do, it goes on."""
    run = made(time_budget=4.0)
    notes = run.round(1)
    assert notes["selected"] == {}
    assert "no device was chosen: the cheapest set of 1 costs 5, and the time budget is 4" in notes["skipped"]
    assert {choice["skipped"] for choice in notes["choices"].values()} == {notes["skipped"].split(": ", 1)[1]}
    run.party("client/1").samples = 6
    for r in (2, 3):  # its panel says in round 2 that it has less samples now
        notes = run.round(r)
    assert notes["selected"] == {"client/1": 0}
    assert notes["choices"]["1"]["skipped"]
    assert run.hub.state.clusters[1].bandit.t == 0, "nothing is learnt of a round without a choice"


def test_the_budget_is_the_share_of_a_cluster_s_work_and_at_least_what_an_ordinary_device_needs() -> None:
    alike = np.full(6, 10.0)
    assert time_budget(alike, 50.0, 0.9) == 0.9 * 60
    assert time_budget(alike, 50.0, 0.1) == 50
    assert time_budget(alike, 50.0, 0.1, least=3) == 150
    assert time_budget(np.array([1e9, *[10.0] * 9]), 50.0, 0.5) == 0.5 * (50 + 90), "one device counts as 50 at most"
    assert room(np.array([5.0, 1.0, 2.0]), 3.5, 0.1) == 2
    assert room(np.array([5.0, 5.0, 0.0]), 10.0, 0.1) == 2, "a device that costs nothing counts as the median"
    assert room(np.array([10.0, 10.0, 1e-3]), 9.0, 0.1) == 0, "nor is it the one that can keep a budget"


def test_liars_about_their_speed_make_no_room_that_the_choice_would_have_to_believe_in() -> None:
    """Six devices cost 1, and four claim to cost nothing. A budget of 2 has room for two devices, whoever they are.

    A larger least number of devices could be met only by taking the claims for true.
    """
    costs, budget, cics = np.array([1.0] * 6 + [1e-3] * 4), 2.0, Cics()
    assert room(costs, budget, cics.cheapest) == 2
    contexts = np.column_stack([1 / costs, np.ones(10), np.ones(10), np.ones(10), np.ones(10)])
    for fill in (0.5, 1.0):
        least = max(1, ceil(fill * room(costs, budget, cics.cheapest)))
        for seed in range(10):
            chosen = choose(Bandit(), contexts, costs, budget, cics, np.random.default_rng(seed), least).chosen
            assert least <= len(chosen) <= 2


def test_a_reward_compares_the_model_before_the_choice_with_the_one_after_it() -> None:
    """W^1, W^2 and W^3 have losses of 1, 1/2 and 1/4 everywhere. Device a does not measure W^2.

    The choice that made W^3 of W^2 halved the loss. A drop since W^1, by a, is not its own.
    """
    cluster, cics = Cluster(panel=("a", "b")), Cics()
    pick = Pick(Choice((0,)), ("a", "b"), np.ones((2, 5)))
    moves = []
    for losses in ({"a": 1.0, "b": 1.0}, {"b": 0.5}, {"a": 0.25, "b": 0.25}):
        moves.append(cluster.measured(losses, cics))
        pick.trained(cluster, {"a"}, cics)
        assert cluster.loss == losses["b"], "L_k stays known until the new model was measured"
    assert moves == [None, -0.5, -0.25]
    np.testing.assert_allclose(cluster.bandit.rewards, [np.log(2), np.log(2)])


def test_a_round_without_training_or_answers_leaves_the_reward_to_the_choice_before() -> None:
    cluster, cics = Cluster(panel=("a",)), Cics()
    pick = Pick(Choice((0,)), ("a",), np.ones((1, 5)))
    cluster.measured({"a": 1.0}, cics)
    pick.trained(cluster, {"a"}, cics)
    assert cluster.measured({}, cics) is None
    pick.trained(cluster, set(), cics)  # it brought nothing, and the model is the same
    assert cluster.measured({"a": 0.5}, cics) == -0.5
    np.testing.assert_allclose(cluster.bandit.rewards, [0, np.log(2)])


def test_contexts_are_those_of_eq_9() -> None:
    known = Known(40, 1.5, 8.0)
    assert known.context()[:3] == (1.5, 8.0, 40.0)
    assert np.isnan(known.context()[3:]).all()
    for loss, norm in ((9.0, 1.0), (7.0, float("nan")), (4.0, 3.0), (3.0, 5.0)):
        known.answered(40, loss, norm, 2)
    assert known.context() == (1.5, 8.0, 40.0, 4.0, (7.0 - 3.0) / 2), "two rounds are remembered"
    assert known.cost == 40 / 1.5


# -- the models that are handed out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribute", ["end", "round"])
def test_models_are_handed_out_at_the_end_or_after_every_round(distribute: str) -> None:
    run = made(distribute=distribute)
    for r in (1, 2, 3):
        run.round(r)
        held = [run.party(name).state.weights for name in run.common.clients]
        if distribute == "end":
            assert held == [None] * 12
        else:
            assert all(mine.tobytes() == model.tobytes() for mine, model in zip(held, run.models(), strict=True))
    notes = run.transport.drive(run.hub.finish(), 4)
    assert notes == {"distributed": 12 if distribute == "end" else 0, "missing": 0}
    for name, model in zip(run.common.clients, run.models(), strict=True):
        assert run.party(name).state.weights.tobytes() == model.tobytes()
    assert len(list(run.view("client/0").messages(Model))) == (1 if distribute == "end" else 3)


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_a_run_on_digits_learns_and_its_result_says_what_was_released(tmp_path: Any) -> None:
    settings = {
        "send": "noise",
        "epsilon": 8.0,
    }  # emulated: noise of the operating system groups devices anew each time
    result = run(RunConfig("fedepc", rounds=8, crypto="emulated", out=str(tmp_path / "run"), settings=settings))
    assert result.summary["local_accuracy"] > 0.8
    assert result.summary["crypto"] == "none"
    own = result.summary["ledger"]["client/0"]
    assert own["epsilon"]["replace one sample"] == "infinite", "models and losses have no proof"
    rows = {row["what"]: row for row in own["releases"]}
    assert rows["sparsity vector and noise floor"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert rows["sparsity vector and noise floor"]["count"] == 1


NEWCOMERS = {"founders": 15, "newcomers": 2, "join_every": 2}


@pytest.mark.parametrize("settings", few([{"send": "noise"}, NEWCOMERS], [NEWCOMERS]))
def test_a_run_that_is_continued_is_the_run_that_was_not_interrupted(settings: dict[str, Any], tmp_path: Any) -> None:
    options: dict[str, Any] = {"crypto": "emulated", "samples": 800, "settings": {**settings, "describe_every": 2}}
    whole = run(RunConfig("fedepc", rounds=5, out=str(tmp_path / "whole"), **options))
    run(RunConfig("fedepc", rounds=3, out=str(tmp_path / "parts"), **options))
    parts = run(RunConfig("fedepc", rounds=5, out=str(tmp_path / "parts"), **options), resume=True)
    for a, b in zip(whole.rounds, parts.rounds, strict=True):
        assert (a["models_sha256"], a["notes"]) == (b["models_sha256"], b["notes"])
    assert whole.summary["ledger"] == parts.summary["ledger"]


def test_the_literal_text_finds_no_groups_and_has_an_ari_of_0() -> None:
    """All noise: everybody is alone, or all are one cluster. Paper mode finds the planted groups (label sets)."""
    found = {}
    for mode in ("paper", "literal"):
        options: dict[str, Any] = {"partition": "labelsets:5", "rounds": 1, "seed": 0, "mode": mode}
        experiment = build(RunConfig("fedepc", **options))
        experiment.set_up()
        found[mode] = experiment.round(1)["grouping"]
        experiment.close()
    assert found["paper"]["ari"] > 0.95
    assert found["literal"]["ari"] == 0.0


def test_a_model_without_a_relu_is_refused_with_what_to_do() -> None:
    experiment = build(RunConfig("fedepc", model="linear", clients=4))
    with pytest.raises(fl.UserError, match="linear has no ReLU"):
        experiment.set_up()
    experiment.close()


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
