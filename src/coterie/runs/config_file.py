"""A run's options as TOML: read, written, and compared."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

import coterie
from coterie.protocol.errors import UserError
from coterie.record.folder import check_format
from coterie.record.schema import FORMAT
from coterie.runs.config import Resolved, RunConfig, check_options, resolve
from coterie.runs.settings import NONE, values_of

MAY_DIFFER = frozenset({"rounds", "checkpoint_every", "data_dir", "out", "log", "workers"})
"""Options that a resumed run may change: they move no number of rounds that are done."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Options of a TOML file, checked. Raises UserError naming the file."""
    try:
        given = tomllib.loads(Path(path).read_bytes().decode())
        check_format(path, given.pop("format", FORMAT))
        return check_options(given)
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def from_toml(path: str | Path, **overrides: Any) -> RunConfig:
    """Overrides win, also over the file's ``settings``. Raises UserError."""
    given = read_toml(path)
    settings = {**given.pop("settings", {}), **overrides.pop("settings", {})}
    given |= check_options(overrides)
    if "system" not in given:
        raise UserError(f'{path} names no system: add system = "fedavg", say, or give one')
    return RunConfig(**given, settings=settings)


def from_text(text: str) -> Resolved:
    try:
        given = tomllib.loads(text)
        check_format("config", given.pop("format", FORMAT))
        return resolve(RunConfig(**check_options(given)))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UserError(f"not a run's config: {error}") from None


def to_toml(config: Resolved) -> str:
    """All options but folder and workers, to repeat the run anywhere."""
    left_out = ("out", "workers", "settings")
    given = {key: value for key, value in values_of(config).items() if value is not None and key not in left_out}
    table = {"format": FORMAT, **given}
    table["settings"] = {key: NONE if value is None else value for key, value in config.settings.items()}
    head = f"# coterie {coterie.__version__}; this file repeats the run: coterie run --config THIS_FILE\n\n"
    return head + tomli_w.dumps(table)


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """``"seed: 0, now 1"`` for each difference that keeps one run from continuing the other."""
    found = []
    for f in dataclasses.fields(RunConfig):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if f.name == "settings":
            keys = sorted({*a, *b})
            found += [f"{key}: {a.get(key)}, now {b.get(key)}" for key in keys if a.get(key) != b.get(key)]
        elif f.name == "clients" and None in (a, b):  # as many as the data name
            continue
        elif f.name not in MAY_DIFFER and a != b:
            found.append(f"{f.name}: {a}, now {b}")
    return found
