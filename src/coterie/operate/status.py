"""Reading what the hub knows of a deployment (``status.json``)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coterie.deploy.status import HEARTBEAT_S, STATUS, Status
from coterie.operate.folder import Folder, current_plan
from coterie.protocol.errors import UserError
from coterie.record.files import opened, reading


class NotBegunError(UserError):
    """No hub has begun to run in an operator's folder."""


def _not_begun(folder: Folder) -> NotBegunError:
    """What is known before the hub has begun."""
    plan = current_plan(folder)
    without = f", without {', '.join(plan.missing)}" if plan.missing else ""
    joined = f"{len(plan.roster.entries)} of {len(plan.members)} members have joined{without}"
    return NotBegunError(
        f"the hub of {folder.path} has not begun, and {joined}. Start it with coterie deploy hub {folder.path}; if you "
        "have just done so, ask again in a few seconds"
    )


def read_status(folder: Path) -> Status:
    """The status of the deployment in an operator's folder, or in its run folder. Raises UserError.

    Raises NotBegunError, which is one, if the hub has written none yet.
    """
    path = next((p for p in (folder / STATUS, folder / "run" / STATUS) if p.exists()), None)
    if path is None and (place := Folder(folder)).plan.is_file():
        raise _not_begun(place)
    if path is None:
        raise UserError(
            f"{folder} has no {STATUS}: no hub has begun to run there (coterie deploy hub DIR), or this is not the "
            "folder that coterie deploy init made"
        )
    with reading(path, "see that you are the user who runs the hub"), opened(path) as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is of another version of coterie ({error}): start the hub again") from None


def has_ended(run: Path) -> bool:
    """Whether the hub has ended the run of this run folder. False where the hub runs on another machine."""
    return (run / STATUS).exists() and read_status(run).phase == "ended"


def is_alive(status: Status, now: float) -> bool:
    """Whether the hub that wrote this is likely to be at work: its status is written every few seconds."""
    return status.phase not in ("ended", "failed") and now - status.written < 4 * HEARTBEAT_S
