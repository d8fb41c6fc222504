"""Reports: what a run or a comparison left in its folder, as one self-contained HTML file."""

from coterie.report.html import render

__all__ = ["render"]
