"""FLACC and CLSM-FL: rounds by hand, planted groups, when clusters separate, later clients, liars."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Pulled, Rig, Steady, misbehaving, planted, rig
from matrix import few
from sklearn.metrics import adjusted_rand_score

import coterie.method as fl
from coterie.baselines import clsm_fl, fedavg, flacc
from coterie.baselines.clsm_fl import capabilities
from coterie.clustering.fuzzy import memberships
from coterie.runs import RunConfig, build, run

GROUPS = [0, 1, 0, 1, 0, 1]
TARGETS = planted(GROUPS, 20)
change = msgspec.structs.replace

# -- FLACC -------------------------------------------------------------------------------------------------------------


def grouped(made: Rig) -> list[list[int]]:
    return fl.membership(made.common.clients, made.hub.state.groups)


def test_it_is_fedavg_until_clusters_are_separate_and_then_a_federation_for_each() -> None:
    """Round 1 merges, rounds 2 and 3 are quiet: from round 4 on each cluster is the mean of its own."""
    made, plain = rig(flacc.SYSTEM, TARGETS, lr=0.3), rig(fedavg.SYSTEM, TARGETS, lr=0.3)
    for r in (1, 2, 3):
        note = made.round(r)
        plain.round(r)
        assert made.models().tobytes() == plain.models().tobytes()
        assert note["membership"] == [[k] for k in GROUPS]
        assert (note["clustered"], note["separate"]) == (r == 1, r == 3)
    start = made.models()[0].astype(float)
    made.round(4)
    for k in (0, 1):
        members = np.array(GROUPS) == k
        expected = (start + 0.3 * (TARGETS[members] - start)).mean(axis=0)
        assert np.abs(made.models()[members] - expected).max() < 1e-6


def test_directions_by_hand() -> None:
    """Every update of a round at the median length; a group's direction is the sum over its members and rounds."""
    made = rig(flacc.SYSTEM, TARGETS, lr=0.3)
    start = made.models()[0].astype(float)
    made.round(1)
    moved = 0.3 * (TARGETS - start)
    lengths = np.linalg.norm(moved, axis=1)
    equal = moved / lengths[:, None] * np.median(lengths)
    for k in (0, 1):
        expected = equal[np.array(GROUPS) == k].sum(axis=0)
        assert np.abs(made.hub.state.directions[k] - expected).max() < 1e-5


@pytest.mark.parametrize("participation", few([1.0, 0.5, 0.34], [0.34]))
def test_planted_groups_are_found_with_any_share_of_the_clients(participation: float) -> None:
    groups = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2]
    made = rig(flacc.SYSTEM, planted(groups, 30, seed=1), participation=participation, lr=0.1)
    notes = made.rounds(15)
    assert notes[-1]["separate"]
    assert adjusted_rand_score(groups, [str(own) for own in grouped(made)]) == 1.0
    first = next(r for r, note in enumerate(notes) if note["separate"])
    assert all(not note["clustered"] for note in notes[first - 1 : first + 1])


def test_clients_that_are_alike_are_one_cluster_and_that_stays_fedavg() -> None:
    targets = planted([0] * 6, 20)
    made, plain = rig(flacc.SYSTEM, targets), rig(fedavg.SYSTEM, targets)
    made.rounds(6)
    plain.rounds(6)
    assert grouped(made) == [[0]] * 6
    assert np.abs(made.models() - plain.models()).max() < 1e-6


def test_later_clients_join_their_like_or_begin_a_cluster() -> None:
    """Clients 4 and 5 join when two clusters are separate: one is like the first, the other like nobody."""
    targets = planted([0, 1, 0, 1, 0, 2], 20, seed=3)
    settings = {"founders": 4, "newcomers": 1, "join_every": 5, "lr": 0.1}
    made = rig(flacc.SYSTEM, targets, **settings)
    notes = made.rounds(12)
    assert notes[4]["membership"] == [[0], [1], [0], [1], [], []]
    assert notes[5]["membership"][4] == [0]
    assert notes[5]["clustered"]
    assert notes[10]["membership"][5] == [2]
    assert len(made.hub.state.models) == 3
    assert np.abs(made.models()[5] - targets[5]).max() < np.abs(made.models()[0] - targets[5]).max()


