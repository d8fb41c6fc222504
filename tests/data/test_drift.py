"""Drift: clients that exchange data in a run, with all that follows: sizes, groups, scores, resumption, audits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import die_at, kill_at
from hypothesis import given
from hypothesis import strategies as st
from matrix import few
from outcomes import alike, numbers

from coterie.baselines.fedavg import SYSTEM as FEDAVG
from coterie.data.drift import Drift, drifted, parse_drift
from coterie.data.sources import load
from coterie.data.tasks import deal
from coterie.protocol.errors import UserError
from coterie.protocols.averaging import Server
from coterie.record import load as reports
from coterie.report import render
from coterie.runs import RunConfig, build, run
from coterie.runs.attacked import attacked, audit_content
from coterie.runs.config import resolve
from coterie.runs.recorded import read_recorded, record


class Killed(Server, role="server"):
    """FedAvg that dies in the middle of a run."""

    def round(self, r: int) -> Any:
        die_at(r)
        return (yield from super().round(r))


SYSTEM = replace(FEDAVG, parties=lambda config: {**FEDAVG.parties(config), "server": Killed})
HERE = RunConfig(
    "tests.data.test_drift:SYSTEM",
    data="digits",
    model="linear",
    clients=6,
    rounds=4,
    samples=300,
    partition="rotate:2+dirichlet:0.5",
    drift="0.5@3",
    checkpoint_every=1,
    fine_tune="held_out",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run to the end, with its views. Tests that write there have a copy."""
    out = tmp_path_factory.mktemp("drift") / "whole"
    run(replace(HERE, record=True, out=str(out)))
    return out


@given(clients=st.integers(2, 60), share=st.floats(0.01, 1), seed=st.integers(0, 1 << 30))
def test_the_chosen_pass_their_data_on_in_one_cycle(clients: int, share: float, seed: int) -> None:
    count = round(share * clients)
    if count < 2:
        with pytest.raises(UserError, match="at least two"):
            Drift(share, 2).givers(clients, seed)
        return
    givers = Drift(share, 2).givers(clients, seed)
    assert sorted(givers) == list(range(clients))
    moved = [i for i, giver in enumerate(givers) if giver != i]
    assert len(moved) == count
    at, seen = moved[0], set()
    while at not in seen:
        seen.add(at)
        at = givers[at]
    assert seen == set(moved)
    assert givers == Drift(share, 2).givers(clients, seed)


@pytest.mark.parametrize("text", ["", "0.2", "@3", "0.2@", "0@3", "-1@3", "1.5@3", "nan@3", "0.2@3.5", "0.2@-3", "a@3"])
def test_texts_that_are_no_drift(text: str) -> None:
    with pytest.raises(UserError, match="write SHARE@ROUND"):
        resolve(replace(HERE, drift=text))


@pytest.mark.parametrize("text", ["0.2@0", "0.2@1", "0.2@5"])
def test_rounds_in_which_nothing_drifts(text: str) -> None:
    with pytest.raises(UserError, match="between 2 and the last one, 4"):
        resolve(replace(HERE, drift=text))
    assert parse_drift("0.2@2", 5) == Drift(0.2, 2)
    assert parse_drift("1@5", 5) == Drift(1.0, 5)


def test_one_client_has_nobody_to_exchange_with() -> None:
    for clients, share in ((1, "1"), (6, "0.2")):
        with pytest.raises(UserError, match="at least two are needed"):
            build(replace(HERE, clients=clients, partition="iid", drift=f"{share}@3"))


def test_a_split_exchanges_all_that_belongs_to_a_client() -> None:
    split, _ = deal("rotate:2+dirichlet:0.3", load("digits"), 5, 0)
    givers = (1, 4, 2, 3, 0)
    after = drifted(split, givers)
    assert split.groups is not None
    assert after.groups is not None
    for i, giver in enumerate(givers):
        np.testing.assert_array_equal(after.train[i], split.train[giver])
        np.testing.assert_array_equal(after.test[i], split.test[giver])
        assert after.groups[i] == split.groups[giver]


def test_parties_effects_and_observer_follow() -> None:
    made = build(HERE)
    givers, names = made.dealt.givers, made.common.clients
    before, owns, counts, groups = dict(made.effects.data), dict(made.owns), made.label_counts, made.split.groups
    made.set_up()
    lines = [made.round(r) for r in (1, 2)]
    assert made.effects.data == before
    lines.append(made.round(3))
    assert any(giver != i for i, giver in enumerate(givers))
    assert groups is not None
    assert made.split.groups is not None
    for i, giver in enumerate(givers):
        name, other = names[i], names[giver]
        assert made.effects.data[name] is before[other] is made.observer.data[name]
        assert made.owns[name].samples == owns[other].samples == made.parties[name].samples
        assert made.owns[name].epochs == owns[name].epochs == made.parties[name].epochs  # its device is the same
        assert made.parties[name].own == made.owns[name]
        np.testing.assert_array_equal(made.label_counts[i], counts[giver])
        assert made.split.groups[i] == groups[giver]
    assert len({one.samples for one in owns.values()}) > 1
    made.close()


