"""What callers give, names or Python objects, as a config's options and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.data import own
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.import_path import name_of
from coterie.record.files import atomic_write, writing
from coterie.runs import registry
from coterie.runs.config import OPTIONS
from coterie.runs.settings import NONE, convert, field_types

if TYPE_CHECKING:
    from coterie.runs.trained import OwnModel


def as_object(model: Any) -> OwnModel | None:
    return None if isinstance(model, str) else model


def as_system(system: Any) -> str:
    if isinstance(system, str):
        return system
    registry.register(system)
    return str(system.name)


def split_given(
    systems: Sequence[str], options: Mapping[str, Any], settings: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's options, and the systems' settings. Raises UserError for any other name."""
    known = {name for system in systems for name in field_types(registry.get(system).config)}
    kept: dict[str, Any] = {}
    table = dict(settings or {})
    for name, value in options.items():
        if name in OPTIONS and name in known:
            raise UserError(
                f"{name!r} is an option of the run and a setting of the system: give it in settings={{...}}"
            )
        if name in table:
            raise UserError(f"setting {name!r} is given twice: as an argument and in settings")
        if name in known:
            table[name] = value
        elif name not in OPTIONS:
            hint = suggest(name, [*OPTIONS, *known])
            raise UserError(
                f"{name!r} is neither an option of a run nor a setting of {', '.join(systems)}{hint} "
                f"Options: {', '.join(OPTIONS)}. Settings: {', '.join(sorted(known))}"
            )
        elif value is not None:
            kept[name] = _option(name, value)
    return kept, table


def _option(name: str, value: Any) -> Any:
    if name in ("metrics", "class_weights", "log", "target") and isinstance(value, list | tuple):
        value = ",".join(name_of(word, "metric") if callable(word) else str(word) for word in value)
    elif (name in ("partition", "attack") and callable(value)) or (
        name in ("model", "loss", "metrics") and not isinstance(value, str)
    ):
        value = name_of(value, "metric" if name == "metrics" else name)
    elif isinstance(value, Path):
        value = str(value)
    return convert(value, OPTIONS[name], f"option {name!r}", text=False)


def with_data(options: dict[str, Any], data: Any, by: str | None) -> tuple[dict[str, Any], bytes | None]:
    """Options with the data as a name or a path beside the run folder, and objects' content for :func:`keep_data`.

    Raises UserError.
    """
    column, content = by, None
    if isinstance(data, str | Path):
        options = {**options, "data": str(data)}
    else:
        parts = own.from_python(data, by=by, target=options.pop("target", None))
        column = by or (own.CLIENT if parts[0].owner is not None else None)
        share, kind = options.pop("test_share", None), options.pop("kind", None)
        arrays = own.to_arrays(parts, column, share, kind, options.get("folds"))
        name, content = own.packed(arrays)
        options = {**options, "data": str(Path(options.get("out") or Path("runs") / "run").parent / "data" / name)}
    if column is None:
        return options, content
    dealt = f"by:{column}"
    if options.get("partition", dealt) != dealt:
        raise UserError(f"the data name their clients, so they are dealt {dealt}, not {options['partition']}")
    return {**options, "partition": dealt}, content


def keep_data(data: str, content: bytes | None) -> None:
    """Write data given as objects, for this user alone, unless they are there. Raises RunError."""
    if content is None:
        return
    path = Path(data)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == content:
            return
    atomic_write(path, content, 0o600)


def as_text(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)