def test_a_cluster_of_which_nobody_was_asked_keeps_its_model_and_an_unmoved_client_has_no_direction() -> None:
    away = {(name, r): "offline" for r in range(4, 9) for name in ("client/1", "client/3", "client/5")}
    made = rig(flacc.SYSTEM, TARGETS, links=Steady(away=away))
    made.rounds(3)
    before = made.models()
    for r in range(4, 7):
        made.round(r)
    assert (made.models()[1] == before[1]).all()
    assert (made.models()[0] != before[0]).any()
    idle = rig(flacc.SYSTEM, TARGETS)
    misbehaving(idle.party("client/0"), fl.Train, lambda p, request, answer: change(answer, weights=request.weights))
    idle.rounds(4)
    assert grouped(idle)[0] == []
    assert [own[0] for own in grouped(idle)[1:]] == [0, 1, 0, 1, 0]


def test_a_liar_weighs_as_much_as_anyone_in_its_group_s_direction() -> None:
    """Its update is a million times as long, and unlike all others: it is alone, and others are grouped as ever."""
    made = rig(flacc.SYSTEM, TARGETS)
    lie = np.random.default_rng(99).normal(size=20)
    misbehaving(made.party("client/0"), fl.Train, lambda p, q, a: change(a, weights=(1e6 * lie).astype(np.float32)))
    made.round(1)
    found = [own[0] for own in grouped(made)]
    assert adjusted_rand_score(GROUPS[1:], found[1:]) == 1.0
    assert found.count(found[0]) == 1


@pytest.mark.parametrize("partition", few(["labelsets:2", "labelsets:5", "permute:4"], ["permute:4"]))
def test_flacc_finds_planted_groups_on_digits_with_half_of_the_clients(partition: str) -> None:
    settings = {"participation": 0.5, "max_epochs": 2, "slowest": 1.0}
    done = run(RunConfig("flacc", "digits", clients=12, rounds=9, partition=partition, settings=settings))
    assert done.summary["grouping"]["ari"] == 1.0
    assert done.rounds[-1]["notes"]["separate"]


# -- CLSM-FL -----------------------------------------------------------------------------------------------------------

SAMPLES = 12


