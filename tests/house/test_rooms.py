"""One knows one's room: pages name its files, class names stand once, and a file knows few modules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.size import Size, by_package, size_of
from tests.house.test_layers import ROOT, SOURCE, files, imports, nodes

MANY_NAMES = frozenset({"systems", "baselines", "crypto"})
"""Packages whose classes read with their module, such as ``ckks.PublicKey``."""
FACES = frozenset({"protocol/core.py", "method.py"})
"""Files that gather what others use in one import."""
PAGE = ROOT / "docs" / "architecture_rooms.md"
"""It goes through rooms file by file, each under a head of its own."""
MOST_CODE = {("deploy", "operate"): 7000}
"""Lines of code that rooms have together. What makes room is fewer ways, or a home elsewhere: never denser lines."""
MOST_LINES = 80
MOST_MODULES = 12


@cache
def source() -> tuple[tuple[tuple[str, ...], ast.Module], ...]:
    return tuple(files(SOURCE))


def classes() -> Iterator[tuple[str, str]]:
    """Name and module of every class outside functions, where names must stand once."""
    for parts, tree in source():
        if parts[0] not in MANY_NAMES:
            yield from ((node.name, ".".join(parts)) for node in tree.body if isinstance(node, ast.ClassDef))


def lengths() -> Iterator[tuple[str, int]]:
    for parts, tree in source():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{'/'.join(parts)}.py: {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def modules_of(parts: tuple[str, ...], tree: ast.Module, known: frozenset[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Modules that a file imports from; the face counts as one."""
    found = set()
    for _, target in imports(parts, tree):
        while target and target not in known:
            target = target[:-1]
        if target:
            found.add(target)
    return found


@pytest.mark.parametrize("room", ["runs", "api", "cli", "deploy", "operate"])
def test_a_page_names_every_file_of_a_room(room: str) -> None:
    (section,) = re.findall(rf"^## `{room}/`\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    named = re.findall(r"`(\w+)\.py`", section)
    assert set(named) == {parts[1] for parts, _ in source() if parts[0] == room and parts[-1] != "__init__"}


def test_a_class_name_stands_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, module in classes():
        places[name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert twice == {}


def test_a_function_is_read_at_once() -> None:
    assert [f"{name}, {lines} lines" for name, lines in lengths() if lines > MOST_LINES] == []


def test_a_file_knows_few_modules() -> None:
    known = frozenset(parts[:-1] if parts[-1] == "__init__" else parts for parts, _ in source())
    counts = {"/".join(parts) + ".py": len(modules_of(parts, tree, known)) for parts, tree in source()}
    assert {name: count for name, count in counts.items() if count > MOST_MODULES and name not in FACES} == {}


@pytest.mark.parametrize(("rooms", "most"), MOST_CODE.items())
def test_rooms_do_not_grow(rooms: tuple[str, ...], most: int) -> None:
    assert sum(by_package(SOURCE / room)["all"].code for room in rooms) <= most


def test_sizes_are_counted_without_docstrings_comments_and_blank_lines(tmp_path: Path) -> None:
    text = '"""A text of five words."""\n\nimport os\n\n\ndef f() -> None:\n    """One."""\n    # why\n    os.sync()\n'
    assert size_of(text) == Size(code=3, imports=1, words=6, files=1)
