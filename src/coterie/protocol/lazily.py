"""Names that a package imports at their first use, so that a list of systems does not wait for torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package. homes: by module of the package, the names that are imported from it."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported
