"""MingledPie's rounds by hand: eq. (2) to (8) against plain loops, exact modes, the rebuild's error, identity sets."""

from __future__ import annotations

import mingledpie_parts as pie
import numpy as np
import pytest
from federation import Pulled, planted

from benchmarks.ridge import rebuild_error
from coterie.clustering.identities import ClusterKeys
from coterie.clustering.identity_law import IdentityLaw
from coterie.protocol.messages import unbundle
from coterie.systems.mingledpie.messages import Mingled

N = len(pie.GROUPS)
SCATTERED = np.random.default_rng(4).normal(0, 0.3, (pie.K, pie.TARGETS.shape[1])).astype(np.float32)
"""Start models near nobody: which one fits best is not to be guessed from the groups."""


# -- one round ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emulated", pie.REALLY)
def test_one_round_by_hand(emulated: bool) -> None:
    """Choice, sets, sums, H and the new models, each from the paper's own equation."""
    run = pie.pies(starts=SCATTERED, lr=0.3, emulated=emulated, seed=3)
    note = run.round(1)
    true = pie.choices(SCATTERED, pie.TARGETS)
    assert len(set(true)) == pie.K
    assert true != sorted(true)
    assert pie.chosen(run) == true  # eq. (2)

    sets = pie.joined_sets(note)
    assert all(row[b] for row, b in zip(sets, true, strict=True))  # eq. (3)
    assert sets.sum(axis=1).min() >= 2  # T
    assert note["clusters"]["sizes"] == sets.sum(axis=0).tolist()

    theta = pie.trained(SCATTERED, pie.TARGETS, true, lr=0.3)
    sums, h = pie.mingled_sums(theta, true, sets)
    opened = opened_slots(run)
    assert np.abs(opened[:, : -pie.K] - sums).max() < pie.cipher_error("paper", "", N) + N * pie.FLOAT32  # eq. (5)
    assert np.abs(opened[:, -pie.K :] - h).max() < pie.cipher_error("paper", "", N)  # eq. (6)

    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    expected = pie.solved(sums, h, SCATTERED)
    for name in pie.EVERYBODY:
        assert (
            np.abs(pie.held(run, name) - expected).max() < pie.cipher_error("paper", "", N, h) + 100 * pie.FLOAT32
        )  # eq. (7)
    assert np.abs(expected - pie.cluster_means(theta, true, SCATTERED)).max() > 0.01  # it is no exact mean
    assert run.models().tobytes() == np.stack([pie.held(run)[b] for b in true]).tobytes()


def opened_slots(run, r: int = 1) -> np.ndarray:
    """(slots, width): what a client opens of a round's sums."""
    ((_, mingled),) = run.view("client/0").messages(Mingled, r)
    key = pie.key_of(run.party("client/0"))
    parts = unbundle(mingled.ciphers, run.party("client/0").layout.slots)
    return np.stack([key.decrypt(key.public.from_bytes(part)) for part in parts])


def test_three_rounds_equal_the_slow_twin() -> None:
    """Every round starts from what the last one gave, choices included."""
    run, models = pie.pies(starts=SCATTERED, lr=0.3, seed=3), SCATTERED.astype(np.float64)
    for r in (1, 2, 3):
        note = run.round(r)
        true = pie.choices(models, pie.TARGETS)
        assert pie.chosen(run) == true
        sums, h = pie.mingled_sums(pie.trained(models, pie.TARGETS, true, lr=0.3), true, pie.joined_sets(note))
        models = pie.solved(sums, h, models)
        assert np.abs(pie.held(run) - models).max() < 1e-4
    assert np.abs(models - SCATTERED).max() > 1


