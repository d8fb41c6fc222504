"""Tables of short races: means with their intervals, and leaks with their verdicts."""

from __future__ import annotations

from benchmarks import races

HALF = 4.3027 * 0.01 / 3**0.5  # Student's t of two degrees of freedom, deviation .01


def test_a_case_is_a_row_where_each_has_one_method_and_else_a_method() -> None:
    row = {"local_accuracy": [0.9, 0.91, 0.92], "ari": [1.0, 1.0, None], "attacks": {"server: labels": [0.3, 0.3, 0.3]}}
    one = races.table({"cases": {"a": {"x": row}, "b": {"x": row}}}, "local_accuracy", "ari", "server: labels")
    shown = f"91.0 ± {100 * HALF:.1f} | – | 0.30 ± 0.00"
    assert one.splitlines()[0] == "| options | local % | groups found | server: labels |"
    assert one.splitlines()[2:] == [f"| a | {shown} |", f"| b | {shown} |"]
    several = races.table({"cases": {"a": {"x": row, "y": row}, "b": {"x": row, "y": row}}}, "local_accuracy")
    assert several.splitlines()[0] == "| method | a: local % | b: local % |"
    assert [line.split(" | ")[0] for line in several.splitlines()[2:]] == ["| `x`", "| `y`"]


def test_leaks_are_of_the_named_attacks_and_chance_is_nothing_found() -> None:
    attacks = {"a": [0.99, 1.0, 1.0], "b": [-0.1, 0.0, 0.2], "c": [1.0, 1.0, 1.0]}
    lines = races.leaks({"cases": {"": {"x": {"attacks": attacks}}}}, "a", "b", "unknown").splitlines()[2:]
    assert [line.rpartition(" | ")[2] for line in lines] == ["everything |", "nothing found |"]
    assert "| b | 0.03 ± 0.38 |" in lines[1]


def test_every_case_is_a_comparison_of_known_options() -> None:
    from coterie.runs.config import RunConfig

    known = {*RunConfig.__dataclass_fields__, "methods", "local", "settings"}
    of_systems = {"epsilon2", "noise", "participation", "signs", "dummies", "clusters", "server_decay"}
    assert all(set(case) <= known | of_systems for race in races.RACES.values() for case in race.values())
