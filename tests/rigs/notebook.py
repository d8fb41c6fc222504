"""Runs a notebook's cells as Jupyter does, without Jupyter: ``python notebook.py FILE.ipynb`` in a folder of its own.

All cells share one namespace. The value of a cell's last expression is displayed in its richest form, a line that
begins with ``!`` is a command of a shell, in which ``{name}`` stands for a value, and ``%%writefile NAME`` keeps a cell
as a file. What fails ends the process.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

RICH = ("_repr_html_", "_repr_png_")


def cells(path: Path, kind: str = "code") -> list[str]:
    return ["".join(one["source"]) for one in json.loads(path.read_text())["cells"] if one["cell_type"] == kind]


def shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def display(value: Any) -> None:
    if value is not None:
        shown = next((getattr(value, name)() for name in RICH if hasattr(value, name)), None) or repr(value)
        sys.stdout.write(f"<{type(value).__name__}: {len(shown)} characters or bytes>\n")


def run(cell: str, names: dict[str, Any]) -> None:
    head, _, rest = cell.partition("\n")
    if head.startswith("%%writefile "):
        Path(head.split()[1]).write_text(rest + "\n")
        return
    body = ast.parse(re.sub(r"^( *)!(.*)$", lambda line: f"{line[1]}shell(f{line[2]!r})", cell, flags=re.M)).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if last is not None:
        display(eval(compile(ast.Expression(last.value), "cell", "eval"), names))


def main(path: Path) -> None:
    sys.path.insert(0, "")
    names: dict[str, Any] = {"__name__": "__main__", "shell": shell}
    for number, cell in enumerate(cells(path), 1):
        sys.stdout.write(f"[{number}] {cell.splitlines()[0]}\n")
        sys.stdout.flush()
        run(cell, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
