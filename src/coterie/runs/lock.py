"""One writer at a time in a folder: a lock of the operating system, which ends with the process that holds it.

The lock is on a file of its own, ``.lock``. The file stays when the lock is gone: removing it would let two processes
lock two files of that name. Reading needs no lock, since every file in a run folder is whole or only grows.

The file is for its owner alone (mode 0600). Any user who can open the file, even only for reading, can hold the lock,
and so could keep the owner out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from coterie.protocol.errors import UserError
from coterie.runs.folder import open_own

LOCK = ".lock"
_MODE = 0o600
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _own(descriptor: int) -> None:
    """Remove other users' access, which older versions of the file allowed. Does nothing to another user's file."""
    if sys.platform != "win32":
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _MODE:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, _MODE)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process, also against its other threads.

    Raises UserError if another process holds it, or if its lock is a symbolic link, and RunError if no file can be made
    in it. If the file system has no locks, a warning says that nothing stops a second run.
    """
    path = folder / LOCK
    descriptor = open_own(path, os.O_RDWR, _MODE)
    try:
        _own(descriptor)
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
