"""The systems that can be run, by name, imported when needed, and their settings."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.protocol.errors import UserError, nearest
from coterie.protocol.import_path import import_object
from coterie.protocol.system import System
from coterie.runs.options import OPTIONS
from coterie.runs.settings import field_types, typed, unknown

if TYPE_CHECKING:
    from coterie.privacy.audits import Audit

Kind = TypeVar("Kind")
PACKAGES = ("coterie.systems", "coterie.baselines")


class _Systems(Mapping[str, System]):
    def __init__(self) -> None:
        self.registered: dict[str, System] = {}

    def __getitem__(self, name: str) -> System:
        return self.registered[name] if name in self.registered else self.built_in(name)

    def built_in(self, name: str) -> System:
        every = [module for package in PACKAGES for module in _modules(package)]
        own = [module for module in every if module.endswith(f".{name}")]
        for module in own or every:  # a module that is named after its one system, else one with several
            if name in (found := _of(module)):
                return found[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        found = [name for package in PACKAGES for name in sorted(chain(*map(_of, _modules(package))))]
        return iter([*found, *(name for name in self.registered if name not in found)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _modules(package: str) -> tuple[str, ...]:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return tuple(f"{package}.{module.name}" for module in found if not module.name.startswith("_"))


def _of(module: str) -> Mapping[str, System]:
    found = importlib.import_module(module)
    if hasattr(found, "SYSTEM"):
        return {found.SYSTEM.name: found.SYSTEM}
    return getattr(found, "SYSTEMS", {})


SYSTEMS = _Systems()
"""All systems and baselines, by name."""


def register(system: System) -> None:
    """Name one's own system, in this process. Raises UserError for a built-in name."""
    with contextlib.suppress(KeyError):
        if SYSTEMS.built_in(system.name) is not system:
            raise UserError(f"there is a built-in system {system.name!r}: give yours another name")
    SYSTEMS.registered[system.name] = system


def get(name: str) -> System:
    """By its name or ``your.module:ATTRIBUTE``. Raises UserError that lists the known ones."""
    if ":" in name:
        return _named(name, "system", System)
    try:
        return SYSTEMS[name]
    except KeyError:
        module = name.removesuffix(".py")
        if Path(f"{module}.py").is_file():
            raise UserError(f"there is no system {name!r}: for the one in {module}.py write {module}:SYSTEM") from None
        raise unknown("system", name, SYSTEMS) from None


def audit_of(system: System) -> Audit | None:
    """Its own audit, or the built-in one, or None. Raises UserError for ``module:ATTRIBUTE`` that is none."""
    from coterie.privacy.audits import Audit, built_in_audit

    if system.audit == "":
        return built_in_audit(system.name)
    own: Audit = _named(system.audit, "audit", Audit)
    return own


def _named(path: str | Kind, what: str, kind: type[Kind]) -> Kind:
    found = import_object(path, what) if isinstance(path, str) else path
    if not isinstance(found, kind):
        raise UserError(f"{path!r} is of the type {type(found).__name__}, not {kind.__module__}.{kind.__name__}")
    return found


def check_settings(keys: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises UserError for an unknown setting, and says if it is an option, or which systems have it."""
    for key in keys:
        if key in known:
            continue
        word = key.rpartition(".")[2]
        others = [name for name, system in SYSTEMS.items() if word in field_types(system.config)]
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
            some = [one for one, system in SYSTEMS.items() if "private_rounds" in field_types(system.config)]
            raise UserError(
                f"{name} has no setting {word!r}, since it adds no noise to what it opens: its page says why. "
                f"{', '.join(some)} and fl.Sums do (docs/privacy.md). sample_noise, where there is one, hides samples"
            )


def typed_settings(name: str, given: Mapping[str, Any], *, text: bool = True) -> dict[str, Any]:
    """Settings, as ``--set`` texts by default, as this system's values; raises UserError."""
    kind, what = get(name).config, f"setting of {name}"
    _check_noise(given, field_types(kind), name)
    check_settings(given, field_types(kind), what)
    return typed(kind, given, what, text=text)
