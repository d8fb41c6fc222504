"""Reading the logs of parties, for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coterie.deploy.logs import FILES, LOG
from coterie.protocol.errors import UserError
from coterie.record.files import opened, reading
from coterie.transport.transcript import shown

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


Line = dict[str, Any]


def find(place: Path) -> list[Path]:
    """The logs in a party's home, or in the homes below an operator's folder. Raises UserError if there is none."""
    if not place.is_dir():
        raise UserError(f"{place}: no such folder; name a party's home, or the folder of a deployment")
    found = sorted({path.parent for pattern in (LOG, f"*/{LOG}", f"*/*/{LOG}") for path in place.glob(pattern)})
    if not found:
        raise UserError(f"{place} holds no {LOG}: no party has run there. A party's log is in its home, on its machine")
    return [folder / LOG for folder in found]


def read(path: Path) -> Iterator[Line]:
    """The lines of a log with its older files, oldest first. A line that was cut off by a kill is left out."""
    older = [path.with_name(f"{path.name}.{number}") for number in range(FILES - 1, 0, -1)]
    for one in (*older, path):
        if one.exists():
            with reading(one, "see that you are the user who runs this party"), opened(one, follow=False) as file:
                yield from parse(file)


def parse(lines: Iterable[bytes]) -> Iterator[Line]:
    """Lines of JSON objects; what is none is left out."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def level_of(name: str) -> int:
    """The number of a level's name. Raises UserError for an unknown one."""
    if name not in _LEVELS:
        raise UserError(f"unknown level {name!r}: {', '.join(_LEVELS)}")
    return _LEVELS[name]


def at_least(line: Line, level: int) -> bool:
    """Whether a line is of this level or above."""
    return _LEVELS.get(str(line.get("level")), logging.INFO) >= level


def worded(line: Line) -> str:
    """A line for people: time, party, event, fields."""
    head = f"{str(line.get('time', ''))[:23]:23}  {shown(str(line.get('party', ''))):14} "
    rest = {key: value for key, value in line.items() if key not in ("time", "level", "party", "event")}
    fields = "  ".join(f"{shown(key)}={_value(value)}" for key, value in rest.items())
    return f"{head}{shown(str(line.get('event', ''))):10} {fields}".rstrip()


def _value(value: Any) -> str:
    words = shown(value if isinstance(value, str) else json.dumps(value))
    return f'"{words}"' if isinstance(value, str) and " " in words else words
