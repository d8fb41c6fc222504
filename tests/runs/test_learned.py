"""What servers learned, in a few numbers: one server's own findings, by topic, and never more than the numbers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.privacy.attacks.result import AttackResult, verdict
from coterie.privacy.audits import Finding
from coterie.report.comparison import leak_cell, sentences
from coterie.runs.findings import by_topic, learned, merged, widened, worst_first


def row(topic: str | None, *values: float, chance: float = 0.0, **more: Any) -> dict[str, Any]:
    """Of an audit. topic: None for an attack that takes more than one server, or for a client's."""
    results = tuple(AttackResult("share", value, chance, 1.0, 10) for value in values)
    return {**Finding("csp", f"{topic} {values}", "labels", results).row(), "topic": topic, **more}


def found(*rows: dict[str, Any]) -> dict[str, float | None]:
    return {topic: of and of["mean"] for topic, of in by_topic([rows]).items()}


def test_the_best_attack_of_a_topic_counts() -> None:
    assert found(row("labels", 0.2, 0.4), row("labels", 0.55, 0.55, chance=0.1)) == {"labels": pytest.approx(0.5)}


def test_the_best_of_many_attacks_must_exceed_what_luck_gives_it() -> None:
    """Of 15 attacks without a leak one exceeds its own interval in a third of all audits: 1 - .975^15."""
    luck = row("labels", 0.2, name="lucky", error=0.09, verdict=verdict(0.2, 0.18))
    others = [row("other", 0.0, name=f"attack {k}") for k in range(14)]
    assert luck["verdict"] == "a little"
    assert found(luck)["labels"] == pytest.approx(0.2)
    assert found(luck, *others)["labels"] == 0
    assert widened(1) == 1
    rng = np.random.default_rng(0)
    best = rng.normal(size=(20_000, 15)).max(axis=1)
    assert np.mean(best > 1.96 * widened(15)) == pytest.approx(0.025, abs=0.004)
    assert np.mean(best > 1.96) > 0.3


def test_what_did_not_happen_stands_last() -> None:
    control = row(None, 1.0, name="helper, if groups were made twice: re-linked")
    plain = row("labels", 0.1, name="helper, knowing priors: if labels differ")
    assert worst_first([control, plain]) == [plain, control]


def test_others_help_and_curious_clients_do_not_count() -> None:
    assert found(row(None, 1.0)) == {}


def test_what_is_found_in_one_round_of_ten_is_a_tenth() -> None:
    told = found(row("groups", *[0.3] * 10), row("models", 1.0), row("identity", *[1.0] * 9))
    assert told == {"groups": pytest.approx(0.3), "models": pytest.approx(0.1), "identity": 1.0}


@pytest.mark.parametrize("topic", ["labels", "groups", "samples", "other"])
def test_what_does_not_change_over_the_rounds_is_learned_once(topic: str) -> None:
    assert found(row(topic, *[0.3] * 100), row(topic, *[0.6] * 10)) == {topic: pytest.approx(0.6)}


def test_where_no_attack_could_tell_is_not_nothing() -> None:
    unsure, sure, none = (row("labels", *values) for values in ((0.0, 1.0), (0.5,), (0.0,)))
    assert unsure["verdict"] == "cannot tell"
    assert found(none, unsure) == {"labels": None}
    assert found(unsure, sure)["labels"] == pytest.approx(0.5)


def test_seeds_have_the_verdict_of_their_merged_audit() -> None:
    """What one seed of two shows is not sure; what both show is, however they differ."""
    name, sure = {"name": "a"}, {"name": "b"}
    seeds = [[row("samples", value, **name), row("labels", other, **sure)] for value, other in ((0.0, 0.1), (0.9, 0.9))]
    assert {one["name"]: one["verdict"] for one in merged(seeds)} == {"a": "cannot tell", "b": "a little"}
    told = by_topic(seeds)
    assert told["samples"] is None
    assert told["labels"] is not None
    assert told["labels"]["mean"] == pytest.approx(0.5)
    seeds = [[row("samples", value, **name)] for value in (0.0, 0.04)]
    assert merged(seeds)[0]["verdict"] == "nothing found"
    assert by_topic(seeds)["samples"] == {"mean": 0.0, "interval": pytest.approx(0.2541, abs=1e-3), "values": [0, 0.04]}
    assert by_topic(seeds[1:])["samples"]["mean"] == 0.04  # type: ignore[index]


def test_a_small_find_does_not_hide_an_attack_that_cannot_tell() -> None:
    unsure = row("labels", 0.0, 0.9)
    assert unsure["verdict"] == "cannot tell"
    assert found(unsure, row("labels", 0.05)) == {"labels": None}
    assert found(unsure, row("labels", 0.31)) == {"labels": pytest.approx(0.31)}


def test_a_record_that_was_cut_short_is_not_told_as_learned() -> None:
    audits = {Path("a"): {"stopped": None, "attacks": []}, Path("b"): {"stopped": 3, "attacks": []}}
    assert learned({Path("a"): audits[Path("a")]}) == {"learned": {}, "not_attacked": None}
    assert learned(audits)["learned"] is None
    assert "b: recording stopped in round 3" in learned(audits)["not_attacked"]


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
    assert "; the attacks cannot tell of label shares." in next(iter(sentences({"rows": rows})))
    assert "know part of the label shares (50 %); nothing found of samples." in told(labels=0.5, samples=0.0)
    assert leak_cell(rows[0], "labels") == "?"
    assert leak_cell(rows[0], "samples") == "–"
    assert leak_cell({"learned": {"labels": {"mean": 0.0}}}, "labels") == "0"


def test_a_sentence_says_all_only_of_all() -> None:
    assert "read every client's model (100 %)" in told(models=1.0)
    assert "read part of the models (98 %)" in told(models=0.98)
    assert "hardly follow a model from round to round (9 %)" in told(identity=0.09)
    assert "know part of its other secrets (90 %)" in told(other=0.9)
    assert "learns nothing of models or data" in told()
