"""Pages without figures, which take most of a page's time; ``test_figures.py`` and ``test_report.py`` draw them."""

from __future__ import annotations

from collections import defaultdict

import pytest

from coterie.report import run_view


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "figures", lambda *_: defaultdict(lambda: None))
