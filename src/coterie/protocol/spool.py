"""Waiting messages as bytes, in memory up to a limit and on disk beyond it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from coterie.protocol.errors import RunError


@dataclass(eq=False)
class _Frame:
    size: int
    data: bytes | None = None
    path: Path = Path()
    uses: int = 0


class Spool:
    """``put`` returns a ticket, ``take`` gives its bytes back once. Raises RunError when the disk is full.

    Bytes put many times (a broadcast) are held once.
    """

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self._frames: dict[int, _Frame] = {}  # by ticket
        self._held: dict[int, _Frame] = {}  # those in memory, by the id of their bytes
        self._written: tuple[bytes, _Frame] | None = None  # the last one on disk
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._next = 0

    def put(self, data: bytes) -> int:
        self._next += 1
        frame = self._held.get(id(data))
        if frame is None and self.held_bytes + len(data) <= self.limit_bytes:
            frame = self._held[id(data)] = _Frame(len(data), data)
            self.held_bytes += len(data)
        elif frame is None:
            if self._written is None or self._written[0] is not data or not self._written[1].uses:
                self._written = data, self._write(data)
            frame = self._written[1]
        frame.uses += 1
        self._frames[self._next] = frame
        return self._next

    def size(self, ticket: int) -> int:
        return self._frames[ticket].size

    def place(self, ticket: int) -> int:
        """A number that only tickets of one broadcast share."""
        return id(self._frames[ticket])

    def peek(self, ticket: int) -> bytes:
        """The bytes of a ticket, which stays valid."""
        frame = self._frames[ticket]
        return frame.path.read_bytes() if frame.data is None else frame.data

    def take(self, ticket: int) -> bytes:
        data = self.peek(ticket)
        self.drop(ticket)
        return data

    def drop(self, ticket: int) -> None:
        frame = self._frames.pop(ticket)
        frame.uses -= 1
        if not frame.uses and frame.data is None:
            frame.path.unlink()
        elif not frame.uses:
            del self._held[id(frame.data)]
            self.held_bytes -= frame.size

    def close(self) -> None:
        self._frames, self._held, self._written, self.held_bytes = {}, {}, None, 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write(self, data: bytes) -> _Frame:
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="coterie-spool-", ignore_cleanup_errors=True)
            path = Path(self._folder.name) / f"{self._next}.bin"
            path.write_bytes(data)
        except OSError as error:
            raise RunError(
                f"{len(data)} bytes of waiting messages can't be written to {tempfile.gettempdir()}: {error.strerror}; "
                f"make room there, or set TMPDIR to a folder with more"
            ) from error
        return _Frame(len(data), path=path)
