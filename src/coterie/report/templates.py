"""The templates of pages, with the filters for numbers and words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import jinja2

from coterie.report import words
from coterie.report.figure import METHODS
from coterie.report.marked_up import coded, tabled

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # names, settings and words in a run folder are other people's
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NUMBERS = (words.percent, words.metric, words.size, words.energy, words.duration, words.number, words.plural)


def _unbroken(shown: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: re.sub(r"(?<=[\d±]) ", "\u202f", shown(*args))


TEMPLATES.filters |= {of.__name__: _unbroken(of) for of in _NUMBERS}
_WORDS = (words.capital, words.listed, words.divided, tabled, coded)
TEMPLATES.filters |= {of.__name__: of for of in _WORDS}
TEMPLATES.globals |= {"inks": METHODS}
