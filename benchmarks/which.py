"""Tables of docs/which_method.md, of the records of ``python -m benchmarks.cells``, ``cells`` and ``shown``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from benchmarks.markdown import of_seeds

Record = Mapping[str, Any]
Grid = tuple[list[str], list[list[str]]]
LEVEL = 0.5
"""Points: so far below the best a method is level with it."""
CALLED = {"hardened": "fedcaprivacy@hardened"}
"""Methods that the command line has by another name."""
DATA = "digits"
"""What costs and leaks were measured on."""


def level(record: Record, form: str) -> Grid:
    """By partition, on each data set: the best method, those level with it, and its lead over the best of the others.

    These numbers have chosen both sides of a lead. It is paired by seed.
    """
    kept = [row for row in record["rows"] if row["form"] == form and row.get("by seed")]
    sets = list(dict.fromkeys(row["data"] for row in kept))
    found = []
    for partition in dict.fromkeys(row["partition"] for row in kept):
        cells = [f"`{partition}`"]
        for data in sets:
            here = [row for row in kept if (row["partition"], row["data"]) == (partition, data)]
            here.sort(key=lambda row: -fmean(row["by seed"]))
            near = [row for row in here if fmean(row["by seed"]) >= fmean(here[0]["by seed"]) - LEVEL]
            best = f"{_called(here[0])} {of_seeds(here[0]['by seed'])}"
            cells.append(", ".join([best, *map(_called, near[1:])]))
            if len(near) < len(here):
                first, other = here[0], here[len(near)]
                pairs = zip(first["by seed"], other["by seed"], strict=True)
                cells.append(f"{of_seeds([a - b for a, b in pairs], '+')} ({_called(other)})")
            else:
                cells.append("–")
        found.append(cells)
    return ["partition", *(head for data in sets for head in (data, "lead of the best"))], found


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
