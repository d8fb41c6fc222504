"""What the site shows beside the pages: a reference of docstrings, annotated options and commands; its versions.

``<!-- reference: python -->`` in a page stands, with the lines below it up to an empty one, for one of the texts of
``REFERENCE``. Each version is a folder of ``build/site``; ``versions.js`` beside them names them, for the selector of
every page: a script loads from a disk, too.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import typer
from packaging.version import Version
from typer.cli import get_docs_for_click

import coterie
import coterie.method as fl
from benchmarks.markdown import grid
from coterie.cli.app import app
from coterie.protocol.options import bounds_of
from coterie.runs.registry import SYSTEMS
from coterie.runs.settings import described

MARK = re.compile(r"<!-- reference: (\w+) -->(?:\n.+)*")
SECONDS = "notebooks.json"
"""Of a site: by notebook, the seconds of its execution, which may be an earlier one."""
DOOR = '<!doctype html><title>Coterie</title><meta http-equiv="refresh" content="0; url={}/index.html">\n'
STARTUP = '''"""A line with ! ends a notebook if its command fails, and draws no bars."""
import os
os.environ.pop("FORCE_COLOR", None)
os.environ["TERM"] = "dumb"
shell = get_ipython()
def system(command, plain=shell.system):
    plain(command)
    if code := shell.user_ns.get("_exit_code"):
        raise SystemError(f"{command} ended with code {code}")
shell.system = system
'''
_EXAMPLES = re.compile(r"(?:^  \S.*\n(?:\n(?=  \S))?)+\n*", re.MULTILINE)
_HEAD = "setting", "default", "must", "what it does"
_ENTRY = re.compile(r"(?:^|  |\n)(\w+(?:, \w+)*): ")


class Sphinx(Protocol):
    """Of Sphinx what is used here. outdir: where the site of this version is written.  env: what it knows of pages."""

    outdir: Any
    env: Any

    def connect(self, event: str, callback: Callable[..., Any]) -> Any: ...


def fill_in(_: object, __: str, content: list[str]) -> None:
    """The handler of Sphinx's event ``source-read``. content: the text of a page, replaced there."""
    content[0] = MARK.sub(lambda mark: REFERENCE[mark[1]](), content[0])


def digest(package: Path) -> str:
    """Of all files of a package but what Python compiles: 16 hex digits. The cache of executed notebooks has it."""
    found = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        found.update(f"{path.relative_to(package)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def prepare_kernels(place: Path) -> None:
    """Notebooks run with this environment's commands, of which none may fail. place: a folder for IPython's files."""
    startup = place / "profile_default" / "startup" / "commands.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(STARTUP)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"PATH": path, "IPYTHONDIR": str(place)}


def list_versions(app: Sphinx, error: Exception | None) -> None:
    """The handler of Sphinx's event ``build-finished``: writes ``versions.js`` and a front door beside the version."""
    if error is None:
        write_versions(Path(app.outdir).parent)


def note_seconds(app: Sphinx, error: Exception | None) -> None:
    """The handler of Sphinx's event ``build-finished``: writes how long each notebook's execution took."""
    if error is None:
        ran = {name: of["exec_data"]["runtime"] for name, of in app.env.nb_metadata.items() if of.get("exec_data")}
        (Path(app.outdir) / SECONDS).write_text(json.dumps(ran))


def write_versions(place: Path) -> None:
    """place: a folder with a site a version, each in a folder of its name. The newest comes first."""
    names = sorted((path.parent.name for path in place.glob("[0-9]*/index.html")), key=Version, reverse=True)
    (place / "versions.js").write_text(f"coterieVersions = {json.dumps(names)};\n")
    (place / "index.html").write_text(DOOR.format(names[0]))


# -- docstrings --------------------------------------------------------------------------------------------------------


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: ``name: text`` as a list, ``>>>`` as code, roles of Sphinx as code."""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", inspect.cleandoc(docstring or "")).replace("](", "] (")
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", text)))


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    head, *entries = _ENTRY.split(re.sub(r"\n +", " ", text))
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return "\n".join(
        [*([head] if head.strip() else []), *(f"- **{name}**: {' '.join(of.split())}" for name, of in pairs)]
    )


def signature(name: str, of: Callable[..., Any]) -> str:
    """A call, a parameter a line if it is long."""
    parts, starred = [], False
    for one in inspect.signature(of).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        mark = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
        kind = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{mark}{one.name}{kind}{default}")
    line = f"{name}({', '.join(parts)})"
    long = "".join(f"    {part},\n" for part in parts)
    shown = line if len(line) <= 100 else f"{name}(\n{long})"
    return f"```python\n{shown}\n```"


def _members(kind: type) -> Iterator[str]:
    """The methods and properties of a class, each with its docstring."""
    for name, of in inspect.getmembers(kind):
        told = inspect.getdoc(of)
        if name.startswith("_") or not told or getattr(of, "__module__", "coterie").split(".")[0] != "coterie":
            continue
        head = signature(f".{name}", of) if inspect.isfunction(of) else f"```python\n.{name}\n```"
        yield f"{head}\n\n{prose(told)}"


def python() -> str:
    """Of ``import coterie``."""
    found = []
    for name in coterie.__all__:
        of = getattr(coterie, name)
        head = f"## `{name}`"
        if not inspect.isclass(of):
            found.append(f"{head}\n\n{signature(f'coterie.{name}', of)}\n\n{prose(of.__doc__)}")
        else:
            found.append("\n\n".join([head, prose(of.__doc__), *_members(of)]))
    return "\n\n".join(found)


def method() -> str:
    """Of ``import coterie.method``: each name, with the first paragraph of its docstring."""
    names = sorted(fl.__all__, key=str.lower)
    told = {name: _first_words(getattr(fl, name)) for name in names}
    others = ", ".join(f"`fl.{name}`" for name in names if not told[name])
    rows = [(f"`fl.{name}`", words) for name, words in told.items() if words]
    return f"{_table(('name', 'what it is'), rows)}\n\nAlso types and constants: {others}."


def _first_words(of: Any) -> str:
    if not inspect.isclass(of) and not inspect.isfunction(of):
        return ""
    return " ".join(prose((of.__doc__ or "").split("\n\n")[0]).split())


# -- commands and settings ---------------------------------------------------------------------------------------------


def commands() -> str:
    """Of the command line."""
    group = typer.main.get_command(app)
    _, _, text = get_docs_for_click(obj=group, ctx=typer.Context(group), name="coterie").partition("\n")
    return _EXAMPLES.sub(_examples, text)


def _examples(block: re.Match[str]) -> str:
    """Indented commands, which may go on in the next line, as one block. What follows after a gap is a remark."""
    lines = (re.sub(r" {3,}", "  # ", " ".join(map(str.strip, one.splitlines()))) for one in block[0].split("\n\n"))
    return "```\n" + "\n".join(filter(None, lines)) + "\n```\n\n"


def settings() -> str:
    """Of every system; those that all share, once."""
    common = dict(_settings(fl.LocalTraining))
    found = [f"## Local training\n\nSettings of every system.\n\n{_table(_HEAD, list(common.values()))}"]
    for name in SYSTEMS:
        system = SYSTEMS[name]
        rows = [row for setting, row in _settings(system.config) if common.get(setting) != row]
        modes = ", ".join(f"`{mode}`" for mode in system.modes)
        found.append(f"## `{name}`\n\n{system.title}. {system.citation}. Modes: {modes}.\n\n{_table(_HEAD, rows)}")
    return "\n\n".join(found)


def _settings(config: type) -> Iterator[tuple[str, tuple[str, ...]]]:
    """By name the row of each setting."""
    texts, bounds = described(config), bounds_of(config)
    for field in fields(config):
        default = "none" if field.default is None else f"`{field.default}`"
        yield field.name, (f"`{field.name}`", default, bounds.get(field.name, ""), texts[field.name])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return grid(head, [[cell.replace("|", "\\|") for cell in row] for row in rows])


REFERENCE: Mapping[str, Callable[[], str]] = {
    "python": python,
    "method": method,
    "commands": commands,
    "settings": settings,
}
