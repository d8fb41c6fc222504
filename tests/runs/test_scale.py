"""Very many clients: what is not asked takes no memory and no time, and the numbers are those of an ordinary run."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import sys
import tracemalloc
import weakref
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import interrupt
from every_system import model_for
from kept_parties import head
from matrix import few
from outcomes import alike, numbers

import coterie.method as fl
from coterie.crypto.roster import DerivedRoster, simulated
from coterie.data.dataset import ALIGNED
from coterie.protocol.names import each
from coterie.runs import RunConfig, evaluation, experiment, holdings, load, registry, run
from coterie.runs import parties as parties_of

SOME = RunConfig("fedavg", data="synthetic:8x4", clients=60, rounds=3, evaluated=60, settings={"participation": 0.1})


def config(clients: int, **others: Any) -> RunConfig:
    settings = {"participation": 20 / clients, "max_epochs": 1, **others.pop("settings", {})}
    return replace(SOME, clients=clients, evaluated=20, settings=settings, **others)


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_are_a_sequence_of_strings() -> None:
    names, plain = fl.Names(3, ["hub", "csp"]), ("hub", "csp", "client/0", "client/1", "client/2")
    assert names == plain
    assert tuple(names) == plain
    assert [names[i] for i in range(-5, 5)] == [plain[i] for i in range(-5, 5)]
    assert names[1:4] == plain[1:4]
    assert [names.index(name) for name in plain] == [*range(5)]
    assert names.numbered == plain[2:]
    strangers = ("client/3", "client/-1", "client/01", "client/", "client/1x", "Client/1", "client/1 ", "", 3, None)
    assert not any(name in names for name in strangers)
    assert "client/٣" not in names  # digits of another script are no number here
    for bad in (5, -6):
        with pytest.raises(IndexError):
            names[bad]
    with pytest.raises(ValueError, match="'client/3' is not among"):
        names.index("client/3")


def test_values_are_made_once_and_the_oldest_are_forgotten() -> None:
    made: list[str] = []
    found = fl.LazyMapping(fl.Names(5), lambda name: made.append(name) or name.upper(), held=2)  # type: ignore[func-returns-value]
    assert [found["client/1"], found["client/2"], found["client/1"]] == ["CLIENT/1", "CLIENT/2", "CLIENT/1"]
    assert found["client/3"] == "CLIENT/3"
    assert found["client/2"] == "CLIENT/2"
    assert made == ["client/1", "client/2", "client/3", "client/2"]
    assert (len(found), "client/4" in found, "client/5" in found) == (5, True, False)
    with pytest.raises(KeyError):
        found["client/5"]
    assert (
        dict(fl.listed(fl.Names(2), [7, 8]))
        == fl.listed(("client/0", "client/1"), [7, 8])
        == {"client/0": 7, "client/1": 8}
    )
    assert list(fl.listed(fl.Names(2), [7, 8]).values()) == [7, 8]
    assert each(("a", "b"), str.upper) == {"a": "A", "b": "B"}


@cache
def calls(clients: int, asked: int) -> int:
    """Python's and C's functions that a round calls, for so many clients."""
    made = experiment.build(replace(SOME, clients=clients, evaluated=10, settings={"participation": asked / clients}))
    made.set_up()
    made.round(1)
    counted = Counter[str]()
    sys.setprofile(lambda frame, event, argument: counted.update([event]))
    try:
        made.round(2)
    finally:
        sys.setprofile(None)
    made.close()
    return counted["call"] + counted["c_call"]


@pytest.mark.long
def test_a_round_of_very_many_clients_costs_what_those_asked_cost() -> None:
    """A quarter more is for making clients that were never asked before: their keys, data and parties."""
    assert calls(10_000, 100) < 1.28 * calls(100, 100)


def test_a_round_does_not_cost_the_square_of_its_clients() -> None:
    assert calls(80, 80) < 2.1 * calls(40, 40)


def test_a_derived_roster_has_the_keys_of_one_that_is_made_at_once() -> None:
    made = experiment.build(config(30))
    roster = made.common.roster
    assert isinstance(roster, DerivedRoster)
    names = fl.Names(30)
    roles = {"server": "server", **dict.fromkeys(names, "client")}
    plain, identities = simulated(roles, fl.Randomness(0, emulated=True))
    assert (roster.session, roster.operator, roster.hub) == (plain.session, plain.operator, plain.hub)
    assert dict(roster.by_name) == dict(plain.by_name)
    assert dict(roster.identities) == identities
    assert tuple(roster.of_role("client")) == plain.of_role("client")
    assert roster.of_role("server") == ("server",)
    assert roster.client_role == plain.client_role == "client"
    made.close()


# -- the same numbers --------------------------------------------------------------------------------------------------


def arrays(model: Any) -> tuple[Any, ...]:
    return (model.models, model.weights) if isinstance(model, fl.Mixture) else (model,)


@pytest.mark.parametrize(
    "system",  # FedBN needs batch normalisation, and so images here
    few([n for n in registry.SYSTEMS if n != "fedbn"], {"fedavg", "fedcaprivacy"}),
)
def test_evaluating_all_or_some_the_models_are_those_of_an_ordinary_run(system: str) -> None:
    base = replace(
        SOME,
        system=system,
        model=model_for(system, SOME.model),
        clients=12,
        crypto="emulated",
        rounds=2,
        evaluated=None,
        settings={},
    )
    found = {}
    for evaluated in (None, 12, 5):
        made = experiment.build(replace(base, evaluated=evaluated))
        made.set_up()
        lines = [made.round(r) for r in (1, 2)]
        models = made.models(2)
        assert len(models) == len(made.shown) == (evaluated or 12)
        found[evaluated] = ([line["models_sha256"] for line in lines], models, [line["notes"] for line in lines])
        made.close()
    assert found[12][0] == found[None][0]
    assert alike(found[12][2]) == found[None][2]
    for name, model in found[5][1].items():
        whole = found[None][1][name]
        assert all(np.array_equal(a, b) for a, b in zip(arrays(model), arrays(whole), strict=True))
    assert [note.get("skipped") is None for note in found[5][2]] == [n.get("skipped") is None for n in found[None][2]]


def test_a_round_of_clients_that_nobody_evaluates_is_not_skipped() -> None:
    """With ``local`` only the models of those move that were asked. One that moves no model is skipped all the same."""
    made = experiment.build(replace(config(40, settings={"participation": 0.1}), system="local", evaluated=1))
    made.set_up()
    asked = [made.round(r) for r in (1, 2, 3)]
    assert not any("skipped" in line["notes"] for line in asked)
    assert len({line["models_sha256"] for line in asked}) < 3  # although the one that is evaluated has not moved
    made.close()
    still = experiment.build(replace(config(40), settings={"participation": 0.1, "deadline_s": 1e-9}))
    still.set_up()
    assert "skipped" in still.round(1)["notes"]
    still.close()


def test_those_that_are_evaluated_follow_from_the_seed_and_stand_in_result_and_report(tmp_path: Path) -> None:
    done = run(replace(config(50), out=str(tmp_path / "run")))
    again = experiment.build(config(50))
    other = experiment.build(config(50, seed=1))
    assert done.clients == again.shown
    assert other.shown != again.shown
    assert done.summary["evaluated"] == 20
    assert done.summary["clients"] == 50
    told = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert told["clients"] == list(again.shown)
    assert len(told["samples"]) == len(told["label_counts"]) == len(told["epochs"]) == 20
    assert [sum(row) for row in told["label_counts"]] == told["samples"]
    assert json.loads((tmp_path / "run" / "clients.json").read_text())["clients"] == list(again.shown)
    from coterie.report import render

    page = render([done.folder], tmp_path / "report.html").read_text()
    assert re.search("Scores are means over 20.clients, drawn by the seed", page)
    assert load(done.folder).predict(again.shown[3], np.zeros((2, 8), np.float32)).shape == (2,)
    again.close()
    other.close()


def test_more_than_there_are_or_a_record_is_refused() -> None:
    with pytest.raises(fl.UserError, match="evaluated=20 of 10 clients"):
        experiment.build(replace(config(10), settings={}))
    with pytest.raises(fl.UserError, match="leave evaluated or record out"):
        experiment.build(config(30, record=True))


def test_a_run_that_was_interrupted_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    whole = replace(config(100, drift="0.5@3", checkpoint_every=1), rounds=4)

    one, two = (replace(whole, out=str(tmp_path / name)) for name in ("one", "two"))
    run(one)
    interrupt(two, 2)
    assert 1 < len(head(tmp_path / "two").parties) <= 1 + 2 * 20  # those that were asked, and the hub
    run(two, resume=True)
    assert alike(numbers(tmp_path / "two")) == numbers(tmp_path / "one")


def test_a_strange_party_in_a_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.runs import checkpoint

    out = replace(config(60), out=str(tmp_path / "run"))
    run(out)
    real = checkpoint.read

    def read(*arguments: Any) -> Any:
        kept = real(*arguments)
        kept.parties["client/60"] = next(iter(kept.parties.values()))
        return kept

    monkeypatch.setattr(checkpoint, "read", read)
    with pytest.raises(fl.UserError, match="a party that this federation has not, 'client/60'"):
        run(replace(out, rounds=4), resume=True)


def test_fleets_traces_delays_and_attackers_go_with_it() -> None:
    made = experiment.build(
        config(200, devices="mobile", availability="diurnal", delta=0.3, attack="scale:3", attackers=0.1)
    )
    made.set_up()
    line = made.round(1)
    assert line["global_accuracy"] is not None
    made.close()


# -- memory ------------------------------------------------------------------------------------------------------------


def held(clients: int) -> tuple[int, int]:
    """Bytes that Python holds after a run's two rounds, and at its peak."""
    gc.collect()
    tracemalloc.start()
    made = experiment.build(config(clients))
    try:
        made.set_up()
        made.round(1)
        made.round(2)
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        made.close()


