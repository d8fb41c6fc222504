"""What others install and run: workflows, conda and Docker files, and the wheel in fresh environments."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ("3.11", "3.12", "3.13")
FILES = [*WORKFLOWS, *sorted((ROOT / ".github").rglob("*.md")), ROOT / "environment.yml", ROOT / "Dockerfile"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path: Path) -> None:
    text = path.read_text()
    targets = set(re.findall(r"make (\w+)", text))
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    (versions,) = re.findall(r"python: \[(.*)\]", text)
    assert tuple(re.findall(r'"([\d.]+)"', versions)) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert re.search(
        r"^permissions:( \{\}|\n  contents: read)$", text, re.MULTILINE
    )  # a job that writes says so itself
    assert not re.search(r"pull_request_target|secrets\.", text)


def test_every_command_of_a_workflow_is_one_of_coteries() -> None:
    from typer.main import get_command

    from coterie.cli.app import app

    of_all = {path.stem: re.findall(r"run: .*?coterie (run .*)", path.read_text()) for path in WORKFLOWS}
    assert {name: len(found) for name, found in of_all.items()} == {"ci": 2, "release": 1}
    group = get_command(app)
    for command in (one for found in of_all.values() for one in found):
        name, *words = shlex.split(command)
        context = group.make_context("coterie", [name, *words], resilient_parsing=True)
        group.get_command(context, name).make_context(name, list(words))  # type: ignore[attr-defined]


def test_the_public_workflow_builds_and_tries_what_others_install() -> None:
    """It has Docker and conda, which the tests lack."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for line in ("docker build --tag coterie .", "env create --quiet --file environment.yml"):
        assert line in text


def test_no_file_names_a_place_where_packages_come_from() -> None:
    assert [path.name for path in FILES if re.search(r"index-url|find-links|https?://", path.read_text())] == []


def test_conda_and_docker_install_the_versions_that_the_tests_pass_with() -> None:
    conda, docker = conda_lines(), docker_install()
    assert conda == ["--constraint constraints.txt", ".[tables]"]
    assert docker == ["install", "--no-cache-dir", "--constraint", "/src/constraints.txt", "/src[tables]"]
    for name in ("environment.yml", "Dockerfile"):
        (version,) = re.findall(r"python[=:](\d\.\d+)", (ROOT / name).read_text())
        assert version in PYTHONS
    assert {".git", ".venv", "runs"} <= set((ROOT / ".dockerignore").read_text().split())


def conda_lines() -> list[str]:
    text = (ROOT / "environment.yml").read_text().partition("- pip:\n")[2]
    return re.findall(r"^ +- (.*)$", text, re.MULTILINE)


def docker_install() -> list[str]:
    (line,) = re.findall(r"^RUN pip (.*?) && ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return shlex.split(line)


# -- in fresh environments ---------------------------------------------------------------------------------------------


def done(*command: str | Path, at: Path) -> str:
    """What the command says, which knows nothing of this environment's packages."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run([*map(str, command)], cwd=at, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def source(at: Path) -> Path:
    """A copy of what git has of this folder."""
    for name in done("git", "ls-files", at=ROOT).splitlines():
        if (ROOT / name).is_file():
            (at / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, at / "source" / name)
    return at / "source"


def fresh(at: Path, python: str) -> Path:
    """The programs of a new environment of this Python; skipped where there is none."""
    found = (
        sys.executable if python == f"{sys.version_info[0]}.{sys.version_info[1]}" else shutil.which(f"python{python}")
    )
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {python} here")
    done(found, "-m", "venv", at / "env", at=at)
    return at / "env" / "bin"


def check_run(programs: Path, at: Path) -> None:
    (at / "empty").mkdir()
    done(
        programs / "coterie", "run", "fedcaprivacy", "--clients", "4", "--rounds", "2", "--out", "seen", at=at / "empty"
    )
    assert (at / "empty" / "seen" / "report.html").stat().st_size > 10_000
    assert "digits" in done(programs / "coterie", "list", "datasets", at=at / "empty")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_runs_in_a_fresh_environment(tmp_path: Path, python: str) -> None:
    programs, at = fresh(tmp_path, python), source(tmp_path)
    done(programs / "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ".", at=at)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.rmtree(at)  # the wheel alone must do
    done(programs / "pip", "install", "--constraint", ROOT / "constraints.txt", wheel, at=tmp_path)
    check_run(programs, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["environment.yml", "Dockerfile"])
def test_what_conda_and_docker_install_runs(tmp_path: Path, kind: str) -> None:
    """The lines for pip, in a fresh environment of this Python: there is no conda and no Docker in the tests."""
    programs, at = fresh(tmp_path, f"{sys.version_info[0]}.{sys.version_info[1]}"), source(tmp_path)
    if kind == "Dockerfile":
        words = [word.replace("/src", str(at)) for word in docker_install()]
        done(programs / "pip", *words, at=tmp_path)
    else:
        (at / "pip.txt").write_text("\n".join(conda_lines()))  # as conda hands it to pip, in the file's folder
        done(programs / "pip", "install", "-r", "pip.txt", at=at)
    shutil.rmtree(at)
    check_run(programs, tmp_path)
