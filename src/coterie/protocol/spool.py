"""Waiting messages as bytes, in memory up to a limit and on disk beyond it."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from coterie.protocol.errors import RunError


class Spool:
    """``put`` returns a ticket, and ``take`` gives its bytes back once. Files lie in a private temporary folder.

    One bytes object that is put many times (a broadcast) is held, counted and written once. Raises RunError when the
    disk is full. The folder is removed by ``close``, or with the spool.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[int, bytes] = {}
        self._uses: Counter[int] = Counter()  # of bytes objects in memory, by id; of files, by minus their number
        self._files: dict[int, int] = {}
        self._written: tuple[bytes, int] = b"", 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._next = 0

    def put(self, data: bytes) -> int:
        """Keep these bytes."""
        self._next += 1
        if self._uses[id(data)] or self.held_bytes + len(data) <= self.limit_bytes:
            self.held_bytes += 0 if self._uses[id(data)] else len(data)
            self._uses[id(data)] += 1
            self._held[self._next] = data
        else:
            if self._written[0] is not data or not self._uses[-self._written[1]]:
                self._write(data)
            self._files[self._next] = self._written[1]
            self._uses[-self._written[1]] += 1
        return self._next

    def size(self, ticket: int) -> int:
        """The number of bytes of a ticket."""
        held = self._held.get(ticket)
        return len(held) if held is not None else self._path(self._files[ticket]).stat().st_size

    def place(self, ticket: int) -> int:
        """A number for where the bytes are, which tickets of one broadcast share and no others."""
        held = self._held.get(ticket)
        return id(held) if held is not None else -self._files[ticket]

    def peek(self, ticket: int) -> bytes:
        """The bytes of a ticket, which stays valid."""
        if ticket in self._held:
            return self._held[ticket]
        return self._path(self._files[ticket]).read_bytes()

    def take(self, ticket: int) -> bytes:
        """The bytes of a ticket, which is used up."""
        data = self.peek(ticket)
        self.drop(ticket)
        return data

    def drop(self, ticket: int) -> None:
        """Use a ticket up without looking at its bytes."""
        if ticket in self._held:
            data = self._held.pop(ticket)
            if self._released(id(data)):
                self.held_bytes -= len(data)
        else:
            file = self._files.pop(ticket)
            if self._released(-file):
                self._path(file).unlink()

    def close(self) -> None:
        """Forget everything and remove the folder."""
        self._held.clear()
        self._files.clear()
        self._uses.clear()
        self._written = b"", 0
        self.held_bytes = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _released(self, key: int) -> bool:
        """Count one use less. Returns whether it was the last."""
        self._uses[key] -= 1
        if self._uses[key]:
            return False
        del self._uses[key]
        return True

    def _write(self, data: bytes) -> None:
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="coterie-spool-", ignore_cleanup_errors=True)
            self._path(self._next).write_bytes(data)
        except OSError as error:
            raise RunError(
                f"{len(data)} bytes of waiting messages can't be written to {tempfile.gettempdir()}: {error.strerror}; "
                f"make room there, or set TMPDIR to a folder with more"
            ) from error
        self._written = data, self._next

    def _path(self, file: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"{file}.bin"
