"""What the shell completes, without slow imports."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from coterie.protocol.errors import UserError
from coterie.runs.options import OPTIONS
from coterie.runs.settings import described, field_types

if TYPE_CHECKING:
    from coterie.protocol.system import System

Words = list[tuple[str, str]]
WORDS = "coterie words"


def systems() -> Words:
    from coterie.runs.registry import SYSTEMS

    return [(name, SYSTEMS[name].title) for name in SYSTEMS]


def methods(ctx: typer.Context) -> Words:
    """Systems that are not named yet, also in other modes."""
    from coterie.runs.registry import SYSTEMS

    labels = {name: [name, *(f"{name}@{mode}" for mode in SYSTEMS[name].modes if mode != "paper")] for name in SYSTEMS}
    there = ctx.meta[WORDS]
    return [(label, SYSTEMS[name].title) for name in labels for label in labels[name] if label not in there]


def datasets() -> Words:
    from coterie.data.sources import NAMES

    return [*((name, "") for name in NAMES), ("synthetic:64x10", "made up: 64 features, 10 classes")]


def models() -> Words:
    from coterie.training.names import MODELS

    return list(MODELS.items())


def partitions() -> Words:
    from coterie.data.schemes import FORMS, OWN_FORMS, TASK_FORMS, kinds

    forms = {**FORMS, **TASK_FORMS, **OWN_FORMS}
    texts = {kind: next(text for form, text in forms.items() if form.startswith(kind)) for kind in kinds(forms)}
    return [(kind if kind in forms else f"{kind}:", text) for kind, text in texts.items()]


def devices() -> Words:
    from coterie.devices.profiles import FLEETS

    return [(name, "") for name in FLEETS]


def poisonings() -> Words:
    from coterie.privacy.attacks.active import KINDS

    return [(name, kind.words) for name, kind in KINDS.items()]


def traces() -> Words:
    from coterie.devices.traces import DIURNAL

    return [(DIURNAL, "")]


def logs() -> Words:
    from coterie.runs.logs import TARGETS

    return [(name, "") for name in TARGETS]


def modes(ctx: typer.Context) -> Words:
    """Of the named systems, or of all."""
    return [(mode, "") for mode in dict.fromkeys(mode for system in named(ctx.meta[WORDS]) for mode in system.modes)]


def settings(ctx: typer.Context, incomplete: str) -> Words:
    """As ``lr=``; after the sign the values of a choice."""
    key, sign, _ = incomplete.partition("=")
    found: dict[str, str] = {}
    for system in named(ctx.meta[WORDS]):
        if not sign:
            found |= {f"{name}=": text for name, text in described(system.config).items()}
        else:
            found |= {f"{key}={value}": "" for value in _values(field_types(system.config).get(key, ()))}
    return list(found.items())


def choices(option: str) -> Callable[[], Words]:
    return lambda: [(value, "") for value in _values(OPTIONS[option])]


def _values(alternatives: Iterable[Any]) -> Iterator[str]:
    for one in alternatives:
        yield from ("true", "false") if one is bool else map(str, typing.get_args(one))


def named(words: Iterable[str]) -> list[System]:
    from coterie.runs.registry import SYSTEMS, get

    found = []
    for word in (word.partition("@")[0] for word in words if not word.startswith("-")):
        if word in SYSTEMS or ":" in word:
            with contextlib.suppress(UserError):  # a partition, or a module that does not load
                found.append(get(word))
    return found or list(SYSTEMS.values())
