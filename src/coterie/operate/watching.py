"""What an operator and a party see: status and logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from coterie.deploy.home import RUNS
from coterie.deploy.logs import FILES, LOG
from coterie.deploy.plan import Plan
from coterie.deploy.status import HEARTBEAT_S, STATUS, RunStatus
from coterie.operate.folder import Folder, certificate_ends, current_plan
from coterie.protocol.errors import UserError
from coterie.record.files import decoded_json, opened, reading


class NotBegunError(UserError):
    """No hub has begun in an operator's folder."""


def joined_in_words(plan: Plan) -> str:
    there = len(plan.believed.entries)
    without = f", without {', '.join(plan.missing)}" if plan.missing else ""
    return f"{there} of {len(plan.members)} members have joined{without}"


def read_status(folder: Path) -> RunStatus:
    """From an operator's folder, or its run folder. Raises UserError, NotBegunError if there is none yet."""
    path = next((p for p in (folder / STATUS, folder / "run" / STATUS) if p.exists()), None)
    if path is None and (place := Folder(folder)).plan.is_file():
        raise NotBegunError(
            f"the hub of {folder} has not begun, and {joined_in_words(current_plan(place))}. Start it with coterie "
            f"deploy hub {folder}; if you have just done so, ask again in a few seconds"
        )
    if path is None:
        raise UserError(
            f"{folder} has no {STATUS}: no hub has begun to run there (coterie deploy hub DIR), or this is not the "
            "folder that coterie deploy init made"
        )
    with reading(path, "see that you are the user who runs the hub"), opened(path) as file:
        return decoded_json(path, file.read(), RunStatus)


def next_run(status: RunStatus, folder: Path) -> str:
    """A signed run that the hub has not taken up, in words; "" without one."""
    place = Folder(folder)
    run = current_plan(place).run if place.plan.is_file() else 0
    if run <= status.run:
        return ""
    waits = (
        f"the hub: coterie deploy hub {folder}" if status.phase in ("ended", "failed") else f"run {status.run} to end"
    )
    return f"Run {run} is signed, and waits for {waits}"


def with_certificates(status: RunStatus, folder: Path) -> RunStatus:
    """With certificates' ends that an operator's folder knows."""
    place = Folder(folder)
    return msgspec.structs.replace(status, certificates=certificate_ends(place)) if place.plan.is_file() else status


def all_statuses(folder: Folder) -> Iterator[RunStatus]:
    """Of all runs begun. Raises UserError."""
    former = sorted(int(path.parent.name) for path in (folder.path / RUNS).glob(f"[0-9]*/{STATUS}"))
    places = [*(folder.path / RUNS / str(run) for run in former), folder.run]
    yield from (read_status(place) for place in places if (place / STATUS).exists())


def has_ended(run: Path) -> bool:
    """False where the hub runs on another machine."""
    return (run / STATUS).exists() and read_status(run).phase == "ended"


def is_alive(status: RunStatus, now: float) -> bool:
    return status.phase not in ("ended", "failed") and now - status.written < 4 * HEARTBEAT_S


Line = dict[str, Any]


def log_files(place: Path) -> list[Path]:
    """Of a home, or the homes below an operator's folder. Raises UserError."""
    if not place.is_dir():
        raise UserError(f"{place}: no such folder; name a party's home, or the folder of a deployment")
    found = sorted({path.parent for pattern in (LOG, f"*/{LOG}", f"*/*/{LOG}") for path in place.glob(pattern)})
    if not found:
        raise UserError(f"{place} holds no {LOG}: no party has run there. A party's log is in its home, on its machine")
    return [folder / LOG for folder in found]


def read_log(path: Path) -> Iterator[Line]:
    """With older files, oldest first, without cut lines."""
    older = [path.with_name(f"{path.name}.{number}") for number in range(FILES - 1, 0, -1)]
    for one in (*older, path):
        if one.exists():
            with reading(one, "see that you are the user who runs this party"), opened(one, follow=False) as file:
                yield from parse_lines(file)


def parse_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
