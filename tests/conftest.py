"""The fast tests draw the same few examples every time: what is green stays green. `make test-long` draws new ones."""

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import shipped  # noqa: F401  reads what the package has, before fast tests take less
import torch
import typer
from command import Command, caller
from deployments import Study
from hypothesis import settings
from threadpoolctl import threadpool_limits

from coterie.operate import supervision
from coterie.privacy.audits import ofl
from coterie.runs import benefit, tuning
from coterie.runs.registry import SYSTEMS

gc.disable()  # until tests are collected: going through all their modules again and again takes a third of that time

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("exploring", deadline=None, print_blob=True, max_examples=300)
settings.load_profile("repeatable")  # unless pytest gets --hypothesis-profile

# Products this small are slower on two threads, and on a busy machine a hundred times so.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # of the processes that tests start
# Typer makes all commands anew at every call, which takes longer than most calls of tests.
typer.main.get_command = cache(typer.main.get_command)
# A process that a test forks has them already: to import them takes longer than most of what it does.
supervision.PRELOADED += (
    *("pytest", "sklearn.cluster", "sklearn.datasets", "sklearn.metrics", "pydantic", "markdown_it"),
    *("coterie.cli.app", "coterie.cli.deploy_runs", "coterie.operate.rehearsal", "coterie.runs.experiment"),
    *("benchmarks.engines", "benchmarks.lines"),
)
# A test that kills a process leaves what the system holds; only a loss of power needs the disk, and no test has one.
os.fsync = lambda descriptor: None
threadpool_limits(1)
torch.set_num_threads(1)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process, in an empty folder."""
    return caller(tmp_path, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Also after a test that takes more."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _built_in_systems() -> Iterator[None]:
    """What a test registers is unknown to the next."""
    yield
    SYSTEMS.registered.clear()


@pytest.fixture(scope="session")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small deployment that is founded, and that nobody has joined. Tests have copies."""
    made = Study(tmp_path_factory.mktemp("founded"))
    made.found()
    return made.path


@pytest.fixture
def study(founded: Path, tmp_path: Path) -> Study:
    """A deployment of the test's own."""
    made = Study(tmp_path)
    shutil.copytree(founded, made.path)
    return made


@pytest.fixture(scope="session")
def shared_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Another deployment, of another operator, which no test changes."""
    made = Study(tmp_path_factory.mktemp("shared"))
    made.found()
    return made


def pytest_configure(config: pytest.Config) -> None:
    """Runs end soon: they tune for few epochs, and few draws make intervals and audits of noise. Long ones do all."""
    if config.option.markexpr == "not long":
        tuning.MOST_EPOCHS, benefit.DRAWS, benefit.SLOW_DRAWS, ofl.TRIALS = 8, 100, 20, 1000


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
