"""What holders of key shares state to have opened, as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

import coterie.method as fl
from coterie.protocols import openings
from coterie.record import folder
from coterie.record.files import atomic_write, opened, reading, writing
from coterie.runs.experiment import Experiment
from coterie.runs.findings import Content


def write_openings_of(out: Path, e: Experiment) -> None:
    *_, client = e.system.factories(e.settings, e.config.mode).values()
    holders = e.seen.of_role(e.common.roster.client_role) if openings.stating(fl.party_type(client)) else ()
    write_openings(out, e.common.roster, holders)


def write_openings(out: Path, roster: fl.Roster, parties: Iterable[Any]) -> None:
    """Write ``openings.json``; no file if nothing was opened."""
    place, found = out / folder.OPENINGS, openings.collected(roster, parties)
    if found is not None:
        atomic_write(place, msgspec.json.encode(found))
    else:
        with writing(place):
            place.unlink(missing_ok=True)


def audited_openings(files: Sequence[Path], fewest: int = 0, share: float = openings.MOST_SHARE) -> Content:
    """Statements in these files, verified; fewest, share: as of ``protocols.openings.check``. Raises UserError."""
    found = []
    for path in files:
        with reading(path, "give openings.json of a run, or what coterie export has written"), opened(path) as file:
            found.append(openings.read(file.read(), path))
    return cast(Content, msgspec.to_builtins(openings.check(found, fewest, share)))
