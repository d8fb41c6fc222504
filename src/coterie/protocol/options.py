"""Options of a run and settings of a system, as annotated fields of a dataclass:

``rounds: Annotated[int | None, Meta(ge=1), Option("How it runs")] = None``; the class's docstring says what they do.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from coterie.protocol.errors import UserError

TaskKind = Literal["classes", "multilabel", "regression"]
"""A sample has one class, several labels, or numbers."""

LARGEST = sys.float_info.max
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
"""Bounds for ``check_bounds``. The first two are finite."""


@dataclass(frozen=True)
class Option:
    """Of the command line.  panel: where a command's help shows it.  metavar: a word for its value.  flags: its names
    there, if not ``--field-name``.  known: a function of ``cli.completing``, whose names complete it.  many: given
    several times, it is joined by commas.  path: it names a file or folder.
    """

    panel: str = "The work"
    metavar: str | None = None
    flags: str | None = None
    known: str | None = None
    many: bool = False
    path: bool = False


def options_of(kind: type) -> Mapping[str, Option]:
    return {name: note for name, hint in _annotated(kind) for note in hint.__metadata__ if isinstance(note, Option)}


@cache
def _annotated(kind: type) -> tuple[tuple[str, Any], ...]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__[:-1]):
        hints = get_type_hints(base, include_extras=True)
        found |= {name: hints[name] for name in inspect.get_annotations(base) if hasattr(hints[name], "__metadata__")}
    return tuple(found.items())


def bounds_of(kind: type) -> Mapping[str, str]:
    """By field, words for its bounds, such as ``be at least 1``."""
    return {
        name: _in_words(one)
        for name, hint in _annotated(kind)
        for one in hint.__metadata__
        if isinstance(one, msgspec.Meta)
    }


def check_bounds(config: Any, what: str = "{}") -> None:
    """Raises UserError for the first field that is no number, or outside its ``msgspec.Meta``. None has no bounds.
    what: calls a field, such as ``"option {!r}"``.
    """
    kind: type = type(config)
    for name, hint in _annotated(kind):
        value = getattr(config, name)
        for meta in hint.__metadata__:
            if isinstance(meta, msgspec.Meta) and (fault := _fault(value, hint.__origin__, meta)):
                raise UserError(f"{what.format(name)} must {fault}, not {value!r}")


def _fault(value: Any, kind: Any, meta: msgspec.Meta) -> str:
    parts = get_args(kind) or (kind,)
    if (value is None and type(None) in parts) or (isinstance(value, str) and any(map(get_args, parts))):
        return ""  # no bounds, and words are those of a ``Literal``
    fits = isinstance(value, Real if float in parts else int) and not isinstance(value, bool)
    if not fits:
        return "be a number" if float in parts else "be a whole number"
    within = (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )
    return "" if within else _in_words(meta)


def _in_words(meta: msgspec.Meta) -> str:
    most = meta.le if meta.le is not None else meta.lt
    if most == LARGEST:
        return f"be a finite number {'above' if meta.ge is None else 'of at least'} {meta.gt or meta.ge or 0:g}"
    if most is not None:
        opens, least = ("[", meta.ge) if meta.ge is not None else ("(", meta.gt)
        return f"lie in {opens}{least}, {most}{']' if meta.le is not None else ')'}"
    if meta.ge is not None:
        return f"be at least {meta.ge}"
    return "be positive" if meta.gt == 0 else f"be above {meta.gt}"
