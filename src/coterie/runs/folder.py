"""The run folder. It is created after all checks, and only one process at a time writes in it.

The lock is one of the operating system, on a file of its own, ``.lock``, and ends with the process that holds it. The
file stays when the lock is gone: removing it would let two processes lock two files of that name. Reading needs no
lock, since every file in a run folder is whole or only grows. The file is for its owner alone (mode 0600). Any user who
can open it, even only for reading, can hold the lock, and so could keep the owner out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from coterie.data.own import name_of
from coterie.protocol.errors import CoterieWarning, RunError, UserError
from coterie.protocol.import_path import check_elsewhere
from coterie.runs.config import RunConfig, from_toml, read_toml, to_toml
from coterie.runs.files import FILE_MODE, atomic_write, open_own, opened, reading, umask, writing

CONFIG, METRICS, RESULT, COMPARE = "config.toml", "metrics.jsonl", "result.json", "compare.json"
STATUS = "status.json"
"""Of a deployment: its hub has written it into the run folder."""
LOCK = ".lock"
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


def jsonable(value: Any) -> Any:
    """Numbers, arrays and containers as JSON values. NaN and infinities become null."""
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl``. Raises UserError that names a malformed line."""
    with reading(path, "restore the file or run again"), opened(path) as file:
        lines = file.read().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return records


def check_writable(out: Path) -> None:
    """Raises UserError unless files can be made in this folder or, if it does not exist, in its parent."""
    nearest = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.exists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write to {out}: {nearest} is not a folder that you may write to; change that, or choose another "
            "--out"
        )


class _Deployment(msgspec.Struct, frozen=True):
    """Of ``status.json``, and of ``deployment`` in ``result.json``."""

    rehearsal: bool


class _Result(msgspec.Struct, frozen=True):
    deployment: _Deployment


def _of_result(data: bytes) -> _Deployment:
    return msgspec.json.decode(data, type=_Result).deployment


def deployed(out: Path) -> Literal["machines", "rehearsal"] | None:
    """Whether this is the run folder of a deployment, and of which kind, by its result or its status."""
    for name in (RESULT, STATUS):
        with (
            contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError, RecursionError),
            opened(out / name) as file,
        ):
            data = file.read()
            of = msgspec.json.decode(data, type=_Deployment) if name == STATUS else _of_result(data)
            return "rehearsal" if of.rehearsal else "machines"
    return None


def check_simulated(out: Path) -> None:
    """Raises UserError for the run folder of a deployment, in which nobody but its hub writes."""
    if deployed(out) is not None:
        raise UserError(
            f"{out} holds the run of a deployment, which only its hub continues (coterie deploy hub DIR): choose "
            "another --out"
        )


def check_free(out: Path) -> None:
    """Raises UserError for a folder that is not empty. The error says what it holds and what to do."""
    if not out.exists():
        check_writable(out)
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder")
    check_simulated(out)
    if (out / RESULT).exists():
        raise UserError(
            f"{out} holds a finished run: choose another --out, or add rounds to it with --resume --rounds N"
        )
    if (out / CONFIG).exists():
        raise UserError(f"{out} holds an unfinished run: continue it with --resume, or choose another --out")
    if any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no run: choose another --out")


def numbered(stem: str, make: Callable[[Path], None]) -> Path:
    """The first free folder ``runs/<stem>-<n>``, made by ``make`` (FileExistsError: it is no longer free)."""
    number = 1
    while True:
        out = Path("runs") / f"{stem}-{number}"
        if not out.exists():
            with writing(out), contextlib.suppress(FileExistsError):
                make(out)
                return out
        number += 1


def claim(config: RunConfig) -> Path:
    """Create the folder of a new run with its ``config.toml``, all at once; raises UserError or RunError."""
    if config.out is None:
        words = (re.sub(r"[^\w.-]+", "_", word) for word in (config.system, name_of(config.data), str(config.seed)))
        return numbered("-".join(words), lambda out: _create(out, config))
    out = Path(config.out)
    check_free(out)
    try:
        _create(out, config)
    except FileExistsError:
        raise UserError(f"{out} has just been created: another run writes there, choose another --out") from None
    return out


def _create(out: Path, config: RunConfig) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        raise kind(f"cannot create {out}: {error.strerror or error}; make room, or choose another --out") from None
    try:
        atomic_write(staging / CONFIG, to_toml(config).encode())
        os.chmod(staging, 0o777 & ~umask())
        try:
            os.rename(staging, out)  # atomic; onto an empty folder too
        except OSError:
            if out.exists():
                raise FileExistsError(out) from None
            with writing(out):
                raise
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def resumed(out: Path) -> RunConfig:
    """The config of the run that a folder holds; raises UserError when it holds none."""
    if not (out / CONFIG).is_file():
        raise UserError(f"{out} holds no run to resume (no {CONFIG}): give the folder of an interrupted run with --out")
    check_simulated(out)
    check_code(out / CONFIG)
    return from_toml(out / CONFIG, out=str(out))


def came_in(out: Path) -> Path:
    """The folder that a run's folder came in: that of its comparison, or its own."""
    out = out.resolve()
    return out.parent if (out.parent / COMPARE).is_file() else out


def check_code(config: Path, said: Collection[str] | None = None) -> None:
    """Raises UserError if a config names code that lies in its own folder.

    said: options that the command line gives in its place; None where it cannot.
    """
    given = {key: value for key, value in read_toml(config).items() if key not in (said or ())}
    for what in ("system", "model", "loss", "metrics"):
        for path in map(str.strip, str(given.get(what, "")).split(",")):
            word = path if what == "system" else f"--{what} {path}"
            advice = () if said is None else (f"name it on the command line: {word}",)
            if ":" in path:
                check_elsewhere(path, what, came_in(config.parent), *advice)


@contextlib.contextmanager
def locked(
    folder: Path, held: str = "another run is at work in {}: wait until it has ended, or choose another --out"
) -> Iterator[None]:
    """Hold the folder for this process, also against its other threads.

    held: what to say if another process holds it; {} is the folder.

    Raises UserError if another process holds it, or if its lock is a symbolic link, and RunError if no file can be made
    in it. If the file system has no locks, a warning says that nothing stops a second run.
    """
    descriptor = open_own(folder / LOCK, os.O_RDWR, FILE_MODE)
    try:
        _make_own(descriptor)
        try:
            _lock(descriptor)
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


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _make_own(descriptor: int) -> None:
    """Remove other users' access, which older versions of the file allowed. Does nothing to another user's file."""
    if sys.platform != "win32":
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != FILE_MODE:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, FILE_MODE)
