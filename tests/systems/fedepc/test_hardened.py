"""FedEPC's mode hardened: the clusters and models of mode paper, and what each party may and may not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, planted, rig
from matrix import few
from msgspec.structs import replace

from coterie.clustering.isomorphic import Aidc, Groups
from coterie.crypto.packing import SEALED_BYTES
from coterie.crypto.roster import signed as sign
from coterie.protocol import codec
from coterie.protocol.steps import NoAnswerError
from coterie.protocols.anonymous import SERVICE, Relayed
from coterie.protocols.cluster_sums import ClusterModel, Convert
from coterie.systems.fedepc import SYSTEM
from coterie.systems.fedepc.helper import divergences, without_small
from coterie.systems.fedepc.messages import HELPER, Cluster, Concealed, Describe, Described, Train

GROUPS = [0] * 6 + [1] * 6
TARGETS = planted(GROUPS, 24)
STEP = 2.0**-16


def made(mode: str = "hardened", targets: np.ndarray = TARGETS, **options: Any) -> Rig:
    return rig(SYSTEM, targets, mode=mode, **{"extractor": "random", "converged": 0.0, **options})


@pytest.mark.parametrize("emulated", few([True, False], [True]))
def test_clusters_and_models_are_those_of_mode_paper(emulated: bool) -> None:
    """Vectors and models are rounded to fixed point; so groups are the same, and means as near as a rounding a round.

    All devices are chosen, since mode hardened would else choose at least three.
    """
    everybody = {"participation": 1.0, "fill": 1.0}
    hidden, plain = made(emulated=emulated, **everybody), made("paper", **everybody)
    for r in (1, 2, 3):
        notes, expected = hidden.round(r), plain.round(r)
        assert notes["membership"] == expected["membership"]
        assert notes["selected"] == expected["selected"]
        assert np.abs(hidden.models() - plain.models()).max() <= 2 * STEP
    assert np.abs(hidden.models() - hidden.common.initial).max() > 0.1


def test_a_choice_has_at_least_min_cluster_devices_and_a_smaller_sum_is_not_released() -> None:
    run = made(participation=0.7, min_cluster=4)
    sizes = [[sum(k == c for k in note["selected"].values()) for c in (0, 1)] for note in run.rounds(4)]
    assert np.min(sizes) >= 4
    first = made(participation=0.7, min_cluster=4).round(1)["selected"]
    gone = min(name for name, k in first.items() if k == 0)
    run = made(participation=0.7, min_cluster=4, links=Steady(away={(gone, 1): "vanished"}))
    notes = run.round(1)
    assert notes["unreleased"] == {"0": "only 3 models"}
    assert (run.models()[:6] == run.common.initial).all()
    assert (run.models()[6:] != run.common.initial).any()


def test_a_device_that_missed_a_sum_gets_it_before_it_trains_again() -> None:
    run = made(links=Steady(away={("client/1", 2): "offline"}), participation=1.0, fill=1.0)
    run.rounds(2)
    assert run.hub.state.has["client/1"] == (0, 1)
    assert run.models()[1].tobytes() != run.models()[0].tobytes()
    notes = run.round(3)
    assert "behind" not in notes
    assert notes["participants"] == 12
    assert run.models()[1].tobytes() == run.models()[0].tobytes()


def test_a_device_that_is_gone_leaves_its_cluster() -> None:
    """It gets no sums, so it is not asked to train either."""
    gone = "client/1"
    away = {(gone, r): "offline" for r in range(2, 9)}
    run = made(links=Steady(away=away), participation=1.0, fill=1.0, leave_after=3)
    memberships = [run.round(r)["membership"][1] for r in range(1, 11)]
    assert memberships == [[0]] * 3 + [[]] * 5 + [[0]] * 2
    assert run.models()[1].tobytes() == run.models()[0].tobytes()


def test_small_clusters_join_the_nearest() -> None:
    d = np.array([[0, 1, 5, 9], [1, 0, 5, 9], [5, 5, 0, 2], [9, 9, 2, 0]], float)
    assert without_small(d, np.array([0, 0, 4, 7]), 1).tolist() == [0, 0, 4, 7]
    assert without_small(d, np.array([0, 0, 4, 7]), 2).tolist() == [0, 0, 7, 7]
    assert len(set(without_small(d, np.array([0, 0, 4, 7]), 3).tolist())) == 1
    assert without_small(d[:1, :1], np.array([3]), 3).tolist() == [3], "all devices together are too few"


def test_a_cluster_of_devices_with_few_samples_seems_no_farther_away() -> None:
    """The first device is .0775 from the noisy devices 1 to 3 without their noise, and .085 from the others."""
    mjs = np.full((7, 7), 0.3, np.float32)
    mjs[0, 1:4] = mjs[1:4, 0] = 0.1
    mjs[0, 4:] = mjs[4:, 0] = 0.09
    np.fill_diagonal(mjs, 0)
    floors, labels = np.array([0.01, *[0.08] * 3, *[0.01] * 3]), np.array([5, 1, 1, 1, 2, 2, 2])
    groups = Groups(tuple("abcdefg"), np.full((7, 1), 0.5), floors, labels, 1.0, mjs, 1.0, "", 6)
    assert without_small(divergences(groups, Aidc()), labels, 3).tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert without_small(mjs, labels, 3)[0] == 2, "with their noise they would be farther away"


def test_the_hub_trains_a_lonely_device_with_its_nearest_cluster() -> None:
    run = made(targets=np.vstack([TARGETS, -3 * TARGETS[:1]]))
    sizes = run.round(1)["clusters"]["sizes"]
    assert sum(sizes) == 13
    assert min(sizes) >= 3
    assert len(set(run.party(HELPER).state.groups.labels.tolist())) == 3, "the helper knows that it is alone"


# -- what parties see --------------------------------------------------------------------------------------------------


def windows(values: np.ndarray) -> set[bytes]:
    """Every pair of neighbouring numbers of a vector as bytes, as float32 and float64."""
    pairs = {bytes(values[i : i + 2].astype(kind)) for kind in ("<f4", "<f8") for i in range(len(values) - 1)}
    return {pair for pair in pairs if len(set(pair)) > 2}


def frames(run: Rig, role: str) -> bytes:
    """Everything that a role could read."""
    seen = [one for view in run.transport.transcript.of_role(role) for one in view.seen if one.message is not None]
    return b"".join(codec.encode(one.message) for one in seen)


def test_the_hub_sees_no_vector_and_no_model_and_the_helper_no_name_and_no_model() -> None:
    run = made(emulated=False)
    models: set[bytes] = set()
    for r in (1, 2):
        run.round(r)
        models |= {pair for model in run.models() for pair in windows(model)}
    vectors = {pair for name in run.common.clients for pair in windows(run.party(name).state.said.vector)}
    assert min(len(models), len(vectors)) > 20
    hub, helper = frames(run, "server"), frames(run, HELPER)
    assert not any(pair in hub for pair in models | vectors)
    assert not any(pair in helper for pair in models)
    assert b"client/" not in helper
    opened = run.party(HELPER).state.groups.features
    said = np.stack([run.party(name).state.said.vector for name in run.common.clients])
    np.testing.assert_allclose(np.sort(opened, axis=0), np.sort(said, axis=0), atol=STEP)  # it has them all
    places = [run.common.clients.index(name) for name in run.hub.state.places]
    assert places != sorted(places), "in an order of the hub's"
    assert "client" not in "".join(run.party(HELPER).state.groups.names)


def test_paper_mode_shows_the_hub_all_of_it() -> None:
    """The test above can fail."""
    run = made("paper")
    run.round(1)
    vectors = {pair for name in run.common.clients for pair in windows(run.party(name).state.said.vector)}
    assert any(pair in frames(run, "server") for pair in vectors)
    assert len(list(run.view("server").messages(Described))) == 12


@pytest.mark.parametrize("emulated", [True, False])
def test_no_length_shows_how_many_models_a_sum_has(emulated: bool) -> None:
    run = made(targets=planted([0] * 4 + [1] * 8, 24), emulated=emulated, participation=1.0, fill=1.0)
    run.round(1)
    sums = list(run.view(HELPER).messages(Convert))
    assert sorted(one.count for _, one in sums) == [4, 8]
    assert len({codec.weighs(one.cipher) for _, one in sums}) == 1
    models = {
        codec.weighs(model.cipher) for name in run.common.clients for _, model in run.view(name).messages(ClusterModel)
    }
    assert len(models) == 1


# -- hostile parties ---------------------------------------------------------------------------------------------------


def with_liars(change: Any, kind: type[Any], names: tuple[str, ...], **options: Any) -> Rig:
    def wrap(federation: Any) -> None:
        for name in names:
            misbehaving(federation.alter(name), kind, change)

    return made(wrap=wrap, **options)


LIES = {
    "a ciphertext that is none": lambda party, msg, honest: signed(party, replace(honest, cipher=b"x" * 900)),
    "another one's signature": lambda party, msg, honest: replace(honest, samples=5),
    "no processor": lambda party, msg, honest: signed(party, replace(honest, cpu_ghz=0.0)),
    "unchanged, though never described": lambda party, msg, honest: signed(party, replace(honest, cipher=b"")),
}


def signed(party: Any, message: Any) -> Any:
    return sign(party.own, message)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_description_that_cannot_be_is_refused(lie: Any) -> None:
    run = with_liars(lie, Describe, ("client/2",))
    notes = run.round(1)
    assert notes["membership"][2] == []
    assert sum(bool(k) for k in notes["membership"]) == 11
    assert run.refusals("server", "Concealed") == 1


def test_a_vector_out_of_range_inside_a_ciphertext_is_refused_by_the_helper() -> None:
    def lie(party: Any, msg: Describe, honest: Concealed) -> Any:
        wild = np.append(party.state.said.vector + 5, 0.01)
        return signed(party, replace(honest, cipher=party.keys.public(SERVICE).encrypt(wild).to_bytes()))

    run = with_liars(lie, Describe, ("client/2",))
    notes = run.round(1)
    assert notes["membership"][2] == []
    assert run.refusals(HELPER, "Relayed") == 1


def test_a_helper_that_fails_in_a_round_leaves_the_clusters_as_they_are_until_it_is_back() -> None:
    run = made(founders=11, newcomers=1, join_every=1)
    helper = run.party(HELPER)
    honest = type(helper)
    misbehaving(helper, Cluster, lambda party, msg, answer: replace(answer, round=99))
    run.round(1)
    before = run.hub.state.cluster_of
    notes = run.round(2)
    assert notes["membership"][11] == []
    assert notes["participants"] > 0
    assert run.hub.state.cluster_of == before
    helper.__class__ = honest
    assert run.round(3)["membership"][11] == run.round(3 + 1)["membership"][10]


def test_a_device_that_leaves_before_the_helper_has_clustered_its_new_data() -> None:
    gone = "client/1"
    away = {(gone, r): "offline" for r in range(4, 20)}
    run = made(links=Steady(away=away), leave_after=1, describe_every=2, participation=1.0, fill=1.0)
    helper, effects = run.party(HELPER), run.transport.effects
    honest = type(helper)
    run.rounds(2)
    misbehaving(helper, Cluster, lambda party, msg, answer: replace(answer, round=99))
    effects.targets = {**effects.targets, gone: TARGETS[7]}
    run.round(3)
    assert set(run.hub.state.unsent) == {gone}
    run.round(4)
    helper.__class__ = honest
    assert [run.round(r)["membership"][1] for r in (5, 6)][-1] == []
    assert run.hub.state.unsent == {}


def with_keys(change: Any) -> Any:
    """An update whose model, under pads, ends in other sealed keys."""

    def lie(party: Any, msg: Train, honest: Any) -> Any:
        return signed(
            party, replace(honest, cipher=honest.cipher[:-SEALED_BYTES] + change(honest.cipher[-SEALED_BYTES:]))
        )

    return lie


UPDATES = {
    "two keys": with_keys(lambda key: 2 * key),
    "a loss of -1": lambda party, msg, honest: signed(party, replace(honest, loss=-1.0)),
    "a negative norm": lambda party, msg, honest: signed(party, replace(honest, gradient_norm=-1.0)),
    "a huge norm": lambda party, msg, honest: signed(party, replace(honest, gradient_norm=1e30)),
    "nothing": lambda party, msg, honest: signed(party, replace(honest, cipher=b"")),
    "garbage": lambda party, msg, honest: signed(party, replace(honest, cipher=b"y" * 1000)),
}


@pytest.mark.parametrize("lie", UPDATES.values(), ids=UPDATES.keys())
def test_an_update_that_cannot_be_is_left_out_of_the_sum(lie: Any) -> None:
    everybody = {"participation": 1.0, "fill": 1.0}
    run = with_liars(lie, Train, ("client/2",), emulated=False, **everybody)
    notes = run.round(1)
    assert run.refusals("server", "Sealed") == 1
    assert notes["participants"] == 11
    ((_, model),) = list(run.view("client/0").messages(ClusterModel))
    assert model.count == 5


def test_a_damaged_key_of_a_pad_costs_its_cluster_the_sum_and_no_other() -> None:
    lie = with_keys(lambda key: key[:-1] + bytes([key[-1] ^ 1]))
    run = with_liars(lie, Train, ("client/2",), emulated=False, participation=1.0, fill=1.0)
    notes = run.round(1)
    assert list(notes["unreleased"]) == ["0"]
    assert (run.models()[:6] == run.common.initial).all()
    assert (run.models()[6:] != run.common.initial).any()


@pytest.mark.parametrize(
    "change",
    [
        lambda party, msg, honest: replace(honest, labels=honest.labels + 1),
        lambda party, msg, honest: signed(party, replace(honest, labels=honest.labels[:-1])),
        lambda party, msg, honest: signed(party, replace(honest, positions=honest.positions * 0)),
        lambda party, msg, honest: signed(party, replace(honest, positions=honest.positions + 1)),
        lambda party, msg, honest: signed(party, replace(honest, labels=honest.labels - 5)),
    ],
)
def test_clusters_of_a_helper_that_cannot_be_end_the_set_up(change: Any) -> None:
    with pytest.raises(NoAnswerError):
        with_liars(change, Cluster, (HELPER,))


def test_members_take_no_sum_of_too_few_and_the_helper_converts_none() -> None:
    run = made()
    run.round(1)
    device, helper = run.party("client/0"), run.party(HELPER)
    ((_, model),) = list(run.view("client/0").messages(ClusterModel))
    small = replace(model, count=1)
    with pytest.raises(Exception, match=r"signature|sum of 1"):
        list(device.handlers[ClusterModel].run(device, small, "server"))
    with pytest.raises(Exception, match="a sum of 2 models, where at least 3"):
        list(helper.handlers[Convert].run(helper, Convert(2, 0, 2, b""), "server"))
    with pytest.raises(Exception, match="position 99"):
        list(helper.handlers[Relayed].run(helper, Relayed(2, 99, b""), "server"))
