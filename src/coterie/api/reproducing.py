"""Tables and figures of papers, run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import reproductions
from coterie.protocol.errors import UserError
from coterie.report.progress import Pace, name_run, show_progress, write_outlook
from coterie.reproductions import study


def reproduce(
    item: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    out: str | Path | None = None,
    data_dir: str | None = None,
    workers: str | None = None,
    jobs: int = 1,
    on_round: study.OnRound | None = None,
    progress: bool = True,
) -> Path:
    """Run a table or figure of a paper again; returns the page with its numbers beside ours.

    only: names of cells, or of all up to a slash (``mnist/0.3``).  seeds: how many, from 0 on.  rounds: of every run
    instead of the item's own.  out: the folder to write to (``reproduction/PAPER``).  workers: where trainings run.
    jobs: runs at once, each a process with one thread.  on_round: called with cell, seed and line.  progress: show the
    estimated time, and a bar or lines, on stderr.

    >>> coterie.reproduce("fedcaprivacy/table2", only=["fashion_mnist/0.1"], seeds=1)

    Raises UserError for an unknown item or cell, and for jobs beside workers.
    """
    if jobs < 1:
        raise UserError(f"at least 1 job is needed, not {jobs}")
    if jobs > 1 and workers is not None:
        raise UserError("jobs are processes of this machine, and workers may be elsewhere: give one of the two")
    wanted, folder = reproductions.found(item), Path(out or Path("reproduction") / item.partition("/")[0])
    cells: dict[str, Any] = {"only": only, "seeds": range(seeds), "rounds": rounds}
    begun = study.standings(wanted, folder, **cells)
    work = {name_run(run.cell, run.seed): run.rounds for run in begun}
    spent = {name_run(run.cell, run.seed): (run.done, run.seconds) for run in begun if run.done}
    if progress and work:
        write_outlook(Pace(work, spent, jobs))
    with show_progress(not progress, work, spent, at_once=jobs) as tell:

        def told(cell: str, seed: int, line: Mapping[str, Any]) -> None:
            tell(name_run(cell, seed), line)
            if on_round is not None:
                on_round(cell, seed, line)

        how: dict[str, Any] = {"data_dir": data_dir, "workers": workers, "jobs": jobs}
        return study.study(wanted, folder, **cells, **how, on_round=told)
