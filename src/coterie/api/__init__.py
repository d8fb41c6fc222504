"""The functions of ``import coterie``: run, compare, audit, reproduce and load, with options as keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.import_path import lazily

if TYPE_CHECKING:
    from coterie.api.reproducing import reproduce
    from coterie.api.results import Comparison, Result, audit, load
    from coterie.api.training import compare, run, train
    from coterie.protocol.errors import UserError
    from coterie.runs.config import RunConfig

__all__ = [
    "Comparison",
    "Result",
    "RunConfig",
    "UserError",
    "audit",
    "compare",
    "load",
    "reproduce",
    "run",
    "train",
]

__getattr__ = lazily(__name__, __all__, ("results", "training", "reproducing"))
