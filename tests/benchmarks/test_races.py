"""Tables of short races, and of which method when: means with their intervals, and leaks with their verdicts."""

from __future__ import annotations

from typing import Any

from benchmarks import races
from benchmarks.which import costs, forms, level

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


# -- which method when, of a made-up record


def row(method: str, form: str, values: list[float] | None, **more: Any) -> dict[str, Any]:
    place = {"data": "digits", "partition": "iid", "form": form, "method": method}
    seen = {} if values is None else {"by seed": values, "local %": f"{sum(values) / len(values):.1f} ± 1.0"}
    return {**place, **seen, "all classes %": "50.0", "MB a client": 1.5, "virtual seconds": 2.0, **more}


RECORD = {
    "rows": [
        row("a", "mixed", [90.0, 92.0]),
        row("b", "mixed", [90.6, 90.6]),
        row("hardened", "mixed", [89.0, 90.0]),
        row("d", "mixed", None),
        row("a", "as it is", [80.0, 80.0], partition="iid"),
        row("a", "as it is", [60.0, 60.0], partition="other"),
    ]
}


def test_level_methods_stand_together_and_the_lead_is_paired() -> None:
    heads, (line,) = level(RECORD, "mixed")
    assert heads == ["partition", "digits", "lead of the best"]
    # Student's t of one degree of freedom, 12.7
    assert line == ["`iid`", "a 91.0 ± 12.7, b", "+1.5 ± 6.4 (fedcaprivacy@hardened)"]


def test_forms_and_costs_are_means_over_the_partitions() -> None:
    assert forms({"rows": RECORD["rows"][4:]}) == (["method", "as it is"], [["a", "70.0 / 50.0"]])
    shown = {"rows": [{"partition": p, "method": "a", "models": m, "other": None} for p, m in (("x", 7), ("y", None))]}
    assert costs(RECORD, shown) == (
        ["method", "MB a client", "virtual seconds", "models"],
        [["a", "1.5", "2", "7 / –"]],
    )
