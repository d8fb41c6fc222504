"""The tables and figures of "FedCAPrivacy", section VI: 100 clients, B = 50, E_i in 1..5.

What the paper leaves open is settled as follows: all clients take part in every round; accuracies are means over the
clients of their own (personalised) models, on the whole test set (``global``) and on test data of their own
distribution (``local``). The paper does not say which it reports, so both stand beside its number.

The learning rate is ten times the printed one for every method, and five times for SCAFFOLD, which diverges at ten.
It was chosen on FedAvg's column alone; docs/reproduction/fedcaprivacy.md says how, with the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt
from typing import Any

from coterie.clustering.schedule import Schedule
from coterie.reproductions.study import Curve, Row, spread
from papers import tables


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    if words["system"] == "scaffold":
        found["settings"]["lr"] /= 2
    if "clusters" in words:
        found["settings"]["clusters"] = words["clusters"]


def rounds_to(found: Sequence[Curve], cell: tables.Entry, which: str) -> str:
    """Mean rounds to the target over the seeds, and how many seeds get there."""
    values = [curve.rounds_to(cell["goal"], f"{which}_accuracy") for curve in found]
    reached = [value for value in values if value is not None]
    most = len(found[0].global_accuracy)
    text = f"{spread(reached)[0]:.1f}".removesuffix(".0") if reached else f"> {most}"
    return text if len(reached) in (0, len(values)) else f"{text} ({len(reached)} of {len(values)} seeds)"


def events(found: Sequence[Curve], cell: tables.Entry) -> float:
    """Clusterings, mean over the seeds."""
    return spread([curve.events() for curve in found])[0]


def fewer(found: Sequence[Curve], cell: tables.Entry) -> str:
    return f"{len(found[0].clustered) / events(found, cell):.2f}x"


def clustering_events(schedule: Schedule, rounds: int) -> tuple[float, float]:
    """The expected number of clusterings in so many rounds, and its standard deviation; coins are independent."""
    chances = [schedule.probability(r) for r in range(1, rounds + 1)]
    return fsum(chances), sqrt(fsum(p * (1 - p) for p in chances))


def closed_forms(found: Sequence[Curve], cell: tables.Entry) -> Row:
    """Expected clusterings, their deviation, and how many fewer than always that is, in these rounds and in 200.

    The paper does not say how many rounds it ran.
    """
    row: dict[str, str | None] = {}
    for rounds in (len(found[0].clustered), 200):
        text = None
        if "decay" in cell.words:
            expected, sd = clustering_events(Schedule(cell["decay"]), rounds)
            text = f"{expected:.1f} ± {sd:.1f} ({rounds / expected:.2f}x)"
        row[f"closed form, {rounds} rounds"] = text
    return row


def real(curves: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """Whether the models agree bit for bit, and what the cipher costs."""
    digests = {name: [curve.models[-1] for curve in found] for name, found in curves.items()}
    return [
        {
            "cipher": name,
            "rounds": len(found[0].models),
            "models' SHA-256": ", ".join(str(digest)[:16] for digest in digests[name]),
            "equal to the first": digests[name] == next(iter(digests.values())),
            "seconds": sum(curve.summary["seconds"] for curve in found),
            "MB sent": sum(curve.summary["bytes_up"] for curve in found) / 1e6,
        }
        for name, found in curves.items()
    ]


ITEMS = tables.items("fedcaprivacy", globals())
