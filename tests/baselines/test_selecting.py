"""HACCS and Oort: whom they select, by hand; what devices claim and what the server observes; liars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from federation import Pulled, Rig, Steady, misbehaving, planted, rig
from matrix import few
from sklearn.metrics import adjusted_rand_score

import coterie.method as fl
from coterie.baselines import fedavg, haccs, oort
from coterie.clustering.histograms import density_clusters, hellinger
from coterie.devices.profiles import SERVER
from coterie.protocol.interpreters import each
from coterie.protocols.selecting import Introduce, round_seconds
from coterie.record.folder import read_lines
from coterie.runs import Interrupted, RunConfig, build, run

GROUPS = [0, 0, 0, 1, 1, 1]
TARGETS = planted(GROUPS, 20)
SELECTING = pytest.mark.parametrize("system", [haccs.SYSTEM, oort.SYSTEM], ids=lambda system: system.name)
change = msgspec.structs.replace


class Labelled(Pulled):
    """Client i has 30 samples of class ``GROUPS[i]`` and 10 of class 2. Losses of a client are |w - target|^2 / 2."""

    def own(self, party: str) -> fl.OwnData:
        of = super().own(party)
        y = np.array([GROUPS[int(party.split("/")[1])]] * 30 + [2] * 10)
        return fl.OwnData(of.x, y)


def toy(system: fl.System, **options: Any) -> Rig:
    return rig(system, TARGETS, **{"effects": Labelled, "participation": 1 / 3, **options})


def picked(notes: list[dict[str, Any]]) -> Counter[str]:
    return Counter(name for note in notes for name in note["selected"])


# -- both --------------------------------------------------------------------------------------------------------------


@SELECTING
def test_with_everybody_selected_it_is_fedavg(system: fl.System) -> None:
    """The same clients on the same batches, so the models are equal bit for bit."""
    one, other = toy(system, participation=1.0), rig(fedavg.SYSTEM, TARGETS)
    for r in (1, 2, 3):
        assert one.round(r)["participants"] == 6
        other.round(r)
        assert one.models().tobytes() == other.models().tobytes()


@SELECTING
def test_a_round_selects_as_many_as_a_uniform_sample_would_have_and_only_those_that_joined(system: fl.System) -> None:
    made = toy(system, participation=0.5, founders=2, newcomers=2, join_every=2)
    for r, number in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        note = made.round(r)
        assert len(note["selected"]) == note["asked"] == note["participants"] == number
        assert set(note["selected"]) <= set(made.common.clients[: 2 + 2 * ((r - 1) // 2)])


@SELECTING
def test_durations_are_what_the_server_observes(system: fl.System) -> None:
    """A claim counts until there is an answer: 1 s of work and .01 s each way."""
    made = toy(system, links=Steady(slow={"client/2": 7.0}), participation=1.0)
    before = dict(made.hub.state.seconds)
    assert set(before.values()) == {0.0}, "no device knows a profile of itself here"
    made.round(1)
    state = made.hub.state
    seen = list(state.pool.duration) if system is oort.SYSTEM else [state.seconds[name] for name in made.common.clients]
    assert seen == pytest.approx([1.02, 1.02, 7.02, 1.02, 1.02, 1.02])


@pytest.mark.parametrize("name", few(["haccs", "oort", "flacc", "clsm_fl"], ["haccs"]))
def test_a_run_that_was_interrupted_ends_with_the_same_models(name: str, tmp_path: Path) -> None:
    settings = {"max_epochs": 1, "participation": 0.5}
    options: dict[str, Any] = {"partition": "labelsets:2", "devices": "mobile", "checkpoint_every": 1}
    config = RunConfig(name, clients=6, rounds=5, model="linear", settings=settings, **options)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    run(replace(config, out=str(tmp_path / "a")))
    with pytest.raises(Interrupted):
        run(replace(config, out=str(tmp_path / "b")), stop)
    run(replace(config, out=str(tmp_path / "b")), resume=True)
    a, b = ([line["models_sha256"] for line in read_lines(tmp_path / out / "metrics.jsonl")] for out in "ab")
    assert a == b
    assert len(a) == 5


def test_a_device_s_own_estimate_is_its_profile_s() -> None:
    """Two messages of 1000 bytes, and 2e9 flops, on a device of 1e9 flops/s, 100 B/s down and 50 up."""
    device = replace(SERVER, compute_flops_per_s=1e9, down_bytes_per_s=100.0, up_bytes_per_s=50.0, latency_s=0.5)
    empty = fl.OwnData(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    assert round_seconds(replace(empty, device=device), 2e9, 1000) == 1.0 + 10 + 20 + 2
    assert round_seconds(empty, 2e9, 1000) == 0.0


@SELECTING
@pytest.mark.parametrize("loss", [-1.0, 1e300])
def test_a_loss_that_no_model_has_is_refused_and_changes_nothing(system: fl.System, loss: float) -> None:
    honest, lied = (toy(system, participation=1.0) for _ in range(2))
    misbehaving(lied.party("client/2"), fl.Train, lambda p, request, answer: change(answer, loss=loss))
    assert lied.round(1)["participants"] == 5
    assert lied.refusals("server", "Scored") == 1
    honest.round(1)
    known = (
        lied.hub.state.losses
        if system is haccs.SYSTEM
        else {
            name for name, value in zip(lied.common.clients, lied.hub.state.pool.utility, strict=True) if value == value
        }
    )
    assert "client/2" not in known
    assert len(known) == 5


@SELECTING
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_speed_that_no_device_has_is_refused_and_its_device_is_not_selected(
    system: fl.System, seconds: float
) -> None:
    kind = haccs.Describe if system is haccs.SYSTEM else Introduce

    def wrap(federation: Any) -> None:
        misbehaving(federation.parties["client/0"], kind, lambda p, request, answer: change(answer, seconds=seconds))

    made = toy(system, wrap=wrap, participation=1.0)
    for note in made.rounds(2):
        assert note["asked"] == note["participants"] == 5
        assert "client/0" not in note["selected"]


# -- HACCS -------------------------------------------------------------------------------------------------------------


def test_the_fastest_device_of_each_cluster_is_asked_and_one_that_misses_steps_back() -> None:
    """Two clusters of three. Claims say nothing, so that ties go by number until durations are observed."""
    slow, away = {"client/0": 3.0, "client/3": 3.0, "client/5": 0.5}, {("client/5", r): "dropped" for r in range(9, 40)}
    made = toy(haccs.SYSTEM, epsilon=np.inf, links=Steady(slow=slow, away=away), participation=1.0)
    assert made.round(1)["selected"] == dict(zip(made.common.clients, GROUPS, strict=True))
    made.hub.config = replace(made.config, participation=1 / 3)
    notes = [made.round(r)["selected"] for r in range(2, 9)]
    assert set(picked([{"selected": one} for one in notes])) == {"client/1", "client/2", "client/4", "client/5"}
    assert all("client/5" in one for one in notes if "client/4" in one), "the fastest of its cluster comes first"
    r = next(r for r in range(9, 40) if "client/5" in made.round(r)["selected"])
    assert made.hub.state.missed["client/5"] == 1
    later = [set(made.hub.select(r)) for r in range(r + 1, r + 20)]
    assert any("client/4" in one for one in later)
    assert all({"client/3", "client/4"} <= one for one in later if "client/5" in one), "now it comes last"


def test_clusters_are_those_of_the_noisy_histograms_and_a_newcomer_is_put_with_its_like() -> None:
    made = toy(haccs.SYSTEM, epsilon=2.0, founders=4, newcomers=2, join_every=2, participation=1.0)
    counts = made.hub.state.counts
    assert set(counts) == set(made.common.clients[:4])
    assert any((counts[f"client/{i}"] != np.bincount([GROUPS[i]] * 30 + [2] * 10, minlength=3)).any() for i in range(4))
    notes = made.rounds(3)
    assert [note["clustered"] for note in notes] == [True, False, True]
    assert notes[0]["membership"] == [[0], [0], [0], [1], [], []]
    assert notes[2]["membership"] == [[g] for g in GROUPS]
    assert notes[2]["clusters"] == {"sizes": [3, 3]}
    every = np.stack([made.hub.state.counts[name] for name in made.common.clients])
    assert density_clusters(hellinger(every)).tolist() == GROUPS


def test_a_histogram_is_drawn_once_however_often_it_is_asked_for() -> None:
    """Else a server could ask again and again, and take the mean."""
    made = toy(haccs.SYSTEM, epsilon=0.1)
    first = {name: counts.tolist() for name, counts in made.hub.state.counts.items()}
    made.hub.state.counts.clear()
    made.hub.state.seconds.clear()
    made.round(1)
    assert {name: counts.tolist() for name, counts in made.hub.state.counts.items()} == first


BAD: list[tuple[str, Callable[[Any], Any]]] = [
    ("a negative count", lambda d: change(d, counts=d.counts - 10**6)),
    ("a count beyond measure", lambda d: change(d, counts=d.counts + (1 << 60))),
    ("fewer classes", lambda d: change(d, counts=d.counts[:-1])),
    ("more classes", lambda d: change(d, counts=np.append(d.counts, 1))),
    ("none", lambda d: change(d, counts=d.counts[:0])),
]


@pytest.mark.parametrize(("name", "lie"), BAD, ids=[name for name, _ in BAD])
def test_what_is_no_histogram_keeps_its_device_out_and_nobody_else(name: str, lie: Callable[[Any], Any]) -> None:
    def wrap(federation: Any) -> None:
        misbehaving(federation.parties["client/0"], haccs.Describe, lambda p, request, answer: lie(answer))

    made = toy(haccs.SYSTEM, wrap=wrap, participation=1.0)
    note = made.round(1)
    assert note["membership"] == [[], [0], [0], [1], [1], [1]]
    assert note["participants"] == note["asked"] == 5


def test_a_device_that_claims_to_be_fast_is_believed_until_its_first_answer() -> None:
    """It claims no time at all, and takes ten times as long: asked first, and then never again before the others."""
    links = Steady(slow={"client/0": 10.0})

    def wrap(federation: Any) -> None:
        for i in range(6):
            seconds = 1e-6 if i == 0 else 1.0
            misbehaving(
                federation.parties[f"client/{i}"], haccs.Describe,
                lambda p, request, answer, seconds=seconds: change(answer, seconds=seconds),
            )  # fmt: skip

    made = toy(haccs.SYSTEM, wrap=wrap, links=links, participation=1 / 6, rho=0.0, epsilon=np.inf)
    often = picked(made.rounds(30))
    assert often["client/0"] == 1
    assert often["client/1"] + often["client/2"] >= 8


def test_a_liar_about_its_loss_draws_rounds_to_its_cluster_but_not_to_itself() -> None:
    """The limit of a selection by loss: the largest loss that is taken has all later draws, but its cluster's fastest
    devices answer them. The liar is among these only if it is fast.
    """
    links = Steady(slow={"client/0": 2.0})
    made = toy(haccs.SYSTEM, links=links, participation=1 / 6, rho=0.0, epsilon=np.inf)
    misbehaving(made.party("client/0"), fl.Train, lambda p, request, answer: change(answer, loss=2.0**40))
    notes = made.rounds(40)
    assert picked(notes)["client/0"] == 1
    lied = next(r for r, note in enumerate(notes) if "client/0" in note["selected"])
    assert set(picked(notes[lied + 1 :])) == {"client/1", "client/2"}


@pytest.mark.parametrize("partition", few(["labelsets:2", "labelsets:5"], ["labelsets:2"]))
def test_planted_label_sets_are_found_under_noise_of_epsilon_one(partition: str) -> None:
    for seed in (0, 1):
        experiment = build(RunConfig("haccs", "digits", clients=20, rounds=1, partition=partition, seed=seed))
        experiment.set_up()
        experiment.round(1)
        found = experiment.system.observe(experiment.federation)
        assert adjusted_rand_score(experiment.split.groups, [k for (k,) in found["membership"]]) == 1.0
        released = np.array([found["histograms"][name] for name in experiment.common.clients])
        assert (released != experiment.label_counts).mean() > 0.4, "what is sent is not what is held"
        experiment.close()


def test_the_ledger_has_the_histogram_with_its_epsilon_and_every_model_without(tmp_path: Any) -> None:
    settings = {"epsilon": 2.0, "max_epochs": 1}
    done = run(RunConfig("haccs", clients=4, rounds=3, out=str(tmp_path / "h"), settings=settings))
    sent = Counter(name for line in done.rounds for name in line["notes"]["selected"])
    for name, own in done.summary["ledger"].items():
        rows = {row["what"]: row for row in own["releases"]}
        histogram = rows.pop("label histogram")
        assert (histogram["epsilon"], histogram["count"], histogram["rounds"]) == (2.0, 1, [0, 0])
        assert {row["count"] for row in rows.values()} == ({sent[name]} if sent[name] else set())  # model, and loss
        assert own["epsilon"]["replace one sample"] == ("infinite" if sent[name] else 2.0)
    plain = build(RunConfig("haccs", clients=3, rounds=1, settings={"epsilon": float("inf")}))
    plain.set_up()
    assert {one.mechanism for own in haccs.ledger(plain.federation).values() for one in own} == {"none"}
    plain.close()


def test_labels_that_are_no_classes_are_refused() -> None:
    experiment: Mapping[str, Any] = {"data": "digits", "task": "regression", "clients": 4, "rounds": 1}
    with pytest.raises(fl.UserError, match="needs classes as labels"):
        build(RunConfig("haccs", **experiment))


# -- Oort --------------------------------------------------------------------------------------------------------------


class Unequal(Pulled):
    """Client i has two samples of losses i and 7 i under any model, and claims 10 (i + 1) samples."""

    def losses(self, party: str, effect: fl.Losses) -> np.ndarray:
        i = int(party.split("/")[1])
        return np.array([[i, 7 * i]], np.float32)


def test_the_utility_of_a_client_by_hand() -> None:
    """|B| sqrt((i^2 + 49 i^2) / 2) = 5 i |B|; one sample each, as the made-up training says."""
    made = toy(oort.SYSTEM, effects=Unequal, participation=1.0)
    made.round(1)
    assert made.hub.state.pool.utility.tolist() == pytest.approx([0, 5, 10, 15, 20, 25])
    assert made.hub.state.pool.last.tolist() == [1] * 6


def test_clients_of_high_utility_are_asked_again_and_slow_ones_less() -> None:
    settings = {"effects": Unequal, "participation": 1.0, "exploration": 0.0, "least_exploration": 0.0, "clip": 1.0}
    plain, slowed = (
        toy(oort.SYSTEM, links=Steady(slow=slow), **settings, window=1, pace_step=0.5)
        for slow in ({}, {"client/5": 50.0})
    )
    for made in (plain, slowed):
        made.round(1)
        made.hub.config = replace(made.config, participation=1 / 3)
    assert plain.round(2)["selected"] == {"client/4": 0, "client/5": 0}
    assert "client/5" not in slowed.round(2)["selected"], "(1.02 / 50.02)^2 of its utility is left"


def test_who_was_never_tried_is_explored_by_claimed_speed() -> None:
    def wrap(federation: Any) -> None:
        for i in range(6):
            misbehaving(
                federation.parties[f"client/{i}"], Introduce,
                lambda p, request, answer, i=i: change(answer, seconds=1e-3 if i == 4 else 1e3),
            )  # fmt: skip

    first = [
        next(iter(toy(oort.SYSTEM, wrap=wrap, seed=s, participation=1 / 6).round(1)["selected"])) for s in range(5)
    ]
    assert first == ["client/4"] * 5


def test_a_client_that_never_answers_is_asked_and_missed_and_the_others_go_on() -> None:
    away = {("client/0", r): "offline" for r in range(1, 9)}
    notes = toy(oort.SYSTEM, links=Steady(away=away), participation=0.5).rounds(8)
    assert [note["asked"] - note["participants"] for note in notes] == [
        "client/0" in note["selected"] for note in notes
    ]
    assert len(picked(notes)) == 6


def test_a_liar_about_its_loss_and_samples_is_cut_off_at_another_s_utility() -> None:
    """Its utility counts as the largest that is within the quantile, so it gains a place, and not all of them."""
    made = toy(oort.SYSTEM, effects=Unequal, participation=1.0, clip=0.8, exploration=0.0, least_exploration=0.0)
    lie = lambda p, request, answer: change(answer, loss=2.0**40, samples=1 << 24)  # noqa: E731
    misbehaving(made.party("client/0"), fl.Train, lie)
    made.round(1)
    made.hub.config = replace(made.config, participation=1 / 3, clip=0.8, cutoff=1.0)
    often = picked([made.round(r) for r in range(2, 22)])
    assert often["client/0"] <= 20
    assert sum(often[f"client/{i}"] for i in range(1, 6)) >= 20, "at least one place of two goes to another"


def test_a_run_tells_what_it_did(tmp_path: Any) -> None:
    done = run(
        RunConfig("oort", clients=6, rounds=4, devices="mobile", out=str(tmp_path / "o"), settings={"window": 1})
    )
    assert all(set(line["notes"]["selected"]) <= {f"client/{i}" for i in range(6)} for line in done.rounds)
    assert done.rounds[-1]["notes"]["exploration"] == pytest.approx(0.9 * 0.98**4)


def test_losses_are_per_sample_effects() -> None:
    """``Pulled`` has one sample a client; its root mean square loss is that loss."""
    made = toy(oort.SYSTEM, participation=1.0)
    start = made.hub.state.weights.astype(float)
    made.transport.effects.table[fl.Losses] = each(made.transport.effects.losses)
    made.round(1)
    expected = np.square(start - TARGETS).sum(axis=1) / 2
    assert made.hub.state.pool.utility == pytest.approx(expected, rel=1e-5)
