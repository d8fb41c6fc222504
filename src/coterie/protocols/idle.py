"""Settings that mean nothing beside others, or have one value only: whoever sets one expects what would not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coterie.protocol.errors import UserError


def refuse_idle(config: Any, idle: Iterable[tuple[str, str, bool]]) -> None:
    """Raises UserError for the first setting that is idle and has another value than its default.

    config: a dataclass whose defaults are plain values.  idle: by setting its name, beside what it may mean nothing
    (``"mode paper"``, ``"local=sgd"``), and whether that is so here.
    """
    for name, beside, here in idle:
        value = getattr(config, name)
        if here and value != getattr(type(config), name):
            raise UserError(f"{name}={value} means nothing with {beside}: leave it out, or change that")


def insist(config: Any, fixed: Mapping[str, Any], where: str) -> None:
    """Raises UserError for the first setting that has another value than the one that it is fixed to.

    where: ``"mode literal, which is the printed text"``.
    """
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise UserError(f"{name}={getattr(config, name)} is not for {where}: there it is {value}; leave it out")
