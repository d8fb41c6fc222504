"""The fast tests draw the same examples every time: what is green stays green. `make test-long` draws new ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import Command, caller
from deployments import Study
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("repeatable")  # unless pytest gets --hypothesis-profile


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process, in an empty folder."""
    return caller(tmp_path, monkeypatch, capsys)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Products this small are slower on two threads, and on a busy machine a hundred times so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A small deployment that is founded, and that nobody has joined."""
    made = Study(tmp_path)
    made.found()
    return made


@pytest.fixture(scope="module")
def shared_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One that no test changes."""
    made = Study(tmp_path_factory.mktemp("shared"))
    made.found()
    return made
