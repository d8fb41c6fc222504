"""How large the project is: code lines, lines of imports, words of docstrings and of Markdown, by package.

Code lines are without docstrings, also those of names, comments and blank lines: ``python -m benchmarks.size`` (also
``make lint``).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMENT = re.compile("<!--.*?-->", re.DOTALL)
BLANK = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Size:
    """Of one file, or of several."""

    code: int = 0
    imports: int = 0
    words: int = 0
    files: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def size_of(source: str) -> Size:
    tree = ast.parse(source)
    documented, imports, words = set[int](), set[int](), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            words += len(node.value.value.split())
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            code |= set(range(token.start[0], token.end[0] + 1))
    return Size(len(code - documented), len(imports), words, 1)


def by_package(root: Path) -> dict[str, Size]:
    """By folder below the root, "." for files in it, the largest last; and the whole as "all"."""
    found: dict[str, Size] = {}
    for path in sorted(root.rglob("*.py")):
        parts, size = path.relative_to(root).parts, size_of(path.read_text())
        for name in (parts[0] if len(parts) > 1 else ".", "all"):
            found[name] = found.get(name, Size()) + size
    return dict(sorted(found.items(), key=lambda item: item[1].code))


def markdown_words() -> tuple[int, int]:
    """Of all pages: what ``wc -w`` counts, and what a reader sees of it, without comments and the lines of tables."""
    pages = [page.read_text() for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
    seen = [word for page in pages for word in COMMENT.sub("", page).split()]
    return sum(len(page.split()) for page in pages), sum(any(map(str.isalnum, word)) for word in seen)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of each of these folders, all packages or only the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="folders, with all their packages; else the sums of all")
    names = parser.parse_args(arguments).names
    for name in names or ("src/coterie", "papers", "benchmarks", "tests"):
        sizes = by_package(ROOT / name)
        for package, size in sizes.items():
            if names or package == "all":
                what = name if package == "all" else f"{name}/{package}"
                sys.stdout.write(
                    f"{what:32} {size.code:7,} code lines ({size.imports:,} of imports), "
                    f"{size.words:,} words of docstrings, {size.files} files\n"
                )
    if not names:
        every, seen = markdown_words()
        sys.stdout.write(f"{'Markdown':32} {every:7,} words ({seen:,} that a reader sees)\n")


if __name__ == "__main__":
    main()
