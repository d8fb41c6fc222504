"""Settings of a system: their names and types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from coterie.protocol.errors import UserError, nearest
from coterie.runs import registry
from coterie.runs.options import OPTIONS
from coterie.runs.settings import field_types, typed, unknown


def check_settings(keys: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises UserError for an unknown setting, and says if it is an option of the run, or which systems have it."""
    for key in keys:
        if key in known:
            continue
        word = key.rpartition(".")[2]
        others = [name for name, system in registry.SYSTEMS.items() if word in field_types(system.config)]
        if others:
            raise UserError(f"{key} is no {what}. These systems have it: {', '.join(others)}")
        option = nearest(word, known if word not in OPTIONS and nearest(word, known) else [*known, *OPTIONS])
        if option is None or option in known:
            raise unknown(what, str(key), known)
        raise UserError(
            f"{word} is no {what} but {'an' if word == option else 'probably the'} option of the run: give "
            f"--{option.replace('_', '-')}, or write {option} above the table [settings]"
        )


def _check_noise(given: Mapping[str, Any], known: Mapping[str, Any], name: str) -> None:
    for word in ("epsilon", "noise"):
        if word in given and word not in known:
            some = [one for one, system in registry.SYSTEMS.items() if "private_rounds" in field_types(system.config)]
            raise UserError(
                f"{name} has no setting {word!r}, since it adds no noise to what it opens: its page says why. "
                f"{', '.join(some)} and fl.Sums do (docs/privacy.md). sample_noise, where there is one, hides samples"
            )


def typed_settings(name: str, given: Mapping[str, Any], *, text: bool = True) -> dict[str, Any]:
    """Settings (``--set`` texts, if not said otherwise) as this system's values; raises UserError."""
    kind, what = registry.get(name).config, f"setting of {name}"
    _check_noise(given, field_types(kind), name)
    check_settings(given, field_types(kind), what)
    return typed(kind, given, what, text=text)
