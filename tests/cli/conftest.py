"""Commands whose pages have no figures, which take most of a page's time, but for tests that ask for ``figures``."""

from __future__ import annotations

from collections import defaultdict

import pytest


@pytest.fixture
def figures() -> None:
    """Pages with figures."""


@pytest.fixture(autouse=True)
def _no_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "figures" not in request.fixturenames:
        monkeypatch.setattr("coterie.report.run_view.figures", lambda *_: defaultdict(lambda: None))
