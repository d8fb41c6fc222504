"""One writer at a time in a folder: a lock of the operating system, which ends with the process that holds it.

The lock is on a file of its own, ``.lock``. The file stays when the lock is gone: removing it would let two processes
lock two files of that name. Reading needs no lock, since every file in a run folder is whole or only grows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from coterie.protocol.errors import UserError
from coterie.runs.folder import writing

LOCK = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process, against its other threads too.

    Raises UserError where another process holds it, RunError where no file can be made in it. Where the file system has
    no locks a warning says that nothing stops a second run.
    """
    path = folder / LOCK
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in _HELD:
                raise UserError(
                    f"another run is at work in {folder}: wait until it has ended, or choose another --out"
                ) from None
            warnings.warn(
                f"{folder} lies on a file system without locks ({error.strerror or error}): see to it that no second "
                "run is started there while this one lasts",
                stacklevel=3,
            )
        yield
    finally:
        os.close(descriptor)
