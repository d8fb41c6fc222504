"""Delays and the server that never waits: who is late, used once, not too old, in order, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Rig, Steady, misbehaving, on_the_wire, rig, spec_of

import coterie.method as fl
from coterie.baselines.late import SYSTEMS
from coterie.devices.links import Delays
from coterie.protocols.late import LateTraining, Mean
from coterie.protocols.local_training import sample_clients

NAMES = tuple(f"client/{i}" for i in range(10))
TARGETS = np.random.default_rng(0).normal(size=(10, 12))
change = msgspec.structs.replace


def drawn_delays(names: tuple[str, ...], participation: float, share: float, law: str, seed: int) -> Delays:
    return Delays(lambda r: sample_clients(names, participation, seed, r), share, law, seed)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"server_lr": 0.0}, "server_lr"),
        ({"server_decay": -1.0}, "server_decay"),
        ({"max_staleness": -1}, "max_staleness"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fl.UserError, match=words):
        LateTraining(**settings)


# -- the server --------------------------------------------------------------------------------------------------------


def late_rig(system: fl.System = SYSTEMS["fedavg_late"], **settings: Any) -> Rig:
    return rig(system, TARGETS, **{"participation": 0.8, "delta": 0.4, **settings})


def handed(run: Rig, r: int) -> tuple[dict[str, Any], list[tuple[str, fl.Update]]]:
    """Run round r: its notes, and who handed the server what in it."""
    views = run.transport.transcript.views
    before = len(views["server"].seen) if "server" in views else 0
    notes = run.round(r)
    seen = views["server"].seen[before:] if "server" in views else []
    return notes, [(one.src, one.message) for one in seen]


def test_updates_come_when_the_delays_say_each_once_and_in_order() -> None:
    run = late_rig()
    table = drawn_delays(NAMES, 0.8, 0.4, "uniform:1-5", 0)
    arrivals: list[tuple[int, str, int]] = []  # when, who, of which round
    for r in range(1, 16):
        notes, updates = handed(run, r)
        arrivals += [(r, name, update.round) for name, update in updates]
        assert notes["asked"] == 8
        assert set(run.transport.meter.late) == set(table.of(r))
        assert not run.refused
        ages = Counter(r - update.round for _, update in updates)
        assert notes["staleness"] == [ages[age] for age in range(max(ages) + 1)]
        assert notes["participants"] == len(updates)
    expected = [(q + table.of(q).get(c, 0), c, q) for q in range(1, 16) for c in sample_clients(NAMES, 0.8, 0, q)]
    assert sorted(arrivals) == sorted(entry for entry in expected if entry[0] <= 15)
    assert max(when - q for when, _, q in arrivals) == 5
    for name in NAMES:  # late ones keep their order
        rounds = [q for when, c, q in arrivals if c == name and when > q]
        assert rounds == sorted(rounds)
    again = [q for when, c, q in arrivals if any(q < r < when for r in range(q + 1, when) if (when, c, r) in arrivals)]
    assert len(again) > 5  # clients were asked again while they were late


def test_a_late_update_is_what_the_client_made_of_the_model_it_was_sent() -> None:
    """Round q's update is the step from round q's model, whenever it comes."""
    run = late_rig()
    sent: dict[int, np.ndarray] = {}
    late = 0
    for r in range(1, 12):
        sent[r] = run.hub.state.weights
        for name, update in handed(run, r)[1]:
            step = 0.5 * (TARGETS[int(name.split("/")[1])].astype(np.float32) - sent[update.round])
            np.testing.assert_allclose(update.weights, step, atol=1e-6)
            late += update.round < r
    assert late > 10


@pytest.mark.parametrize("bound", [0, 2, 4])
def test_nothing_older_than_the_bound_is_used(bound: int) -> None:
    run, free = late_rig(max_staleness=bound), late_rig()
    for r in range(1, 12):
        notes, all_notes = run.round(r), free.round(r)
        ages = all_notes["staleness"]
        assert sum(notes["staleness"]) == sum(ages[: bound + 1])
        assert notes["too_old"] == sum(ages[bound + 1 :])
        assert all(r - q < 5 for rounds in run.hub.state.owed.values() for q in rounds)  # settled when they come
    assert not run.refused  # nobody did anything wrong


def test_the_step_of_the_server_decays_or_does_not() -> None:
    config = LateTraining(server_lr=0.8, server_decay=0.25)
    assert [config.server_step(r) for r in (1, 5, 13)] == pytest.approx([0.8, 0.4, 0.2])
    assert LateTraining(server_lr=0.8, server_decay=0.0).server_step(1000) == 0.8
    run = late_rig(server_lr=0.8, server_decay=0.25)
    assert [run.round(r)["server_step"] for r in range(1, 6)] == [config.server_step(r) for r in range(1, 6)]


def test_without_answers_the_model_stays() -> None:
    run = late_rig(delta=1.0, delay="uniform:3")
    before = run.models()[0]
    assert [run.round(r)["participants"] for r in (1, 2)] == [0, 0]
    np.testing.assert_array_equal(run.models()[0], before)
    assert run.transport.clock_s < 0.1  # nobody is waited for
    for r in (3, 4, 5):
        notes = run.round(r)
    assert notes["participants"] == 0 or run.models()[0].tobytes() != before.tobytes()


# -- late by their devices ---------------------------------------------------------------------------------------------


def devices(system: fl.System = SYSTEMS["fedavg_late"], **options: Any) -> Rig:
    """No delays are drawn: a client needs 1 s and 0.01 s each way, the slow ones more than the 1.5 s of a round."""
    return rig(system, TARGETS, **{"participation": 1.0, "delta": 0.0, "deadline_s": 1.5, **options})


def asked_in(run: Rig, name: str) -> list[int]:
    return [train.round for _, train in run.view(name).messages(fl.Train)]


def test_devices_and_a_deadline_make_clients_late_too() -> None:
    """Client 9 needs 2.5 s: asked at 0, its answer is there at 2.52, when the 1.02 s of round 2 are over, too.

    Round 2 doesn't ask it; round 3 does, and waits for it again until its deadline.
    """
    run = devices(links=Steady(slow={"client/9": 2.5}))
    notes = run.rounds(6)
    assert [note["staleness"] for note in notes] == 3 * [[9], [9, 1]]
    assert [(note["asked"], note["busy"]) for note in notes] == 3 * [(10, 0), (9, 1)]
    assert run.transport.clock_s == pytest.approx(3 * (1.5 + 1.02))


@pytest.mark.parametrize(("job_s", "age"), [(2.5, 1), (4.0, 3), (7.0, 6)])
def test_a_slow_clients_staleness_is_bounded_and_its_updates_keep_being_used(job_s: float, age: int) -> None:
    """It is asked when it has answered, so an answer is as late as the first one, for ever."""
    run = devices(links=Steady(slow={"client/9": job_s}))
    used: Counter[int] = Counter()
    for r in range(1, 25):
        notes, updates = handed(run, r)
        used.update(r - update.round for name, update in updates if name == "client/9")
        assert notes["too_old"] == 0
        assert notes["participants"] == len(updates)
        assert notes["asked"] + notes["busy"] == 10
    assert list(used) == [age]
    assert used[age] == 24 // (age + 1)


def test_a_client_that_is_slower_than_the_bound_is_asked_no_oftener_than_it_says() -> None:
    """Nothing of it is ever used. Each round that asks it lasts 1.5 s, the next two 1.02."""
    run = devices(links=Steady(slow={"client/9": 5.0}), max_staleness=2)
    notes = run.rounds(12)
    assert [note["busy"] for note in notes] == 4 * [0, 1, 1]
    assert all(len(note["staleness"]) == 1 for note in notes)


@pytest.mark.parametrize("system", [SYSTEMS["fedavg_drop"], SYSTEMS["fedavg_late"]])
def test_a_late_client_is_left_to_finish_where_nothing_late_is_used_too(system: fl.System) -> None:
    bound = {} if system is SYSTEMS["fedavg_drop"] else {"max_staleness": 0}
    notes = devices(system, links=Steady(slow={"client/9": 2.5}), **bound).rounds(10)
    assert [note["too_old"] for note in notes] == 5 * [0, 1]
    assert [note["busy"] for note in notes] == 5 * [0, 1]


def test_a_round_that_can_ask_nobody_waits_for_the_first_answer() -> None:
    """All need 3.5 s: the first round lasts its 1.5, the second 1.5 more, and the third until they are there."""
    run = devices(links=Steady(job_s=3.5))
    notes = run.rounds(3)
    assert [note["asked"] for note in notes] == [10, 0, 0]
    assert [note["staleness"] for note in notes] == [[], [], [0, 0, 10]]
    assert run.transport.clock_s == pytest.approx(3.52)


def test_a_client_whose_answer_was_lost_is_asked_again_once_it_would_be_too_old() -> None:
    """Its answer to round 1 is lost in round 2; those after it come."""
    run = devices(links=Steady(slow={"client/9": 2.5}), max_staleness=3)
    on_the_wire(run.transport, fl.Update, lambda update: None if update.round == 1 else update, src="client/9")
    assert [note["busy"] for note in run.rounds(8)] == [0, 1, 1, 1, 0, 1, 0, 1]
    assert asked_in(run, "client/9") == [1, 5, 7]


def test_who_is_known_not_to_answer_is_asked_again_in_the_next_round() -> None:
    """Client 1 is offline, client 2 gets a request that it refuses, client 3 sends no model."""
    run = devices(links=Steady(away={("client/1", 1): "offline"}))
    on_the_wire(run.transport, fl.Train, lambda train: change(train, spec=b"x" * 16), dst="client/2", rounds=[1])

    def empty(party: Any, request: fl.Train, update: fl.Update) -> fl.Update:
        return change(update, samples=0) if request.round == 1 else update

    misbehaving(run.party("client/3"), fl.Train, empty)
    assert [(note["participants"], note["busy"]) for note in run.rounds(2)] == [(7, 0), (10, 0)]


def test_with_a_deadline_clients_that_an_experiment_delays_are_left_to_finish_too() -> None:
    """The server cannot tell them from those with slow devices. Without a deadline it asks them again."""
    run, free = late_rig(deadline_s=100.0), late_rig()
    busy = 0
    for r in range(1, 9):
        before = {name for name, rounds in run.hub.state.owed.items() if rounds}
        chosen = sample_clients(NAMES, 0.8, 0, r)
        notes = run.round(r)
        assert (notes["asked"], notes["busy"]) == (8 - len(before & {*chosen}), len(before & {*chosen}))
        assert not [name for name in before if asked_in(run, name)[-1] == r]
        busy += notes["busy"]
        again = free.round(r)
        assert (again["asked"], again["busy"]) == (8, 0)
    assert busy > 4
    assert max(map(len, run.hub.state.owed.values())) == 1
    assert max(map(len, free.hub.state.owed.values())) > 1


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_an_update_that_is_sent_twice_is_used_once() -> None:
    """Every frame comes twice, and so do answers to repeated requests: three of four are refused, late or not."""
    run, honest = late_rig(), late_rig()
    run.transport.intercept = lambda envelope, frame: [frame, frame]
    for r in range(1, 6):
        twice, once = run.round(r), honest.round(r)
        assert twice == once
        assert run.refusals("server", "Update") == 3 * once["participants"]
    np.testing.assert_array_equal(run.models(), honest.models())


@pytest.mark.parametrize("bound", [0, 10])
def test_an_old_update_in_place_of_a_new_one_is_refused(bound: int) -> None:
    """The attacker makes what client 0 said in round 1, as a new frame, its answer to round 2."""
    run = late_rig(delta=0.0, participation=1.0, max_staleness=bound)
    first: list[fl.Update] = []

    def replay(update: fl.Update) -> fl.Update:
        first.append(update)
        return change(first[0], samples=10 + len(first))

    on_the_wire(run.transport, fl.Update, replay, src="client/0")
    assert run.round(1)["participants"] == 10
    notes = run.round(2)
    assert (notes["participants"], notes["too_old"]) == (9, 0)
    assert list(run.refused) == ["server/Update: client/0: an answer of round 1 to a request of round 2"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda u: change(u, round=u.round + 1), "to a request of round"),
        (lambda u: change(u, round=2**62), "to a request of round"),
        (lambda u: change(u, samples=0), "0 samples"),
        (lambda u: change(u, weights=u.weights[:-1]), "another shape"),
        (lambda u: change(u, spec=b"x" * 16), "another shape"),
        (lambda u: fl.codec.encode(u)[:-3], ""),
    ],
)
def test_what_the_server_refuses(bad: Any, words: str) -> None:
    """One liar changes nothing but its own part: the model is that of a federation where it is not heard."""
    run, without = (late_rig(delta=0.0, participation=1.0) for _ in range(2))
    on_the_wire(run.transport, fl.Update, bad, src="client/3")
    on_the_wire(without.transport, fl.Update, lambda update: None, src="client/3")
    for r in (1, 2):
        assert run.round(r)["participants"] == without.round(r)["participants"] == 9
        assert run.refusals("server", "Update") == 1
        assert words in next(iter(run.refused))
    np.testing.assert_array_equal(run.models(), without.models())


def test_an_update_nobody_asked_for_is_refused() -> None:
    """A client that answers in another's name is impossible on its own link; one that answers unasked gains nothing."""
    run = late_rig(delta=0.0, participation=0.5)
    asked = sample_clients(NAMES, 0.5, 0, 1)
    chatty = run.party(asked[0])

    def twice(party: Any, request: fl.Train, update: fl.Update) -> Any:
        from coterie.protocol.party import To

        return To("server", update), To("server", update), To("server", change(update, round=request.round + 1))

    misbehaving(chatty, fl.Train, twice)
    assert run.round(1)["participants"] == 5
    assert run.refusals("server", "Update") == 2


