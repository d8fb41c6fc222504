"""One definition of who was flagged, and of detection and false alarms."""

from __future__ import annotations

import pytest

from coterie.aggregation.flagged import Detection, detection, flagged


def test_who_has_less_than_half_of_the_median_influence_is_flagged() -> None:
    assert flagged({"influence": {"a": 1.0, "b": 1.0, "c": 0.49, "d": 0.5, "e": 1.2}}) == {"c"}
    assert flagged({"influence": {"a": 0.0, "b": 0.0, "c": 3.0}}) == frozenset()  # most have none: nobody is low


def test_what_a_defence_says_itself_counts() -> None:
    assert flagged({"influence": {"a": 0.0, "b": 1.0}, "flagged": ["b"]}) == {"b"}
    assert flagged({"influence": {"a": 0.0, "b": 1.0, "c": 1.0}, "flagged": []}) == frozenset()


def test_a_round_that_judges_nobody_says_nothing() -> None:
    assert flagged({}) is None
    assert flagged({"influence": {}, "flagged": ["a"]}) is None
    assert detection([{}, {"participants": 3}], ["a"]) is None


def test_rates_are_over_all_judged_contributions() -> None:
    rounds = [
        {"influence": dict.fromkeys("abcd", 1.0), "flagged": ["a", "c"]},  # one hit of two, one alarm of two
        {"influence": dict.fromkeys("bcde", 1.0), "flagged": ["b"]},  # one hit of one, no alarm of three
        {},
    ]
    assert detection(rounds, ["a", "b"]) == Detection(2 / 3, 1 / 5, 2)


def test_without_attackers_there_are_false_alarms_alone() -> None:
    assert detection([{"influence": {"a": 1.0, "b": 1.0, "c": 0.0}}], []) == Detection(None, 1 / 3, 1)
    assert detection([{"influence": {"a": 1.0, "b": 1.0, "c": 0.0}}], "abc") == Detection(1 / 3, None, 1)


@pytest.mark.parametrize(
    ("attacker", "rate", "alarms"), [("leader", 1.0, 0.0), ("member", 1.0, 0.0), ("other", 0.0, 1.0)]
)
def test_a_leader_stands_for_its_members(attacker: str, rate: float, alarms: float) -> None:
    """Its contribution is poisoned if it or one of them attacks."""
    notes = {
        "influence": {"leader": 0.0, "honest": 1.0},
        "flagged": ["leader"],
        "stands_for": {"leader": ["member"], "honest": ["other"]},
    }
    assert detection([notes], [attacker]) == Detection(rate, alarms, 1)
