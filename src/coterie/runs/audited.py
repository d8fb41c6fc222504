"""Audits of recorded runs, of one or of several seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from coterie.protocol.errors import CoterieError, UserError
from coterie.record.files import locked
from coterie.record.folder import COMPARE, OPENINGS, RESULT, write_json
from coterie.record.load import compared, read_summary
from coterie.runs.attacked import attacked, audit_content
from coterie.runs.config import Resolved
from coterie.runs.findings import Content, cut_short, in_lines, learned, together
from coterie.runs.opened import audited_openings
from coterie.runs.recorded import read_recorded
from coterie.runs.registry import audit_of


def audited(folder: str | Path, data_dir: str | None = None, *, active: bool = False) -> Content:
    """The ``audit_content`` of a run folder. Writes nothing. Raises UserError."""
    run = read_recorded(folder, data_dir)
    stated = Path(folder) / OPENINGS
    found = audited_openings([stated]) if stated.exists() else None
    return {**audit_content(run, attacked(run, active=active)), "openings": found}


def keep(folder: str | Path, content: Content) -> None:
    """Raises UserError or RunError if that fails."""
    folder = Path(folder)
    with locked(folder):
        write_json(folder / RESULT, {**read_summary(folder), "audit": content})


def audit_runs(folders: Sequence[Path], data_dir: str | None = None, *, active: bool = False) -> Content:
    """The audit of one run, or of several ``together``; each is kept in its ``result.json``.

    ``not_kept``: the reason or None.  ``left_out``: why, by folder. Raises UserError if no run can be audited.
    """
    done: dict[Path, Content] = {}
    left_out: dict[Path, str] = {}
    for folder in folders:
        try:
            content = audited(folder, data_dir, active=active)
        except UserError as error:
            if len(folders) == 1:
                raise
            left_out[folder] = str(error)
            continue
        done[folder] = {**content, "not_kept": None}
        try:
            keep(folder, content)
        except CoterieError as error:
            done[folder]["not_kept"] = str(error)
    if not done:
        reasons = (f"  {line}" for line in in_lines({str(folder): why for folder, why in left_out.items()}))
        raise UserError("\n".join([f"none of these {len(folders)} runs can be audited:", *reasons]))
    if len(folders) == 1:
        return done[folders[0]]
    return together(done, left_out)


def kept_together(folders: Iterable[Path]) -> Content:
    return together({folder: found for folder in folders if (found := kept(folder)) is not None})


def kept(folder: str | Path) -> Content | None:
    """The audit in ``result.json``, or None. Raises UserError without a result."""
    found: Content | None = read_summary(Path(folder)).get("audit")
    return found


def check_audits(runs: Iterable[Resolved]) -> None:
    """Raises UserError for a system whose audit can't be imported."""
    for run in runs:
        audit_of(run.definition)


def learning(attack: Callable[[Path], Content]) -> Callable[[Sequence[Path]], Content]:
    """What a method's servers learn, by run folders.  attack: audits a folder."""
    return lambda folders: learned({folder: attack(folder) for folder in folders})


def attack(folder: Path) -> Content:
    """Keeps the audit in ``result.json``. Raises UserError, also where recording stopped."""
    run = read_recorded(folder)
    if run.stopped is not None:
        raise UserError(cut_short(folder, run.stopped))
    content = audit_content(run, attacked(run))
    keep(folder, content)
    return content


def keep_learned(folder: Path, audits: Mapping[str, Content]) -> None:
    """Tell a folder's ``compare.json``, if any, what these audits found, by run folder; only of methods with an audit
    of every run. Raises UserError or RunError.
    """
    if compared(folder) is None:
        return
    with locked(folder):
        told = json.loads((folder / COMPARE).read_bytes())
        for row in told["rows"]:
            own = {run: audits.get(str(run)) for run in (folder / name for name in row["runs"])}
            known = {run: content for run, content in own.items() if content is not None}
            if len(known) == len(own):
                row |= learned(known)
        write_json(folder / COMPARE, told)
