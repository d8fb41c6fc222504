"""Options of a run and settings of a system, described once, as annotated fields of a dataclass.

``clients: Annotated[int | None, Meta(ge=1), Option("Number of clients.")] = None`` has a bound and its words.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from coterie.protocol.errors import UserError

T = TypeVar("T")
TaskKind = Literal["classes", "multilabel", "regression"]
"""What a model learns: one class of a sample, several labels at once, or numbers."""


@dataclass(frozen=True)
class Option:
    """What a field is for. help: its text, for the command line and the API.

    panel: where a command's help shows it.  metavar: a word for its value.  flags: its names on the command line,
    if not ``--field-name``.  known: the names that complete it, a function of ``cli.completing``.
    many: given several times, it is joined by commas.  path: it names a file or folder.
    """

    help: str
    panel: str = "The work"
    metavar: str | None = None
    flags: str | None = None
    known: str | None = None
    many: bool = False
    path: bool = False


def options_of(kind: type) -> Mapping[str, Option]:
    """The described fields of a dataclass, by name, in order."""
    return _notes(kind, Option)


@cache
def _notes(kind: type, wanted: type[T]) -> Mapping[str, T]:
    found: dict[str, T] = {}
    for base in reversed(kind.__mro__[:-1]):
        hints = get_type_hints(base, include_extras=True)
        for name in inspect.get_annotations(base):
            for note in getattr(hints[name], "__metadata__", ()):
                if isinstance(note, wanted):
                    found[name] = note
    return found


def check_bounds(config: Any, what: str = "{}") -> None:
    """Raises UserError for the first field outside its ``msgspec.Meta``; None has no bounds.

    what: how an error calls a field, such as ``"option {!r}"``.
    """
    kind: type = type(config)
    for name, meta in _notes(kind, msgspec.Meta).items():
        value = getattr(config, name)
        if value is not None and not _is_within(value, meta):
            raise UserError(f"{what.format(name)} must {_in_words(meta)}, not {value}")


def _is_within(value: Any, meta: msgspec.Meta) -> bool:
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )


def _in_words(meta: msgspec.Meta) -> str:
    most = meta.le if meta.le is not None else meta.lt
    if most is not None:
        opens, least = ("[", meta.ge) if meta.ge is not None else ("(", meta.gt)
        return f"lie in {opens}{least}, {most}{']' if meta.le is not None else ')'}"
    if meta.ge is not None:
        return f"be at least {meta.ge}"
    return "be positive" if meta.gt == 0 else f"be above {meta.gt}"
