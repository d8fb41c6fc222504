"""Label counts under pads: what clients are told, what the hub sees, and what it cannot get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_system import BASELINES

from coterie.crypto.marks import pad
from coterie.crypto.signing import OpeningKey
from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.padded_counts import (
    LONGEST,
    AskForPadded,
    ModelCounts,
    PaddedCounts,
    WantCounts,
    divided,
    listed,
)
from coterie.runs import RunConfig, registry
from coterie.runs.config import resolve
from coterie.runs.evaluation import alike
from coterie.runs.experiment import Experiment, build

OPTIONS: dict[str, Any] = {"clients": 6, "partition": "dirichlet:0.3", "model": "linear", "rounds": 1, "samples": 600}
OPTIONS["delta"] = 0.0  # methods with late updates have 0.3 by default: then a third is late in the last steps, too
OFFERED = [name for name in BASELINES if registry.SYSTEMS[name].counts is not None]
QUICK = {"fedavg", "ifca", "cfl"}
OF_ONE_MODEL = {"fedavg", "fedavg_drop", "fedavg_late", "fedprox_stale", "time_weighted", "fedasync", "secagg", "flame"}


def made(name: str = "fedavg", **options: Any) -> Experiment:
    experiment = build(RunConfig(name, settings={"label_counts": True}, **{**OPTIONS, **options}))
    experiment.set_up()
    experiment.round(1)
    return experiment


def finished(name: str = "fedavg", **options: Any) -> Experiment:
    experiment = made(name, **options)
    experiment.finish(1)
    return experiment


def own_counts(experiment: Experiment) -> dict[str, np.ndarray]:
    return {name: np.bincount(experiment.data[name].y.numpy(), minlength=10) for name in experiment.common.clients}


def at(experiment: Experiment, name: str) -> Any:
    return experiment.federation.alter(name)


def test_methods_whose_clients_hold_one_model_tell_its_counts() -> None:
    assert set(OFFERED) >= OF_ONE_MODEL
    assert {"local", "ditto", "fedbn", "fedem"}.isdisjoint(OFFERED)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in OFFERED]
)
def test_clients_are_told_the_counts_of_all_that_hold_their_model(name: str) -> None:
    """What the simulation knows, by its own means: the models of all clients, and their data."""
    experiment = finished(name)
    told, own, names = experiment.observer.told_counts(), own_counts(experiment), list(experiment.common.clients)
    assert told is not None
    for same in alike([*experiment.models(1).values()]):
        total = np.sum([own[names[i]] for i in same], axis=0)
        for i in same:
            if len(same) < 3:
                assert told[names[i]] is None
            else:
                np.testing.assert_array_equal(told[names[i]], total)
    experiment.close()


def test_who_is_late_after_the_last_round_is_on_no_list_and_costs_the_others_nothing() -> None:
    experiment = made("fedasync", delta=0.3)
    line, told, own = experiment.finish(1), experiment.observer.told_counts(), own_counts(experiment)
    assert line is not None
    assert told is not None
    assert len(line["late"]) == 2
    there = own.keys() - {*line["late"]}
    assert line["notes"]["counted"] == len(there)
    for name in own:
        if name in there:
            np.testing.assert_array_equal(told[name], np.sum([own[one] for one in there], axis=0))
        else:
            assert told[name] is None
    experiment.close()


def test_what_a_simulation_supplies_and_what_messages_tell_give_the_same_scores() -> None:
    scores = []
    for counts in (True, False):
        options = {**OPTIONS, "clients": 4, "samples": 200, "rounds": 2, "fine_tune": "held_out"}
        experiment = build(RunConfig("fedavg", settings={"label_counts": counts, "lr": 0.1}, **options))
        experiment.set_up()
        lines = [experiment.round(r) for r in (1, 2)]
        lines.append(experiment.finish(2) or {})
        scores.append(next(line["prior_local_accuracy"] for line in lines[::-1] if "prior_local_accuracy" in line))
        assert ("prior_local_accuracy" in lines[1]) is not counts  # they are told after the last round
        experiment.close()
    assert scores[0] == scores[1]


def test_models_of_ones_own_and_ledgers_without_a_line_refuse_the_setting() -> None:
    for name, why in (
        ("ditto", "a model of its own"),
        ("fedbn", "a model of its own"),
        ("haccs", "no line"),
        ("local", "a model of its own"),
    ):
        with pytest.raises(UserError, match=why):
            resolve(RunConfig(name, settings={"label_counts": True}))
    with pytest.raises(UserError, match="no classes"):
        resolve(RunConfig("fedavg", task="regression", settings={"label_counts": True}))


def test_words_of_one_client_say_nothing_without_all_others() -> None:
    """The hub's view: under pads, each term is far from the counts, and any five of six add up to noise."""
    experiment = finished(record=True)
    terms = [
        np.frombuffer(message.words, "<u8").view(np.int64)
        for _, message in experiment.transport.transcript.views["server"].messages(PaddedCounts)
    ]
    assert len(terms) == 6
    total = np.sum(terms, axis=0)
    np.testing.assert_array_equal(total, np.sum([*own_counts(experiment).values()], axis=0))
    for term in terms:
        assert (np.abs(term) > 1 << 40).any()
        assert (np.abs(total - term) > 1 << 40).any()
    experiment.close()