@pytest.mark.long
def test_memory_is_flat_in_the_number_of_clients() -> None:
    """Ten times the clients, as many asked: below 16 bytes for each client more, where a key alone takes 32."""
    held(1_000)  # what is loaded once
    (few, few_peak), (many, many_peak) = held(1_000), held(10_000)
    assert many - few < 16 * 9_000 + 200_000  # and what differs since others are asked
    assert many_peak - few_peak < 32 * 9_000 + 400_000


def test_only_those_that_are_asked_or_evaluated_are_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment.build(config(5_000))
    made.set_up()
    for r in (1, 2):
        made.round(r)
    assert len(made.transport.members) <= 1 + 2 * 20
    assert sum(map(made.parties.touched, made.parties)) <= 1 + 2 * 20
    names = made.data.clients
    assert all(name in names or name == made.federation.hub for name in made.transport.members)
    made.close()


def work(clients: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a run of three rounds, of which each asks 20 clients and keeps a checkpoint, does what takes time."""
    done: Counter[str] = Counter()

    def counted(what: str, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            done[what] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    with monkeypatch.context() as monkeypatch:
        counted("fsyncs", os, "fsync")
        counted("files", os, "replace")
        for name in ("sha256", "blake2b"):
            counted("digests", hashlib, name)
        counted("parties as bytes", parties_of.state, "dump")
        counted("messages", fl.codec, "encode")
        counted("passes", evaluation, "outputs_of_many")
        counted("data", holdings, "ClientData")
        run(replace(config(clients), rounds=3, checkpoint_every=1, out=str(out)))
    return done


def test_a_round_does_the_same_work_whatever_the_number_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many are asked and scored: 20 each. Which of them coincide is by lot, and digests are of all that differs."""
    few, many = (work(clients, tmp_path / str(clients), monkeypatch) for clients in (400, 4_000))
    for what in ("fsyncs", "files", "messages", "passes", "parties as bytes"):
        assert few[what] == many[what] > 0, what
    for what in ("digests", "data"):
        assert 0 < many[what] < 1.1 * few[what] + 20, what
    assert many["fsyncs"] < 60
    assert many["passes"] == 3 + 1  # a round's models are one; and on the training data, at the end


def test_a_party_that_is_given_other_data_is_still_one_party() -> None:
    experiment_ = experiment.build(config(100))
    data = experiment_.effects.data
    before, (first, *_) = dict(data), data
    data[first] = replace(data[first], inputs=data[first].x * 2)  # type: ignore[index]
    assert [*data] == [*before]
    assert len(data) == len(before)
    experiment_.close()


@pytest.mark.parametrize(("partition", "held"), [("dirichlet:0.5", 4), ("permute:2", 4), ("rotate:2", 20)])
def test_samples_of_clients_that_are_not_asked_are_let_go_of_and_made_again(partition: str, held: int) -> None:
    """Twice as many clients as a round asks have theirs in memory; all where samples are changed, which is slow."""
    asked = RunConfig("fedavg", data="digits", clients=20, rounds=1, partition=partition)
    built = [experiment.build(replace(asked, settings={"participation": share})) for share in (0.1, 1.0)]
    few, everybody = (one.effects.data for one in built)
    seen = {name: weakref.ref(few[name].x) for name in few}
    gc.collect()
    assert sum(one() is not None for one in seen.values()) == held
    for name, own in everybody.items():
        assert own.x is own.x
        assert few[name].x.equal(own.x)
        assert few[name].x.data_ptr() % ALIGNED == 0
    for one in built:
        one.close()
