"""The page on who takes part: its commands exist with their options, its example is a file of members."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import typer

from coterie.cli.deploying import app

PAGE = Path(__file__).parents[1] / "docs" / "joining.md"


def test_its_commands_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"coterie deploy ([a-z]+)((?:(?!coterie deploy)[^\n`|])*)", PAGE.read_text())
    assert {name for name, _ in named} >= {"init", "invite", "join", "approve", "revoke", "server", "doctor", "files"}
    for name, words in named:
        known = {flag for parameter in commands[name].params for flag in parameter.opts}
        assert set(re.findall(r"--[a-z]+", words)) <= known, name


def test_its_members_are_members(tmp_path: Path) -> None:
    from coterie.deploy.members import check_members, read_members
    from coterie.runs import registry

    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(tomllib.loads(text)["member"]) == 2
    (tmp_path / "members.toml").write_text(text)
    system = registry.get("fedavg")
    check_members(read_members(tmp_path / "members.toml"), system, system.config(), "paper")
