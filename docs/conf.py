"""The pages of this folder as a site, by Sphinx. ``make docs`` builds it without network; a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import demo, site

import coterie

project, author, copyright = "Coterie", "The Coterie developers", "The Coterie developers"
version = release = coterie.__version__

extensions = ["myst_nb", "sphinx_external_toc"]
external_toc_path = "toc.yml"
templates_path = ["_templates"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_heading_anchors = 4  # links to #headings, as code hosts make them
suppress_warnings = ["etoc.glob"]  # folders that may be empty

# Notebooks are executed, and again whenever they or the package change.
site.prepare_kernels(ROOT / "build" / "ipython")
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks" / site.digest(Path(coterie.__file__).parent))
nb_execution_in_temp = True
nb_execution_timeout = 250  # seconds a cell
nb_execution_raise_on_error = True
nb_merge_streams = True

highlight_language = "text"  # of blocks that name none
html_theme = "furo"
html_title = f"Coterie {version}"
html_copy_source = False
html_extra_path = [f"report{end}.png" for end in demo.PICTURES]  # beside index.html, which names them


def setup(app: site.Sphinx) -> None:
    """Fill in what is generated, list the versions beside this one, and note how long notebooks took."""
    app.connect("source-read", site.fill_in)
    app.connect("build-finished", site.list_versions)
    app.connect("build-finished", site.note_seconds)
