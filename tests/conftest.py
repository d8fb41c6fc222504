"""The fast tests draw the same examples every time: what is green stays green. `make test-long` draws new ones."""

from pathlib import Path

import pytest
from command import Command, caller
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("repeatable")  # unless pytest gets --hypothesis-profile


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process, in an empty folder."""
    return caller(tmp_path, monkeypatch, capsys)
