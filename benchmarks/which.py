"""Tables of docs/which_method.md, of the records of ``python -m benchmarks.cells``, ``cells`` and ``shown``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

Record = Mapping[str, Any]
Grid = tuple[list[str], list[list[str]]]
CALLED = {"hardened": "fedcaprivacy@hardened"}
"""Methods that the command line has by another name."""
DATA = "digits"
"""What costs and leaks were measured on."""


def forms(record: Record) -> Grid:
    """By method and form of its models, means over the partitions: on clients' own test labels / uniform over all."""
    kept = [row for row in record["rows"] if row["data"] == DATA and row.get("by seed")]
    names = list(dict.fromkeys(row["form"] for row in kept))
    found = []
    for method in dict.fromkeys(row["method"] for row in kept):
        own = [[row for row in kept if (row["method"], row["form"]) == (method, form)] for form in names]
        pairs = [
            [fmean(map(_mean, (row[key] for row in rows))) for key in ("local %", "all classes %")] for rows in own
        ]
        found.append([_called(own[0][0]), *(f"{one:.1f} / {other:.1f}" for one, other in pairs)])
    return ["method", *names], found


def costs(record: Record, shown: Record) -> Grid:
    """What each method costs, means over the partitions, and what its servers learn in each partition of ``shown``.

    MB: sent and received by a client in the whole run.
    """
    plain = [row for row in record["rows"] if (row["form"], row["data"]) == ("as it is", DATA) and row.get("by seed")]
    leaks = shown["rows"]
    topics = [topic for topic in leaks[0] if topic not in ("partition", "method")]
    topics = [topic for topic in topics if any(row[topic] is not None for row in leaks)]
    found = []
    for method in dict.fromkeys(row["method"] for row in plain):
        own = [row for row in plain if row["method"] == method]
        of = [row for row in leaks if row["method"] == method]
        cells = [f"{fmean(row[key] for row in own):.3g}" for key in ("MB a client", "virtual seconds")]
        learnt = [" / ".join("–" if row[topic] is None else str(row[topic]) for row in of) for topic in topics]
        found.append([_called(own[0]), *cells, *learnt])
    return ["method", "MB a client", "virtual seconds", *topics], found


def _called(row: Record) -> str:
    name = str(row["method"])
    return CALLED.get(name, name)


def _mean(text: str) -> float:
    return float(text.partition(" ±")[0])
