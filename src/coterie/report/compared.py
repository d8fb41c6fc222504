"""``compare.json``: the order of a comparison's methods, what they share, and their scores."""

from __future__ import annotations

from typing import Annotated

import msgspec

from coterie.report.budget import Budget, Count
from coterie.runs.budget import Difference

Share = Annotated[float, msgspec.Meta(ge=0, le=1 + 1e-6)]  # a mean of float32 shares may exceed 1 by rounding
FolderName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\\x00]+\Z")]  # of a subfolder


class Measure(msgspec.Struct, frozen=True):
    """What a metric is called, and whether it is a share (shown in percent) and better if higher."""

    name: str
    label: str
    share: bool = True
    higher: bool = True


ACCURACY = Measure("accuracy", "accuracy")
"""What leads where a folder names no metric."""


class Spread(msgspec.Struct, frozen=True):
    """A measure over the seeds."""

    mean: float
    values: tuple[float, ...]
    interval: float | None = None


class Row(msgspec.Struct, frozen=True):
    """A row of ``compare.json``. runs: folders of a method's runs.  learned: by topic, what its servers learned."""

    runs: tuple[FolderName, ...] = ()
    method: str = ""
    system: str = ""
    global_accuracy: Spread | None = None
    local_accuracy: Spread | None = None
    fine_tuned_local_accuracy: Spread | None = None
    metrics: dict[str, Spread | None] = {}
    learned: dict[str, Spread | None] | None = None
    not_attacked: str | None = None


class Lead(msgspec.Struct, frozen=True):
    """By how much the first method of a comparison is ahead of another one, paired by seed."""

    over: str
    global_accuracy: Spread | None = None
    local_accuracy: Spread | None = None
    fine_tuned_local_accuracy: Spread | None = None
    metrics: dict[str, Spread | None] = {}


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """``compare.json``: the order of the methods, and what they share. The runs' own numbers are read from them."""

    clients: Count | None = None
    rounds: Count | None = None
    devices: str = ""
    availability: str | None = None
    fine_tune: str = "no"
    budget: Budget | None = None
    budget_from: str | None = None
    differences: tuple[Difference, ...] = ()
    measures: tuple[Measure, ...] = ()
    attack: str | None = None
    attackers: Share | None = None
    rows: tuple[Row, ...] = ()
    leads: tuple[Lead, ...] = ()

    def __post_init__(self) -> None:
        found = (
            of for row in self.rows for of in (row.local_accuracy, row.fine_tuned_local_accuracy, *row.metrics.values())
        )
        if len(lengths := {len(of.values) for of in found if of}) > 1 or 0 in lengths:
            raise ValueError("rows of unequally many values, or of none; each has one a seed")
