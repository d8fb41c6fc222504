"""CFL and RFL-HA: planted groups, when a cluster is parted, absent clients, rounds by hand, heads that are none."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Steady, misbehaving, planted, rig
from sklearn.metrics import adjusted_rand_score

import coterie.method as fl
from coterie.baselines import cfl, fedavg, rfl_ha
from coterie.baselines.rfl_ha import Belong, Client, Lead, Train, balanced
from coterie.runs import RunConfig, run

GROUPS = [0, 1, 0, 1, 0, 1]
TARGETS = planted(GROUPS, 20)

# -- CFL ---------------------------------------------------------------------------------------------------------------


def grouped(made: Any) -> list[list[int]]:
    return fl.membership(made.common.clients, made.hub.state.groups)


def test_it_is_fedavg_until_the_mean_update_is_small_and_then_parts_the_groups() -> None:
    made, plain = rig(cfl.SYSTEM, TARGETS, lr=0.3), rig(fedavg.SYSTEM, TARGETS, lr=0.3)
    for r in range(1, 20):
        note = made.round(r)
        if note["parted"]:
            break
        plain.round(r)
        assert made.models().tobytes() == plain.models().tobytes()
    assert r > 1
    assert note["clusters"] == {"sizes": [3, 3]}
    assert adjusted_rand_score(GROUPS, [str(own) for own in grouped(made)]) == 1
    start = made.models()[0].astype(float)
    made.round(r + 1)
    for k in (0, 1):
        members = np.array(GROUPS) == k
        expected = (start + 0.3 * (TARGETS[members] - start)).mean(axis=0)
        assert np.abs(made.models()[members] - expected).max() < 1e-5


def test_more_than_two_groups_are_parted_one_after_the_other() -> None:
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    made = rig(cfl.SYSTEM, planted(groups, 40, seed=2), lr=0.3)
    made.rounds(40)
    assert adjusted_rand_score(groups, [str(own) for own in grouped(made)]) == 1


def test_clients_that_agree_stay_together() -> None:
    """Near the optimum of all, their updates are small too: none is above eps2."""
    made, plain = rig(cfl.SYSTEM, planted([0] * 6, 20), lr=0.3), rig(fedavg.SYSTEM, planted([0] * 6, 20), lr=0.3)
    made.rounds(15)
    plain.rounds(15)
    assert grouped(made) == [[0]] * 6
    assert made.models().tobytes() == plain.models().tobytes()


def test_a_client_that_was_absent_is_placed_by_its_next_update() -> None:
    groups = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    made = rig(cfl.SYSTEM, planted(groups, 30, seed=1), participation=0.7, lr=0.3)
    notes = made.rounds(40)
    assert any(note["parted"] for note in notes)
    assert not made.hub.state.waiting
    assert adjusted_rand_score(groups, [str(own) for own in grouped(made)]) == 1


def test_a_newcomer_joins_its_like() -> None:
    made = rig(cfl.SYSTEM, planted([0, 1, 0, 1, 1], 30, seed=3), founders=4, newcomers=1, join_every=20, lr=0.3)
    made.rounds(25)
    found = grouped(made)
    assert found[4] == found[1] != found[0]


def test_gamma_and_the_smallest_part_keep_clusters_whole() -> None:
    assert grouped(rig(cfl.SYSTEM, TARGETS, lr=0.3)) == [[]] * 6
    for settings in ({"gamma": 0.999}, {"smallest": 4}):
        made = rig(cfl.SYSTEM, TARGETS, lr=0.3, **settings)
        made.rounds(20)
        assert grouped(made) == [[0]] * 6


# -- RFL-HA ------------------------------------------------------------------------------------------------------------


def test_one_cluster_that_is_taken_over_is_fedavg() -> None:
    one, plain = rig(rfl_ha.SYSTEM, TARGETS, clusters=1, server_lr=1.0), rig(fedavg.SYSTEM, TARGETS)
    one.rounds(3)
    plain.rounds(3)
    assert np.abs(one.models() - plain.models()).max() < 1e-6


def test_cluster_models_are_mixed_in_by_hand() -> None:
    made = rig(rfl_ha.SYSTEM, TARGETS, clusters=3, server_lr=0.6, exponent=0.5, lr=0.3)
    start = made.models()[0].astype(float)
    note = made.round(1)
    clusters = {own[0]: own for own in made.hub.state.clusters}
    model = start
    for s, head in enumerate(note["arrived"]):
        members = [made.common.clients.index(name) for name in clusters[head]]
        mean = (start + 0.3 * (TARGETS[members] - start)).mean(axis=0)
        share = 0.6 * (1 + s) ** -0.5
        model = (1 - share) * model + share * mean
    assert np.abs(made.models()[0] - model).max() < 1e-6
    assert note["participants"] == 6
    assert note["clusters"] == {"sizes": [2, 2, 2]}


def test_clusters_are_balanced_and_of_like_speed() -> None:
    clients = tuple(f"client/{i}" for i in range(7))
    seconds = dict(zip(clients, [5.0, 1, 4, 2, 9, 8, 3], strict=True))
    assert balanced(seconds, clients, 3) == [
        ["client/1", "client/3", "client/6"],
        ["client/2", "client/0"],
        ["client/5", "client/4"],
    ]
    assert [len(own) for own in balanced(seconds, clients, 9)] == [1] * 7
    assert balanced({}, clients, 3) == []


def client_of(made: Any, name: str = "client/0") -> Client:
    return made.federation.parties[name]


def test_a_member_trains_for_its_own_head_only() -> None:
    made = rig(rfl_ha.SYSTEM, TARGETS, clusters=2)
    made.round(1)
    head, member = made.hub.state.clusters[0][:2]
    party = client_of(made, member)
    task = Train(2, party.spec.digest, party.common.initial)
    for other in set(made.common.clients) - {head}:
        with pytest.raises(fl.PeerError, match="not the head"):
            next(party.train(task, other))
    assert party.state.head == head


@pytest.mark.parametrize(
    ("head", "members", "count", "error"),
    [
        ("client/1", ["client/1", "client/0"], 2, fl.PeerError),  # told the members without being the head
        ("client/0", [], 0, fl.PeerError),  # the head without members
        ("client/0", ["client/1"], 1, fl.PeerError),
        ("client/0", ["client/0", "client/0"], 2, fl.PeerError),
        ("client/0", ["client/0", "server"], 2, fl.PeerError),
        ("client/0", ["client/0"], 5, fl.DecodeError),
        ("nobody", [], 0, fl.PeerError),
    ],
)
def test_a_cluster_that_is_none_is_refused(head: str, members: list[str], count: int, error: type) -> None:
    party = client_of(rig(rfl_ha.SYSTEM, TARGETS, clusters=2))
    with pytest.raises(error):
        party.belong(Belong(0, head, fl.bundle([name.encode() for name in members]), count), "server")


def test_a_head_without_an_answer_is_replaced_in_the_next_round() -> None:
    made = rig(rfl_ha.SYSTEM, TARGETS, clusters=2)
    made.round(1)
    first = made.hub.state.clusters[0][0]

    def refuses(party: Any, request: Any, answer: Any) -> Any:
        raise fl.PeerError("not today")

    misbehaving(client_of(made, first), Lead, refuses)
    note = made.round(2)
    assert first not in note["arrived"]
    note = made.round(3)
    assert note["leaders"]["0"] == made.hub.state.clusters[0][0] != first
    assert len(note["arrived"]) == 2
    assert first in made.hub.state.clusters[0]  # it still trains, as a member


def test_a_member_that_is_too_slow_costs_its_head_no_answer() -> None:
    """The head waits for less than the server does. Without the member, its cluster's mean is that of the others."""
    links = Steady()
    made = rig(rfl_ha.SYSTEM, TARGETS, links=links, clusters=1, server_lr=1.0, lr=0.3, deadline_s=10.0)
    links.slow["client/5"] = 100.0
    start = made.models()[0].astype(float)
    note = made.round(1)
    assert (note["participants"], note["arrived"]) == (5, ["client/0"])
    expected = (start + 0.3 * (TARGETS[:5] - start)).mean(axis=0)
    assert np.abs(made.models()[0] - expected).max() < 1e-6


