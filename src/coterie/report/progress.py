"""Progress, as bars or as lines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from coterie.report.words import duration, metric, plural

T = TypeVar("T")

_ACCURACY: Mapping[str, Any] = MappingProxyType({"name": "accuracy", "label": "accuracy", "share": True})
_SEED = ", seed "
ATTACKS = "attacks"
"""In ``Pace.work`` after a comparison's runs, a step for each."""
_BARS = 8  # of single runs, so that many runs do not fill the screen


class Pace:
    """The remaining time of some runs, by finished rounds.

    work: rounds by run, in order: ``"mnist/0.3/ifca, seed 1"``.  spent: number and seconds of earlier rounds.  at_once:
    runs that share the time.
    """

    def __init__(
        self,
        work: Mapping[str, int],
        spent: Mapping[str, tuple[int, float]] = MappingProxyType({}),
        at_once: int = 1,
    ) -> None:
        self.work, self.at_once = dict(work), at_once
        self.done = {name: min(spent.get(name, (0, 0.0))[0], rounds) for name, rounds in work.items()}
        self._known: dict[str, tuple[int, float]] = {}
        for name, (rounds, taken) in spent.items():
            self._learn(name, rounds, taken)

    @property
    def unknown(self) -> bool:
        return ATTACKS in self.work and ATTACKS not in self._known

    def _learn(self, name: str, rounds: int, taken: float) -> None:
        if rounds:
            before = self._known.get(_kind(name), (0, 0.0))
            self._known[_kind(name)] = before[0] + rounds, before[1] + taken

    def took(self, name: str, line: Mapping[str, Any]) -> None:
        for earlier in self.work:
            if earlier == name:
                break
            self.done[earlier] = self.work[earlier]
        self.done[name] = line["round"]
        self._learn(name, min(1, line["round"]), line["seconds"] + line.get("observing_seconds", 0.0))

    def left(self) -> float | None:
        """Seconds, None while no round is known. A run takes as long as those whose names begin most alike; attacks
        count once one is known.
        """
        if not self._known:
            return None
        counted = [name for name in self.work if name != ATTACKS or not self.unknown]
        seconds = sum((self.work[name] - self.done[name]) * self._seconds(_kind(name)) for name in counted)
        return seconds / self.at_once

    def outlook(self) -> str:
        rounds = [(self.done[name], self.work[name]) for name in self.work]
        finished = sum(done >= whole for done, whole in rounds)
        begun = sum(0 < done < whole for done, whole in rounds)
        missing = sum(whole - done for done, whole in rounds)
        there = f", of which {finished} are finished and {begun} begun" if finished + begun else ""
        runs = f"{plural(len(rounds), 'run')}{there}"
        if not missing:
            return f"{runs}: nothing is left to train."
        left = self.left()
        if left is None:
            time_left = ". Their first rounds will show how long they take."
        else:
            time_left = f", about {duration(left, whole=True)} (an estimate from the runs that are there)."
        stop = "Ctrl-C keeps the rounds that are done, and the same command goes on."
        return f"{runs}: {missing:,} round{'s' * (missing != 1)} left{time_left} {stop}"

    def _seconds(self, kind: str) -> float:
        parts = kind.split("/")
        common = {other: _in_common(parts, other.split("/")) for other in self._known}
        alike = [self._known[other] for other in common if common[other] == max(common.values())]
        near = [self._known[kind]] if kind in self._known else alike
        return sum(taken for _, taken in near) / sum(rounds for rounds, _ in near)


