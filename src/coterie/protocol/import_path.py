"""Objects that are imported by name: of a user's own modules, and those that a package imports at their first use."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.protocol.errors import UserError


def import_object(path: str, what: str) -> Any:
    """The object (system, model, audit) that ``module:ATTRIBUTE`` names. The module may lie in the current folder.

    what: the kind of object, for the error. Raises UserError when there is no such module or attribute.
    """
    module, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module's own code raises
        known = isinstance(error, ImportError | AttributeError | ValueError)
        why = error if known else f"its code fails with {error!r}"
        raise UserError(f"{what} {path!r} cannot be imported: {why}; write it as module:ATTRIBUTE") from None


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, so that a list of systems does not wait for torch.

    homes: by module of the package, the names that are imported from it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported
