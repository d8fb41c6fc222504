"""The fast tests draw the same few examples every time: what is green stays green. `make test-long` draws new ones."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from command import Command
    from deployments import Study

gc.disable()  # until tests are collected: going through all their modules again and again takes a third of that time

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=12)
settings.register_profile("exploring", deadline=None, print_blob=True, max_examples=300)
settings.load_profile("repeatable")  # unless pytest gets --hypothesis-profile


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands tests out to others imports nothing that takes long."""
    if config.getoption("numprocesses", None):
        return
    import process

    if config.option.markexpr == "not long":
        process.do_less()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process, in an empty folder."""
    from command import caller

    return caller(tmp_path, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Also after a test that takes more."""
    import torch

    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _built_in_systems() -> Iterator[None]:
    """What a test registers is unknown to the next."""
    from coterie.runs.registry import SYSTEMS

    yield
    SYSTEMS.registered.clear()


@pytest.fixture(scope="session")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small deployment that is founded, and that nobody has joined. Tests have copies."""
    from deployments import Study

    made = Study(tmp_path_factory.mktemp("founded"))
    made.found()
    return made.path


@pytest.fixture
def study(founded: Path, tmp_path: Path) -> Study:
    """A deployment of the test's own."""
    from deployments import Study

    made = Study(tmp_path)
    shutil.copytree(founded, made.path)
    return made


@pytest.fixture(scope="session")
def shared_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Another deployment, of another operator, which no test changes."""
    from deployments import Study

    made = Study(tmp_path_factory.mktemp("shared"))
    made.found()
    return made


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real data run where a folder of data sets is named, and load nothing from elsewhere."""
    if not os.environ.get("COTERIE_DATA"):
        for item in items:
            if item.get_closest_marker("real_data"):
                item.add_marker(pytest.mark.skip(reason="set COTERIE_DATA to a folder of data sets"))
