"""What comes from a device is hostile until it is checked: what is refused, and how far a lie within bounds goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federation import Pulled, Rig, misbehaving, planted, rig
from matrix import few
from msgspec.structs import replace

from coterie.protocol.effects import Evaluated
from coterie.protocol.errors import PeerError
from coterie.systems.fedepc import SYSTEM
from coterie.systems.fedepc.contexts import MOST_LOSS
from coterie.systems.fedepc.messages import Describe, Train, Update

GROUPS = [0] * 6 + [1] * 6
TARGETS = planted(GROUPS, 24)
LIAR = "client/2"


def made(
    lie: Callable[[Any, Any, Any], Any] | None = None,
    kind: type[Any] = Describe,
    liars: tuple[str, ...] = (LIAR,),
    targets: np.ndarray = TARGETS,
    **options: Any,
) -> Rig:
    """A federation in which liars answer one kind of message with ``lie(party, request, honest answer)``."""

    def wrap(federation: Any) -> None:
        for name in liars if lie else ():
            misbehaving(federation.alter(name), kind, lie)

    given = {"extractor": "random", "converged": 0.0, "describe_every": 0, **options}
    return rig(SYSTEM, targets, wrap=wrap, **given)


def with_vector(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, Any, Any], Any]:
    return lambda party, msg, honest: replace(honest, vector=change(honest.vector).astype(np.float32))


REFUSED = {
    "below 0": with_vector(lambda v: np.append(v[:-1], -0.01)),
    "above 1": with_vector(lambda v: np.append(v[:-1], 1.01)),
    "NaN": with_vector(lambda v: np.append(v[:-1], np.nan)),
    "no vector before it has sent one": lambda party, msg, honest: replace(honest, vector=None),
    "a negative floor": lambda party, msg, honest: replace(honest, floor=-1e-9),
    "a floor that no divergence has": lambda party, msg, honest: replace(honest, floor=1e9),
    "no samples": lambda party, msg, honest: replace(honest, samples=0),
    "more samples than anybody": lambda party, msg, honest: replace(honest, samples=1 << 40),
    "no processor": lambda party, msg, honest: replace(honest, cpu_ghz=0.0),
    "a processor of 10^9 GHz": lambda party, msg, honest: replace(honest, cpu_ghz=1e9),
    "a negative memory": lambda party, msg, honest: replace(honest, memory_gib=-1.0),
}


@pytest.mark.parametrize("lie", REFUSED.values(), ids=REFUSED.keys())
def test_a_description_that_cannot_be_is_refused_and_its_device_belongs_to_no_cluster(lie: Any) -> None:
    run = made(lie)
    notes = run.round(1)
    assert sum(run.refused.values()) == 1, "asked again, refused again"
    numbers = [k for k in notes["membership"] if k]
    assert notes["membership"][2] == []
    assert numbers == [[1]] * 5 + [[0]] * 6, "the clusters of the other 11, the larger one first"
    run.round(2)
    assert sum(run.refused.values()) == 1
    assert run.models()[2].tobytes() == run.common.initial.tobytes(), "until it is described, it has W^0"
    assert np.abs(np.delete(run.models() - TARGETS, 2, axis=0)).max() < 1.0, "and all others train"


def test_a_device_that_refuses_to_be_described_is_asked_in_every_round_and_may_come_later() -> None:
    run = made(REFUSED["NaN"])
    assert run.round(1)["membership"][2] == []
    honest = type(run.party(LIAR)).__mro__[1]
    run.party(LIAR).__class__ = honest
    notes = run.round(2)
    assert notes["membership"][2] == notes["membership"][0]
    assert [(event["kind"], event["names"]) for event in notes["events"]] == [("joined", (LIAR,))]
    assert run.round(3)["events"] == []


TRAINING = {
    "a weight of 1e20": lambda party, msg, honest: replace(honest, weights=honest.weights + np.float32(1e20)),
    "no model": lambda party, msg, honest: replace(honest, weights=None),
    "no samples": lambda party, msg, honest: replace(honest, samples=0),
    "a negative loss": lambda party, msg, honest: replace(honest, loss=-1.0),
    "a loss beyond all bounds": lambda party, msg, honest: replace(honest, loss=2 * MOST_LOSS),
}


@pytest.mark.parametrize("lie", TRAINING.values(), ids=TRAINING.keys())
def test_an_update_that_cannot_be_changes_nothing(lie: Any) -> None:
    """The models are those of a federation in which this device is away for the round."""

    def when_chosen(party: Any, msg: Train, honest: Update) -> Any:
        return lie(party, msg, honest) if msg.chosen else honest

    run = made(when_chosen, Train, liars=tuple(f"client/{i}" for i in range(6)))
    notes = run.round(1)
    chosen = [name for name, k in notes["selected"].items() if k == 0]
    assert chosen
    assert sum(run.refused.values()) == len(chosen)
    assert run.models()[0].tobytes() == run.common.initial.tobytes()
    honest = made()
    honest.round(1)
    assert run.models()[6:].tobytes() == honest.models()[6:].tobytes(), "the other cluster trains as ever"


def test_a_model_of_a_device_that_was_to_measure_only_is_refused() -> None:
    def eager(party: Any, msg: Train, honest: Update) -> Any:
        return honest if msg.chosen else replace(honest, weights=msg.weights + np.float32(5))

    run, honest = made(eager, Train, liars=tuple(f"client/{i}" for i in range(12))), made()
    selected = run.round(1)["selected"]
    assert selected == honest.round(1)["selected"]
    assert run.refusals("server", "Update") == 12 - len(selected), "all that the panels were to measure"
    assert run.models().tobytes() == honest.models().tobytes()


# -- lies within the bounds --------------------------------------------------------------------------------------------


def spoilt(lie: Any, kind: type[Any], rounds: int = 8, **options: Any) -> tuple[Rig, Rig, list[dict[str, Any]]]:
    """A federation with a liar, one without, and the notes of the first."""
    run, honest = made(lie, kind, **options), made(**options)
    notes = run.rounds(rounds)
    honest.rounds(rounds)
    return run, honest, notes


def test_a_poisoned_model_spoils_its_own_cluster_at_most_and_as_far_as_one_of_the_chosen() -> None:
    """Eq. (15) gives each chosen device the same part: a push of P moves the model by P / |A_t| in a round."""
    push = np.float32(1000.0)

    def lie(party: Any, msg: Train, honest: Update) -> Any:
        return replace(honest, weights=honest.weights + push) if msg.chosen else honest

    run, honest, notes = spoilt(lie, Train, rounds=1, fill=1.0)
    chosen = [name for name, k in notes[0]["selected"].items() if k == 0]
    moved = run.models() - honest.models()
    if LIAR in chosen:
        np.testing.assert_allclose(moved[:6], push / len(chosen), rtol=1e-4)
    else:
        assert not moved[:6].any()
    run, honest, notes = spoilt(lie, Train, fill=1.0)
    assert any(LIAR in note["selected"] for note in notes)
    assert any(LIAR in note.get("outliers", {}) for note in notes), "it stands out, and is named"
    assert np.abs(run.models()[:6] - honest.models()[:6]).max() > 10
    assert run.models()[6:].tobytes() == honest.models()[6:].tobytes(), "not a bit of the other cluster"


BOASTS = {
    "a fast processor": lambda party, msg, honest: replace(honest, cpu_ghz=1000.0),
    "a huge memory": lambda party, msg, honest: replace(honest, memory_gib=1e6),
    "one sample": lambda party, msg, honest: replace(honest, samples=1),
}


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lie, id=name, marks=() if name == "one sample" else pytest.mark.long)
        for name, lie in BOASTS.items()
    ],
)
def test_a_boasting_device_is_not_chosen_much_more_often_and_never_as_two(lie: Any) -> None:
    """A cheap device always fits, so it may be chosen in every round of its cluster. Its part is 1 / |A_t| even then.

    Here the budget has room for 5 of 6 alike devices. A device that claims next to no cost lowers the budget and still
    counts as the median, so there is room for 4. An honest one is chosen, too, and has the same part.
    """
    rounds = 12
    run, honest, notes = spoilt(lie, Describe, rounds=rounds, participation=0.9, fill=1.0)
    assert run.hub.state.cluster_of == honest.hub.state.cluster_of
    for note in notes:
        own = [name for name, k in note["selected"].items() if k == 0]
        assert len(own) >= 4
    chosen = sum(LIAR in note["selected"] for note in notes)
    others = [sum(f"client/{i}" in note["selected"] for note in notes) for i in range(6) if i != 2]
    assert chosen <= rounds
    assert min(others) >= rounds // 4, "no honest device is shut out"


def test_a_device_that_claims_to_be_slow_cannot_raise_everybody_s_time_budget_without_bound() -> None:
    """Of a cluster of 6 alike devices the budget is p 6 c, or 5 c. One counts as 5 of them at most, in its own."""
    honest = made(participation=0.9)
    run = made(lambda party, msg, honest: replace(honest, samples=1 << 24, cpu_ghz=0.001), participation=0.9)
    budgets = [[one.hub.state.clusters[k].budget for k in (0, 1)] for one in (honest, run)]
    assert budgets[0] == pytest.approx([0.9 * 6 * 5.0] * 2)
    assert budgets[1] == pytest.approx([0.9 * (5 + 5) * 5.0, 0.9 * 6 * 5.0]), "it moves no other cluster's"
    assert run.round(1)["too_slow"] == [LIAR]
    assert all(LIAR not in note["selected"] for note in run.rounds(5)), "and then it is too slow to be chosen"


def test_a_liar_about_its_loss_moves_the_bandit_of_its_own_cluster_only() -> None:
    turn = {"at": 0}

    def lie(party: Any, msg: Train, honest: Update) -> Any:
        turn["at"] += 1
        return replace(honest, loss=MOST_LOSS if turn["at"] % 2 else 0.0)

    run, honest, notes = spoilt(lie, Train, rounds=10)
    other = [{name for name, k in note["selected"].items() if k == 1} for note in notes]
    expected = [{name for name, k in note["selected"].items() if k == 1} for note in made().rounds(10)]
    assert other == expected
    assert run.models()[6:].tobytes() == honest.models()[6:].tobytes()
    assert np.abs(run.models()[:6] - TARGETS[:6]).max() < 1.0, (
        "its cluster trains all the same: it can choose, not poison"
    )


def test_a_made_up_vector_moves_its_own_device_and_no_other() -> None:
    """Whatever vector one device claims, all others are grouped as they would be."""
    honest = made()
    expected = {name: k for name, k in honest.hub.state.cluster_of.items() if name != LIAR}
    source = np.random.default_rng(0)
    claims: list[Callable[[np.ndarray], np.ndarray]] = [
        np.zeros_like,
        np.ones_like,
        lambda v: 1 - v,
        lambda v: source.uniform(size=v.shape),
        lambda v: (1 / (1 + np.exp(-TARGETS[0])) + 1 / (1 + np.exp(-TARGETS[6]))) / 2,  # between the groups
    ]
    for claim in claims:
        run = made(with_vector(claim))
        found = {name: k for name, k in run.hub.state.cluster_of.items() if name != LIAR}
        same = {a: {b for b in found if found[b] == found[a]} for a in found}
        assert same == {a: {b for b in expected if expected[b] == expected[a]} for a in expected}


def test_a_flood_of_floors_does_not_make_a_device_like_all_others() -> None:
    run = made(lambda party, msg, honest: replace(honest, floor=5.0))
    found = {name: k for name, k in run.hub.state.cluster_of.items() if name != LIAR}
    assert len(set(found.values())) == 2


def test_honest_effects_are_those_of_the_rig() -> None:
    """A device with a diverged model says the largest loss that is taken, and not NaN, which no message may hold."""

    class Diverged(Pulled):
        def evaluate(self, party: str, effect: Any) -> Any:
            return Evaluated(float("nan"), 0.0, 1)

    run = made(effects=Diverged)
    notes = run.round(1)
    assert notes["participants"] > 0
    assert set(notes["loss"].values()) == {MOST_LOSS}


# -- a hub that asks for more ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", few([{}, {"extractor": "pretrained"}], [{"extractor": "pretrained"}]))
def test_a_device_describes_its_data_for_one_extractor_and_one_layer(settings: dict[str, Any]) -> None:
    run = made(send="noise", clip=1.0, **settings)
    request = run.hub.describe_request(1, LIAR)
    request = replace(request, weights=run.hub.state.extractor)
    device, others = run.party(LIAR), [replace(request, weights=request.weights + np.float32(1))]
    others += [replace(request, layer="another"), replace(request, clip=1e-300), replace(request, clip=1e300)]
    for other in others:
        device.state.said = None  # so that it would describe its data
        with pytest.raises(PeerError):
            drive(run, device.described(other))
    said, _ = drive(run, device.described(request))
    device.state.said = said
    assert drive(run, device.described(replace(request, clip=2.0, centre=request.centre / 2))) == (said, True)


def test_a_random_extractor_is_the_initial_model() -> None:
    run = made()
    device = run.party(LIAR)
    device.state.extractor = device.state.said = None
    request = replace(run.hub.describe_request(1, LIAR), weights=run.common.initial + np.float32(1))
    with pytest.raises(PeerError, match="another extractor"):
        drive(run, device.described(request))


def drive(run: Rig, work: Any) -> Any:
    """What a device's steps return, with the effects of the rig."""
    effect = next(work)
    try:
        while True:
            (result,) = run.transport.effects.run([(LIAR, effect)])
            effect = work.send(result)
    except StopIteration as done:
        return done.value
