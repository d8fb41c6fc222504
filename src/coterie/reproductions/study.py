"""Studies: cells of a paper's table or figure, each a few runs or a calculation, and their record. Runs lie under
``<out>/runs``, named after their resolved configuration, so items share equal ones. An interrupted study continues,
even within a run. Calculations are repeated.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum, isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Generic, TypeVar

from msgspec import to_builtins

from coterie.data.own import name_of
from coterie.protocol.errors import RunError, UserError, suggest
from coterie.record.files import atomic_write, writing
from coterie.record.folder import METRICS, RESULT, check_simulated, check_writable, jsonable, read_lines
from coterie.record.provenance import write_record
from coterie.reproductions.side_by_side import side_by_side
from coterie.runs.config import SIDES, Resolved, RunConfig, resolve
from coterie.runs.failures import is_divergence
from coterie.runs.finished import load_result
from coterie.runs.runner import run
from coterie.runs.running import Interrupted

_SIDES = SIDES | {"rounds"}  # a longer run serves a shorter one, and a shorter one is continued
# options that always count in a run's name; later ones count if not their defaults, so earlier studies are found
_FIRST = frozenset(
    {"system", "data", "clients", "partition", "model", "mode", "crypto", "seed", "devices", "precision"}
    | {"min_samples", "settings"}
)

_FEW = 12  # as many cells an error names; there are items of hundreds

DIVERGED = "diverged.txt"
OnRound = Callable[[str, int, Mapping[str, Any]], None]
Row = Mapping[str, Any]
"""One line of a table, by its columns."""
Outcome = TypeVar("Outcome")
"""A cell's for one seed: a `Curve` of a run, or whatever its calculation gives."""

_OF_A_ROUND = "fine_tuned_"  # so measures begin that are only taken in some rounds, a run's last among them
_OF_THE_END = "train_accuracy"  # taken after a run's last round only


@dataclass(frozen=True)
class Cell:
    """One entry of a table or a figure's curve. name: for ``--only``.  config: its run, but for the seed."""

    name: str
    config: RunConfig

    @property
    def settings(self) -> Row:
        """Resolved options that can move a number."""
        resolved = vars(resolve(self.config))
        return {key: value for key, value in resolved.items() if key not in (*_SIDES, "seed")}


@dataclass(frozen=True)
class Calculation(Generic[Outcome]):
    """One entry without training: a closed form, a simulation, a measured time.

    compute: from the seed.  settings: what the table says of it.
    """

    name: str
    compute: Callable[[int], Outcome]
    settings: Row = field(default_factory=dict)


@dataclass(frozen=True)
class Item(Generic[Outcome]):
    """summarise: from all outcomes by cell, one a seed, to what stands beside the paper's numbers. draw: a picture into
    a file, or None.  command: runs it, given its name.
    """

    name: str
    title: str
    cells: tuple[Cell, ...] | tuple[Calculation[Outcome], ...]
    summarise: Callable[[Mapping[str, Sequence[Outcome]]], Sequence[Row]]
    draw: Callable[[Mapping[str, Sequence[Outcome]], Path], None] | None = None
    command: str = "coterie reproduce"


def by_cell(
    row: Callable[[str, Sequence[Outcome]], Row],
) -> Callable[[Mapping[str, Sequence[Outcome]]], Sequence[Row]]:
    """A ``summarise`` that makes a row of each cell, from its name and outcomes."""
    return lambda outcomes: [row(name, found) for name, found in outcomes.items()]


def named(*items: Item[Outcome]) -> Mapping[str, Item[Outcome]]:
    return {item.name: item for item in items}


@dataclass(frozen=True)
class Curve:
    """One run over its rounds. Accuracies are fractions, None where not evaluated.  models: SHA-256 of all clients'
    models after each round.  diverged: why the rounds end early.  notes: the system's, of each round.  groups: each
    client's, in the data.  scores: (clients,) of each measure after the last round; empty for a part of a run.
    grouping: how clusters agree with these groups, None where not evaluated or without clusters.  virtual_seconds: at
    the end of each round, with the set-up.  seconds: real ones of these rounds, with evaluation.
    """

    seed: int
    global_accuracy: tuple[float | None, ...]
    local_accuracy: tuple[float | None, ...]
    clustered: tuple[bool, ...]
    models: tuple[str | None, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    diverged: str = ""
    notes: tuple[Row, ...] = ()
    groups: tuple[int, ...] = ()
    scores: Row = field(default_factory=dict)
    grouping: tuple[Row | None, ...] = ()
    virtual_seconds: tuple[float | None, ...] = ()
    seconds: float = 0.0

    @classmethod
    def of(
        cls, lines: Sequence[Row], seed: int, summary: Row, diverged: str, groups: Sequence[int], scores: Row
    ) -> Curve:
        """From ``metrics.jsonl``; values of single rounds are the last line's."""
        last = {key: value for key, value in lines[-1].items() if key.startswith(_OF_A_ROUND)} if lines else {}
        whole = summary.get("rounds_done", summary.get("rounds")) == len(lines)
        own = {key: value for key, value in summary.items() if not key.startswith(_OF_A_ROUND)}
        if not whole:
            own.pop(_OF_THE_END, None)
        return cls(
            seed,
            tuple(line.get("global_accuracy") for line in lines),
            tuple(line.get("local_accuracy") for line in lines),
            tuple(bool(line["notes"].get("clustered")) for line in lines),
            tuple(line.get("models_sha256") for line in lines),
            {**own, **last},
            diverged,
            tuple(line["notes"] for line in lines),
            tuple(groups),
            scores if whole else {},
            tuple(line.get("grouping") for line in lines),
            tuple(line.get("virtual_seconds") for line in lines),
            _seconds(lines),
        )

    def rounds_to(self, target: float, measure: str) -> int | None:
        """The first round that reaches the target, or None."""
        return next((r for r, v in enumerate(getattr(self, measure), 1) if v is not None and v >= target), None)

    def seconds_to(self, target: float, measure: str) -> float | None:
        """The virtual clock at that round's end, or None."""
        reached = self.rounds_to(target, measure)
        return None if reached is None else self.virtual_seconds[reached - 1]

    def last(self, measure: str, window: int = 10) -> float:
        """Mean over the last rounds, against luck in one; NaN if the training diverged."""
        if self.diverged:
            return nan
        return fmean([v for v in getattr(self, measure) if v is not None][-window:])

    def numbers(self) -> Row:
        """For a record, accuracies to four digits."""
        rounded = {
            name: [None if value is None else float(f"{value:.4g}") for value in getattr(self, name)]
            for name in ("global_accuracy", "local_accuracy", "virtual_seconds")
        }
        tuned = {key: value for key, value in self.summary.items() if key.startswith(_OF_A_ROUND) and "accuracy" in key}
        found = {"seed": self.seed, **rounded, **tuned, "seconds": float(f"{self.seconds:.3g}")}
        return {**found, **({"diverged": self.diverged} if self.diverged else {})}

    def events(self) -> int:
        return sum(self.clustered)


def _seconds(lines: Sequence[Row]) -> float:
    return fsum(line["seconds"] + line.get("observing_seconds", 0.0) for line in lines)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation (None for one value)."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def percent(values: Sequence[float | None]) -> str | None:
    """Mean and standard deviation of fractions, for a table; None where nothing was measured. NaN: a
    diverged training.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    if any(isnan(value) for value in known):
        return "diverged"
    mean, sd = spread(known)
    return f"{100 * mean:.2f}" + ("" if sd is None else f" ± {100 * sd:.2f}")


def last_rounds(found: Sequence[Curve], words: str) -> Row:
    """Over the last ten rounds. words: of columns, with ``{}`` for either name."""
    return {
        words.format(one): percent([curve.last(f"{one}_accuracy") for curve in found]) for one in ("global", "local")
    }


def digest(resolved: Resolved) -> str:
    """16 hexadecimal digits that identify a run's numbers."""
    work = {key: value for key, value in vars(resolved).items() if key not in _SIDES}
    usual = {**vars(RunConfig), "delta": 0.0, "public": 0.0}
    work = {key: value for key, value in work.items() if key in _FIRST or value not in (None, usual[key])}
    return hashlib.blake2b(json.dumps(work, sort_keys=True).encode(), digest_size=8).hexdigest()


def _place(resolved: Resolved, folder: Path) -> Path:
    return folder / "runs" / f"{resolved.system}-{name_of(resolved.data)}-{resolved.seed}-{digest(resolved)}"


def one(config: RunConfig, folder: Path, on_round: OnRound | None, name: str) -> Curve:
    """Read, continued if too short or interrupted, or made."""
    resolved = resolve(replace(config, evaluate="all"))
    out = _place(resolved, folder)
    done = load_result(out).summary["rounds"] if (out / RESULT).exists() else 0
    if done < resolved.rounds and not (out / DIVERGED).exists():
        watch = None if on_round is None else lambda line: on_round(name, config.seed, line)
        try:
            run(replace(resolved, out=str(out)), watch, resume=out.exists())
        except RunError as error:
            if not is_divergence(error) or not (out / METRICS).exists():
                raise
            atomic_write(out / DIVERGED, f"{error.__cause__ or error}\n".encode())  # a result, too; it names no folder
    lines = read_lines(out / METRICS)
    why = ""
    summary: Row = {}
    scores: Row = {}
    if not (out / DIVERGED).exists():
        summary, scores = load_result(out).summary, json.loads((out / "clients.json").read_text())
    elif resolved.rounds > len(lines):
        why = (out / DIVERGED).read_text().strip()
    groups = json.loads((out / "partition.json").read_text()).get("groups") or ()
    return Curve.of(lines[: resolved.rounds], config.seed, summary, why, groups, scores)


@dataclass(frozen=True)
class CellProgress:
    cell: str
    seed: int
    rounds: int
    done: int
    seconds: float


def standings(
    item: Item[Any], folder: Path, *, only: Sequence[str], seeds: Sequence[int], rounds: int | None
) -> list[CellProgress]:
    """Of all runs that ``study`` would make, in its order. Raises UserError."""
    cells, found = _checked(item, folder, only, seeds, rounds), []
    for seed in seeds:
        for cell in cells:
            if isinstance(cell, Cell):
                resolved = resolve(replace(cell.config, seed=seed, rounds=rounds or cell.config.rounds))
                out, length = _place(resolved, folder), resolved.rounds
                lines = read_lines(out / METRICS) if (out / METRICS).exists() else []
                ended = (out / DIVERGED).exists() or (bool(lines) and "stopped" in lines[-1]["notes"])
                done = length if ended else len(lines)
                found.append(CellProgress(cell.name, seed, length, done, _seconds(lines)))
    return found


def chosen(item: Item[Any], only: Sequence[str]) -> list[Any]:
    """Cells of these names, or of all up to a slash; by default every cell. Raises UserError."""
    names = [cell.name for cell in item.cells]
    known = {"/".join(parts[:end]) for parts in (name.split("/") for name in names) for end in range(1, len(parts) + 1)}
    for part in only:
        if part not in known:
            few = f"It has: {', '.join(names)}" if len(names) <= _FEW else f"See {item.command} {item.name} --list"
            raise UserError(f"{item.name} has no cell {part!r}{suggest(part, sorted(known))} {few}")
    return [cell for cell in item.cells if not only or any(f"{cell.name}/".startswith(f"{part}/") for part in only)]


def _checked(item: Item[Any], folder: Path, only: Sequence[str], seeds: Sequence[int], rounds: int | None) -> list[Any]:
    if not seeds:
        raise UserError("at least 1 seed is needed")
    if rounds is not None and rounds < 1:
        raise UserError(f"at least 1 round is needed, not {rounds}")
    cells = chosen(item, only)
    check_writable(folder)
    check_simulated(folder)
    return cells


def _made(item: Item[Any], folder: Path, seeds: Sequence[int], rounds: int | None) -> list[str]:
    """Cells of an earlier record whose runs are all there, by the present configuration."""
    try:
        recorded = json.loads((folder / f"{item.name.rpartition('/')[2]}.json").read_text())["cells"]
        names = [cell.name for cell in item.cells if isinstance(cell, Cell) and cell.name in recorded]
    except (OSError, ValueError, TypeError, KeyError):  # none, or a file of something else
        return []
    all_runs = standings(item, folder, only=names, seeds=seeds, rounds=rounds) if names else []
    begun = {one.cell for one in all_runs if one.done < one.rounds}
    return [name for name in names if name not in begun]


def _briefly(item: Item[Any], names: Sequence[str]) -> list[str]:
    if len(names) == len(item.cells):
        return []
    left = {cell.name.partition("/")[0] for cell in item.cells if cell.name not in names}
    return list(dict.fromkeys(name if (task := name.partition("/")[0]) in left else task for name in names))


def study(
    item: Item[Any],
    folder: Path,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    data_dir: str | None = None,
    workers: str | None = None,
    jobs: int = 1,
    on_round: OnRound | None = None,
) -> Path:
    """Run what is missing; write ``<name>.json``, ``<name>.md`` and, where drawn, ``<name>.svg``.

    only: names of cells, or of all up to a slash. Every cell is run with the first seed before any with the second.
    jobs: runs at once, each a process with one thread; ``on_round`` then has a run's last round alone. Cells of an
    earlier record stay in it while their runs are there. Gives the path of the Markdown file. Raises UserError before
    anything is run, RunError where it cannot go on.
    """
    cells = _checked(item, folder, only, seeds, rounds)
    if more := set(_made(item, folder, seeds, rounds)) - {cell.name for cell in cells}:
        cells = [cell for cell in item.cells if cell in cells or cell.name in more]
        only = _briefly(item, [cell.name for cell in cells])
    work: list[tuple[Any, RunConfig | int]] = [
        (cell, replace(cell.config, seed=seed, rounds=rounds or cell.config.rounds, data_dir=data_dir, workers=workers))
        if isinstance(cell, Cell)
        else (cell, seed)
        for seed in seeds
        for cell in cells
    ]
    outcomes: dict[str, list[Any]] = {cell.name: [] for cell in cells}
    try:
        if jobs > 1:
            _run_together([(cell.name, of) for cell, of in work if isinstance(of, RunConfig)], folder, jobs, on_round)
        for cell, of in work:
            done = one(of, folder, on_round, cell.name) if isinstance(of, RunConfig) else cell.compute(of)
            outcomes[cell.name].append(done)
    except KeyboardInterrupt as error:
        runs = standings(item, folder, only=[cell.name for cell in cells], seeds=seeds, rounds=rounds)
        finished = sum(run.done >= run.rounds for run in runs)
        raise _interrupted(error, folder, max(finished, sum(map(len, outcomes.values()))), len(work)) from None
    rows = item.summarise(outcomes)
    stem = item.name.rpartition("/")[2]
    command = f"{item.command} {item.name} --seeds {len(seeds)}" + (f" --rounds {rounds}" if rounds else "")
    command += "".join(f" --only {shlex.quote(part)}" for part in only)
    page, picture = folder / f"{stem}.md", folder / f"{stem}.svg"
    write_record(folder / f"{stem}.json", command, _content(item, cells, seeds, rows, outcomes))
    atomic_write(page, _markdown(item, command, rows).encode())
    if item.draw is not None:
        with writing(picture):
            item.draw(outcomes, picture)
    return page


def _content(
    item: Item[Any], cells: Sequence[Any], seeds: Sequence[int], rows: Sequence[Row], outcomes: Mapping[str, list[Any]]
) -> Row:
    curves = {name: [one.numbers() for one in found if isinstance(one, Curve)] for name, found in outcomes.items()}
    each = {"curves": curves} if any(curves.values()) else {}
    return {
        "item": item.name,
        "title": item.title,
        "seeds": list(seeds),
        "rows": rows,
        "cells": {cell.name: cell.settings for cell in cells},
        **(each or {"values": jsonable(to_builtins(outcomes, str_keys=True, enc_hook=jsonable))}),
    }


def _run_together(runs: Sequence[tuple[str, RunConfig]], folder: Path, jobs: int, on_round: OnRound | None) -> None:
    missing = dict[str, tuple[str, RunConfig]]()
    for name, config in runs:
        resolved = resolve(replace(config, evaluate="all"))
        place = _place(resolved, folder)
        done = len(read_lines(place / METRICS)) if (place / METRICS).exists() else 0
        if done < resolved.rounds and not (place / DIVERGED).exists():
            missing[str(place)] = (name, config)

    def tell(place: str, _: Curve) -> None:
        if on_round is not None:
            name, config = missing[place]
            on_round(name, config.seed, read_lines(Path(place) / METRICS)[-1])

    side_by_side(
        {place: partial(one, config, folder, None, name) for place, (name, config) in missing.items()}, jobs, tell
    )


def _interrupted(error: KeyboardInterrupt, folder: Path, done: int, every: int) -> Interrupted:
    stopped = error if isinstance(error, Interrupted) else Interrupted(folder, 0)
    begun = f" and {stopped.kept} of the next" if stopped.done else ""
    stopped.kept, stopped.advice = f"{done} of {every} runs finished{begun}", "the same command"
    return stopped


def _markdown(item: Item[Any], command: str, rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"# {item.title}", "", f"`{command}`", ""]
    if rows:
        columns = list(rows[0])
        lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        lines += ["| " + " | ".join(_text(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
