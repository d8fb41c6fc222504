"""Private files of a run folder. They are for this user alone, and refused if they are damaged or another user's.

Every file holds a digest of its content. It detects damage, but is no signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from coterie.protocol.errors import UserError
from coterie.runs.folder import opened, writing

FILE_MODE, FOLDER_MODE = 0o600, 0o700
DIGEST_BYTES = 32
ADVICE = "start the run anew with another --out"

T = TypeVar("T")


def digest(data: bytes) -> bytes:
    """BLAKE2b of some bytes, 32 bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def check_own(folder: Path) -> None:
    """Raises UserError if there is anything at this path other than a folder of this user."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror or error}; {ADVICE}") from None
    if stat.S_ISLNK(found.st_mode):
        raise UserError(f"{folder} is a symbolic link, which a run never follows: {ADVICE}")
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is no folder: {ADVICE}")
    if sys.platform != "win32" and found.st_uid != os.geteuid():
        raise UserError(f"{folder} belongs to another user (number {found.st_uid}): {ADVICE}")


def make_folder(folder: Path) -> None:
    """A folder for this user alone, made if need be. Raises UserError for a link or another user's folder."""
    check_own(folder)
    with writing(folder):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & ~FOLDER_MODE:
            os.chmod(folder, FOLDER_MODE)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns errors while reading a file into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; {ADVICE}") from None


def checked(path: Path) -> bytes:
    """The bytes of a file behind their digest, which stands first; raises UserError for others."""
    with reading(path), opened(path, follow=False) as file:
        data = file.read()
    body = data[DIGEST_BYTES:]
    if digest(body) != data[:DIGEST_BYTES]:
        raise UserError(f"{path} is damaged, or of another version of coterie: {ADVICE}")
    return body


def decoded(path: Path, body: bytes, kind: type[T]) -> T:
    """The object in the msgpack bytes of this file. Raises UserError if it is not of this type."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is of another version of coterie ({error}): {ADVICE}") from None
