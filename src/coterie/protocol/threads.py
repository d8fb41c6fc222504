"""Calculations on one thread, whose last bits would follow the number of threads."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any


def one_thread() -> Any:
    """A context in which all libraries of products that are imported use one thread."""
    return _pools(len(sys.modules)).limit(limits=1)


@lru_cache(maxsize=1)
def _pools(imported: int) -> Any:
    """Finding them takes milliseconds, so they are looked for again only after an import."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
