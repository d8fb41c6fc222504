"""A party's own log: a JSON object a line, for this user alone, of bounded size.

Only here stands the reason of a refusal, which may hold the party's own numbers. Fields are numbers and short words;
others are written as their type's name, so no secret or model gets in.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from traceback import extract_tb
from typing import Any

from coterie.deploy.packets import Era, Report
from coterie.protocol.errors import shown
from coterie.record.files import FILE_MODE, open_own
from coterie.transport.envelope import Envelope
from coterie.transport.member import Observer

LOG = "log.jsonl"
Say = Callable[[str], None]
"""Is told in a line what a process is at."""
LOGGER = logging.getLogger("coterie.deploy")
_FILE_BYTES, FILES = 16 << 20, 4
_MOST = 32  # entries of a list or table in a field
_PER_S = 20.0  # refusals that are written each second; the others are counted


def plain(value: Any, *, depth: int = 2) -> Any:
    """A field as written: numbers, short words, small lists and tables of those; else the type's name."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping) and depth:
        return {shown(str(key)): plain(item, depth=depth - 1) for key, item in list(value.items())[:_MOST]}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [plain(item, depth=depth - 1) for item in list(value)[:_MOST]]
    return f"<{type(value).__name__}>"


class JsonFormatter(logging.Formatter):
    def __init__(self, party: str) -> None:
        super().__init__()
        self.party = party

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "party": self.party}
        line["event"] = shown(record.getMessage())
        line |= {key: plain(value) for key, value in getattr(record, "fields", {}).items() if key not in line}
        if record.exc_info and record.exc_info[1] is not None:
            _, error, trace = record.exc_info
            line["error"] = shown(f"{type(error).__name__}: {error}")
            line["at"] = [f"{Path(one.filename).name}:{one.lineno}" for one in extract_tb(trace, -_MOST)]
        return json.dumps(line, ensure_ascii=False)


class _OwnFile(RotatingFileHandler):
    def _open(self) -> Any:
        descriptor = open_own(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND, FILE_MODE)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def start(path: Path, party: str, *, stderr: bool = False) -> None:
    """Log to a file, and to stderr if wanted, instead of an earlier call's.

    Raises UserError for a symbolic link, RunError if it can't be written.
    """
    stop()
    handlers: list[logging.Handler] = [_OwnFile(path, maxBytes=_FILE_BYTES, backupCount=FILES - 1, delay=False)]
    if stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(JsonFormatter(party))
        LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def stop() -> None:
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    LOGGER.log(level, name, extra={"fields": fields})


class RateLimited:
    def __init__(self, per_s: float = _PER_S) -> None:
        self._per_s, self._left, self._at, self._unwritten = per_s, per_s, time.monotonic(), 0

    def more(self) -> dict[str, int] | None:
        """A field with the count of unwritten events; None for one too soon."""
        now = time.monotonic()
        self._left, self._at = min(self._per_s, self._left + (now - self._at) * self._per_s), now
        if self._left < 1:
            self._unwritten += 1
            return None
        unwritten, self._left, self._unwritten = self._unwritten, self._left - 1, 0
        return {"unwritten": unwritten} if unwritten else {}

    def write(self, name: str, **fields: Any) -> None:
        if (more := self.more()) is not None:
            event(name, logging.WARNING, **fields, **more)


_REFUSALS, _LATE, _FAILURES = RateLimited(), RateLimited(), RateLimited()


def refusal(kind: str, src: str, reason: str) -> None:
    _REFUSALS.write("refused", kind=kind, src=src, reason=reason)


class NodeObserver(Observer):
    def dropped(self, src: str, kind: str, reason: str) -> None:
        """A packet was not taken (``packet``), can't be stored (``push``), or the engine fails (``engine``)."""

    def waits(self, why: str) -> None: ...

    def failed(self, envelope: Envelope, error: BaseException) -> None:
        """A handler has failed with an error that its sender is not told."""

    def began(self, era: Era) -> None: ...

    def seen(self, party: str) -> None: ...

    def heard(self, party: str, report: Report) -> None: ...

    def told(self, report: Report) -> None:
        """The node reports this to the hub."""

    def present(self, names: Collection[str]) -> None: ...

    def committed(self, commit: int, size: int) -> None: ...

    def aborted(self) -> None: ...


class Journal(NodeObserver):
    def __init__(self, begins: Callable[[Era], None] = lambda era: None, say: Say = lambda words: None) -> None:
        self.begins, self._say = begins, say

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
        self.begins(era)

    def committed(self, commit: int, size: int) -> None:
        event("commit", logging.DEBUG, commit=commit, bytes=size)
