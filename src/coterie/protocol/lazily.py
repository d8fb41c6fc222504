"""Names that a package imports at their first use, so that a list of systems does not wait for torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any


def lazily(package: str, names: Collection[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package with these names. homes: its modules that have them, the lightest first."""

    def imported(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        modules = (importlib.import_module(f"{package}.{home}") for home in homes)
        return getattr(next(module for module in modules if hasattr(module, name)), name)

    return imported
