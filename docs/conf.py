"""The pages of this folder as a site, by Sphinx. ``make docs`` builds it without network; a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import site

import coterie

project, author, copyright = "Coterie", "The Coterie developers", "The Coterie developers"
version = release = coterie.__version__

extensions = ["myst_parser", "sphinx_external_toc"]
external_toc_path = "toc.yml"
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
myst_heading_anchors = 4  # links to #headings, as code hosts make them
suppress_warnings = ["etoc.glob"]  # folders that may be empty

highlight_language = "text"  # of blocks that name none
html_theme = "furo"
html_title = f"Coterie {version}"
html_copy_source = False


def setup(app: site.Sphinx) -> None:
    """Fill in what is generated."""
    app.connect("source-read", site.fill_in)
