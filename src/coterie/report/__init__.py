"""What people see of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.import_path import lazily

if TYPE_CHECKING:
    from coterie.report.citing import cite
    from coterie.report.html import render

__all__ = ["cite", "render"]

__getattr__ = lazily(__name__, __all__, ("html", "citing"))
