"""Typed settings of frozen dataclasses, from ``key=value`` text, TOML or Python values.

A field is one of ``int, float, bool, str``, a ``Literal`` of these, or one of these or ``None``, written ``none``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from coterie.protocol.errors import UserError, suggest

NONE = "none"
_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: NONE,
}


def unknown(what: str, word: str, known: Iterable[str]) -> UserError:
    names = sorted(known)
    return UserError(f"unknown {what} {word!r}{suggest(word, names)} Known: {', '.join(names) or 'none'}")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``["lr=0.1", ...]`` as a dict. Raises UserError without ``=``, or for a repeated key."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UserError(f"--set takes key=value, for example --set lr=0.1, not {text!r}")
        if key in given:
            raise UserError(f"--set gives {key!r} twice: {given[key]!r} and {value!r}")
        given[key] = value
    return given


@cache
def field_types(kind: type) -> Mapping[str, tuple[Any, ...]]:
    """The alternatives of every field: types, ``Literal``s and ``NoneType``."""
    hints = typing.get_type_hints(kind)
    return {field.name: _alternatives(hints[field.name]) for field in dataclasses.fields(kind)}


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(option for part in typing.get_args(annotation) for option in _alternatives(part))
    return (annotation,)


def convert(value: Any, options: Sequence[Any], where: str, *, text: bool) -> Any:
    """The value as one of these types, None before text. Raises UserError that says what would fit.  text: it is
    written, as ``"0.1"``, ``"true"`` and ``"none"``.
    """
    if types.NoneType in options and isinstance(value, str) and (value.lower() if text else value) == NONE:
        return None
    with contextlib.suppress(msgspec.ValidationError):
        read = re.sub(r"^(-?)\.(?=\d)", r"\g<1>0.", value) if text and float in options else value  # .5 is 0.5
        found = msgspec.convert(read, typing.Union[tuple(options)], strict=not text)  # noqa: UP007
        if found == found:  # NaN is no number
            return found
    words = (_WORDS.get(option) or " or ".join(map(repr, typing.get_args(option))) for option in options)
    joined = f": write {','.join(map(str, value))!r}" if isinstance(value, list) and value and str in options else ""
    raise UserError(f"{where} must be {' or '.join(words)}, not {value!r}{joined}")


def typed(kind: type, given: Mapping[str, Any], what: str, *, text: bool = False) -> dict[str, Any]:
    """Values of a dataclass's fields. Raises UserError for wrong names and types. what: e.g. "setting of fedavg"."""
    options = field_types(kind)
    for key in given:
        if key not in options:
            raise unknown(what, str(key), options)
    return {key: convert(value, options[key], f"{what} {key!r}", text=text) for key, value in given.items()}


def values_of(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def described(config: type) -> dict[str, str]:
    """What each field of a settings dataclass does, in plain text, or "", by the docstrings of the class and its bases.

    A field begins a line, or follows two spaces: ``lr: learning rate.  momentum, weight_decay: of SGD.`` One without a
    text refers to one whose text names it.
    """
    texts: dict[str, str] = {}
    for kind in config.__mro__:
        for name, text in _documented(kind.__doc__ or ""):
            texts.setdefault(name, text)
    found = {}
    for name, options in field_types(config).items():
        elsewhere = (f"see {other}" for other, text in texts.items() if re.search(rf"\b{name}\b", text))
        text = (texts.get(name) or next(elsewhere, "")).replace("``", "")
        values = [str(value) for option in options for value in typing.get_args(option)]
        listed = all(value in text for value in values)
        found[name] = text if listed else f"{' | '.join(values)}: {text}"
    return found


_ENTRY = re.compile(r"(?:^|  )(\w+(?:,\s+\w+)*): ")


def _documented(docstring: str) -> Iterator[tuple[str, str]]:
    for paragraph in re.split(r"\n\s*\n", docstring):
        _, *found = _ENTRY.split(re.sub(r"\s*\n\s*", "  ", paragraph).strip())
        for names, text in zip(found[::2], found[1::2], strict=True):
            for name in names.split(","):
                yield name.strip(), " ".join(text.split())