def test_scores_are_those_of_the_new_data() -> None:
    """Global scores are on the test set of a client's new task, counted here by hand."""
    made = build(HERE)
    made.set_up()
    *_, line = [made.round(r) for r in (1, 2, 3)]
    models, names = made.models(3), made.common.clients
    new = {names[i]: made.dealt.data[names[giver]] for i, giver in enumerate(made.dealt.givers)}
    for name, model in models.items():
        linear, test = made.model.module_with(np.array(model)), new[name].test_set
        hits = (linear(test.x).argmax(1) == test.y).float().mean()
        assert made.observer.scores({name: model}).values["global_accuracy"][0] == pytest.approx(float(hits))
    assert line["global_accuracy"] == made.observer.scores(models).means()["global_accuracy"]
    made.close()


def test_a_party_keeps_its_state_and_an_altered_one_its_object() -> None:
    made = build(replace(HERE, system="scaffold"))
    pairs = [pair for pair in enumerate(made.dealt.givers) if pair[0] != pair[1]]
    (i, giver), (j, _), *_ = pairs
    name, other = made.common.clients[i], made.common.clients[j]
    pinned = made.federation.alter(name)
    made.set_up()
    made.round(1)
    made.round(2)
    kept, asleep = {one: made.parties.dumped(one) for one in (name, other)}, made.parties[other]
    made.reach(3)
    assert {one: made.parties.dumped(one) for one in (name, other)} == kept
    assert made.parties[other] is not asleep
    assert made.parties[name] is pinned
    assert pinned.samples == len(made.dealt.data[made.common.clients[giver]].y)
    made.close()


@pytest.mark.parametrize(("at", "really"), few([(3, False), (3, True), (4, True)], {(3, False)}))
def test_a_run_that_is_killed_goes_on_with_the_same_numbers(at: int, really: bool, whole: Path, tmp_path: Path) -> None:
    """Killed in the round of the drift, before its checkpoint, and in the next one."""
    config = replace(HERE, out=str(tmp_path / "run"))
    kill_at(at, config, really=really)
    for drift in ("0.5@4", "1@3", None):
        with pytest.raises(UserError, match="drift"):
            run(replace(config, drift=drift), resume=True)
    again = run(config, resume=True)
    assert numbers(tmp_path / "run") == alike(numbers(whole))
    for name in ("partition.json", "clients.json", "models/index.json"):
        left, right = (json.loads((out / name).read_text()) for out in (tmp_path / "run", whole))
        assert left == alike(right)
    plain = run(replace(HERE, drift=None, out=str(tmp_path / "plain")))
    same = [a["models_sha256"] == b["models_sha256"] for a, b in zip(again.rounds, plain.rounds, strict=True)]
    assert same == [True, True, False, False]


def test_rounds_that_are_added_keep_the_drift(whole: Path, tmp_path: Path) -> None:
    config = replace(HERE, record=True, rounds=5, out=str(tmp_path / "run"))
    shutil.copytree(whole, tmp_path / "run")
    more, anew = run(config, resume=True), run(replace(config, out=str(tmp_path / "anew")))
    assert more.rounds[-1]["models_sha256"] == anew.rounds[-1]["models_sha256"]


def test_the_folder_says_whose_data_each_client_got(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    dealt = json.loads((tmp_path / "run" / "partition.json").read_text())
    of = dealt["drift"]["data_of"]
    made = build(HERE)
    assert (dealt["drift"]["round"], tuple(of)) == (3, made.dealt.givers)
    assert dealt["label_counts"] == made.label_counts.tolist()  # as it was dealt
    made.close()
    shown = reports.load(tmp_path / "run").partition  # as it is in the end, beside the last clusters
    assert shown.label_counts == tuple(tuple(dealt["label_counts"][i]) for i in of)
    assert shown.groups == tuple(dealt["groups"][i] for i in of)
    assert "Before round 3 some clients exchanged their data" in render([tmp_path / "run"]).read_text()
    for wrong in ([0] * 6, [0, 1], [5, 4, 3, 2, 1, 9]):
        dealt["drift"]["data_of"] = wrong
        (tmp_path / "run" / "partition.json").write_text(json.dumps(dealt))
        with pytest.raises(UserError, match="drift"):
            reports.load(tmp_path / "run")


def test_audits_look_at_the_rounds_before_it(whole: Path) -> None:
    """One truth holds for all that they attack: what clients were dealt."""
    config = replace(HERE, record=True)
    made = build(config)
    for found in (read_recorded(whole), record(config)):
        np.testing.assert_array_equal(found.label_counts, made.label_counts)
        np.testing.assert_array_equal(found.groups, made.split.groups)
        assert found.drifted == 3
        assert max(seen.round for view in found.views.values() for seen in view.seen) == 2
        assert [line["round"] for line in found.lines] == [1, 2]
        assert len(found.samples("client/0").y) == min(512, len(made.dealt.data["client/0"].y))
    assert audit_content(found, attacked(found))["drifted"] == 3
    made.close()
