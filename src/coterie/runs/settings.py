"""Typed settings of frozen dataclasses, from ``key=value`` text, TOML or Python values, with errors that help.

The same rules serve the options of a run and the settings of a system. A field is one of ``int, float, bool, str``, a
``Literal`` of these, or one of these or ``None``; ``none`` is how None is written in text and in TOML.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from coterie.protocol.errors import UserError, suggest

NONE = "none"
_KINDS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    types.NoneType: (NONE, lambda text: {NONE: None}[text.lower()]),
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    Literal: ("", str),
    str: ("text", str),
}
"""The kinds of alternatives, in the order in which they are tried: in words, and how they are read from text."""


def unknown(what: str, word: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name. It lists the known names."""
    names = sorted(known)
    return UserError(f"unknown {what} {word!r}{suggest(word, names)} Known: {', '.join(names) or 'none'}")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``["lr=0.1", ...]`` as a dict. Raises UserError for a text without ``=``, or a key that is given twice."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UserError(f"--set takes key=value, for example --set lr=0.1, not {text!r}")
        if key in given:
            raise UserError(f"--set gives {key!r} twice: {given[key]!r} and {value!r}")
        given[key] = value
    return given


def field_types(kind: type) -> dict[str, tuple[Any, ...]]:
    """The alternatives of every field: types, ``Literal``s and ``NoneType``."""
    hints = typing.get_type_hints(kind)
    return {field.name: _alternatives(hints[field.name]) for field in dataclasses.fields(kind)}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(option for part in typing.get_args(annotation) for option in _alternatives(part))
    return (annotation,)


def convert(value: Any, options: Sequence[Any], where: str, *, text: bool) -> Any:
    """A value as the first alternative that it fits, None before text. Raises UserError that says what would fit."""
    order = list(_KINDS)
    for option in sorted(options, key=lambda option: order.index(typing.get_origin(option) or option)):
        choices = {str(choice): choice for choice in typing.get_args(option)}
        with contextlib.suppress(ValueError, LookupError, OverflowError):
            if text:
                found = choices[value] if choices else _KINDS[option][1](value)
            elif option is types.NoneType and value == NONE:
                found = None
            else:
                found = msgspec.convert(value, option)  # a whole number is a number, too
            if found == found:  # NaN is no number
                return found
    words = (" or ".join(map(repr, typing.get_args(option))) or _KINDS[option][0] for option in options)
    raise UserError(f"{where} must be {' or '.join(words)}, not {value!r}")


def typed(kind: type, given: Mapping[str, Any], what: str, *, text: bool = False) -> dict[str, Any]:
    """Check names and types of values given for a dataclass. Raises UserError. what: e.g. "setting of fedavg"."""
    options = field_types(kind)
    for key in given:
        if key not in options:
            raise unknown(what, str(key), options)
    return {key: convert(value, options[key], f"{what} {key!r}", text=text) for key, value in given.items()}


def values_of(config: Any) -> dict[str, Any]:
    """All fields of a dataclass, by name."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
