"""Records of numbers that pages show, with command, version and kind of machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coterie
from coterie.record.files import atomic_write, writing

CLONE = Path(__file__).parents[3]


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def commit() -> str | None:
    """The clone's commit, with ``+`` if its files differ; None for an installed package."""
    if not (CLONE / ".git").exists():
        return None
    describe = ["git", "-C", str(CLONE), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_record(path: Path, command: str, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Whole or not at all; raises RunError. command: makes the same record again."""
    made = {"command": command, "version": coterie.__version__, "commit": commit(), "machine": machine()}
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps({**made, **content, **made}, indent=indent) + "\n").encode())
