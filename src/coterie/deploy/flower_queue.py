"""Packets that wait, in a file of the home: what this party sends, what has come for it, and at the hub what it relays.

A packet is there until it is done. Its identity is remembered longer, so that one that comes twice is stored once.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from coterie.deploy.engine import EngineError

MOST, MOST_BYTES = 4096, 8 << 30
"""Packets that may wait from one party to another, and bytes that may wait in all."""
KEPT = 1 << 16
"""So many packets back, identities are remembered."""
_TABLE = """
CREATE TABLE IF NOT EXISTS packets (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, src TEXT NOT NULL, dst TEXT NOT NULL, id BLOB NOT NULL, body BLOB,
    UNIQUE (src, dst, id)
);
CREATE INDEX IF NOT EXISTS waiting ON packets (dst, src, seq) WHERE body IS NOT NULL;
CREATE TABLE IF NOT EXISTS met (name TEXT PRIMARY KEY);
"""


class Waiting(NamedTuple):
    """A packet that is not done. number: of its place in the queue.  id: given by its sender."""

    number: int
    src: str
    dst: str
    id: bytes
    body: bytes


class Queue:
    """The packets of one home. May be used from any thread. Raises EngineError if the file cannot be used."""

    def __init__(self, path: Path, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.path, self._most, self._most_bytes = path, most, most_bytes
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._run("PRAGMA journal_mode=WAL")
            self._run("PRAGMA synchronous=FULL")
            self._file.executescript(_TABLE)
            (self._bytes,) = self._run("SELECT total(length(body)) FROM packets")[0]
        except (OSError, sqlite3.Error) as error:
            raise EngineError(f"{path} cannot be used: {error}") from None

    def put(self, src: str, dst: str, identity: bytes, body: bytes) -> bool:
        """Store a packet, unless it is or was there. False if too much waits already."""
        with self._lock:
            if self._run("SELECT 1 FROM packets WHERE src=? AND dst=? AND id=?", src, dst, identity):
                return True
            (count,) = self._run("SELECT count(*) FROM packets WHERE src=? AND dst=? AND body IS NOT NULL", src, dst)[0]
            if count >= self._most or self._bytes + len(body) > self._most_bytes:
                return False
            self._run("INSERT INTO packets (src, dst, id, body) VALUES (?, ?, ?, ?)", src, dst, identity, body)
            self._bytes += len(body)
            return True

    def first(self, dst: str, held: Collection[int] = ()) -> Waiting | None:
        """The oldest packet to this party that is not held."""
        with self._lock:
            numbers = self._run("SELECT seq FROM packets WHERE dst=? AND body IS NOT NULL ORDER BY seq", dst)
            for (number,) in numbers:
                if number not in held:
                    return self._read(number)
            return None

    def some(self, most_bytes: int, *, to: str | None = None, but: str = "") -> list[Waiting]:
        """The oldest packets to one party, or to all ``but`` one: as many as are no more bytes, and one at least."""
        where, name = ("dst=?", to) if to is not None else ("dst<>?", but)
        found: list[Waiting] = []
        with self._lock:
            rows = self._run(
                f"SELECT seq, length(body) FROM packets WHERE {where} AND body IS NOT NULL ORDER BY seq", name
            )
            size = 0
            for number, length in rows:
                size += length
                if found and size > most_bytes:
                    break
                found.append(self._read(number))
        return found

    def waits(self, *, to: str | None = None, but: str = "", after: int = 0) -> bool:
        """Whether there is a packet to this party, or to any ``but`` one. after: a number that all must be above."""
        where, name = ("dst=?", to) if to is not None else ("dst<>?", but)
        query = f"SELECT 1 FROM packets WHERE {where} AND seq>? AND body IS NOT NULL LIMIT 1"
        with self._lock:
            return bool(self._run(query, name, after))

    def done(self, number: int) -> None:
        """A packet is handled."""
        with self._lock:
            self._finish("seq=?", number)

    def stored(self, packets: Iterable[tuple[str, str, bytes]]) -> None:
        """The next party on their way has stored these packets: source, destination and identity of each."""
        with self._lock:
            for one in packets:
                self._finish("src=? AND dst=? AND id=?", *one)

    def meet(self, name: str) -> None:
        """Remember that a party was reached."""
        with self._lock:
            self._run("INSERT OR IGNORE INTO met (name) VALUES (?)", name)

    def met(self) -> frozenset[str]:
        """The parties that were ever reached."""
        with self._lock:
            return frozenset(name for (name,) in self._run("SELECT name FROM met"))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _finish(self, where: str, *values: object) -> None:
        rows = self._run(f"SELECT seq, length(body) FROM packets WHERE {where} AND body IS NOT NULL", *values)
        for number, length in rows:
            self._run("UPDATE packets SET body=NULL WHERE seq=?", number)
            self._run("DELETE FROM packets WHERE body IS NULL AND seq<=?", number - KEPT)
            self._bytes -= length

    def _read(self, number: int) -> Waiting:
        return Waiting(*self._run("SELECT seq, src, dst, id, body FROM packets WHERE seq=?", number)[0])

    def _run(self, statement: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise EngineError(f"{self.path} cannot be used: {error}") from None
