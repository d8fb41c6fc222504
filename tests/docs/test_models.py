"""What docs/models.md shows works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command import Command

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_the_example_and_the_commands_run(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```\n(coterie .*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/models.md", "exec"), {})
    clients, found, *_, alone = capsys.readouterr().out.splitlines()
    assert clients == str(tuple(f"client/{i}" for i in range(6)))
    assert found == alone
    ended = [cli(*shlex.split(line)[1:]) for line in commands.splitlines()]
    assert [one.code for one in ended] == [0, 0, 0]
    assert Path("client_3.safetensors").read_bytes() == Path("three.safetensors").read_bytes()
    assert Path("labels.csv").read_text() == ended[1].out
    assert [line.split(",")[0] for line in ended[1].out.splitlines()[1:]] == found.strip("[]").split()
