"""Configs of the command line, of TOML files and of run folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError


def configured(given: dict[str, Any], texts: list[str], file: Path | None, resume: bool) -> Any:
    """From the command line, the TOML file and, on --resume without a system, the run folder."""
    from coterie.record.folder import CONFIG, check_writable
    from coterie.runs.config import RunConfig, check_options, resolve
    from coterie.runs.config_file import from_toml
    from coterie.runs.folder import resumed
    from coterie.runs.own_code import check_code
    from coterie.runs.settings import assignments
    from coterie.runs.system_settings import typed_settings

    if file is None and resume and "system" not in given:
        if "out" not in given:
            raise UserError("--resume continues the run in a folder: say which with --out")
        check_writable(Path(given["out"]))
        resumed(Path(given["out"]))
        file = Path(given["out"]) / CONFIG
    given = check_options(given)
    texts_by_key = assignments(texts)
    if file is not None:
        check_code(file, given)
        whole = from_toml(file, **given)
        settings = {**whole.settings, **typed_settings(whole.system, texts_by_key)}
        return resolve(replace(whole, settings=settings))
    if "system" not in given:
        raise UserError("which system? For example: coterie run fedcaprivacy; see coterie list systems")
    return resolve(RunConfig(**given, settings=typed_settings(given["system"], texts_by_key)))


def shared_options(given: dict[str, Any], texts: list[str], file: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Options and settings of all methods. The command line wins over the file. Raises UserError."""
    from coterie.runs.config import check_options
    from coterie.runs.config_file import read_toml
    from coterie.runs.own_code import check_code
    from coterie.runs.settings import assignments

    given, settings = check_options(given), assignments(texts)
    if file is None:
        return given, settings
    of_file = read_toml(file)
    unused = [key for key in ("system", "settings") if of_file.pop(key, None)]
    if unused:
        raise UserError(f"{file}: {' and '.join(unused)} cannot stand in a comparison's file: use arguments and --set")
    check_code(file, given)
    return {**of_file, **given}, settings
