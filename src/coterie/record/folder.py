"""The files of a run folder by name, and the kind of run in it."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write, opened, reading
from coterie.record.schema import FORMAT

CONFIG, METRICS, RESULT, COMPARE = "config.toml", "metrics.jsonl", "result.json", "compare.json"
PARTITION, OBSERVED, CLIENTS = "partition.json", "observed.json", "clients.json"
OPENINGS = "openings.json"
"""What holders of key shares state to have opened (``protocols/openings.py``)."""
STATUS = "status.json"
"""Of a deployment: its hub has written it into the run folder."""


def jsonable(value: Any) -> Any:
    """NaN and infinities become null."""
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
    """One key a line; whole or not at all."""
    lines = (f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in jsonable(value).items())
    atomic_write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode(), mode)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Of ``metrics.jsonl``. Raises UserError that names a malformed line."""
    with reading(path, "restore the file or run again"), opened(path) as file:
        lines = file.read().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return records


def check_format(path: str | Path, number: object) -> None:
    """Raises UserError for a form unknown to this version (``schema.FORMAT``)."""
    if not isinstance(number, int) or not 1 <= number <= FORMAT:
        raise UserError(
            f"{path} has format {number!r}, and this version of coterie reads up to {FORMAT}: take a later one"
        )


def encode_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def check_writable(out: Path) -> None:
    """Raises UserError unless files can be made there or, if missing, in its parent."""
    nearest = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.exists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write to {out}: {nearest} is not a folder that you may write to; change that, or choose another "
            "--out"
        )


def deployed(out: Path) -> Literal["machines", "rehearsal"] | None:
    """The kind of deployment whose run folder this is; None otherwise."""
    for name in (RESULT, STATUS):
        with (
            contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError),
            opened(out / name) as file,
        ):
            content = msgspec.json.decode(file.read())
            deployment = content if name == STATUS else content["deployment"]
            return "rehearsal" if deployment["rehearsal"] else "machines"
    return None


def check_simulated(out: Path) -> None:
    """Raises UserError for a deployment's run folder, where only its hub writes."""
    if deployed(out) is not None:
        raise UserError(
            f"{out} holds the run of a deployment, which only its hub continues (coterie deploy hub DIR): choose "
            "another --out"
        )
