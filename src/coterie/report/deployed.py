"""What ``result.json`` says of a run between machines, checked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coterie.report.budget import Count
from coterie.runs.folder import RESULT, deployed


class Deployed(msgspec.Struct, frozen=True):
    """engine: that moved the packets.  plan: its version.  plan_sha256: its hash.  repeated: attempts beyond the first.

    running: the run goes on.  rehearsal: it was on one machine, with dealt data.  reporting: how many clients reported
    scores, in the round with the fewest and in that with the most.  unknown: what nobody knows of it, in words.
    """

    engine: str = ""
    session: str = ""
    plan_sha256: str = ""
    plan: Count = 0
    parties: Count = 0
    rehearsal: bool = False
    running: bool = False
    repeated: Count = 0
    reporting: tuple[Count, Count] = (0, 0)
    unknown: tuple[str, ...] = ()


def why_missing(path: Path) -> str:
    """Why a run's folder lacks this file, and what to do."""
    if path.name == RESULT and deployed(path.parent) is not None:
        return "no round of this deployment is over yet: wait for the first one"
    if (path.parent / "run" / path.name).is_file():
        return f"name the run folder, {path.parent / 'run'}"
    unfinished = "the run has not finished (continue it with --resume) or " if path.name == RESULT else ""
    return f"{unfinished}this is not a run's folder"
