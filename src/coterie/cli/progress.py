"""Progress: rounds, the latest accuracies and the time that is left, as bars or as lines."""

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

T = TypeVar("T")

_NOTHING = "–"
_ACCURACY: Mapping[str, Any] = MappingProxyType({"name": "accuracy", "label": "accuracy", "share": True})
_SEED = ", seed "
ATTACKS = "attacks"
"""The name of the work that follows the runs of a comparison, in ``Pace.work``: one step for each run."""
_BARS = 8  # of single runs, so that many runs do not fill the screen


def console(least: int) -> Console:
    """Standard output. If it is no terminal, it has at least so many columns, so that tables are whole."""
    usual = Console(highlight=False, soft_wrap=True)
    return usual if usual.is_terminal else Console(highlight=False, soft_wrap=True, width=max(usual.width, least))


def percent(share: Any) -> str:
    """``91.7 %``, or a dash for what was not measured."""
    return _NOTHING if share is None else f"{100 * share:.1f} %"


def size(count: float | None) -> str:
    """Bytes in units of powers of 1000."""
    if count is None:
        return _NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"


def seconds(value: float | None) -> str:
    """Seconds, or minutes and hours if there are many."""
    if value is None:
        return _NOTHING
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


class Pace:
    """How long some runs will still take, by the seconds of the rounds that are done. It is an estimate.

    work: the rounds of every run, by its name, in their order: ``"mnist/0.3/ifca, seed 1"``.  spent: of rounds that
    were done before, how many and their seconds, by name.
    """

    def __init__(self, work: Mapping[str, int], spent: Mapping[str, tuple[int, float]] = MappingProxyType({})) -> None:
        self.work = dict(work)
        self.done = {name: min(spent.get(name, (0, 0.0))[0], rounds) for name, rounds in work.items()}
        self._known: dict[str, tuple[int, float]] = {}
        for name, (rounds, taken) in spent.items():
            self._learn(name, rounds, taken)

    @property
    def unknown(self) -> bool:
        """Whether there are attacks of which nobody knows yet how long they take."""
        return ATTACKS in self.work and ATTACKS not in self._known

    def _learn(self, name: str, rounds: int, taken: float) -> None:
        if rounds:
            before = self._known.get(_kind(name), (0, 0.0))
            self._known[_kind(name)] = before[0] + rounds, before[1] + taken

    def took(self, name: str, line: Mapping[str, Any]) -> None:
        """A round of this run is done, and with it every run before it."""
        for earlier in self.work:
            if earlier == name:
                break
            self.done[earlier] = self.work[earlier]
        self.done[name] = line["round"]
        self._learn(name, min(1, line["round"]), line["seconds"] + line.get("observing_seconds", 0.0))

    def left(self) -> float | None:
        """Seconds, None while no round is known. A run takes as long as those whose names begin most alike.

        Attacks are counted as soon as one is known.
        """
        if not self._known:
            return None
        counted = [name for name in self.work if name != ATTACKS or not self.unknown]
        return sum((self.work[name] - self.done[name]) * self._seconds(_kind(name)) for name in counted)

    def _seconds(self, kind: str) -> float:
        """Of one round, the mean over the runs that are most alike."""
        parts = kind.split("/")
        common = {other: _shared(parts, other.split("/")) for other in self._known}
        alike = [self._known[other] for other in common if common[other] == max(common.values())]
        near = [self._known[kind]] if kind in self._known else alike
        return sum(taken for _, taken in near) / sum(rounds for rounds, _ in near)


def _shared(a: Sequence[str], b: Sequence[str]) -> int:
    """How many parts two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def named(label: str, seed: int) -> str:
    """The name of one of several runs."""
    return f"{label}{_SEED}{seed}"


def _kind(name: str) -> str:
    """A run's name without its seed."""
    return name.partition(_SEED)[0]


def work(labels: Iterable[str], seeds: Iterable[int], rounds: int, *, attacked: bool = False) -> dict[str, int]:
    """The rounds of all runs of a comparison, in their order. attacked: whether their views are attacked afterwards."""
    labels = list(labels)
    found = {named(label, seed): rounds for seed in seeds for label in labels}
    return {**found, ATTACKS: len(found)} if attacked else found


Tell = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of a run and the line of a round that is done."""
Attack = Callable[[Path], T]
"""Attacks the views in a run's folder."""


def telling(tell: Tell, attack: Attack[T]) -> Attack[T]:
    """The same attack, which tells when the first run is attacked, and after each how long it took."""
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
def progress(
    quiet: bool,
    work: Mapping[str, int],
    spent: Mapping[str, tuple[int, float]] | None = None,
    *,
    leading: Mapping[str, Any] = _ACCURACY,
) -> Iterator[Tell]:
    """Progress on stderr while the block runs: bars on a terminal and in a notebook, elsewhere a line a round.

    work, spent: as of ``Pace``. leading: the facts of the metric that is shown. Nothing is shown when quiet.
    """
    console, pace = Console(stderr=True, highlight=False, soft_wrap=True), Pace(work, spent or {})
    if quiet:
        yield lambda name, line: None
    elif console.is_terminal or console.is_jupyter:
        with _bars(console, pace, leading) as tell:
            yield tell
    else:
        yield lambda name, line: console.print(_line(pace, name, line, leading), markup=False)


def _line(pace: Pace, name: str, line: Mapping[str, Any], leading: Mapping[str, Any]) -> str:
    """``fedavg  round 3 of 10  local 81.2 %  global 80.1 %  12 s left``."""
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
    return f"{seconds(round(left))} left" + (", then the attacks" if pace.unknown else "")


def _scores(line: Mapping[str, Any], leading: Mapping[str, Any]) -> str:
    """Both sides of the leading metric; nothing for a round without evaluation. Accuracy goes without its name."""
    name, share = leading["name"], leading["share"]
    found = {side: line.get(of := f"{side}_{name}", line.get("metrics", {}).get(of)) for side in ("local", "global")}
    head = "" if name == "accuracy" else f"{leading['label']} "
    shown = [f"{side} {percent(v) if share else f'{v:.4g}'}" for side, v in found.items() if v is not None]
    return f"{head}{'  '.join(shown)}" if shown else ""


@contextlib.contextmanager
def _bars(console: Console, pace: Pace, leading: Mapping[str, Any]) -> Iterator[Tell]:
    """A bar for every run that has begun, and one for all of them together."""
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
