"""What studies share whose items are made like those of ``coterie reproduce``: the command, and means in tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from coterie.protocol.errors import CoterieError
from coterie.reproductions.study import Calculation, Item, Row, study
from coterie.runs.intervals import mean_and_interval


def main(
    items: Mapping[str, Item[Any]],
    arguments: list[str] | None = None,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Run an item of these and write its JSON, Markdown and picture. before: is called before an item is run."""
    parser = argparse.ArgumentParser(prog=next(iter(items.values())).command)
    parser.add_argument("item", choices=items)
    parser.add_argument("--list", action="store_true", help="list the item's cells, and run nothing")
    parser.add_argument("--only", action="append", default=[], help="only this cell; repeat it")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--rounds", type=int, help="of every run, instead of the item's own")
    parser.add_argument("--out", type=Path, help="folder to write to [reproduction/PAPER]")
    parser.add_argument("--data-dir", help="folder of data sets (else COTERIE_DATA)")
    given = parser.parse_args(arguments)
    item, out = items[given.item], given.out or Path("reproduction") / given.item.partition("/")[0]
    if given.list:
        sys.stdout.writelines(f"{cell.name}\n" for cell in item.cells)
        return
    options = {"only": given.only, "rounds": given.rounds, "data_dir": given.data_dir}
    try:
        before()
        sys.stdout.write(f"Written: {study(item, out, seeds=range(given.seeds), **options)}\n")
    except CoterieError as error:
        parser.error(str(error))


def crossed(
    compute: Callable[..., Any], settings: Callable[..., Row], *axes: Sequence[float | str | None]
) -> tuple[Calculation[Any], ...]:
    """One for each combination of the axes, which names it: ``compute(*values, seed)`` and ``settings(*values)``."""

    def word(value: float | str | None) -> str:
        return "none" if value is None else value if isinstance(value, str) else f"{value:g}"

    return tuple(
        Calculation("/".join(map(word, values)), partial(compute, *values), settings(*values))
        for values in product(*axes)
    )


def mean(values: Sequence[float | None], digits: int | None = None) -> str | None:
    """Mean and half of the 95 % interval over the seeds; None where some seed has no value.

    digits: after the point, by default 2, or 1 where a number is above 1.5.
    """
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values):
        return None
    middle, half = mean_and_interval(known)
    if digits is None:
        digits = 1 if max(map(abs, known)) > 1.5 else 2
    return f"{middle:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")
