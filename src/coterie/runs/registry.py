"""The systems that can be run, by name. A module is imported when its system is asked for, not before."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from coterie.protocol.errors import UserError
from coterie.protocol.own import imported
from coterie.protocol.system import System
from coterie.runs.settings import unknown

PACKAGES = ("coterie.systems", "coterie.baselines")


class _Systems(Mapping[str, System]):
    """Every ``SYSTEM`` of the modules in ``PACKAGES``, and what was registered."""

    def __init__(self) -> None:
        self._registered: dict[str, System] = {}

    def register(self, system: System) -> None:
        self._registered[system.name] = system

    def __getitem__(self, name: str) -> System:
        if name in self._registered:
            return self._registered[name]
        module = _modules().get(name)
        system = None if module is None else getattr(importlib.import_module(module), "SYSTEM", None)
        if system is None:
            raise KeyError(name)
        found: System = system
        return found

    def __iter__(self) -> Iterator[str]:
        found = [name for name, module in _modules().items() if hasattr(importlib.import_module(module), "SYSTEM")]
        return iter([*found, *(name for name in self._registered if name not in found)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _modules() -> dict[str, str]:
    """Module paths by their last name; a module whose name begins with ``_`` is nobody's system."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not module.name.startswith("_"):
                found[module.name] = f"{package}.{module.name}"
    return found


_systems = _Systems()
SYSTEMS: Mapping[str, System] = _systems
"""All systems and baselines, by name."""


def register(system: System) -> None:
    """Make a system of your own known by its name, in this process."""
    _systems.register(system)


def get(name: str) -> System:
    """The system of this name, or of ``your.module:ATTRIBUTE``; raises UserError that lists what there is."""
    if ":" in name:
        return _imported(name)
    try:
        return SYSTEMS[name]
    except KeyError:
        raise unknown("system", name, SYSTEMS) from None


def _imported(path: str) -> System:
    found = imported(path, "system")
    if not isinstance(found, System):
        raise UserError(f"{path!r} is a {type(found).__name__}, not a coterie.protocol.system.System")
    return found
