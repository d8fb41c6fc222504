"""Objects of a user's own (systems, models, audits) by name: ``module:ATTRIBUTE``, or ``given:NAME`` in one process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from coterie.protocol.errors import UserError

_GIVEN = "given"
_given: dict[str, Any] = {}


def import_object(path: str, what: str) -> Any:
    """The object that ``module:ATTRIBUTE`` names. The module may lie in the current folder.

    ``given:NAME`` is an object that :func:`name_of` named in this process.
    what: the kind of object, for the error. Raises UserError when there is no such module, attribute or object.
    """
    module, _, attribute = path.partition(":")
    if module == _GIVEN:
        if attribute not in _given:
            raise UserError(
                f"{what} {attribute!r} was given as an object of Python, which no file can hold: give it again "
                f"(coterie.run(..., {what}=...)), or define it in a module and name it as module:ATTRIBUTE"
            )
        return _given[attribute]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module's own code raises
        known = isinstance(error, ImportError | AttributeError | ValueError)
        why = error if known else f"its code fails with {error!r}"
        raise UserError(f"{what} {path!r} cannot be imported: {why}; write it as module:ATTRIBUTE") from None


def name_of(thing: Any) -> str:
    """A name with which :func:`import_object` finds an object: of its module where it can be imported, else given.

    A given name is known in this process only. The same name given again names the new object.
    """
    name = getattr(thing, "__qualname__", None) or type(thing).__name__
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is thing:
        return f"{module.__name__}:{name}"
    _given[name] = thing
    return f"{_GIVEN}:{name}"


def lazily(package: str, names: Collection[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """A ``__getattr__`` that imports a package's names (and torch) when used. homes: their modules, lightest first."""

    def imported(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        modules = (importlib.import_module(f"{package}.{home}") for home in homes)
        return getattr(next(module for module in modules if hasattr(module, name)), name)

    return imported