def _in_common(a: Sequence[str], b: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def name_run(label: str, seed: int) -> str:
    return f"{label}{_SEED}{seed}"


def _kind(name: str) -> str:
    return name.partition(_SEED)[0]


def rounds_of_runs(
    labels: Iterable[str], seeds: Iterable[int], rounds: int, *, attacked: bool = False
) -> dict[str, int]:
    """By run of a comparison.  attacked: views are, afterwards."""
    labels = list(labels)
    found = {name_run(label, seed): rounds for seed in seeds for label in labels}
    return {**found, ATTACKS: len(found)} if attacked else found


Tell = Callable[[str, Mapping[str, Any]], None]
"""Called with a run's name and a done round's line."""
Attack = Callable[[Path], T]


def tell_attacks(tell: Tell, attack: Attack[T]) -> Attack[T]:
    done = 0

    def told(folder: Path) -> T:
        nonlocal done
        if not done:
            tell(ATTACKS, {"round": 0, "seconds": 0.0})
        started = time.perf_counter()
        try:
            return attack(folder)
        finally:
            done += 1
            tell(ATTACKS, {"round": done, "seconds": time.perf_counter() - started})

    return told


@contextlib.contextmanager
def show_progress(
    quiet: bool,
    work: Mapping[str, int],
    spent: Mapping[str, tuple[int, float]] | None = None,
    *,
    leading: Mapping[str, Any] = _ACCURACY,
    at_once: int = 1,
) -> Iterator[Tell]:
    """Bars on a terminal, a line below a notebook's cell, elsewhere lines on stderr.

    work, spent, at_once: as of ``Pace``.  leading: the shown metric's facts.
    """
    console, pace = Console(stderr=True, highlight=False, soft_wrap=True), Pace(work, spent or {}, at_once)
    if quiet:
        yield lambda name, line: None
    elif console.is_jupyter:
        yield _under_cell(pace, leading)
    elif console.is_terminal:
        with _bars(console, pace, leading) as tell:
            yield tell
    else:
        yield _in_lines(console, pace, leading)


def _in_lines(console: Console, pace: Pace, leading: Mapping[str, Any]) -> Tell:
    """All rounds of one run. Of several, whose log would be long, at most four each, and where one stops early."""

    def tell(name: str, line: Mapping[str, Any]) -> None:
        words, step = _line(pace, name, line, leading), 1 if len(pace.work) == 1 else -(-pace.work[name] // 4)
        if line["round"] % step == 0 or line["round"] == pace.work[name] or "stopped" in line.get("notes", {}):
            console.print(words, markup=False)

    return tell


def _under_cell(pace: Pace, leading: Mapping[str, Any]) -> Tell:
    """One line, rewritten, since rich's bars need ipywidgets there."""
    from IPython.display import display

    shown = display({"text/plain": "setting up"}, raw=True, display_id=True)

    def tell(name: str, line: Mapping[str, Any]) -> None:
        shown.update({"text/plain": _line(pace, name, line, leading)}, raw=True)

    return tell


def write_outlook(pace: Pace) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(pace.outlook(), markup=False)


def _line(pace: Pace, name: str, line: Mapping[str, Any], leading: Mapping[str, Any]) -> str:
    pace.took(name, line)
    if name == ATTACKS:
        return "  ".join(part for part in (name, f"{line['round']} of {pace.work[name]} runs", _left(pace)) if part)
    runs = [one for one in pace.work if one != ATTACKS]
    of_all = [f"run {runs.index(name) + 1} of {len(runs)}"] if len(runs) > 1 else []
    parts = [name, f"round {line['round']} of {pace.work[name]}", _scores(line, leading), *of_all, _left(pace)]
    return "  ".join(part for part in parts if part)


def _left(pace: Pace) -> str:
    left = pace.left()
    if left is None or (pace.unknown and not round(left)):
        return ""
    return f"{duration(left, whole=True)} left" + (", then the attacks" if pace.unknown else "")


def _scores(line: Mapping[str, Any], leading: Mapping[str, Any]) -> str:
    """Those of a skipped round are of earlier models."""
    if "skipped" in line.get("notes", {}):
        return "skipped"
    name, share = leading["name"], leading["share"]
    sides = {"local": "own kind", "global": "global"}  # "local" is also a method
    found = {word: line.get(of := f"{side}_{name}", line.get("metrics", {}).get(of)) for side, word in sides.items()}
    head = "" if name == "accuracy" else f"{leading['label']} "
    shown = [f"{word} {metric(value, share)}" for word, value in found.items() if value is not None]
    return f"{head}{'  '.join(shown)}" if shown else ""


@contextlib.contextmanager
def _bars(console: Console, pace: Pace, leading: Mapping[str, Any]) -> Iterator[Tell]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=console) as shown:
        everything = sum(pace.work.values())
        whole = shown.add_task("all", total=everything, told="") if len(pace.work) > 1 else None
        tasks: dict[str, TaskID] = {}

        def begin(name: str) -> None:
            if len(tasks) >= _BARS:
                shown.update(tasks[list(tasks)[-_BARS]], visible=False)
            tasks[name] = shown.add_task(name, total=pace.work[name], told="setting up")

        def tell(name: str, line: Mapping[str, Any]) -> None:
            pace.took(name, line)
            if name not in tasks:
                begin(name)
            if whole is None:
                told = "  ".join(part for part in (_scores(line, leading), _left(pace)) if part)
            else:
                told = _scores(line, leading)
                shown.update(whole, completed=sum(pace.done.values()), told=_left(pace))
            shown.update(tasks[name], completed=line["round"], told=told)

        if whole is None:
            begin(next(iter(pace.work)))
        try:
            yield tell
        except BaseException:
            shown.live.transient = True  # an error message stands alone
            raise
