"""The pages on deployments: their commands exist with their options, and an example is a file of members."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import typer

from coterie.cli.deploying import app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("deploy", "joining", "engines")


def test_their_commands_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in PAGES)
    named = re.findall(r"coterie deploy ([a-z]+)((?:(?!coterie deploy)[^\n`|#])*)", text)
    assert {name for name, _ in named} == set(commands)
    for name, words in named:
        known = {flag for parameter in commands[name].params for flag in parameter.opts}
        assert set(re.findall(r"--[a-z]+", words)) <= known, name


def test_its_members_are_members(tmp_path: Path) -> None:
    from coterie.operate.members import check_members, read_members
    from coterie.runs import registry

    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "joining.md").read_text(), re.DOTALL)
    assert len(tomllib.loads(text)["member"]) == 2
    (tmp_path / "members.toml").write_text(text)
    system = registry.get("fedavg")
    check_members(read_members(tmp_path / "members.toml"), system, system.config(), "paper")