@pytest.mark.parametrize("hardening", ["uploads", "products"])
def test_exact_modes_are_the_mean_of_each_true_cluster(hardening: str) -> None:
    run, models = pie.pies(mode="hardened", hardening=hardening, starts=SCATTERED, lr=0.3), SCATTERED.astype(np.float64)
    for r in (1, 2, 3):
        run.round(r)
        true = pie.choices(models, pie.TARGETS)
        models = pie.cluster_means(pie.trained(models, pie.TARGETS, true, lr=0.3), true, models)
        assert pie.chosen(run) == true
        assert np.abs(pie.held(run) - models).max() < 4 * pie.cipher_error("hardened", hardening, N) + 10 * pie.FLOAT32


def test_the_twin_can_fail() -> None:
    """Sets that the clients did not join, or means where sums belong, and the models are far away."""
    run = pie.pies(lr=1.0)
    sets = pie.joined_sets(run.round(1))
    theta = pie.trained(pie.near(), pie.TARGETS, pie.GROUPS)
    for wrong in (np.roll(sets, 1, axis=0) | np.eye(pie.K, dtype=bool)[pie.GROUPS], np.ones_like(sets)):
        sums, h = pie.mingled_sums(theta, pie.GROUPS, wrong)
        assert np.abs(pie.held(run) - pie.solved(sums, h, pie.near())).max() > 0.01


# -- the rebuild's error -----------------------------------------------------------------------------------------------


def rebuilt_with(within: float, seed: int) -> tuple[float, float, np.ndarray]:
    """Largest and RMS distance to the exact cluster means after a round in which members differ by ``within``."""
    targets = planted(pie.GROUPS, 20, apart=3.0, within=within)
    run = pie.pies(targets, starts=pie.near(pie.TARGETS), seed=seed)
    sets = pie.joined_sets(run.round(1))
    assert run.party("client/0").state.why == ""
    error = pie.held(run) - pie.cluster_means(
        pie.trained(pie.near(pie.TARGETS), targets, pie.GROUPS), pie.GROUPS, pie.near(pie.TARGETS)
    )
    return float(np.abs(error).max()), float(np.sqrt((error**2).mean())), sets


@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.long), pytest.param(6, marks=pytest.mark.long)])
def test_the_rebuilds_error_is_proportional_to_how_much_members_differ(seed: int) -> None:
    """Identical members: exact. Otherwise it falls with their standard deviation, by as much as theory says."""
    none, _, _ = rebuilt_with(0.0, seed)
    assert none < 1e-5
    largest = [rebuilt_with(within, seed) for within in (0.1, 0.01)]
    assert largest[0][0] / largest[1][0] == pytest.approx(10, rel=0.01)
    predicted = 0.1 * np.sqrt((rebuild_error(largest[0][2], np.array(pie.GROUPS)) ** 2).mean())
    assert 0.6 < largest[0][1] / predicted < 1.6  # of 60 numbers


# -- identity sets -----------------------------------------------------------------------------------------------------


class Moving(Pulled):
    """Clients whose data change: ``at`` may be given others."""

    def move(self, name: str, group: int) -> None:
        self.targets[name] = pie.TARGETS[pie.GROUPS.index(group)]  # type: ignore[index]


def test_who_returns_to_a_cluster_uses_its_old_set_again() -> None:
    """A set for every true cluster, drawn once: an intersection over the rounds finds nothing new."""
    run = pie.pies(effects=Moving, seed=1)
    own = []
    for r, group in enumerate([0, 1, 0, 2, 1, 0], 1):
        run.transport.effects.move("client/0", group)
        note = run.round(r)
        assert pie.chosen(run)[0] == group
        own.append(note["membership"][0])
        assert group in own[-1]
    assert own[0] == own[2] == own[5]
    assert own[1] == own[4]
    party = run.party("client/0")
    assert party.secret.drawn == 3
    assert sorted(party.secret.sets) == [0, 1, 2]
    assert [run.party(name).secret.drawn for name in pie.EVERYBODY[1:]] == [1] * 11


