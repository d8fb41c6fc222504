"""What the command line teaches: near names for what is unknown, words instead of types in help, completion."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from command import Command, heard
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from coterie.cli import guard
from coterie.cli.app import app
from coterie.protocol.errors import nearest, suggest
from coterie.training.models import _FACTORIES
from coterie.training.names import MODELS

COMMANDS = ("run", "compare", "reproduce", "audit", "report", "cite", "export", "predict", "list")


# -- near names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("learning_rate", ["lr", "momentum"], "lr"),
        ("learning-rate", ["lr", "momentum"], "lr"),
        ("LR", ["lr", "momentum"], "lr"),
        ("local_epochs", ["max_epochs", "max_age_s"], "max_epochs"),
        ("C", ["clients", "participation"], "participation"),
        ("num_clients", ["clients", "clusters"], "clients"),
        ("dataset", ["data", "data_dir"], "data"),
        ("mnst", ["fashion_mnist", "mnist"], "mnist"),
        ("fmnist", ["fashion_mnist", "mnist"], "fashion_mnist"),
        ("learning_rate", ["learning_rate_2", "momentum"], "learning_rate_2"),
        ("qqq", ["lr", "momentum"], None),
    ],
)
def test_the_nearest_name_is_another_word_for_it_or_one_that_is_written_alike(
    word: str, known: Sequence[str], meant: str | None
) -> None:
    assert nearest(word, known) == meant
    assert suggest(word, known) == ("." if meant is None else f"; did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run fedavg --lr 0.1", "no option --lr; lr is a setting of fedavg, so write --set lr=0.1."),
        ("run fedavg --lr=0.1", "write --set lr=0.1."),
        ("run fedavg --rounds 3 --lr", "write --set lr=VALUE."),
        ("run --lr --rounds 3 fedavg", "write --set lr=VALUE."),
        ("run pafed --learning-rate 0.1", "no option --learning-rate; did you mean --set lr=0.1?"),
        ("run fedavg --epochs 3", "did you mean --set max_epochs=3?"),
        ("run fedavg --num-clients 3", "did you mean --clients?"),
        ("run fedavg --dataset mnist", "did you mean --data?"),
        ("run fedavg --data visits.csv --by site", "no option --by; did you mean --partition by:site?"),
        ("run --clusters 3", "clusters is a setting of"),
        ("run fedavg --tune lr=.01,.1", "no option --tune: it is an option of coterie compare. See"),
        ("run fedavg --seeds 3", "no option --seeds: it is an option of coterie compare; did you mean --seed?"),
        ("run fedavg --no-local", "no option --no-local: it is an option of coterie compare. See"),
        ("deploy try d --system fedavg --tune x", "no option --tune: it is an option of coterie compare. See"),
        ("compare fedavg --grid lr=.01,.1", "no option --grid; did you mean --tune lr=.01,.1?"),
        ("run fedavg --sweep", "no option --sweep; did you mean coterie compare METHOD --tune KEY=A,B?"),
        ("run fedavg --clusters 3", "no option --clusters. See coterie run --help"),
        ("run no.such.module:SYSTEM --partition dirichlet:0.3 --lr 3", "--set lr=3"),
        ("compare fedavg fedprox@paper --mu 0.1", "mu is a setting of fedprox, so write --set mu=0.1."),
        ("audit --actve", "did you mean --active?"),
        ("reproduce --lr 3", "no option --lr. See coterie reproduce --help"),
        ("run fedavg --set learning_rate=3", "unknown setting of fedavg 'learning_rate'; did you mean 'lr'?"),
        ("run fedprox --set mo=1", "unknown setting of fedprox 'mo'; did you mean 'mu'?"),
        ("run fedavg --set num_clients=3", "num_clients is no setting of fedavg but probably the option of the run"),
        ("run fedavg --set clients=3", "clients is no setting of fedavg but an option of the run: give --clients"),
        ("run fedavg --set ema=0.5", "ema is no setting of fedavg. These systems have it: pafed, fedavg_drop"),
        ("run fedavg --data mnst", "did you mean 'mnist'?"),
        ("run fedavg --devices mobil", "did you mean 'mobile'?"),
    ],
)
def test_a_word_that_is_not_known_is_told_of_the_one_that_is_meant(cli: Command, words: str, says: str) -> None:
    ended = cli(*words.split())
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert list(Path().iterdir()) == []


def test_what_follows_two_dashes_is_no_option(cli: Command) -> None:
    assert "unknown system '--lr'" in cli("run", "--", "--lr").err


# -- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_words_and_no_types(command: str) -> None:
    said = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"}).stdout
    assert "Show this message and exit." in said
    assert f"coterie {command}".strip() in said  # an example
    for kind in ("bool", "str", "int", "float", "Path", "path", "file", "list"):
        assert f"<{kind}" not in said, kind


def test_help_says_what_an_option_takes() -> None:
    said = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout
    lines = {line.split()[1]: line.split()[2:] for line in said.splitlines() if line.startswith("│ --")}
    assert [lines[f"--{name}"][0] for name in ("rounds", "delta", "data", "set", "out")] == [
        "NUMBER",
        "SHARE",
        "NAME",
        "KEY=VALUE",
        "PATH",
    ]
    assert lines["--resume"][0] == "Continue"


# -- completion -------------------------------------------------------------------------------------------------------

SHELL = """
import os, sys
from coterie.cli.app import main
os.environ['_COTERIE_COMPLETE'] = 'complete_bash'
for line in sys.argv[1:]:
    os.environ.update(COMP_WORDS=line, COMP_CWORD=str(len(line.split(' ')) - 1))
    sys.argv = ['coterie']
    print('LINE', line)
    try: main()
    except SystemExit: pass
