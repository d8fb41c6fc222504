"""Checks of settings: too small, unknown choices, without effect beside other settings, or fixed by a mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from coterie.protocol.errors import UserError


def at_least(config: Any, **least: int) -> None:
    """Raises UserError for the first setting that is below its least value."""
    for name, value in least.items():
        if getattr(config, name) < value:
            raise UserError(f"{name} must be at least {value}, not {getattr(config, name)}")


def check_choices(config: Any) -> None:
    """Raises UserError for the first ``Literal`` field of a dataclass that has none of its values."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise UserError(f"{name} must be one of {', '.join(map(str, get_args(kind)))}, not {value!r}")


def refuse_unused(config: Any, unused: Iterable[tuple[str, str, bool]]) -> None:
    """Raises UserError for the first setting that has no effect and is set to another value than its default.

    config: a dataclass whose defaults are plain values.  unused: of each setting its name, the condition under which it
    has no effect (``"mode paper"``, ``"local=sgd"``), and whether that condition holds here.
    """
    for name, condition, holds in unused:
        value = getattr(config, name)
        if holds and value != getattr(type(config), name):
            raise UserError(f"{name}={value} has no effect with {condition}: leave it out, or change that")


def insist(config: Any, fixed: Mapping[str, Any], where: str) -> None:
    """Raises UserError for the first setting that has another value than the one that it is fixed to.

    where: ``"mode literal, which is the printed text"``.
    """
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise UserError(f"{name}={getattr(config, name)} is not for {where}: there it is {value}; leave it out")
