"""What was run of the papers' tables and figures, what it showed, and what is left: docs/evidence/papers.md.

    python -m benchmarks.evidence reproduction --jobs 2    all runs that a CPU can do, at three seeds (make evidence)
    python -m benchmarks.evidence reproduction --plan      only says what is left, and how long it takes
    python -m benchmarks.evidence docs/evidence --measure  times a round of each kind of run that has none in costs.json

What is in the folder is continued. Times are estimates: the rounds that are left by the seconds of one round of their
kind (paper, data set, model and precision) on one core, without set-up, calculations and fine-tuning.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import cells, signatures
from benchmarks.markdown import grid
from benchmarks.security.__main__ import STUDIES
from coterie.data.sources import load
from coterie.protocol.errors import UserError
from coterie.record.provenance import write_record
from coterie.reproductions import items
from coterie.reproductions.study import Cell, Item, digest, one, standings, study
from coterie.runs.config import RunConfig, resolve

ROOT = Path(__file__).parents[1]
COSTS = ROOT / "docs" / "evidence" / "costs.json"
SEEDS = range(3)
MOST_HOURS = 2.0
"""A run that takes a core longer is none for a CPU."""
FEW = 6_000
"""Samples by which rounds of CNNs are timed: their training, not their evaluation, is taken to grow with the number."""
VERDICTS = ("holds", "holds in part", "does not hold", "undecided", "not run")

OF_PAPER = re.compile(r", ((?:table|figure) \w+):")

Done = Mapping[tuple[str, int], int]
"""By cell and seed, the rounds that were run."""


# -- records -----------------------------------------------------------------------------------------------------------


def verdicts() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((ROOT / "papers" / "verdicts.toml").read_text())


def records(name: str, verdict: Mapping[str, Any]) -> list[str]:
    """The paths of what was run of an item."""
    usual = f"docs/reproduction/{verdict.get('item', name)}.json"
    return list(verdict.get("records", [usual] if (ROOT / usual).exists() else []))


def run_of(item: Item[Any], paths: Sequence[str]) -> Done:
    """What records have of an item's cells: the most rounds of each run, by the commands and the item itself."""
    found: dict[tuple[str, int], int] = {}
    for path in paths:
        record = json.loads((ROOT / path).read_text())
        asked = re.search(r"--rounds (\d+)", record["command"])
        for cell in item.cells:
            if cell.name in record["cells"]:
                seeds = [curve["seed"] for curve in record.get("curves", {}).get(cell.name, ())] or record["seeds"]
                rounds = int(asked[1]) if asked else length(cell)
                found |= {(cell.name, seed): max(rounds, found.get((cell.name, seed), 0)) for seed in seeds}
    return found


def length(cell: Any) -> int:
    """Rounds of a cell; 0 for a calculation."""
    return (cell.config.rounds or 0) if isinstance(cell, Cell) else 0


# -- time --------------------------------------------------------------------------------------------------------------


def kind(item: Item[Any], cell: Cell) -> str:
    config = cell.config
    return "/".join(map(str, (item.name.partition("/")[0], Path(config.data).stem, config.model, config.precision)))


