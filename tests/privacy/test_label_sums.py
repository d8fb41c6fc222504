"""Attacks on sums of label counts: by hand on three clients, exact against all others' help, and none without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.privacy.audits import Finding, Recorded
from coterie.privacy.label_sums import ATTACKS, NONE_OPENED, label_sum_findings, opened_sums
from coterie.runs import RunConfig, run
from coterie.runs.attacked import attacked
from coterie.runs.recorded import read_recorded, record

SERVER = "server: label shares, by sums of label counts"
MEMBER = "client: label shares of others, by sums of label counts"
ALL_BUT_ONE = "clients, all but one: label shares of the other, by sums of label counts"
OPTIONS: dict[str, Any] = {"clients": 3, "rounds": 1, "model": "linear", "samples": 600, "record": True}
OPTIONS |= {"partition": "dirichlet:0.3"}
IN_TWO = {"label_counts": True, "clusters": 2}


def recorded(system: str = "fedavg", **options: Any) -> Recorded:
    return record(RunConfig(system, **{**OPTIONS, "settings": {"label_counts": True}, **options}))


def found(run: Recorded) -> dict[str, Finding]:
    return {one.name: one for one in label_sum_findings(run)[0]}


def shares(counts: np.ndarray) -> np.ndarray:
    return np.asarray(counts / counts.sum(axis=-1, keepdims=True))


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(shares(one) - shares(other)).sum()) / 2


def test_of_three_a_member_knows_the_sum_of_two_and_the_server_that_of_three() -> None:
    """The slow twin: each guess by hand, from the data and not from messages."""
    one = recorded()
    counts, everybody, equal = one.label_counts, one.label_counts.sum(axis=0), np.ones(10)
    results = found(one)
    assert results.keys() == {SERVER, MEMBER, ALL_BUT_ONE}
    by_server = results[SERVER].row()
    assert by_server["value"] == pytest.approx(np.mean([apart(own, everybody) for own in counts]))
    assert by_server["chance"] == pytest.approx(np.mean([apart(own, equal) for own in counts]))
    by_member, chances = list[float](), list[float]()
    for i, own in enumerate(counts):
        others = np.delete(counts, i, axis=0)
        by_member += [apart(other, others.sum(axis=0)) for other in others]
        chances.append(min(np.mean([apart(other, prior) for other in others]) for prior in (equal, own)))
    assert results[MEMBER].row()["value"] == pytest.approx(np.mean(by_member))
    assert results[MEMBER].row()["chance"] == pytest.approx(np.mean(chances))


def test_nothing_hides_a_client_from_all_others_of_its_model() -> None:
    """Also where a part of the data is held out, and where the server has several models and lists."""
    for one in (recorded(clients=5, samples=300, fine_tune="held_out"), recorded("ifca", clients=12, settings=IN_TWO)):
        result = found(one)[ALL_BUT_ONE]
        assert result.verdict == "everything"
        assert all(each.value == 0 < each.chance for each in result.results)


def test_sums_of_lists_tell_the_more_the_fewer_clients_they_have() -> None:
    few, many = (found(recorded(clients=clients, partition="shards:2"))[MEMBER] for clients in (3, 30))
    assert few.leak > 2 * many.leak > 0


@pytest.mark.parametrize(("system", "clients", "lists"), [("ifca", 12, 2), ("fedavg", 70, 2)])
def test_lists_and_sums_are_those_of_the_clients_data(system: str, clients: int, lists: int) -> None:
    one = recorded(system, clients=clients, settings=IN_TWO if system == "ifca" else {"label_counts": True})
    models = opened_sums(one)
    assert sum(len(model.lists) for model in models) == lists
    for model in models:
        np.testing.assert_array_equal(model.total, one.label_counts[model.clients].sum(axis=0))
        for names, total in zip(model.lists, model.sums, strict=True):
            np.testing.assert_array_equal(total, one.label_counts[names].sum(axis=0))


def test_without_the_setting_or_without_a_sum_there_is_nothing_to_attack() -> None:
    assert label_sum_findings(recorded(settings={})) == ([], {})
    two = recorded(clients=2)  # too few for a list
    assert label_sum_findings(two) == ([], {one.name: NONE_OPENED for one in ATTACKS})


def test_an_audit_of_a_run_folder_judges_the_padded_counts(tmp_path: Path) -> None:
    run(RunConfig("fedavg", **{**OPTIONS, "settings": {"label_counts": True}, "out": str(tmp_path / "run")}))
    audit = attacked(read_recorded(tmp_path / "run"))
    topics = {one.name: one.topic for one in audit.found}
    assert topics.items() >= {SERVER: "labels", MEMBER: "labels", ALL_BUT_ONE: "labels"}.items()
    assert ("PaddedCounts", "words") not in {(one.message, one.field) for one in audit.not_judged}


def test_of_a_hidden_group_members_alone_know_the_sum() -> None:
    settings = {"label_counts": True, "lr": 0.1, "max_epochs": 1, "noise": 0.0}
    one = recorded("coterie", clients=8, partition="permute:2", crypto="emulated", settings=settings)
    results, reasons = label_sum_findings(one)
    groups = [group for (group,) in one.system.observe(one.federation)["membership"]]
    for model in opened_sums(one):
        (of,) = {groups[client] for client in model.clients}
        assert sorted(model.clients) == [client for client, group in enumerate(groups) if group == of]
        assert np.abs(model.total - one.label_counts[model.clients].sum(axis=0)).max() <= 1
    assert {finding.name for finding in results} == {MEMBER, ALL_BUT_ONE}
    assert {each.name: each for each in results}[ALL_BUT_ONE].leak > 0.95
    assert reasons == {"counts-by-list": "no server opens a sum of hidden groups' label counts"}
