"""Packages that import a name when it is first asked for: a list of systems must not wait for torch or scikit-learn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package. homes: by module of the package, the names that it has from there."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported
