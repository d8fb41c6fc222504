"""``requirements-deploy.txt``: what a deployment installs, as the tests pass with it, with the files' hashes."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements-deploy.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
ELSEWHERE = re.compile(r"nvidia-.+|cuda-.+|triton|setuptools|colorama")
"""What torch needs on Linux with a GPU, and what other systems need: the tests have other builds."""


def called(name: str) -> str:
    """A package's name, as indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


PINNED = {called(found[1]): found[2] for found in ENTRY.finditer(LOCK)}


def test_every_line_is_a_pin_with_hashes_or_a_comment() -> None:
    """So ``--require-hashes`` takes it, and nothing in it names a place where files come from."""
    rest = ENTRY.sub("", LOCK)
    assert all(line.startswith("#") for line in rest.splitlines() if line), rest
    assert len(PINNED) == len(ENTRY.findall(LOCK)) > 60
    assert not re.search(r"://|index|find-links|@", LOCK)


def test_its_versions_are_those_that_the_tests_pass_with() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {called(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    assert {name: version for name, version in PINNED.items() if name in tested} == {
        name: tested[name] for name in PINNED if name in tested
    }
    assert [name for name in PINNED if name not in tested and not ELSEWHERE.fullmatch(name)] == []


def test_it_has_all_that_the_extra_needs() -> None:
    """All requirements of coterie[deploy], and theirs as far as they are installed here."""
    requirements = pytest.importorskip("packaging.requirements")
    todo = [
        requirements.Requirement(one) for one in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["deploy"])
    ]
    seen = set()
    while todo:
        one = todo.pop()
        name = called(one.name)
        assert name in PINNED, name
        assert one.specifier.contains(PINNED[name]), (str(one), PINNED[name])
        if name in seen:
            continue
        seen.add(name)
        try:
            below = [requirements.Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue
        extras = one.extras or {""}
        todo += [
            each for each in below if any(each.marker is None or each.marker.evaluate({"extra": e}) for e in extras)
        ]
    assert {"nats-py", "torch", "cryptography"} <= seen


def test_the_page_says_how_to_install_it() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert "pip install --require-hashes -r requirements-deploy.txt" in page
    assert "make lock" in LOCK
    assert re.search(r"^lock:", (ROOT / "Makefile").read_text(), re.MULTILINE)