def test_clients_of_one_cluster_draw_their_own_sets_and_these_follow_the_law() -> None:
    """60 clients, k = 5, p = .5, T = 2: the mean size is 3.13, and every wrong cluster is joined with .533."""
    groups = [i % 5 for i in range(60)]
    targets = planted(groups, 8, apart=3.0)
    run = pie.pies(targets, starts=pie.near(targets, groups), seed=5)
    sets = pie.joined_sets(run.round(1), 5)
    law = IdentityLaw(5, 0.5, 2)
    assert pie.chosen(run) == groups
    assert sets.sum(axis=1).min() >= 2
    for g in range(5):
        assert len({row.tobytes() for row in sets[g::5]}) > 4
    sizes = np.arange(1, 6)
    sd = np.sqrt((law.sizes @ sizes**2 - law.expected_size**2) / 60)
    assert abs(sets.sum(axis=1).mean() - law.expected_size) < 4 * sd
    wrong = (sets.sum() - 60) / 240
    assert abs(wrong - law.p_correct()) < 4 * sd / 4


# -- other keys, other p -----------------------------------------------------------------------------------------------


def test_new_keys_mean_new_sets_and_keep_sets_keeps_them() -> None:
    changing, keeping = (pie.pies(p_changes="3:0.25,5:0.125", keep_sets=keep) for keep in (False, True))
    notes = [[run.round(r) for r in range(1, 6)] for run in (changing, keeping)]
    assert [note["p"] for note in notes[0]] == [0.5, 0.5, 0.25, 0.25, 0.125]
    (first, *_), *_ = notes
    for run, drawn in ((changing, 3), (keeping, 1)):
        assert [run.party(name).secret.drawn for name in pie.EVERYBODY] == [drawn] * N
        assert ClusterKeys(run.party("client/3").state.keys).bits == 3
    sets = [[note["membership"] for note in run] for run in notes]
    assert sets[0][0] == sets[0][1] == sets[1][0]
    assert sets[0][2] == sets[0][3]
    assert sets[0][1] != sets[0][2] != sets[0][4]
    assert all(own == first["membership"] for own in sets[1])


def test_the_same_keys_again_draw_nothing_anew() -> None:
    """A server that has forgotten who has them sends them once more."""
    run = pie.pies()
    first = run.round(1)
    run.hub.state.noted.clear()
    second = run.round(2)
    assert run.party("client/3").state.noted == 2
    assert [run.party(name).secret.drawn for name in pie.EVERYBODY] == [1] * N
    assert first["membership"] == second["membership"]


def test_with_kept_sets_who_changes_its_cluster_draws_by_the_new_keys() -> None:
    run = pie.pies(effects=Moving, p_changes="2:0.03125", keep_sets=True, threshold=1, max_condition=1e9)
    run.round(1)
    for name in pie.EVERYBODY[:4]:
        run.transport.effects.move(name, 1)
    note = run.round(2)
    assert [run.party(name).secret.drawn for name in pie.EVERYBODY] == [2] * 4 + [1] * 8
    assert [note["membership"][i] for i in range(4)] == [[1]] * 4  # p is 1/32 now


# -- whose job is what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "hardening"), pie.FORMS)
def test_a_cluster_without_members_keeps_its_model_and_it_is_said(mode: str, hardening: str) -> None:
    """Nobody is near the third model; in mingled form others still join it by accident."""
    starts = pie.near()
    starts[2] = 50.0
    run = pie.pies(mode=mode, hardening=hardening, starts=starts, seed=4)
    note = run.round(1)
    assert set(pie.chosen(run)) == {0, 1}
    assert pie.held(run)[2].tobytes() == starts[2].tobytes()
    assert not (pie.held(run)[:2] == starts[:2]).any()
    state = run.party("client/0").state
    assert state.kept == (2,)
    assert state.why == "nobody was in cluster 2, so its model was kept"
    assert note["rebuilt"] == {"by": N, "refused_by": 0}
    if mode == "paper":
        assert note["clusters"]["sizes"][2] > 0