def test_a_client_tells_its_counts_beside_one_list_alone() -> None:
    experiment = made()
    client, names = at(experiment, "client/0"), [f"client/{i}" for i in range(6)]

    def asked(some: list[str], src: str = "server") -> Any:
        return next(client.counts.tell(AskForPadded("\n".join(some)), src))

    for some, why in (
        (names[:2], "a list of 2"),
        (names[1:], "with its own name"),
        ([*names[:3], names[2]], "once each"),
        ([*names[:3], "server"], "of 3 to"),
    ):
        with pytest.raises(PeerError, match=why):
            asked(some)
    with pytest.raises(PeerError, match="only the hub"):
        asked(names, "client/1")
    work = client.counts.tell(AskForPadded("\n".join(names)), "server")
    effect = next(work)
    with pytest.raises(StopIteration):
        work.send(experiment.effects.run([("client/0", effect)])[0])
    with pytest.raises(PeerError, match="beside other clients"):
        asked(names[:5])
    kept = type(client)(client.own, client.common, client.config)
    kept.lasts(client.state, client.secret)  # a further attempt of the same steps
    with pytest.raises(PeerError, match="beside other clients"):
        next(kept.counts.tell(AskForPadded("\n".join(names[:5])), "server"))
    experiment.close()


@pytest.mark.parametrize(
    "counts", [[-1] * 10, [1] * 9, [1 << 60] * 10, [0] * 10], ids=["negative", "few", "huge", "none"]
)
def test_a_client_takes_no_impossible_counts_and_none_twice(counts: list[int]) -> None:
    experiment = finished()
    client = at(experiment, "client/0")
    with pytest.raises(PeerError, match="come again"):
        client.counts.take(ModelCounts(np.ones(10, np.int64)), "server")
    client.counts.secret.total = None
    with pytest.raises(PeerError, match="impossible"):
        client.counts.take(ModelCounts(np.array(counts, np.int64)), "server")
    experiment.close()


@pytest.mark.parametrize(("said", "counted"), [(-5, 6), (-(1 << 20), 0), (1 << 62, 0)])
def test_a_liar_spoils_the_counts_of_its_list_alone_and_impossible_ones_are_dropped(said: int, counted: int) -> None:
    experiment = made()
    at(experiment, "client/1").counts.secret.sent = np.full(10, said, np.int64)
    line, told, own = experiment.finish(1), experiment.observer.told_counts(), own_counts(experiment)
    assert line is not None
    assert told is not None
    assert line["notes"]["counted"] == counted
    if counted:  # a small lie passes: nobody sees one client's counts
        others = np.sum([own[name] for name in own if name != "client/1"], axis=0)
        np.testing.assert_array_equal(told["client/0"], others + said)
    else:
        assert set(told.values()) == {None}
    experiment.close()


# -- over several runs on the same data --------------------------------------------------------------------------------


def further(former: Experiment, **options: Any) -> Experiment:
    """A run whose clients follow those of a former one, as the homes of a deployment let them."""
    experiment = made(**options)
    for name in set(former.common.clients) & set(experiment.common.clients):
        assert at(experiment, name).remembers
        at(experiment, name).follows(at(former, name))
    experiment.finish(1)
    return experiment


def opened(experiment: Experiment) -> dict[frozenset[str], np.ndarray]:
    """The hub's view: all lists whose sums it can form, with these."""
    lists, terms = set[frozenset[str]](), dict[str, np.ndarray]()
    views = experiment.transport.transcript.views
    for name in experiment.common.clients:
        lists |= {frozenset(one.names.split("\n")) for _, one in views[name].messages(AskForPadded)}
    for seen, one in views["server"].messages(PaddedCounts):
        terms[seen.src] = np.frombuffer(one.words, "<u8")
    return {
        names: np.sum([terms[name] for name in names], axis=0, dtype=np.uint64).view(np.int64)
        for names in lists
        if names <= terms.keys()
    }