def test_a_request_whose_round_was_changed_on_the_way_is_answered_in_vain() -> None:
    run = late_rig(participation=1.0, delta=0.0)
    on_the_wire(run.transport, fl.Train, lambda train: change(train, round=10**17), dst="client/2")
    for r in range(1, 7):
        notes, updates = handed(run, r)
        assert [update.round for name, update in updates if name == "client/2"] == [10**17]
        assert run.refusals("server", "Update") == 1
        assert notes["participants"] == len(updates) - 1


def test_each_role_receives_exactly_what_the_system_says() -> None:
    for system in (SYSTEMS["fedavg_late"], SYSTEMS["fedavg_drop"]):
        run = late_rig(system)
        run.rounds(4)
        for role, sees in system.views("paper").items():
            kinds = set().union(*(view.kinds() for view in run.transport.transcript.of_role(role)))
            assert kinds == {kind.__name__ for kind in sees.receives}


def test_a_mean_may_be_taken_over_more_than_was_received() -> None:
    w = np.ones(4, np.float32)
    mean = Mean(spec_of(4), w, 0.5, of="change", weight=lambda staleness, samples: 1.0, over=4)
    mean.take(np.array([8, 0, 0, 0], np.float32), 0, 1)
    mean.take(np.array([0, 4, 0, 0], np.float32), 3, 9)
    assert mean.result().tolist() == [2.0, 1.5, 1.0, 1.0]


def test_clients_that_join_later_are_asked_and_late_from_then_on() -> None:
    run = late_rig(participation=1.0, founders=4, newcomers=3, join_every=5)
    for r in range(1, 13):
        notes = run.round(r)
        there = 4 + 3 * ((r - 1) // 5)
        assert notes["asked"] == min(there, 10)
        assert len(run.transport.meter.late) == round(0.4 * notes["asked"])
        assert set(run.transport.meter.late) <= set(NAMES[:there])
