"""Calculations on one thread, on whose number last bits depend."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any


def one_thread() -> Any:
    """All imported libraries of products use one thread."""
    return _pools(len(sys.modules)).limit(limits=1)


@lru_cache(maxsize=1)
def _pools(imported: int) -> Any:
    """Finding them takes milliseconds: only after an import."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
