"""Progress on the terminal: a bar for each run, with rounds, time and the latest accuracies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_NOTHING = "–"


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


class Bars:
    """One bar for each run, made when its first round is reported."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def expect(self, name: str, rounds: int) -> None:
        """Show a bar that waits for its first round."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=rounds, accuracy="setting up")

    def advance(self, name: str, rounds: int, line: Mapping[str, Any]) -> None:
        """Show that a round is done."""
        self.expect(name, rounds)
        shown: dict[str, Any] = {}
        if line.get("global_accuracy") is not None:
            shown["accuracy"] = f"global {percent(line['global_accuracy'])}  local {percent(line['local_accuracy'])}"
        self._progress.update(self._tasks[name], completed=line["round"], **shown)


@contextlib.contextmanager
def bars(quiet: bool) -> Iterator[Bars]:
    """Progress on stderr while the block runs; nothing when quiet."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=Console(stderr=True, quiet=quiet), disable=quiet) as progress:
        try:
            yield Bars(progress)
        except BaseException:
            progress.live.transient = True  # an error message stands alone
            raise