print('HEAVY', sorted({'torch', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)))
"""


def test_completion() -> None:
    """What bash is offered for the last word of each line. Nothing heavy may be imported for it."""
    lines: dict[str, list[str]] = {
        "coterie run fedc": ["fedcaprivacy"],
        "coterie run ming": ["mingledpie"],
        "coterie run --data m": ["mnist"],
        "coterie run --model mlp": ["mlp", "mlp_small"],
        "coterie run --partition d": ["dirichlet:", "domains:"],
        "coterie run --partition i": ["iid"],
        "coterie run pafed --mode ": ["paper", "literal", "hardened"],
        "coterie run --mode h": ["hardened"],
        "coterie run --crypto ": ["real", "emulated"],
        "coterie run --devices s": ["slow_tail"],
        "coterie run ifca --set clu": ["clusters="],
        "coterie run fedavg --set clu": [],
        "coterie run pafed --set local=": ["local=admm", "local=sgd"],
        "coterie run pafed --set nothing=": [],
        "coterie run no.such:SYSTEM --set clust": ["clusters="],
        "coterie compare fedcaprivacy fedcaprivacy": ["fedcaprivacy@literal", "fedcaprivacy@hardened"],
        "coterie list systems pa": ["pafed"],
        "coterie list dev": ["devices"],
    }
    words = [sys.executable, "-c", SHELL, *lines]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    said = ended.stdout.splitlines()
    assert (said.pop(), ended.stderr) == ("HEAVY []", "")
    found: dict[str, list[str]] = {}
    for word in filter(None, said):
        if word.startswith("LINE "):
            offered = found.setdefault(word.removeprefix("LINE "), [])
        else:
            offered.append(word)
    assert found == lines


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [sys.executable, "-m", "coterie", "--install-completion", "bash"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert "bash completion installed" in ended.stdout
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "_COTERIE_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_every_model_has_words_and_is_made() -> None:
    assert list(MODELS) == list(_FACTORIES)


def test_a_reader_that_goes_away_is_no_bug() -> None:
    """``coterie ... | head``."""
    reading, writing = os.pipe()
    os.close(reading)
    code = "import typer; from coterie.cli.guard import guarded; typer.run(guarded(lambda: typer.echo('a line')))"
    ended = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


SLEEPER = """
import time, typer
from coterie.cli.guard import guarded

def sleep() -> None:
    print("begun", flush=True)
    time.sleep(60)

typer.run(guarded(sleep))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_every_command_ends_alike_by_control_c_and_when_it_is_terminated(number: signal.Signals) -> None:
    words = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "begun\n"
        one.send_signal(number)
        assert (one.communicate(timeout=30)[1], one.returncode) == ("Error: interrupted\n", 130)
    assert all(hasattr(command.callback, "__wrapped__") for command in app.registered_commands)  # guarded


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_an_object_is_deleted_is_not_lost(number: signal.Signals) -> None:
    """Python drops what is raised there, and the command would run on."""
    before = sys.unraisablehook, signal.getsignal(signal.SIGTERM)

    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(number)

    @guard.guarded
    def sleep() -> None:
        one = Deleted()
        del one
        time.sleep(30)

    began = time.monotonic()
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        with pytest.raises(typer.Exit) as ended:
            sleep()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert (ended.value.exit_code, time.monotonic() - began < 20) == (guard.INTERRUPTED, True)
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == before


def test_a_command_that_is_to_ignore_its_end_ignores_it() -> None:
    def ignoring() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    words = [sys.executable, "-c", SLEEPER.replace("60", "0.5")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=ignoring) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "begun\n"
        one.send_signal(signal.SIGTERM)
        assert one.wait(30) == 0


def test_a_system_in_a_file_of_ones_own_is_written_with_its_attribute(cli: Command) -> None:
    Path("mine.py").write_text("")
    assert "for the one in mine.py write mine:SYSTEM" in cli("run", "mine").err
    assert "compare needs methods, such as" in cli("compare").err


# -- words of others ---------------------------------------------------------------------------------------------------


def test_no_name_of_another_party_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    strange, safe = "h\x1b[2J\x9b1m\u202e\r", "h\\x1b[2J\\x9b1m\\u202e"
    table = Table("name", "±")
    table.add_row(strange, "1")
    guard.console().print(table)
    guard.console().print(Text(f"two\n{strange}"))
    guard.say(f"two\n{strange}")
    guard.complain(strange)
    found = capsys.readouterr()
    assert (found.out + found.err).replace("\n", "").isprintable()
    assert "│ h\\x1b[ │" in found.out
    assert found.out.count(safe) == 2
    assert found.out.count(f"two\n{safe}") == 2
    assert safe in found.err
    colours = guard.SafeConsole(force_terminal=True, file=io.StringIO())
    colours.print(Text(strange, "bold red"))
    assert colours.file.getvalue().startswith("\x1b[1;31mh\\x1b[2J")  # type: ignore[attr-defined]


def test_every_command_prints_through_the_guard() -> None:
    for path in Path(guard.__file__).parent.glob("*.py"):
        if path.name != "guard.py":
            assert not re.search(r"typer\.echo|(?<!\.)\bprint\(|\bConsole\(", path.read_text()), path.name