class Judged(Pulled):
    """The server has 12 samples of three classes. A model's loss on class c is its distance to the c-th class's centre.

    The centres are the targets of clients 0, 1 and nobody.
    """

    def own(self, party: str) -> fl.OwnData:
        return fl.OwnData(np.zeros((SAMPLES, 1), np.float32), np.arange(SAMPLES) % 3)

    def losses(self, party: str, effect: fl.Losses) -> np.ndarray:
        assert party == "server"
        centres = np.stack([TARGETS[0], TARGETS[1], np.full(20, 9.0)])
        far = np.linalg.norm(effect.weights[:, None] - centres, axis=2) / 10
        return np.tile(far, SAMPLES // 3).astype(np.float32)


def clsm(**options: Any) -> Rig:
    return rig(clsm_fl.SYSTEM, TARGETS, **{"effects": Judged, "clusters": 2, **options})


def test_capabilities_are_mean_probabilities_of_the_right_answer() -> None:
    own = fl.OwnData(np.zeros((5, 1), np.float32), np.array([0, 2, 0, 2, 2]))
    losses = -np.log(np.array([[0.5, 1, 0.1, 0.2, 0.3], [1, 1, 1, 1, 1]], np.float32))
    assert capabilities(own, losses, 4).ravel().tolist() == pytest.approx([0.3, 0, 0.5, 0, 1, 0, 1, 0])
    broken = np.array([[np.nan, 0, np.inf, 0, 0]], np.float32)
    assert capabilities(own, broken, 4)[0].tolist() == [0, 0, 1, 0]


def test_one_round_by_hand() -> None:
    """Cluster models are means weighted by u^m and samples; each client gets the mixture of its own u."""
    made = clsm(lr=0.5, fuzzifier=1.7)
    start = made.hub.state.models[0].astype(float)
    note = made.round(1)
    trained = start + 0.5 * (TARGETS - start)
    rows = np.exp(-Judged(dict(zip(made.common.clients, TARGETS, strict=True))).losses(
        "server", fl.Losses(trained.astype(np.float32)))[:, :3].astype(float))  # fmt: skip
    state = made.hub.state
    u = memberships(rows, state.centres, 1.7)
    assert np.abs(np.stack([state.memberships[name] for name in made.common.clients]) - u).max() < 1e-4
    weights = u**1.7
    expected = weights.T @ trained / weights.sum(axis=0)[:, None]
    assert np.abs(state.models - expected).max() < 1e-4
    assert np.abs(made.models() - u @ expected).max() < 1e-4
    assert adjusted_rand_score(GROUPS, [own[0] for own in note["membership"]]) == 1.0


def test_one_cluster_is_fedavg() -> None:
    one, other = clsm(clusters=1), rig(fedavg.SYSTEM, TARGETS)
    for r in (1, 2, 3):
        one.round(r)
        other.round(r)
        assert np.abs(one.models() - other.models()).max() < 1e-6


def test_clients_that_are_not_asked_keep_their_place_and_new_ones_get_the_mean_of_all_clusters() -> None:
    made = clsm(participation=0.5)
    first = made.round(1)
    known = dict(made.hub.state.memberships)
    assert len(known) == first["participants"] == 3
    new = [i for i, name in enumerate(made.common.clients) if name not in known]
    assert np.abs(made.models()[new] - made.hub.state.models.mean(axis=0)).max() < 1e-6
    asked = fl.asked_in(made.common.clients, made.config, 0, 2)
    made.round(2)
    for name, u in known.items():
        assert name in asked or (made.hub.state.memberships[name] == u).all()
    assert set(made.hub.state.memberships) == {*known, *asked}


def test_a_liar_moves_each_cluster_by_its_membership_at_most() -> None:
    """Of each cluster's mean the liar has the share u^m / sum of u^m: it moves it by so much of its distance."""
    lied = clsm()
    misbehaving(lied.party("client/0"), fl.Train, lambda p, q, a: change(a, weights=np.full(20, 50.0, np.float32)))
    start = lied.hub.state.models[0].astype(float)
    assert lied.round(1)["participants"] == 6
    weights = np.stack([lied.hub.state.memberships[name] for name in lied.common.clients]) ** 2
    shares = weights / weights.sum(axis=0)
    honest = start + 0.5 * (TARGETS[1:] - start)
    assert np.abs(lied.hub.state.models - (shares[0][:, None] * 50 + shares[1:].T @ honest)).max() < 1e-3
    assert shares[0].max() < 1


def test_planted_label_sets_are_found_on_digits_with_as_many_clusters() -> None:
    for seed in (0, 1):
        settings = {"clusters": 2, "max_epochs": 3}
        done = run(RunConfig("clsm_fl", clients=10, rounds=4, partition="labelsets:2", seed=seed, settings=settings))
        assert done.summary["grouping"]["ari"] == 1.0
        assert done.summary["local_accuracy"] > 0.9


def test_without_public_samples_or_classes_it_says_what_to_do() -> None:
    with pytest.raises(fl.UserError, match=r"--public"):
        build(RunConfig("clsm_fl", clients=4, rounds=1, public=0.0))
    with pytest.raises(fl.UserError, match="needs classes as labels"):
        build(RunConfig("clsm_fl", clients=4, rounds=1, task="regression"))