def seconds(item: Item[Any], cell: Cell, costs: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Of one round on one core; None for a kind that was not measured. With samples by their number."""
    known = costs.get(kind(item, cell))
    if known is None:
        return None
    of = known["samples"]
    return float(known["seconds"] * ((cell.config.samples or of) / of if of else 1))


def left(item: Item[Any], done: Done, costs: Mapping[str, Mapping[str, Any]]) -> str:
    """Core hours to three seeds of every cell, and the data sets that no round was measured of."""
    hours, unknown = 0.0, dict[str, None]()
    for cell, seed in product(item.cells, SEEDS):
        if isinstance(cell, Cell):
            missing = max(0, length(cell) - done.get((cell.name, seed), 0))
            if (each := seconds(item, cell, costs)) is None:
                unknown |= {cell.config.data: None} if missing else {}
            else:
                hours += missing * each / 3600
    return " + ".join([f"{hours:,.1f} h", *(f"`{data}`" for data in unknown)])


def convolves(config: RunConfig) -> bool:
    return str(resolve(config).model).startswith(("cnn", "lenet"))


def measured(config: RunConfig) -> tuple[float, int]:
    """CPU seconds of the second round of a run on one core, with its evaluation, and its number of samples."""
    whole = config.samples or len(load(config.data, config.data_dir, download=False).y_train)
    few = min(whole, FEW) if convolves(config) else whole
    told: list[tuple[float, Mapping[str, Any]]] = []
    short = replace(config, rounds=2, fine_tune="no", samples=None if few == whole else few)
    with tempfile.TemporaryDirectory() as place:
        one(short, Path(place), lambda _, __, line: told.append((time.process_time(), line)), "")
    (before, _), (after, line) = told
    scoring = line["observing_seconds"] / (line["seconds"] + line["observing_seconds"])
    return float((after - before) * (scoring + (1 - scoring) * whole / few)), whole


def measure(path: Path, data_dir: str | None, only: Sequence[str] = ()) -> None:
    """Time the first cell of each kind that the record lacks; a kind without data is left out. only: these kinds."""
    found = json.loads(path.read_text())["rounds"] if path.exists() else {}
    lacking = dict[str, str]()
    torch.set_num_threads(1)
    for data in cells.CLIENTS:
        signatures.written(data)
    kinds = {
        kind(item, cell): (item, cell) for item in everything() for cell in item.cells[::-1] if isinstance(cell, Cell)
    }
    for name, (item, cell) in sorted(kinds.items(), key=lambda pair: convolves(pair[1][1].config)):
        if name not in found and (not only or name in only):
            try:
                took, samples = measured(replace(cell.config, data_dir=data_dir))
            except UserError as error:
                lacking[name] = str(error)
                continue
            of = f"{item.name} {cell.name}"
            found[name] = {"seconds": float(f"{took:.3g}"), "samples": samples, "of": of}
            write_record(path, "python -m benchmarks.evidence docs/evidence --measure", {"rounds": found})
    sys.stderr.writelines(f"{name}: {error}\n" for name, error in lacking.items())


# -- the page ----------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Mapping[str, Any]], paper: str) -> str:
    """A paper's table, and below it what was not run of it."""
    costs, own, rows, rest = json.loads(COSTS.read_text())["rounds"], items(), [], []
    for name, verdict in found.items():
        if name.partition("/")[0] == paper:
            item = own[verdict.get("item", name)]
            paths = records(name, verdict)
            done = run_of(item, paths)
            whole = {cell.name: length(cell) for cell in item.cells}
            rounds = sorted({(made, whole[cell]) for (cell, _), made in done.items() if whole[cell]})
            title = of_paper[1] if (of_paper := OF_PAPER.search(verdict.get("title", item.title))) else "ours"
            more = left(item, done, costs) + (f"; {verdict['needs']}" if "needs" in verdict else "")
            if verdict["verdict"] == VERDICTS[-1]:
                rest.append(f"{title} (`{item.name}`; {verdict['reading']}; left: {more})")
                continue
            ran = [
                f"{len({cell for cell, _ in done})} of {len(item.cells)}",
                _range([sum(cell == other for other, _ in done) for cell, _ in done]),
                ", ".join(f"{made} of {of}" for made, of in rounds) or "–",
            ]
            judged = f"**{verdict['verdict']}** ({verdict['reading']}): {verdict['says']} *{verdict['sure']}*"
            rows.append([f"{title}: {', '.join(map(_link, paths))}", "; ".join(ran), judged, more])
    shown = grid(("of the paper: record", "cells; seeds; rounds", "verdict, and how sure", "left"), rows)
    return shown + (f"\nNot run: {'; '.join(rest)}.\n" if rest else "")


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """By paper, how many of its items have each verdict."""
    given: dict[str, list[str]] = {}
    for name, verdict in found.items():
        given.setdefault(name.partition("/")[0], []).append(verdict["verdict"])
    titles = {name.lower(): name for name in ("FedCAPrivacy", "FedEPC", "MingledPie", "OFL", "PAFed")}
    rows = [[titles[paper], *(str(own.count(one)) for one in VERDICTS)] for paper, own in sorted(given.items())]
    return grid(("paper", *VERDICTS), rows)


def _link(path: str) -> str:
    record = json.loads((ROOT / path).read_text())
    rounded = "" if "curves" in record or "values" in record else "\\*"
    return f"[{Path(path).parent.name}/{Path(path).stem}]({path.replace('docs', '..', 1)}){rounded}"


def _range(numbers: Sequence[int]) -> str:
    ends = [str(end(numbers)) for end in (min, max)] if numbers else ["–"]
    return " to ".join(dict.fromkeys(ends))


# -- the runs ----------------------------------------------------------------------------------------------------------


def everything() -> list[Item[Any]]:
    """The papers' items, and the comparison of methods."""
    return [*items().values(), cells.CELLS]


def planned(folder: Path, most_hours: float) -> Iterator[tuple[Item[Any], list[str], float]]:
    """Of each item the cells that a CPU can do, and the core hours that they still take; equal runs count once."""
    costs, seen = json.loads(COSTS.read_text())["rounds"], set[str]()
    for item in everything():
        each = {cell.name: seconds(item, cell, costs) for cell in item.cells if isinstance(cell, Cell)}
        able = [
            cell
            for cell in item.cells
            if not isinstance(cell, Cell)
            or ((own := each[cell.name]) is not None and own * length(cell) <= 3600 * most_hours)
        ]
        names, hours = [cell.name for cell in able], 0.0
        runs = standings(item, folder_of(item, folder), only=names, seeds=SEEDS, rounds=None) if able else []
        for run, (seed, cell) in zip(runs, product(SEEDS, able), strict=False):
            name = digest(resolve(replace(cell.config, seed=seed, evaluate="all")))
            if name not in seen:
                hours += (run.rounds - run.done) * (each[run.cell] or 0.0) / 3600
            seen.add(name)
        yield item, names, hours


def folder_of(item: Item[Any], folder: Path) -> Path:
    return folder / item.name.partition("/")[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Say what is left, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--plan", action="store_true", help="run nothing")
    parser.add_argument("--measure", action="store_true", help="time a round of each kind of run")
    parser.add_argument("--only", metavar="KIND", action="append", default=[], help="with --measure: of these kinds")
    parser.add_argument("--most-hours", type=float, default=MOST_HOURS, help="of a run that a CPU can do")
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if given.measure:
        measure(given.folder / COSTS.name, given.data_dir, given.only)
        return
    plan = list(planned(given.folder, given.most_hours))
    for item, names, hours in plan:
        sys.stdout.write(f"{item.name}: {len(names)} of {len(item.cells)} cells, {hours:.1f} h left\n")
    total = sum(hours for *_, hours in plan)
    sys.stdout.write(
        f"In all {total:.0f} core hours, {total / given.jobs:.0f} with {given.jobs} at once, and security.\n"
    )
    if given.plan:
        return
    for data in cells.CLIENTS:
        signatures.written(data)
    for item, names, _ in plan:
        if names:
            options = {"only": names, "seeds": SEEDS, "data_dir": given.data_dir, "jobs": given.jobs}
            sys.stdout.write(f"Written: {study(item, folder_of(item, given.folder), **options)}\n")
    for system in STUDIES:
        path = given.folder / "security" / f"{system}.json"
        if not path.exists():
            subprocess.run([sys.executable, "-m", "benchmarks.security", system, str(path)], check=True)


if __name__ == "__main__":
    main()
