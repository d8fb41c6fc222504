"""A party's own log: a JSON object a line, for this user alone, of bounded size.

A log says what the party did, and why it refused something. This is the only place where the reason of a refusal is
written, since it may hold the party's own numbers. Fields are numbers and short words. Any other object (bytes, an
array, a key, a message) is written as the name of its type, so that no secret and no model gets into a log by mistake.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from coterie.deploy.node import NodeObserver
from coterie.deploy.packets import Era
from coterie.protocol.errors import UserError
from coterie.runs.files import FILE_MODE, open_own, opened, reading
from coterie.transport.envelope import Envelope
from coterie.transport.transcript import shown

LOG = "log.jsonl"
LOGGER = logging.getLogger("coterie.deploy")
_FILE_BYTES, _FILES = 16 << 20, 4
_MOST = 32  # entries of a list or table in a field
_PER_S = 20.0  # refusals that are written each second; the others are counted
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def plain(value: Any) -> Any:
    """A field as it is written: numbers, short words, and small lists and tables of those. Else the type's name."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {shown(str(key)): _leaf(item) for key, item in list(value.items())[:_MOST]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_leaf(item) for item in list(value)[:_MOST]]
    return f"<{type(value).__name__}>"


def _leaf(value: Any) -> Any:
    return plain(value) if value is None or isinstance(value, bool | int | float | str) else f"<{type(value).__name__}>"


class JsonFormatter(logging.Formatter):
    """Records as JSON objects: time (UTC), level, party, event, and the event's fields."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self.party = party

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "party": self.party}
        line["event"] = shown(record.getMessage())
        line |= {key: plain(value) for key, value in getattr(record, "fields", {}).items() if key not in line}
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            line["error"] = shown(f"{type(error).__name__}: {error}")
            where = []
            while trace is not None:
                where.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
                trace = trace.tb_next
            line["at"] = where[-_MOST:]
        return json.dumps(line, ensure_ascii=False)


class _OwnFile(RotatingFileHandler):
    """A rotated file of mode 0600, which follows no symbolic link."""

    def _open(self) -> Any:
        descriptor = open_own(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND, FILE_MODE)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def start(path: Path, party: str, *, stderr: bool = False) -> logging.Handler:
    """Write this process's log into a file (``log.jsonl`` in the party's home), and also to stderr if wanted.

    Replaces what an earlier call has begun. Raises UserError for a symbolic link, RunError if it can't be written.
    """
    stop()
    handlers: list[logging.Handler] = [_OwnFile(path, maxBytes=_FILE_BYTES, backupCount=_FILES - 1, delay=False)]
    if stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(JsonFormatter(party))
        LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    return handlers[0]


def stop() -> None:
    """Close this process's log."""
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one event."""
    LOGGER.log(level, name, extra={"fields": fields})


class RateLimited:
    """Writes what other parties cause, at most so many events each second, so that nobody can fill the disk with them,
    or drive older lines out of the log.
    """

    def __init__(self, per_s: float = _PER_S) -> None:
        self._per_s, self._left, self._at, self._unwritten = per_s, per_s, time.monotonic(), 0

    def more(self) -> dict[str, int] | None:
        """None for an event that comes too fast, which is counted. Else the number that was counted, as a field."""
        now = time.monotonic()
        self._left, self._at = min(self._per_s, self._left + (now - self._at) * self._per_s), now
        if self._left < 1:
            self._unwritten += 1
            return None
        unwritten, self._left, self._unwritten = self._unwritten, self._left - 1, 0
        return {"unwritten": unwritten} if unwritten else {}

    def write(self, name: str, **fields: Any) -> None:
        """One warning, if it does not come too fast."""
        if (more := self.more()) is not None:
            event(name, logging.WARNING, **fields, **more)


_REFUSALS, _LATE, _FAILURES = RateLimited(), RateLimited(), RateLimited()


def refusal(kind: str, src: str, reason: str) -> None:
    """Write a refusal with its reason, into the log of the party that refused."""
    _REFUSALS.write("refused", kind=kind, src=src, reason=reason)


class Journal(NodeObserver):
    """The ``NodeObserver`` of a process that has a log. It keeps no message. begins: is told of rounds and attempts.
    say: is told in a line that this party waits for the engine, and that it goes on.
    """

    def __init__(
        self, begins: Callable[[Era], None] = lambda era: None, say: Callable[[str], None] = lambda words: None
    ) -> None:
        self._begins, self._say = begins, say

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        refusal(envelope.kind, envelope.src, reason)

    def late(self, party: str) -> None:
        _LATE.write("late", src=party)

    def dropped(self, src: str, kind: str, reason: str) -> None:
        refusal(kind, src, reason)

    def waits(self, why: str) -> None:
        event("waiting", logging.WARNING, why=why) if why else event("resumed")
        self._say(f"Waiting: {shown(why)}" if why else "It goes on")

    def failed(self, envelope: Envelope, error: BaseException) -> None:
        if (more := _FAILURES.more()) is not None:
            fields = {"kind": envelope.kind, "src": envelope.src, **more}
            LOGGER.error("failed", exc_info=(type(error), error, error.__traceback__), extra={"fields": fields})

    def began(self, era: Era) -> None:
        event("begin", round=era[0], attempt=era[1] + 1)  # for people, the first is 1
        self._begins(era)

    def committed(self, commit: int, size: int) -> None:
        event("commit", logging.DEBUG, commit=commit, bytes=size)


# -- reading -----------------------------------------------------------------------------------------------------------

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
    older = [path.with_name(f"{path.name}.{number}") for number in range(_FILES - 1, 0, -1)]
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
