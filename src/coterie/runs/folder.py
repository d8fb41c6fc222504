"""A run's folder: created after all checks, and found again."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from coterie.data.own import name_of
from coterie.protocol.errors import RunError, UserError
from coterie.record.files import atomic_write, umask, writing
from coterie.record.folder import CONFIG, RESULT, check_simulated, check_writable
from coterie.runs.config import Resolved, resolve
from coterie.runs.config_file import from_toml, to_toml
from coterie.runs.own_code import check_code


def check_free(out: Path) -> None:
    """Raises UserError, with the remedy, for a folder that is not empty."""
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
    number = 1
    while True:
        out = Path("runs") / f"{stem}-{number}"
        if not out.exists():
            with writing(out), contextlib.suppress(FileExistsError):
                make(out)
                return out
        number += 1


def claim(config: Resolved) -> Path:
    """A new run's folder with its ``config.toml``; raises UserError or RunError."""
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


def _create(out: Path, config: Resolved) -> None:
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


def resumed(out: Path) -> Resolved:
    """Raises UserError for a folder without a run."""
    if not (out / CONFIG).is_file():
        raise UserError(f"{out} holds no run to resume (no {CONFIG}): give the folder of an interrupted run with --out")
    check_simulated(out)
    check_code(out / CONFIG)
    return resolve(from_toml(out / CONFIG, out=str(out)))


def claim_comparison(out: str | Path | None, data: str, resume: bool) -> Path:
    """A comparison's folder, empty or to be continued. Raises UserError or RunError."""
    if out is None:
        if resume:
            raise UserError("--resume continues the comparison in a folder: say which with --out")
        return numbered(f"compare-{name_of(data)}", lambda folder: folder.mkdir(parents=True))
    folder = Path(out)
    check_simulated(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not resume)):
        raise UserError(
            f"{folder} is not empty: choose another --out (out=), or continue the comparison in it with --resume "
            "(resume=True)"
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
