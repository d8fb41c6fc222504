"""What servers learned, in a few numbers: one server's own findings, by topic, and never more than the numbers say."""

from __future__ import annotations

import pytest

from coterie.privacy.attacks.result import AttackResult
from coterie.privacy.audits import Finding, Topic
from coterie.report.comparison import sentences
from coterie.runs.audited import best_by_topic

SERVERS = {"csp", "business_server", "server", "helper"}


def finding(who: str, topic: Topic, *values: float, chance: float = 0.0, knowing: str = "") -> Finding:
    results = tuple(AttackResult("share", value, chance, 1.0, 10) for value in values)
    return Finding(who, "what", topic, results, knowing=knowing)


def test_the_best_attack_of_a_topic_counts() -> None:
    found = best_by_topic(
        [finding("csp", "labels", 0.2, 0.4), finding("csp", "labels", 0.55, 0.55, chance=0.1)], SERVERS
    )
    assert found == {"labels": pytest.approx(0.5)}


@pytest.mark.parametrize(
    "who",
    [
        "csp with a participant",
        "server with any client's key",
        "server knowing the sizes",
        "server, knowing the sizes",
        "client",
        "participant",
    ],
)
def test_others_help_and_curious_clients_do_not_count(who: str) -> None:
    assert best_by_topic([finding(who, "groups", 1.0)], SERVERS) == {}


def test_the_start_is_public() -> None:
    assert best_by_topic([finding("csp", "models", 0.5, knowing="the start")], SERVERS) == {"models": 0.5}


def test_what_is_found_in_one_round_of_ten_is_a_tenth() -> None:
    every = finding("business server", "groups", *[0.3] * 10)
    once = finding("csp", "models", 1.0, knowing="the start")
    linked = finding("csp", "identity", *[1.0] * 9)
    found = best_by_topic([every, once, linked], SERVERS)
    assert found == {"groups": pytest.approx(0.3), "models": pytest.approx(0.1), "identity": 1.0}


def test_a_finding_of_no_topic_is_not_nothing() -> None:
    assert best_by_topic([finding("helper", "other", 0.9)], SERVERS) == {"other": 0.9}


def test_the_slow_attacks_run_in_some_rounds_only() -> None:
    every = finding("server", "labels", *[0.3] * 100)
    some = finding("server", "samples", *[0.6] * 10)
    assert best_by_topic([every, some], SERVERS) == {"labels": pytest.approx(0.3), "samples": pytest.approx(0.6)}


def test_where_no_attack_could_tell_is_not_nothing() -> None:
    unsure, sure, none = (finding("csp", "labels", *values) for values in ((0.0, 1.0), (0.5,), (0.0,)))
    assert unsure.verdict == "cannot tell"
    assert best_by_topic([none, unsure], SERVERS) == {"labels": None}
    assert best_by_topic([unsure, sure], SERVERS)["labels"] == pytest.approx(0.5)


def told(**learned: float) -> str:
    row = {
        "method": "m",
        "system": "m",
        "local_accuracy": {"mean": 0.5, "values": [0.5]},
        "fine_tuned_local_accuracy": None,
        "learned": {topic: {"mean": value} for topic, value in learned.items()},
    }
    (sentence,) = sentences({"rows": [row]})
    return sentence


def test_a_sentence_says_where_the_attacks_cannot_tell() -> None:
    rows = [
        {"method": "m", "system": "m", "local_accuracy": {"mean": 0.5, "values": [0.5]}, "learned": {"labels": None}}
    ]
    assert "the attacks cannot tell what its servers learned" in next(iter(sentences({"rows": rows})))


def test_a_sentence_says_all_only_of_all() -> None:
    assert "read every client's model (100 %)" in told(models=1.0)
    assert "read part of the models (98 %)" in told(models=0.98)
    assert "hardly follow a model from round to round (9 %)" in told(identity=0.09)
    assert "know part of its other secrets (90 %)" in told(other=0.9)
    assert "learns nothing of models or data" in told()
