"""Typed settings of frozen dataclasses, from ``key=value`` text, TOML or Python values, with errors that help.

The same rules serve the options of a run and the settings of a system. A field is one of ``int, float, bool, str``, a
``Literal`` of these, or one of these or ``None``; ``none`` is how None is written in text and in TOML.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from coterie.protocol.errors import UserError, suggest

NONE = "none"
_TRUTHS = {"true": True, "false": False}


def unknown(what: str, word: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name. It lists the known names."""
    names = sorted(known)
    return UserError(f"unknown {what} {word!r}{suggest(word, names)} Known: {', '.join(names) or 'none'}")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``["lr=0.1", ...]`` as a dict. Raises UserError for a text without ``=``, or a key that is given twice."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"--set takes key=value, for example --set lr=0.1, not {text!r}")
        if key in given:
            raise UserError(f"--set gives {key!r} twice: {given[key]!r} and {value.strip()!r}")
        given[key] = value.strip()
    return given


def field_types(kind: type) -> dict[str, tuple[Any, ...]]:
    """The alternatives of every field: types, ``Literal``s and ``NoneType``."""
    hints = typing.get_type_hints(kind)
    return {field.name: _alternatives(hints[field.name]) for field in dataclasses.fields(kind)}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(option for part in typing.get_args(annotation) for option in _alternatives(part))
    return (annotation,)


def _describe(options: Sequence[Any]) -> str:
    words = []
    for option in options:
        if typing.get_origin(option) is Literal:
            words += [repr(value) for value in typing.get_args(option)]
        else:
            words.append(
                {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(option, NONE)
            )
    return " or ".join(words)


def _from_text(text: str, option: Any) -> Any:
    """The text as a value of this alternative. Raises ValueError."""
    if typing.get_origin(option) is Literal:
        for choice in typing.get_args(option):
            if text == str(choice):
                return choice
        raise ValueError
    if option is type(None):
        if text.lower() != NONE:
            raise ValueError
        return None
    if option is bool:
        if text.lower() not in _TRUTHS:
            raise ValueError
        return _TRUTHS[text.lower()]
    value = option(text)
    if option is float and math.isnan(value):
        raise ValueError
    return value


def _from_value(value: Any, option: Any) -> Any:
    """The Python or TOML value as one of this alternative. Raises ValueError."""
    if typing.get_origin(option) is Literal:
        for choice in typing.get_args(option):
            if value == choice and type(value) is type(choice):
                return choice
        raise ValueError
    if option is type(None):
        if value is not None and value != NONE:
            raise ValueError
        return None
    if option is float and type(value) in (int, float) and not math.isnan(value):
        return float(value)
    if type(value) is not option or option is float:
        raise ValueError
    return value


def convert(value: Any, options: Sequence[Any], where: str, *, text: bool) -> Any:
    """A value as the first alternative that it fits, None before text. Raises UserError that says what would fit."""
    read = _from_text if text else _from_value
    rank = {type(None): 0, bool: 1, int: 2, float: 3, str: 5}
    for option in sorted(options, key=lambda o: rank.get(o, 4)):
        try:
            return read(value, option)
        except (ValueError, OverflowError, TypeError):
            continue
    raise UserError(f"{where} must be {_describe(options)}, not {value!r}")


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
