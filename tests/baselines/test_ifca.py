"""IFCA: planted groups are found, a cluster that nobody chose keeps its model, and what doesn't fit is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from federation import Rig, Steady, misbehaving, on_the_wire, planted, rig
from sklearn.metrics import adjusted_rand_score

from coterie.baselines import fedavg, ifca
from coterie.protocols.averaging import Train
from coterie.runs import RunConfig, build

GROUPS = [0, 1, 0, 1, 0, 1]
TARGETS = planted(GROUPS, 20)
change = msgspec.structs.replace


def chosen(run: Rig) -> list[int]:
    return [run.party(name).state.cluster for name in run.common.clients]


def test_planted_groups_are_found_from_a_start_near_them_and_models_become_their_means() -> None:
    """As in their theorem 1, which needs a start that isn't nearer to the wrong group for everybody."""
    run = rig(ifca.SYSTEM, TARGETS, clusters=2, lr=1.0)
    start = np.stack([0.1 * TARGETS[0], 0.1 * TARGETS[1]]).astype(np.float32)
    run.hub.state = ifca.Server.State(start)
    run.rounds(3)
    assert adjusted_rand_score(GROUPS, chosen(run)) == 1.0
    for g in (0, 1):
        mean = TARGETS[np.array(GROUPS) == g].mean(axis=0)
        assert np.abs(run.models()[g] - mean).max() < 1e-5


def test_one_round_by_hand() -> None:
    """Each client's choice is its argmin over the losses; each model the mean of those who chose it, by samples."""
    run = rig(ifca.SYSTEM, TARGETS, clusters=3, lr=0.3, seed=5)
    before = run.hub.state.weights.astype(np.float64)
    choice = ((before[None] - TARGETS[:, None]) ** 2).sum(axis=2).argmin(axis=1)
    trained = before[choice] + 0.3 * (TARGETS - before[choice])
    note = run.round(1)
    assert note["membership"] == [[int(k)] for k in choice]
    assert note["clusters"]["sizes"] == np.bincount(choice, minlength=3).tolist()
    for k in range(3):
        expected = trained[choice == k].mean(axis=0) if (choice == k).any() else before[k]
        assert np.abs(run.hub.state.weights[k] - expected).max() < 1e-6


def test_a_cluster_that_nobody_chose_keeps_its_model() -> None:
    run = rig(ifca.SYSTEM, TARGETS, clusters=2)
    far = np.stack([TARGETS.mean(axis=0), np.full(20, 1e4)]).astype(np.float32)
    run.hub.state = ifca.Server.State(far)
    note = run.round(1)
    assert note["clusters"]["sizes"] == [6, 0]
    assert (run.hub.state.weights[1] == far[1]).all()
    assert (run.hub.state.weights[0] != far[0]).any()


def test_one_cluster_is_fedavg() -> None:
    one, other = rig(ifca.SYSTEM, TARGETS, clusters=1), rig(fedavg.SYSTEM, TARGETS)
    for r in (1, 2, 3):
        one.round(r)
        other.round(r)
        assert one.models().tobytes() == other.models().tobytes()


def test_clients_with_permuted_labels_are_told_apart_on_digits() -> None:
    """Half of the clients read every digit as the next one: one model can't serve both, two can."""
    settings = {"clusters": 2, "lr": 0.05, "batch_size": 10}
    experiment = build(RunConfig("ifca", clients=6, rounds=6, partition="iid", seed=2, settings=settings))
    groups = [i % 2 for i in range(6)]
    for i, data in enumerate(experiment.effects.data.values()):
        if groups[i]:
            data.y.copy_((data.y + 1) % 10)
    experiment.set_up()
    notes = [experiment.round(r)["notes"] for r in range(1, 7)]
    found = [clusters[0] for clusters in notes[-1]["membership"]]
    assert adjusted_rand_score(groups, found) == 1.0
    models = experiment.models()
    for i, (name, data) in enumerate(experiment.effects.data.items()):
        for j in (0, 1):  # the own group's model fits, the other group's doesn't
            model = experiment.model.module_with(models[f"client/{j}"])
            with torch.inference_mode():
                right = float((model(data.x).argmax(dim=1) == data.y).float().mean())
            assert (right > 0.85) == (groups[i] == j), (name, j, right)


def test_who_is_away_keeps_its_cluster() -> None:
    links = Steady(away={("client/0", 2): "offline", ("client/1", 2): "dropped"})
    run = rig(ifca.SYSTEM, TARGETS, clusters=2, links=links)
    first = run.round(1)
    clusters = chosen(run)
    second = run.round(2)
    assert (first["participants"], second["participants"], second["asked"]) == (6, 4, 6)
    assert second["membership"][:2] == [[], []]
    assert chosen(run)[0] == clusters[0]
    for i, k in enumerate(chosen(run)):
        assert (run.models()[i] == run.hub.state.weights[k]).all()


def test_a_sample_of_the_clients_is_asked() -> None:
    run = rig(ifca.SYSTEM, TARGETS, clusters=2, participation=0.5)
    for note in run.rounds(4):
        assert (note["participants"], note["asked"], sum(note["clusters"]["sizes"])) == (3, 3, 3)


@pytest.mark.parametrize("cluster", [2, -1])
def test_an_update_for_no_cluster_is_refused(cluster: int) -> None:
    run = rig(ifca.SYSTEM, TARGETS, clusters=2)
    misbehaving(run.party("client/2"), Train, lambda p, request, update: change(update, cluster=cluster))
    note = run.round(1)
    assert note["participants"] == 5
    assert note["membership"][2] == []
    assert run.refusals("server", "Update") == 1


@pytest.mark.parametrize("count", [0, 20, 60])
def test_a_client_refuses_another_number_of_models(count: int) -> None:
    run = rig(ifca.SYSTEM, TARGETS, clusters=2)
    on_the_wire(run.transport, Train, lambda m: change(m, weights=np.zeros(count, np.float32)), dst="client/0")
    assert run.round(1)["participants"] == 5
    assert run.refusals("client", "Train") == 1
