"""The Python of the pages runs, and prints what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import Command

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> tuple[str, list[str]]:
    """The page, and its Python."""
    text = (DOCS / f"{name}.md").read_text()
    return text, re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(code: str, name: str = "example") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": name}
    exec(compile(code, name, "exec"), names)
    return names


def test_clustering() -> None:
    _, (code,) = page("clustering")
    run(code)


@pytest.mark.long
def test_detection(capsys: pytest.CaptureFixture[str]) -> None:
    _, (code,) = page("detection")
    run(code)
    assert capsys.readouterr().out.strip().endswith(" 0]")


def test_resources(capsys: pytest.CaptureFixture[str]) -> None:
    text, (code,) = page("resources")
    run(code)
    assert f"This prints `{capsys.readouterr().out.strip()}`" in text


def test_selection(capsys: pytest.CaptureFixture[str]) -> None:
    text, (code, turns) = page("selection")
    run(turns)
    assert f"# {', '.join(capsys.readouterr().out.splitlines())}\n" in turns
    run(code)
    chosen, reason = capsys.readouterr().out.splitlines()
    assert chosen == "(0, 2)"
    assert f"`{reason}`" in text


def test_privacy() -> None:
    code = "\n".join([*page("privacy_uploads")[1], *page("privacy")[1]])
    names = run(code)
    said = re.findall(r"^(ledger\.\S+(?:\(.*?\))+) +# ([\d.]+)", code, re.MULTILINE)
    assert len(said) == 2
    said += re.findall(r"^((?:true_epsilon|claimed)\(.*\)) +# ([\d.]+)", code, re.MULTILINE)
    for expression, value in said:
        assert eval(expression, names) == pytest.approx(float(value), abs=0.05)
    assert names["z"] == pytest.approx(1.08, abs=0.005)
    assert len(names["sent"].releases) == 44


def test_models(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    text, (code,) = page("models")
    (commands,) = re.findall(r"```\n(coterie .*?)```", text, re.DOTALL)
    run(code)
    clients, found, *_, alone = capsys.readouterr().out.splitlines()
    assert clients == str(tuple(f"client/{i}" for i in range(6)))
    assert found == alone
    ended = [cli(*shlex.split(line)[1:]) for line in commands.splitlines()]
    assert [one.code for one in ended] == [0, 0, 0]
    assert Path("client_3.safetensors").read_bytes() == Path("three.safetensors").read_bytes()
    assert Path("labels.csv").read_text() == ended[1].out
    assert [line.split(",")[0] for line in ended[1].out.splitlines()[1:]] == found.strip("[]").split()
