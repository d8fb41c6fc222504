"""Every command of a page is one of Coterie's; runs and comparisons are checked up to their first round."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from benchmarks import pages
from coterie import data
from coterie.api import training
from coterie.cli.app import app
from coterie.data.catalogue import is_synthetic
from coterie.data.schemes import parse
from coterie.data.tasks import column_of, parts_of, tasks_of
from coterie.devices.profiles import fleet
from coterie.protocol.errors import CoterieError
from coterie.runs.config import Resolved
from coterie.training.models import factory

OWN_CODE = "mine:", "fedprox_own:", "proximal:", "secure_mean:"
"""Modules that a page lets its reader write; other tests run them."""
OWN_DATA = "hospitals", "visits.csv"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
EVERY = {path: path.read_text() for path in pages.pages()}


def in_blocks(text: str) -> list[str]:
    """Lines that begin with ``coterie``, without remarks; not those of diagrams."""
    blocks = [body for kind, body in _FENCE.findall(text) if kind in ("", "bash", "sh")]
    lines = "\n".join([*blocks, *_INDENTED.findall(_FENCE.sub("", text))]).replace("\\\n", " ").splitlines()
    found = (re.sub(r"\s+(?:[#>]|<-).*", "", line).strip() for line in lines if re.match(r" *coterie [a-z]", line))
    return [line for line in found if "..." not in line]


def in_text(text: str) -> list[str]:
    """Also mentions of a command without its arguments."""
    found = re.findall(r"`(coterie [a-z][^`]*)`", _INDENTED.sub("", _FENCE.sub("", text)))
    return [" ".join(one.split()) for one in found if "..." not in one]


def is_whole(command: str) -> bool:
    """Whether it is a run or a comparison of methods, and no word stands for another."""
    _, kind, *words = shlex.split(command)
    begun = kind in ("run", "compare") and bool(words) and not words[0].startswith("-")
    return begun and not any(word.isupper() or word.startswith(OWN_CODE) for word in words)


RUNS = {path: list(filter(is_whole, in_blocks(text) + in_text(text))) for path, text in EVERY.items()}


# -- options -----------------------------------------------------------------------------------------------------------


def leaf(command: str, *, whole: bool) -> Any:
    """The last of its nested commands, of which this one names options. whole: parse it, with its arguments."""
    group, words = get_command(app), shlex.split(command)[1:]
    context = group.make_context("coterie", list(words), resilient_parsing=True)
    while hasattr(group, "commands") and words:
        found = group.commands.get(words[0])
        assert found is not None, command
        group, words = found, words[1:]
        if whole or hasattr(group, "commands"):
            is_group = hasattr(group, "commands")
            context = group.make_context(group.name, list(words), parent=context, resilient_parsing=is_group)
    return group


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_command_of_a_page_is_one_of_coteries(path: Path) -> None:
    for command in in_blocks(EVERY[path]):
        leaf(command, whole=True)
    for command in in_text(EVERY[path]):
        known = {flag for one in leaf(command, whole=False).params for flag in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in shlex.split(command) if word.startswith("-")} <= known, command


# -- runs and comparisons ----------------------------------------------------------------------------------------------


class Planned(BaseException):
    """No command catches it."""


@cache
def planned(command: str) -> tuple[Resolved, ...] | str:
    """The configs of its runs, or what it answers instead."""
    found: list[Resolved] = []

    def stop(of: Any, *_: Any, **__: Any) -> None:
        found.extend(getattr(of, "methods", {0: of}).values())
        raise Planned

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training.runner, "run", stop)
        patched.setattr(training.comparison, "compare", stop)
        try:
            return f"{command}: {CliRunner().invoke(app, shlex.split(command)[1:]).output}"
        except Planned:
            return tuple(found)


def images(name: str) -> data.Dataset:
    """Digits under another name."""
    return replace(data.load("digits"), name=name)


def check(command: str) -> None:
    """Also what a run checks when it has read its data. Raises CoterieError."""
    configs = planned(command)
    assert not isinstance(configs, str), configs
    for config in configs:
        own = Path(config.data).name in OWN_DATA
        assert own or config.data in data.NAMES or is_synthetic(config.data), command
        factory(config.model)
        if column_of(config.partition) is None:
            fleet(config.devices, config.clients, config.seed)
            task, skew = parts_of(config.partition)
            parse(skew)
            if task:
                tasks_of(task, images(config.data), config.clients, config.seed, images)


@pytest.mark.parametrize("path", [path for path, found in RUNS.items() if found], ids=lambda path: path.stem)
def test_a_run_of_a_page_is_right_up_to_its_first_round(path: Path) -> None:
    for command in RUNS[path]:
        check(command)


@pytest.mark.parametrize(
    "words",
    [
        "run fedavgg",
        "run fedavg --set nothing=1",
        "run fedavg --data nothing",
        "run fedavg --partition nothing:3",
        "run fedavg --partition dirichlet:x",
        "run fedavg --partition rotate:40",
        "run fedavg --model nothing",
        "run fedavg --devices nothing",
        "compare fedavg scaffold --set lrr=1",
    ],
)
def test_a_wrong_word_is_noticed(words: str) -> None:
    with pytest.raises((AssertionError, CoterieError)):
        check(f"coterie {words}")
