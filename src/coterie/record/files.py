"""Files of a run folder.

Private files and folders are for this user alone, and refused if damaged or another user's. A digest detects damage and
is no signature. One process at a time writes: it locks ``.lock``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from coterie.protocol.errors import CoterieWarning, RunError, UserError

FILE_MODE, FOLDER_MODE = 0o600, 0o700
DIGEST_BYTES = 32
LOCK = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # by another process
_CHUNK = 1 << 20
ADVICE = "start the run anew with another --out"

T = TypeVar("T")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError (a full disk, say) into a RunError with the remedy."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; make room, or see that you may write there"
        ) from error


@contextlib.contextmanager
def reading(path: Path, advice: str = ADVICE) -> Iterator[None]:
    """Turn an OSError into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; {advice}") from None


def atomic_write(path: Path, data: bytes | Iterable[bytes], mode: int = 0o644) -> None:
    """The file is there whole or not at all; raises RunError."""
    with writing(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines((data,) if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode & ~umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_own(path: Path, flags: int, mode: int) -> int:
    """The file is made if need be. Raises UserError for a symbolic link."""
    with writing(path):
        try:
            return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), mode)
        except OSError:
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link, which a run never writes: choose another --out") from None
            raise


def opened(path: Path, *, follow: bool = True) -> IO[bytes]:
    """To read. Raises OSError also for a pipe and other non-files. follow: allow a symbolic link."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe's opening waits, too
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link")
    descriptor = os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


class Log:
    """Grows by whole records: a resumed run continues at its length in the checkpoint."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path = path
        self._descriptor = open_own(path, os.O_RDWR | os.O_APPEND, mode)

    def append(self, data: bytes) -> int:
        """Whole or not at all. Returns where the record begins. Raises RunError."""
        before = self.size()
        with writing(self.path):
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise
        return before

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def length(self) -> int:
        """Bytes written so far, all of them on the disk."""
        with writing(self.path):
            os.fsync(self._descriptor)
        return self.size()

    def truncate(self, length: int) -> None:
        """Remove all that follows a checkpoint. Raises UserError if the file is shorter."""
        if self.size() < length:
            raise UserError(f"{self.path} is shorter than its checkpoint says: it was changed; start the run anew")
        with writing(self.path):
            os.ftruncate(self._descriptor, length)

    def close(self) -> None:
        os.close(self._descriptor)


def check_own(folder: Path) -> None:
    """Raises UserError for anything at this path but a folder of this user."""
    with reading(folder):
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return
    if stat.S_ISLNK(found.st_mode):
        raise UserError(f"{folder} is a symbolic link, which a run never follows: {ADVICE}")
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is no folder: {ADVICE}")
    if sys.platform != "win32" and found.st_uid != os.geteuid():
        raise UserError(f"{folder} belongs to another user (number {found.st_uid}): {ADVICE}")


def check_new(folder: Path, what: str) -> None:
    """Raises UserError unless nothing, or an empty folder, is there.  what: "a home", say."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UserError(f"{folder} is there already, and {what} begins in a new folder: choose another")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder, there whole or not at all: the block fills another, which replaces it."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield begun
        with writing(folder):
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(begun, folder)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise


def make_folder(folder: Path) -> None:
    """For this user alone. Raises UserError for a link or another user's folder."""
    check_own(folder)
    with writing(folder):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if stat.S_IMODE(folder.stat().st_mode) & ~FOLDER_MODE:
            os.chmod(folder, FOLDER_MODE)


def digest(data: bytes) -> bytes:
    """BLAKE2b, 32 bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def sealed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts, and a digest of them all."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
        yield part
    yield hashed.digest()


@contextlib.contextmanager
def checked(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """A private file and its length without the digest. Raises UserError for a damaged one."""
    with reading(path), opened(path, follow=False) as file:
        end = os.fstat(file.fileno()).st_size - DIGEST_BYTES
        hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
        while part := file.read(max(0, min(_CHUNK, end - file.tell()))):
            hashed.update(part)
        if file.read() != hashed.digest():
            raise UserError(f"{path} is damaged, or of another version of coterie: {ADVICE}")
        file.seek(0)
        yield file, end


def decoded(path: Path, body: bytes, kind: type[T]) -> T:
    """From msgpack. Raises UserError for another type."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is of another version of coterie ({error}): {ADVICE}") from None


def decoded_json(path: Path, body: bytes, kind: type[T]) -> T:
    """Raises UserError for another type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged, or of another version of coterie: {error}") from None


@contextlib.contextmanager
def locked(
    folder: Path,
    held: str = "another run is at work in {}: wait until it has ended, or choose another --out",
    *,
    wait: bool = False,
) -> Iterator[None]:
    """Hold the folder, also against other threads.  held: the message if another process holds it; {} is the folder.
    Raises UserError if it is held, or for a linked lock, and RunError. Warns where there are no locks.
    """
    descriptor = open_own(folder / LOCK, os.O_RDWR, FILE_MODE)
    try:
        _make_own(descriptor)
        try:
            _lock(descriptor, wait)
        except OSError as error:
            if error.errno in _HELD:
                raise UserError(held.format(folder)) from None
            warnings.warn(
                f"{folder} lies on a file system without locks ({error.strerror or error}): see to it that no second "
                "run is started there while this one lasts",
                CoterieWarning,
                stacklevel=3,
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _make_own(descriptor: int) -> None:
    if sys.platform != "win32":
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != FILE_MODE:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, FILE_MODE)
