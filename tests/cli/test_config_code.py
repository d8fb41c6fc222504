"""A config file does not decide that code beside it is run, wherever a command is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import QUICK, Command

CODE = """
from pathlib import Path
Path({mark!r}).touch()
from torch import nn
def net(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
def share(scores, labels): return 0.5
def deal(sizes, clients, rng): return sizes
def lie(party, fit, strength): yield fit
from coterie.baselines.fedavg import SYSTEM
"""


@pytest.fixture
def beside(cli: Command, tmp_path: Path) -> Iterator[Path]:
    """A folder with a module ``sprung``, which leaves a file where it is imported. It is the current folder."""
    mark = tmp_path / "mark"
    Path("sprung.py").write_text(CODE.format(mark=str(mark)))
    yield mark
    sys.modules.pop("sprung", None)


WORDS = {
    "system": ["run"],
    "model": ["run", "fedavg"],
    "loss": ["run", "fedavg"],
    "metrics": ["compare", "fedavg", "fedprox"],
    "partition": ["run", "fedavg"],
    "attack": ["compare", "fedavg", "fedprox"],
}
NAMES = {"system": "SYSTEM", "model": "net", "loss": "net", "metrics": "share", "partition": "deal", "attack": "lie:2"}


@pytest.mark.parametrize("what", WORDS)
def test_code_beside_a_config_is_not_run_on_its_word(cli: Command, beside: Path, what: str) -> None:
    named = f"accuracy,sprung:{NAMES[what]}" if what == "metrics" else f"sprung:{NAMES[what]}"
    Path("config.toml").write_text(f'{what} = "{named}"\n')
    ended = cli(*WORDS[what], "--config", "config.toml", *QUICK)
    assert (ended.code, f"is code that lies in {Path.cwd()}, and" in ended.err) == (2, True), ended.err
    own = "sprung:SYSTEM" if what == "system" else f"--{what} sprung:{NAMES[what].partition(':')[0]}"
    assert f"move the module out of this folder, or name it on the command line: {own}" in ended.err
    assert not beside.exists()


def test_in_a_rehearsal_too(cli: Command, beside: Path) -> None:
    Path("config.toml").write_text('system = "fedavg"\nmodel = "sprung:net"\n')
    ended = cli("deploy", "try", "d", "--config", "config.toml", *QUICK)
    assert (ended.code, "is code that lies in" in ended.err, beside.exists()) == (2, True, False), ended.err


def test_code_that_the_command_line_names_is_run(cli: Command, beside: Path) -> None:
    Path("config.toml").write_text('system = "fedavg"\nmodel = "sprung:net"\n')
    ended = cli("run", "--config", "config.toml", "--model", "sprung:net", "--out", "a", *QUICK)
    assert (ended.code, beside.exists()) == (0, True), ended.err


def test_code_elsewhere_is_run(cli: Command, beside: Path) -> None:
    Path("x").mkdir()
    Path("x/config.toml").write_text('system = "sprung:SYSTEM"\n')
    ended = cli("run", "--config", "x/config.toml", "--out", "a", *QUICK)
    assert (ended.code, beside.exists()) == (0, True), ended.err


def test_a_kind_of_partition_or_attack_is_no_code(cli: Command, beside: Path) -> None:
    Path("dirichlet.csv").touch()
    Path("scale.py").touch()
    Path("config.toml").write_text('system = "fedavg"\npartition = "dirichlet:1.0"\nattack = "scale:10"\n')
    ended = cli("run", "--config", "config.toml", "--out", "a", *QUICK)
    assert (ended.code, beside.exists()) == (0, False), ended.err


@pytest.mark.parametrize(
    "named", ['model = "sprung:net"', 'partition = "rotate:2+sprung:deal"', 'attack = "sprung:lie"']
)
def test_a_resumed_run_has_no_such_way_out(cli: Command, beside: Path, named: str) -> None:
    Path("config.toml").write_text(f'system = "fedavg"\n{named}\n')
    ended = cli("run", "--resume", "--out", ".")
    assert (ended.code, "is code that lies in" in ended.err, "command line" in ended.err) == (2, True, False)
    assert not beside.exists()


def test_a_mistake_in_ones_own_code_names_its_file_and_line(cli: Command) -> None:
    lines = [
        "import coterie.method as fl",
        "@fl.settings",
        "class Settings(fl.Averaging):",
        "    'Nothing more.'",
        "def rule(state, change, config):",
        "    return change + state.no_such_name",
        "SYSTEM = fl.averaging('broken_own', Settings, server_rule=rule)",
    ]
    Path("broken_own.py").write_text("\n".join(lines))
    ended = cli("run", "broken_own:SYSTEM", *QUICK)
    assert ended.code == 1
    assert "your own code fails with AttributeError: " in ended.err
    assert f"({Path('broken_own.py').resolve()}, line 6)" in ended.err
    assert "bug in Coterie" not in ended.err
