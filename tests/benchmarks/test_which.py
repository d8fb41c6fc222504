"""Tables of which method when, of a made-up record."""

from __future__ import annotations

from typing import Any

from benchmarks.which import costs, forms, level


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
