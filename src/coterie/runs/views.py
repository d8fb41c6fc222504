"""Recorded views on disk: what every party received, in order.

``views.bin`` begins with a line that names the format. Each record is its length (u32, little-endian) and a msgpack
array of party, role and the fields of ``Seen``. The first records, of no kind, hold the servers' opening keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import coterie.method as fl
from coterie.record.files import FILE_MODE, Log, opened, reading
from coterie.transport.transcript import Seen, Transcript

VIEWS = "views.bin"
_HEAD = struct.Struct("<I")
_MAGIC = b"coterie views 2\n"
# party, role and the fields of ``Seen``
_RECORD = msgspec.msgpack.Decoder(tuple[str, str, float, int, str, str, str, int, bytes | None])


class ViewLog:
    def __init__(self, path: Path, transcript: Transcript) -> None:
        self.log = Log(path, FILE_MODE)
        self.transcript = transcript
        self._written: dict[str, int] = {}

    def append(self) -> None:
        """Raises RunError if the disk is full."""
        parts: list[bytes] = []
        if not self.log.length():
            for party, key in self.transcript.openings.items():
                parts += _record(party, "", 0.0, 0, "", "", "", 0, key)
        for party, view in self.transcript.views.items():
            for seen in view.seen[self._written.get(party, 0) :]:
                frame = None if seen.message is None else fl.codec.encode(seen.message)
                fields = (seen.time_s, seen.round, seen.src, seen.dst, seen.kind, seen.size, frame)
                parts += _record(party, view.role, *fields)
            self._written[party] = len(view.seen)
        if parts:
            self.log.append(b"".join(parts if self.log.length() else (_MAGIC, *parts)))

    def restore(self, length: int, kinds: Iterable[type[fl.Message]]) -> None:
        """Remove the records after a checkpoint, and load those before it."""
        self.log.truncate(length)
        read_views(self.log.path, kinds, self.transcript)
        self._written = {party: len(view.seen) for party, view in self.transcript.views.items()}


def _record(*fields: Any) -> tuple[bytes, bytes]:
    data = msgspec.msgpack.encode(fields)
    return _HEAD.pack(len(data)), data


def read_views(path: Path, kinds: Iterable[type[fl.Message]], into: Transcript | None = None) -> Transcript:
    """The transcript in a ``views.bin``. Raises UserError if it is damaged or of another system."""
    transcript = into or Transcript(1 << 62)
    by_name = {kind.__name__: kind for kind in kinds}
    with reading(path, "record views with --record"), opened(path) as file:
        data = memoryview(file.read())
    if data and data[: len(_MAGIC)] != _MAGIC:
        raise fl.UserError(f"{path} was not recorded by this version of coterie: repeat the run with --record")
    at = len(_MAGIC)
    while at < len(data):
        try:
            (length,) = _HEAD.unpack_from(data, at)
            record = _RECORD.decode(data[at + _HEAD.size : at + _HEAD.size + length])
            party, role, time_s, round, src, dst, kind, size, frame = record
            message = None if frame is None or not kind else fl.codec.decode(frame, by_name[kind])
        except (struct.error, msgspec.MsgspecError, fl.DecodeError, KeyError, UnicodeDecodeError) as error:
            raise fl.UserError(f"{path} is damaged or of another system (byte {at}): {error}") from None
        at += _HEAD.size + length
        if not kind:
            transcript.openings[party] = frame or b""
            continue
        seen = Seen(time_s, round, src, dst, kind, size, message)
        transcript.record(party, role, seen, len(frame or b""))
    return transcript
