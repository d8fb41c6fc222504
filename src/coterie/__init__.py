"""Coterie: federated learning among unequal, privacy-aware clients.

>>> import coterie
>>> result = coterie.run("fedavg", data="digits", lr=0.1)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.api import Comparison, Result, RunConfig, UserError, audit, compare, load, reproduce, run

__version__ = "0.1.0"
__all__ = ["Comparison", "Result", "RunConfig", "UserError", "audit", "compare", "load", "reproduce", "run"]


def __getattr__(name: str) -> Any:
    """The functions of ``coterie.api``, imported at their first use, so that ``coterie --help`` is quick."""
    if name in __all__:
        return getattr(import_module("coterie.api"), name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