LIES = {
    "another round": lambda answer: {"round": answer.round + 1},
    "another model": lambda answer: {"spec": bytes(len(answer.spec))},
    "not finite": lambda answer: {"weights": np.full_like(answer.weights, np.nan)},
    "too short": lambda answer: {"weights": answer.weights[1:]},
    "no samples": lambda answer: {"samples": 0},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_members_bad_answer_is_refused_and_the_others_count(lie: str) -> None:
    made = rig(rfl_ha.SYSTEM, TARGETS, clusters=1, server_lr=1.0, lr=0.3)
    start = made.models()[0].astype(float)
    bad = client_of(made, made.common.clients[-1])
    misbehaving(bad, Train, lambda party, request, answer: msgspec.structs.replace(answer, **LIES[lie](answer)))
    note = made.round(1)
    assert note["participants"] == 5
    expected = (start + 0.3 * (TARGETS[:-1] - start)).mean(axis=0)
    assert np.abs(made.models()[0] - expected).max() < 1e-6


def test_slow_devices_wait_for_their_like_only() -> None:
    """The first cluster's model arrives before the last one's, on devices of several speeds."""
    config = RunConfig(
        "rfl_ha", data="digits", model="linear", clients=12, rounds=2, devices="mixed", settings={"slowest": 1.0}
    )
    done = run(config)
    order, leaders = done.rounds[-1]["notes"]["arrived"], done.rounds[-1]["notes"]["leaders"]
    assert order[0] == leaders["0"]
    assert order[-1] == leaders["3"]