def test_a_further_run_with_a_client_more_shows_no_difference() -> None:
    """The former list stays one, with its counts of then (these seeds deal other data), so its sum is the same."""
    first = finished(record=True)
    second = further(first, record=True, clients=7, seed=1)
    assert opened(second).keys() == opened(first).keys() == {frozenset(f"client/{i}" for i in range(6))}
    for names, total in opened(first).items():
        np.testing.assert_array_equal(opened(second)[names], total)
    told = second.observer.told_counts()
    assert told is not None
    assert all(np.array_equal(told["client/6"], one) for one in told.values() if one is not None)
    first.close()
    second.close()


def test_a_further_run_with_three_more_has_a_list_of_these() -> None:
    first = finished()
    second = further(first, record=True, clients=9)
    assert opened(second).keys() == {frozenset(f"client/{i}" for i in some) for some in (range(6), range(6, 9))}
    first.close()
    second.close()


def test_a_further_run_without_a_client_opens_nothing() -> None:
    first = finished()
    second = further(first, record=True, clients=5)
    assert not opened(second)
    assert set((second.observer.told_counts() or {"": None}).values()) == {None}
    client = at(second, "client/0")
    with pytest.raises(PeerError, match="beside other clients"):
        next(client.counts.tell(AskForPadded("\n".join(second.common.clients)), "server"))
    first.close()
    second.close()


def test_lists_of_former_runs_are_whole_or_none() -> None:
    before = {"a": "a\nb\nc", "b": "a\nb\nc", "c": "a\nb\nc", "d": "d\ne\nx", "e": "d\ne\nx", "f": "", "g": ""}
    assert listed([*"abcdefg"], before) == [["a", "b", "c"]]
    assert listed([*"abcdefgh"], {**before, "h": ""}) == [["a", "b", "c"], ["f", "g", "h"]]
    assert listed([*"abdefg"], before) == []  # c holds another model
    assert listed([*"abcfgh"], {**before, "c": "", "h": ""}) == [["a", "b", "c"], ["f", "g", "h"]]  # missed by c
    assert listed([*"abc"], {**before, "b": "", "c": ""}) == []  # a alone says so: one that lies could bind the others
    assert listed([*"bcf"], {**before, "b": "", "c": ""}) == [["b", "c", "f"]]
    for false in ("a", "a\na\na", "\n".join(f"n{k}" for k in range(65))):  # no list that a client ever took
        assert listed([*"afgh"], {"a": false, "f": "", "g": "", "h": ""}) == [["f", "g", "h"]]


def test_a_run_in_which_nothing_was_told_takes_nothing_from_a_former_list() -> None:
    first = finished()
    client = at(first, "client/0")
    quiet = type(client)(client.own, client.common, client.config)
    quiet.follows(client)
    names = quiet.counts.secret.names
    assert names == "\n".join(first.common.clients)
    quiet.counts.follows(type(quiet.counts.secret)())
    assert quiet.counts.secret.names == names
    assert quiet.counts.secret.total is None  # that is of the run
    first.close()


def test_parties_tell_nothing_that_the_settings_do_not_ask_for() -> None:
    experiment = build(RunConfig("fedavg", **OPTIONS))
    client = at(experiment, "client/0")
    for handler, message in (
        (client.counts.ready, WantCounts()),
        (client.counts.take, ModelCounts(np.ones(10, np.int64))),
    ):
        with pytest.raises(PeerError, match="do not ask"):
            handler(message, "server")
    experiment.close()


def test_lists_are_of_like_lengths() -> None:
    for count in (0, 2, 3, LONGEST, LONGEST + 1, 1000):
        parts = divided([str(i) for i in range(count)])
        assert [name for part in parts for name in part] == ([str(i) for i in range(count)] if count > 2 else [])
        assert all(3 <= len(part) <= LONGEST for part in parts)


def test_pads_of_a_list_cancel_and_others_do_not() -> None:
    keys = {f"c{i}": OpeningKey.generate() for i in range(4)}

    def padded(name: str, among: list[str], of: bytes) -> np.ndarray:
        others = {other: keys[other].public for other in among if other != name}
        return pad(keys[name], name, others, of, 5)

    every = [padded(name, [*keys], bytes(32)) for name in keys]
    assert not np.sum(every, axis=0, dtype=np.uint64).any()
    assert np.sum(every[:3], axis=0, dtype=np.uint64).all()
    assert np.sum([*every[:3], padded("c3", [*keys], b"1" * 32)], axis=0, dtype=np.uint64).all()
