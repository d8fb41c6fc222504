"""A user's own objects by name: ``module:ATTRIBUTE``, or in one process ``given:WHAT.NAME``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from coterie.protocol.errors import UserError, suggest

_GIVEN = "given"
_given: dict[str, Any] = {}


def import_object(path: str, what: str) -> Any:
    """The object that ``module:ATTRIBUTE`` names, also from the current folder, or that :func:`name_of` named.

    what: its kind. Raises UserError.
    """
    module, _, attribute = path.partition(":")
    if module == _GIVEN:
        if attribute not in _given:
            name = attribute.removeprefix(f"{what}.")
            raise UserError(
                f"{what} {name!r} was given as an object of Python, which no file can hold: give it again "
                f"(coterie.run(..., {what}=...)), or define it in a module and name it as module:ATTRIBUTE"
            )
        return _given[attribute]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    if not (module and attribute):
        raise UserError(f"{what} {path!r} cannot be imported: write it as module:ATTRIBUTE")
    try:
        found = importlib.import_module(module)
        if hasattr(found, attribute):
            return getattr(found, attribute)
    except Exception as error:  # whatever the module's own code raises
        raise UserError(f"{what} {path!r} cannot be imported: {_why(error, module)}") from None
    there = suggest(attribute, [name for name in vars(found) if not name.startswith("_")])
    raise UserError(f"{what} {path!r} cannot be imported: module {module!r} has no {attribute!r}{there}")


def _why(error: Exception, module: str) -> str:
    """Why a module is not imported, with the line of its code that fails."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r}, neither in this folder ({os.getcwd()}) nor installed"
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if f"{module}.".startswith(f"{frame.f_globals.get('__name__')}.")  # its own, or of a package that it is in
    ]
    where = " ({}, line {})".format(*lines[-1]) if lines else ""
    return f"its code fails with {type(error).__name__}: {error}{where}"


def is_object(path: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.<>]*", path) is not None


def check_elsewhere(
    path: str, what: str, folder: Path, otherwise: str = "give a trained model's architecture as model="
) -> None:
    """Raises UserError if the module of ``module:ATTRIBUTE`` could come from ``folder``, which others may have written;
    imports nothing.  otherwise: another remedy, for a trusted folder.
    """
    parts, home = path.partition(":")[0].split("."), folder.resolve()
    for entry in (*sys.path, os.getcwd()):
        for k in range(1, len(parts) + 1):
            place = Path(entry, *parts[:k])
            inside = any(home in (one, *one.parents) for one in (place.resolve(), place.parent.resolve() / place.name))
            if inside and _is_there(place):
                raise UserError(
                    f"{what} {path!r} is code that lies in {folder}, and no folder decides which code runs: if you "
                    f"trust it, move the module out of this folder, or {otherwise}"
                )


def _is_there(place: Path) -> bool:
    try:
        return any(name == place.name or name.startswith(f"{place.name}.") for name in os.listdir(place.parent))
    except OSError:
        return False


def name_of(thing: Any, what: str) -> str:
    """For :func:`import_object`: by the module if importable, else given.  what: the kind."""
    name = getattr(thing, "__qualname__", None) or type(thing).__name__
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and getattr(module, name, None) is thing:
        return f"{module.__name__}:{name}"
    _given[f"{what}.{name}"] = thing
    return f"{_GIVEN}:{what}.{name}"


def code_of(thing: Any) -> str:
    """A function's identity beyond its name: code, names, constants, defaults, plain values around it;
    else the class.
    """
    code = getattr(thing, "__code__", None)
    if code is None:
        return f"{type(thing).__module__}.{type(thing).__qualname__}"
    cells = [cell.cell_contents for cell in thing.__closure__ or ()]
    around = [value for value in cells if isinstance(value, str | int | float | bytes | tuple)]
    return repr((_instructions(code), thing.__defaults__, thing.__kwdefaults__, around))


def _instructions(code: CodeType) -> str:
    constants = [
        _instructions(one)
        if isinstance(one, CodeType)
        else sorted(map(repr, one))
        if isinstance(one, frozenset)
        else one
        for one in code.co_consts
    ]
    return repr((code.co_code, code.co_names, constants))


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Imports without the garbage collector, which takes a quarter of their time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def lazily(package: str, names: Collection[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """A ``__getattr__`` that imports a package's names on use.  homes: modules, lightest first."""

    def imported(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with uncollected():
            modules = (importlib.import_module(f"{package}.{home}") for home in homes)
            return getattr(next(module for module in modules if hasattr(module, name)), name)

    return imported
