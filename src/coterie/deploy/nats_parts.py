"""Large packets are cut into parts, and joined again.

Parts of one attempt share a random number (``PacketPart.upload``). A later attempt, or a pause of ``STALE_S``, ends an
incomplete one.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

MESSAGE = 1 << 17
"""Bytes of the largest message with its headers, soon over on a slow line."""
PART = MESSAGE - (1 << 12)
"""Bytes of a packet in one message."""
_TEXT = re.compile(r"([0-9a-f]{16}) ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,12})")
STALE_S = 3600.0
GIVEN_UP = "parts of a packet that was given up"
CONTRADICTS = "a part that contradicts the others"


class Stored(NamedTuple):
    """A message of the stream. at_s: Unix seconds when it was stored."""

    sequence: int
    at_s: float

    def is_after(self, other: Stored) -> bool:
        return self.sequence > other.sequence or self.at_s > other.at_s


NEVER = Stored(0, 0.0)


@dataclass(frozen=True)
class PacketPart:
    """A message's header. size: bytes of the packet."""

    upload: str
    index: int
    count: int
    size: int

    def text(self) -> str:
        return f"{self.upload} {self.index} {self.count} {self.size}"

    @staticmethod
    def read(text: str | None, length: int, largest: int) -> PacketPart | None:
        """None for a header that is invalid or contradicts the body's length."""
        found = _TEXT.fullmatch(text or "")
        if found is None:
            return None
        part = PacketPart(found[1], int(found[2]), int(found[3]), int(found[4]))
        whole = part.size <= largest and part.count == parts_of(part.size) and part.index < part.count
        return part if whole and length == min(PART, part.size - part.index * PART) else None


def parts_of(size: int) -> int:
    return max(1, -(-size // PART))


@dataclass
class Upload:
    """A packet, or its parts so far.

    messages: by index.  newest: of these.  at_s: its ``time.monotonic``.
    """

    src: str
    part: PacketPart
    file: IO[bytes]
    messages: dict[int, Stored] = field(default_factory=dict)
    newest: Stored = NEVER
    at_s: float = field(default_factory=time.monotonic)

    def read(self) -> bytes:
        with self.file as file:
            file.seek(0)
            return file.read()


@dataclass
class Assembly:
    """Received parts, by sender.  spool: for packets of several."""

    spool: Path | None = None
    uploads: dict[str, Upload] = field(default_factory=dict)

    def add(self, src: str, part: PacketPart, message: Stored, data: bytes) -> Upload | str | None:
        """Call ``overtaken`` first. Returns the completed packet, None, or why this part is dropped.

        Raises OSError if it cannot be stored, and then forgets the packet.
        """
        if part.count == 1:
            return self._put(self._new(src, part), part, message, data)
        upload = self.uploads.get(src)
        if upload is not None and upload.part.upload != part.upload:
            return GIVEN_UP  # a later one is under way
        if upload is None:
            upload = self.uploads[src] = self._new(src, part)
        if (part.count, part.size) != (upload.part.count, upload.part.size) or part.index in upload.messages:
            return CONTRADICTS
        found = self._put(upload, part, message, data)
        if found is not None:
            del self.uploads[src]
        return found

    def overtaken(self, src: str, part: PacketPart, message: Stored) -> list[Stored]:
        upload = self.uploads.get(src)
        if upload is None or upload.part.upload == part.upload or not message.is_after(upload.newest):
            return []
        self._drop(upload)
        return list(upload.messages.values())

    def stale(self, before_s: float) -> list[Stored]:
        old = [upload for upload in self.uploads.values() if upload.at_s < before_s]
        for upload in old:
            self._drop(upload)
        return [message for upload in old for message in upload.messages.values()]

    def messages(self) -> Iterator[Stored]:
        for upload in self.uploads.values():
            yield from upload.messages.values()

    def close(self) -> None:
        for upload in list(self.uploads.values()):
            self._drop(upload)

    def _new(self, src: str, part: PacketPart) -> Upload:
        return Upload(src, part, io.BytesIO() if part.count == 1 else tempfile.TemporaryFile(dir=self.spool))

    def _drop(self, upload: Upload) -> None:
        if self.uploads.get(upload.src) is upload:
            del self.uploads[upload.src]
        with suppress(OSError):  # what it still had in memory
            upload.file.close()

    def _put(self, upload: Upload, part: PacketPart, message: Stored, data: bytes) -> Upload | None:
        try:
            upload.file.seek(part.index * PART)
            upload.file.write(data)
            upload.file.flush()
        except OSError:
            self._drop(upload)
            raise
        if message.is_after(upload.newest):
            upload.newest = message
        upload.messages[part.index], upload.at_s = message, time.monotonic()
        return upload if len(upload.messages) == part.count else None
