"""No text sends a user to a package index for Coterie: there its name may be anybody's, until it is published."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from coterie.protocol.errors import to_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BY_NAME = re.compile(
    r"\b(?:install|add|download|wheel)\b[^\n|&]*?[\s'\"]coterie(?![\w./-])(?:\[|['\"](?!s)|[=<>~@!]|\s*$|\s+#)", re.M
)
"""A command of pip, uv or pipx that is given ``coterie``, or ``coterie[extra]``. A file of that name is none."""


def texts() -> Iterator[Path]:
    """All that users read: help and errors in the package, pages, and the project's own files."""
    for folder, kinds in {
        "src": ("py", "html"),
        "docs": ("md",),
        "papers": ("py",),
        "benchmarks": ("py",),
        ".": ("md", "toml", "cff"),
    }.items():
        found = (ROOT / folder).glob if folder == "." else (ROOT / folder).rglob
        yield from (path for kind in kinds for path in sorted(found(f"*.{kind}")))
    yield from (ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "requirements-deploy.txt")


def test_the_search_finds_what_it_is_for() -> None:
    for text in (
        "pip install coterie",
        "pip install 'coterie[deploy]'",
        'pip install "coterie[ray]" now',
        "needs pandas: pip install 'coterie[tables]'",
        "uv add coterie==0.1",
        "pip install --upgrade coterie  # the newest",
        "pip install pandas 'coterie[tables]'",
    ):
        assert BY_NAME.search(text), text
    for text in (
        "pip install .",
        "pip install '.[deploy]'",
        "pip install --no-deps dist/coterie-0.1.0-py3-none-any.whl",
        "pip install 'dist/coterie-0.1.0-py3-none-any.whl[deploy]'",
        "/opt/coterie/bin/pip install --require-hashes -r requirements-deploy.txt",
        "`coterie run` imports nothing; install coterie's own file",
    ):
        assert not BY_NAME.search(text), text


def test_no_text_installs_coterie_by_its_name() -> None:
    found = [f"{path.relative_to(ROOT)}: {one[0]}" for path in texts() for one in BY_NAME.finditer(path.read_text())]
    assert found == []


def test_no_url_is_claimed_for_the_project() -> None:
    """It has no public address yet. One that is written here must be the project's."""
    assert "urls" not in PROJECT


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_error_names_the_packages_that_an_extra_needs(extra: str) -> None:
    def parts(one: str) -> tuple[str, list[str]]:
        name, rest = re.fullmatch(r"([\w-]+)(.*)", one).groups()  # type: ignore[union-attr]
        return name, sorted(rest.split(","))

    said = re.findall(r"'([^']+)'", to_install(extra))
    assert sorted(map(parts, said)) == sorted(map(parts, EXTRAS[extra]))
    assert not BY_NAME.search(to_install(extra))


def test_without_metadata_it_is_installed_from_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", absent)
    assert to_install("ray") == "pip install '.[ray]' in the folder of Coterie"


def test_the_readme_s_wheel_is_the_one_that_is_built() -> None:
    wheel = f"coterie-{PROJECT['version']}-py3-none-any.whl"
    for page in ("README.md", "docs/deploy.md"):
        assert {*re.findall(r"coterie-[\w.]+-py3-none-any\.whl", (ROOT / page).read_text())} == {wheel}
