"""Pictures of studies, drawn from the records beside them, without a run. ``make docs-tables`` draws all.

An old record has its table's rows alone. Its picture stays as its runs have drawn it, until it is run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import noise_on_sums
from coterie import reproductions
from coterie.reproductions.study import Curve

DOCS = Path(__file__).parents[1] / "docs"
_SERIES = "global_accuracy", "local_accuracy", "virtual_seconds"


def outcomes(record: Mapping[str, Any]) -> dict[str, Sequence[Any]] | None:
    """By cell, one a seed; None where the record has none."""
    if "curves" in record:
        return {name: [_curve(one) for one in found] for name, found in record["curves"].items()}
    return record.get("values")


def _curve(numbers: Mapping[str, Any]) -> Curve:
    series: dict[str, Any] = {name: tuple(numbers[name]) for name in _SERIES}
    return Curve(numbers["seed"], clustered=(), diverged=numbers.get("diverged", ""), **series)


def of_records() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The pictures under docs that can be drawn, and their records."""
    for picture in sorted(DOCS.rglob("*.svg")):
        record = json.loads(picture.with_suffix(".json").read_text())
        if outcomes(record) is not None:
            yield picture, record


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Into this file."""
    items = {**reproductions.items(), **noise_on_sums.ITEMS}
    found = outcomes(record)
    assert found is not None, "the record has no outcomes"
    item = items[record["item"]]
    assert item.draw is not None, f"{item.name} has no picture"
    item.draw(found, path)
