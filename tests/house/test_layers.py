"""The house rules that a machine can check: imports point down only and in no circle, files are short, no pickle.

``make lint`` runs this file. What a package may import is said by ``LAYERS``; there is no other list to keep.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "coterie"
BESIDE = (ROOT / "papers", ROOT / "benchmarks")
"""What lies beside the package uses it, and is not in the wheel."""

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"protocol"}),
    frozenset({"transport"}),
    frozenset({"clustering", "selection", "aggregation", "dp", "crypto", "training", "data", "devices"}),
    frozenset({"protocols"}),
    frozenset({"method"}),
    frozenset({"systems", "baselines"}),
    frozenset({"privacy"}),
    frozenset({"record"}),
    frozenset({"runs"}),
    frozenset({"report", "reproductions"}),
    frozenset({"deploy"}),
    frozenset({"operate", "api"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
"""From the bottom up. A package (or a module beside the packages) imports itself and what lies in lower layers; those
of one layer are strangers. ``coterie`` itself imports ``api`` at its first use; all may ask it for its version.
"""

ALLOWED: frozenset[tuple[str, str]] = frozenset({("__init__", "api")})
"""Pairs where the first may import the second all the same: ``coterie`` is its API."""

FORBIDDEN = frozenset((package, "transport") for package in ("protocols", "systems", "baselines"))
"""Pairs of packages where the first must not import the second, lower as it lies: a system runs on any transport."""

STRANGERS = frozenset({"systems", "baselines"})
"""Packages whose members (modules or subpackages) do not import each other; what two of them need moves down."""

MAX_LINES = 600
ATTRIBUTE = re.compile(r"coterie(\.\w+)+:\w+")
PICKLES = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"})


def files(root: Path) -> Iterator[tuple[tuple[str, ...], ast.Module]]:
    """Modules below the package at ``root``: dotted parts without the package's own name, and syntax tree."""
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).with_suffix("").parts, parsed(path.read_text())


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All of them; several rules go through them."""
    return tuple(ast.walk(tree))


@cache
def imports(parts: tuple[str, ...], tree: ast.Module) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """As ``found_imports``, which is slow, once for each tree."""
    return tuple(found_imports(parts, tree))


def found_imports(parts: tuple[str, ...], tree: ast.Module) -> Iterator[tuple[int, tuple[str, ...]]]:
    """All imports of our own modules, wherever they stand in the file: line and dotted parts below ``coterie``.

    ``from coterie.a import b`` gives ``a.b``, whatever b is. Understands relative imports,
    ``import_module("...")`` and strings such as ``"coterie.a:b"``.
    """
    for node in nodes(tree):
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("coterie", *parts)[: len(parts) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            named = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                named = [str(node.args[0].value)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ATTRIBUTE.fullmatch(node.value):
            named = [node.value.replace(":", ".")]
        for name in named:
            if name.split(".")[0] == "coterie":
                yield node.lineno, tuple(name.split(".")[1:])


def layer(package: str) -> int | None:
    """Which layer a package lies in, from the bottom."""
    return next((number for number, packages in enumerate(LAYERS) if package in packages), None)


def wrong_imports(root: Path) -> list[str]:
    """One line for every import that the layers forbid, and for every package that is in no layer."""
    folders = {path.name for path in root.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    packages = folders | {path.stem for path in root.glob("*.py")} - {"__init__"}
    members = {name: {path.stem for path in (root / name).iterdir()} for name in folders}
    found = [f"{name}: in no layer" for name in sorted(packages) if layer(name) is None]
    for parts, tree in files(root):
        own = parts[0]
        for line, target in imports(parts, tree):
            other = target[0] if target else ""
            if other not in packages:
                continue  # coterie itself: its version
            where = f"{'/'.join(parts)}.py:{line}"
            place, theirs = layer(own), layer(other)
            if own != other:
                lower = place is not None and theirs is not None and theirs < place
                if (own, other) in FORBIDDEN or not (lower or (own, other) in ALLOWED):
                    found.append(f"{where}: {own} must not import {other}")
            elif own in STRANGERS and parts[1] != "__init__" and set(target[1:2]) & members[own] - {parts[1]}:
                found.append(f"{where}: {own}.{parts[1]} must not import {own}.{target[1]}")
    return list(dict.fromkeys(found))


def circle(root: Path) -> list[str]:
    """A circle of modules that import each other, wherever in a file, also for types alone; empty without any."""
    trees = {parts[:-1] if parts[-1] == "__init__" else parts: (parts, tree) for parts, tree in files(root)}
    graph: dict[str, set[str]] = {}
    for own, (parts, tree) in trees.items():
        if not own:
            continue  # coterie itself imports at the first use
        targets = (target if target in trees else target[:-1] for _, target in imports(parts, tree))
        edges = {(".".join(own), ".".join(target)) for target in targets if target in trees and target != own}
        graph[".".join(own)] = {target for _, target in edges}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def wrong_calls(root: Path) -> list[str]:
    """One line for every use of pickle and every print."""
    found = []
    for parts, tree in files(root):
        for node in nodes(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id == "print":
                    found.append(f"{'/'.join(parts)}.py:{node.lineno}: print")
                allowing = [k.value for k in node.keywords if k.arg == "allow_pickle"]
                names = ["pickle" for value in allowing if getattr(value, "value", None) is not False]
            if PICKLES & set(names):
                found.append(f"{'/'.join(parts)}.py:{getattr(node, 'lineno', 0)}: pickle")
    return found


def long_files(*roots: Path) -> list[str]:
    """One line for every file that is too long to be read at once."""
    lengths = [(path, path.read_text().count("\n")) for root in roots for path in sorted(root.rglob("*.py"))]
    return [f"{path.name}: {lines} lines, at most {MAX_LINES}" for path, lines in lengths if lines > MAX_LINES]


def test_imports_point_down_only() -> None:
    assert wrong_imports(SOURCE) == []


def test_imports_go_in_no_circle() -> None:
    assert circle(SOURCE) == []


def test_no_pickle_and_no_print() -> None:
    assert [wrong for root in (SOURCE, *BESIDE) for wrong in wrong_calls(root)] == []


def test_files_are_short() -> None:
    assert long_files(SOURCE, *BESIDE, ROOT / "tests") == []


def test_the_package_does_without_what_lies_beside_it() -> None:
    lines = [line.split() for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()]
    named = [words[1].split(".")[0] for words in lines if words[:1] in (["from"], ["import"])]
    assert not set(named) & {root.name for root in BESIDE}


# -- the checks themselves ---------------------------------------------------------------------------------------------


def package(root: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


OTHERS = {
    "__init__.py": "",
    "protocol/codec.py": "",
    "transport/local.py": "",
    "api.py": "",
    "privacy/attacks/relink.py": "",
    "privacy/audits/views.py": "from coterie.privacy.attacks import relink",
    "crypto/vector.py": "",
    "training/engine.py": "",
    "systems/one.py": "",
    "systems/two/__init__.py": "",
    "baselines/fedavg.py": "",
    "runs/runner.py": "",
}


@pytest.mark.parametrize(
    ("name", "text", "line", "other"),
    [
        ("protocol/a.py", "import coterie.transport.local", 1, "transport"),
        ("protocol/a.py", "from coterie import crypto", 1, "crypto"),
        ("protocol/a.py", "from ..crypto import vector", 1, "crypto"),
        ("crypto/sub/a.py", "from ...training.engine import fit", 1, "training"),
        ("crypto/a.py", "import coterie.training.engine as e", 1, "training"),
        ("crypto/a.py", "\n\ndef f():\n    import coterie.runs", 4, "runs"),
        ("crypto/a.py", "if TYPE_CHECKING:\n    from coterie.systems import one", 2, "systems"),
        ("crypto/a.py", "importlib.import_module('coterie.runs.runner')", 1, "runs"),
        ("crypto/a.py", "RUNNER = 'coterie.runs.runner:run'", 1, "runs"),
        ("systems/one.py", "from coterie.baselines import fedavg", 1, "baselines"),
        ("systems/one.py", "from coterie.api import x", 1, "api"),
        ("systems/one.py", "from coterie.transport.local import x", 1, "transport"),
        ("baselines/fedavg.py", "import coterie.transport.local", 1, "transport"),
        ("protocols/a.py", "import coterie.transport.local", 1, "transport"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, name: str, text: str, line: int, other: str) -> None:
    own = name.split("/")[0]
    expected = [f"{name}:{line}: {own} must not import {other}"]
    assert wrong_imports(package(tmp_path, {**OTHERS, name: text})) == expected


@pytest.mark.parametrize(
    ("name", "text", "one", "two"),
    [
        ("systems/one.py", "from coterie.systems.two import x", "systems.one", "systems.two"),
        ("systems/two/b.py", "from coterie.systems import one", "systems.two", "systems.one"),
        ("systems/two/b.py", "from ..one import x", "systems.two", "systems.one"),
        ("baselines/fedprox.py", "from .fedavg import x", "baselines.fedprox", "baselines.fedavg"),
    ],
)
def test_systems_and_baselines_are_strangers(tmp_path: Path, name: str, text: str, one: str, two: str) -> None:
    assert wrong_imports(package(tmp_path, {**OTHERS, name: text})) == [f"{name}:1: {one} must not import {two}"]


def test_a_package_in_no_layer_is_found(tmp_path: Path) -> None:
    assert wrong_imports(package(tmp_path, {**OTHERS, "utils/a.py": ""})) == ["utils: in no layer"]
    assert wrong_imports(package(tmp_path, {"helpers.py": ""})) == ["helpers: in no layer", "utils: in no layer"]


def test_the_root_imports_nothing(tmp_path: Path) -> None:
    sources = {**OTHERS, "__init__.py": "from coterie.protocol import codec"}
    assert wrong_imports(package(tmp_path, sources)) == ["__init__.py:1: __init__ must not import protocol"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transport/a.py", "from coterie.protocol import codec, errors\nimport coterie.protocol.codec"),
        ("crypto/a.py", "from coterie import __version__\nfrom . import vector\nimport coterie\nimport training"),
        ("systems/two/b.py", "from coterie.systems.two import messages\nfrom .messages import x\nfrom . import y"),
        ("systems/__init__.py", "from coterie.systems import one\nfrom coterie.systems.two import x"),
        ("runs/a.py", "import coterie.systems.one, coterie.baselines.fedavg, coterie.transport"),
    ],
)
def test_a_right_import_is_not_found(tmp_path: Path, name: str, text: str) -> None:
    assert wrong_imports(package(tmp_path, {**OTHERS, name: text})) == []


@pytest.mark.parametrize("text", ["if TYPE_CHECKING:\n    from coterie.crypto.b import x", "def f(): from . import b"])
def test_a_circle_is_found(tmp_path: Path, text: str) -> None:
    sources = {"crypto/__init__.py": "from .a import y", "crypto/a.py": text, "crypto/b.py": "import coterie.crypto.c"}
    assert circle(package(tmp_path, {**sources, "crypto/c.py": ""})) == []
    assert set(circle(package(tmp_path, {"crypto/c.py": "from coterie.crypto import z"}))) == {
        "crypto",
        *(f"crypto.{name}" for name in "abc"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "print('x')",
        "import pickle",
        "def f():\n    from pickle import loads",
        "torch.serialization.pickle.loads(x)",
        "np.load(x, allow_pickle=True)",
        "np.load(x, allow_pickle=flag)",
    ],
)
def test_pickle_and_print_are_found_and_words_about_them_are_not(tmp_path: Path, text: str) -> None:
    words = '"""Never pickle, never print()."""\nnp.load(x, allow_pickle=False)'
    assert wrong_calls(package(tmp_path, {"crypto/a.py": words})) == []
    assert len(wrong_calls(package(tmp_path, {"crypto/a.py": text}))) == 1


def test_long_files_are_found(tmp_path: Path) -> None:
    assert long_files(package(tmp_path, {"a.py": "\n" * MAX_LINES})) == []
    assert long_files(package(tmp_path, {"a.py": "\n" * (MAX_LINES + 1)})) == [
        f"a.py: {MAX_LINES + 1} lines, at most {MAX_LINES}"
    ]
