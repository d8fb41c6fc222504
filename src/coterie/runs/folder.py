"""The run folder. It is created after all checks, and every file in it is whole or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from coterie.data.own import name_of
from coterie.protocol.errors import RunError, UserError
from coterie.runs.config import RunConfig, from_toml, to_toml

CONFIG, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system while writing (a full disk, say) into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; make room, or see that you may write there"
        ) from error


def atomic_write(path: Path, data: bytes | Iterable[bytes], mode: int = 0o644) -> None:
    """Write a file, all at once or part by part, so that it is there whole or not at all; raises RunError."""
    with writing(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in (data,) if isinstance(data, bytes) else data:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can (Windows cannot open folders)."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def jsonable(value: Any) -> Any:
    """Numbers, arrays and containers as JSON values. NaN and infinities become null."""
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_json(path: Path, value: Mapping[str, Any], mode: int = 0o644) -> None:
    """A JSON object for people to read, one key a line; whole or not at all."""
    lines = (f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in jsonable(value).items())
    atomic_write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode(), mode)


def open_own(path: Path, flags: int, mode: int) -> int:
    """A descriptor of a file, made if need be. Raises UserError for a symbolic link, whose target is not the run's."""
    with writing(path):
        try:
            return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), mode)
        except OSError:
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link, which a run never writes: choose another --out") from None
            raise


def opened(path: Path, *, follow: bool = True) -> IO[bytes]:
    """A file to be read. Raises OSError also for what is no file, such as a pipe, which might be read for ever.

    follow: whether a symbolic link may lead to it.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe's opening waits, too
    if not follow and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link")
    descriptor = os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")


class Log:
    """A file that grows by whole records: its length at a checkpoint is where a resumed run goes on."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path = path
        self._descriptor = open_own(path, os.O_RDWR | os.O_APPEND, mode)

    def append(self, data: bytes) -> None:
        """Add a record. A record that was written in part is removed again. Raises RunError."""
        before = os.fstat(self._descriptor).st_size
        with writing(self.path):
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise

    def length(self) -> int:
        """Bytes written so far, all of them on the disk."""
        with writing(self.path):
            os.fsync(self._descriptor)
        return os.fstat(self._descriptor).st_size

    def truncate(self, length: int) -> None:
        """Remove everything that was written after a checkpoint. Raises UserError if the file is shorter than that."""
        if os.fstat(self._descriptor).st_size < length:
            raise UserError(f"{self.path} is shorter than its checkpoint says: it was changed; start the run anew")
        with writing(self.path):
            os.ftruncate(self._descriptor, length)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl``. Raises UserError that names a malformed line."""
    try:
        with opened(path) as file:
            data = file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return parse_lines(path, data)


def parse_lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    """As ``read_lines``, of bytes that the file holds."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: not an object")
        records.append(record)
    return records


def check_free(out: Path) -> None:
    """Raises UserError for a folder that is not empty. The error says what it holds and what to do."""
    if not out.exists():
        parent = next(p for p in out.absolute().parents if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(
                f"cannot create {out}: {parent} is not a folder that you may write to; choose another --out"
            )
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder")
    if (out / RESULT).exists():
        raise UserError(
            f"{out} holds a finished run: choose another --out, or add rounds to it with --resume --rounds N"
        )
    if (out / CONFIG).exists():
        raise UserError(f"{out} holds an unfinished run: continue it with --resume, or choose another --out")
    if any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no run: choose another --out")


def claim(config: RunConfig) -> Path:
    """Create the folder of a new run with its ``config.toml``, all at once; raises UserError or RunError."""
    if config.out is not None:
        out = Path(config.out)
        check_free(out)
        try:
            _create(out, config)
        except FileExistsError:
            raise UserError(f"{out} has just been created: another run writes there, choose another --out") from None
        return out
    words = (re.sub(r"[^\w.-]+", "_", word) for word in (config.system, name_of(config.data), str(config.seed)))
    stem, number = "-".join(words), 1
    while True:
        out = Path("runs") / f"{stem}-{number}"
        if not out.exists():
            with contextlib.suppress(FileExistsError):
                _create(out, config)
                return out
        number += 1


def _create(out: Path, config: RunConfig) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        raise kind(f"cannot create {out}: {error.strerror or error}; make room, or choose another --out") from None
    try:
        atomic_write(staging / CONFIG, to_toml(config).encode())
        os.chmod(staging, 0o777 & ~_umask())
        try:
            os.rename(staging, out)  # atomic; onto an empty folder too
        except OSError as error:
            if out.exists():
                raise FileExistsError(out) from None
            with writing(out):
                raise error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def resumed(out: Path) -> RunConfig:
    """The config of the run that a folder holds; raises UserError when it holds none."""
    if not (out / CONFIG).is_file():
        raise UserError(f"{out} holds no run to resume (no {CONFIG}): give the folder of an interrupted run with --out")
    return from_toml(out / CONFIG, out=str(out))
