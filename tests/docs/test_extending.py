"""The pages on functions of one's own, and on the same job elsewhere and here: their code runs as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command

import coterie

DOCS = Path(__file__).parents[2] / "docs"
SMALL = ["--clients", "4", "--rounds", "1", "--samples", "300", "--model", "mlp_small", "--quiet"]


def blocks(name: str, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)


def small(code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The names of a page's code, which is run with two rounds of four clients, and the options that it gives."""
    run, given = coterie.run, list[dict[str, Any]]()

    def smaller(system: Any, **options: Any) -> Any:
        given.append({"system": system, **options})
        return run(system, **{**options, "clients": 4, "rounds": 2, "samples": 300, "progress": False})

    monkeypatch.setattr(coterie, "run", smaller)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "page", "exec", dont_inherit=True), names)
    return names, given


@pytest.fixture
def mine(cli: Command, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's functions as a module of the current folder."""
    *functions, _ = blocks("extending")
    Path("mine.py").write_text("\n".join(functions))
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return "mine"


def test_every_function_is_a_screen_of_ten_lines() -> None:
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 10 for code in blocks("extending"))


def test_every_command_of_the_page_runs(mine: str, cli: Command) -> None:
    *functions, _ = blocks("extending")
    commands = re.findall(r"^`coterie (.*)`$", (DOCS / "extending.md").read_text(), re.MULTILINE)
    assert len(commands) == 5
    for place, (command, code) in enumerate(zip(commands, functions, strict=True)):
        Path("mine.py").write_text(code)  # each runs by itself
        sys.modules.pop("mine", None)
        words = shlex.split(command)
        more = [word for word in SMALL if not ("--model" in words and word in ("--model", "mlp_small"))]
        ended = cli(*words, *more, "--out", f"run{place}")
        assert ended.code == 0, (command, ended.err)
    attacked, scored = (json.loads(Path(f"run{place}/result.json").read_text()) for place in (1, 2))
    assert attacked["poisoned"]
    assert scored["measures"][0]["name"] == "worst_class"


def test_all_of_them_together(mine: str, cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    names, (given,) = small(blocks("extending")[-1], monkeypatch)
    names |= vars(sys.modules["mine"])
    assert {key for key, value in given.items() if callable(value)} == {"partition", "attack", "model"}
    assert names["result"].summary["rounds"] == 2
    counts, groups = names["two_sites"](np.array([40, 41, 42, 43]), 4, None)
    assert groups.tolist() == [0, 0, 1, 1]
    assert counts.tolist() == [[20, 20, 0, 0], [20, 20, 0, 0], [0, 0, 21, 21], [0, 0, 21, 21]]
    scores = np.eye(3)[[0, 1, 0, 0, 2, 1]]
    assert names["worst_class"](np.array([0, 1, 1, 1, 2, 2]), scores) == pytest.approx(1 / 3)
    step = names["shortened"](None, np.array([3.0, 4.0]), names["Settings"](longest=0.5))
    assert step == pytest.approx([0.3, 0.4])


def test_the_job_of_flower_runs(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("from_others")
    names, (given,) = small(code, monkeypatch)
    assert len(code.splitlines()) <= 13
    assert (given["clients"], given["rounds"], given["participation"]) == (20, 10, 0.5)
    settings = tomllib.loads((names["result"].folder / "config.toml").read_text())["settings"]
    assert (settings["max_epochs"], settings["slowest"], settings["batch_size"]) == (2, 1, 32)


def test_the_job_of_pfllib_runs(cli: Command) -> None:
    (command,) = blocks("from_others", "bash")
    words = shlex.split(command.replace("\\\n", ""))[1:]
    smaller = ["--rounds", "1", "--seeds", "1", "--no-fine-tune", "--samples", "400", "--quiet", "--out", "race"]
    ended = cli(*words, *smaller)
    assert ended.code == 0, ended.err
    content = json.loads(Path("race/compare.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["scaffold", "local"]
    assert (content["budget"]["participation"], content["budget"]["max_epochs"]) == (0.5, 1)


def test_every_option_and_method_that_the_pages_name_exists() -> None:
    from coterie.runs import SYSTEMS
    from coterie.runs.config import OPTIONS
    from coterie.runs.settings import field_types

    text = (DOCS / "from_others.md").read_text()
    known = {*OPTIONS, "set", "seeds"}
    assert {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", text)} <= known
    assert {"fedadam", "fedprox", "coterie", "scaffold"} <= set(SYSTEMS)
    settings = {*field_types(SYSTEMS["fedavg"].config)}
    named = re.findall(r"`--set (.*?)` \|", text)
    assert {key for part in named for key in re.findall(r"(\w+)=", part)} <= settings
