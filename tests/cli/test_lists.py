"""``coterie list systems NAME``: every setting, with the words of the nearest class that explains it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from command import Command
from typer.testing import CliRunner, Result

from coterie.cli.app import app
from coterie.cli.lists import LISTS
from coterie.privacy.attacks.active import KINDS
from coterie.runs import SYSTEMS
from coterie.runs.settings import described


@dataclass(frozen=True)
class Below:
    """Settings of all.

    lr: learning rate; see note: this.  momentum, decay: of SGD, which every solver has.  size: of a step, as many as
    more at once.

    With words: that belong to none of them.
    """

    lr: float = 0.1
    momentum: float = 0.0
    decay: float = 0.0
    size: int = 5
    more: int = 1


@dataclass(frozen=True)
class Above(Below):
    """size: of everything.  kind: "a", mostly."""

    kind: Literal["a", "other"] = "a"
    bare: bool = False


def call(*words: str) -> Result:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200", "COTERIE_DEBUG": "0"})


def test_the_nearest_class_explains_a_setting() -> None:
    assert described(Above) == {
        "lr": "learning rate; see note: this.",
        "momentum": "of SGD, which every solver has.",
        "decay": "of SGD, which every solver has.",
        "size": "of everything.",
        "more": "",
        "kind": 'a | other: "a", mostly.',
        "bare": "",
    }
    assert described(Below)["size"] == "of a step, as many as more at once."
    assert described(Below)["more"] == "see size"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_setting_of_every_system_is_explained(name: str) -> None:
    texts = described(SYSTEMS[name].config)
    assert list(texts) == [f.name for f in dataclasses.fields(SYSTEMS[name].config)]
    assert [setting for setting, text in texts.items() if not text] == []


def test_one_system() -> None:
    ended = call("list", "systems", "mingledpie")
    assert (ended.exit_code, ended.stderr) == (0, "")
    system = SYSTEMS["mingledpie"]
    for words in (system.title, system.citation, *system.modes, "T, the least identities of a client."):
        assert words in " ".join(ended.stdout.split())
    for f in dataclasses.fields(system.config):
        assert f"\n{f.name} " in ended.stdout
    assert "0.5 false positive rate of the identities" in " ".join(ended.stdout.split())


def test_a_default_that_is_another_in_a_mode_is_shown_with_it() -> None:
    said = " ".join(call("list", "systems", "pafed").stdout.split())
    for words in (
        "server_decay 0.05, literal: 0.0",
        "project exact, literal: printed",
        "clip 0.0 largest",
        "local admm",
    ):
        assert words in said


def test_a_fraction_is_shown_with_four_digits() -> None:
    shown = CliRunner().invoke(app, ["list", "systems", "secagg"]).stdout
    assert "0.6667" in shown
    assert "0.66666" not in shown


def test_all_systems_are_a_line_each_and_one_says_what_wins_over_its_defaults() -> None:
    lines = CliRunner().invoke(app, ["list", "systems"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(SYSTEMS)
    assert max(map(len, lines)) <= 80
    rows = dict(line.strip().split(maxsplit=1) for line in lines[1:-1])
    assert rows["fedprox"].startswith("Federated optimization in heterogeneous")
    assert rows["pafed"].split()[-3:] == ["encrypted,", "3", "modes"]
    assert rows["fedavg"].split()[-1] == "plain"
    assert "win over these defaults" in " ".join(call("list", "systems", "fedavg").stdout.split())


def test_a_list_that_is_not_there_names_the_meant_one(cli: Command) -> None:
    ended = cli("list", "system")
    assert ended.code == 2
    assert "there is no list 'system'; did you mean 'systems'? There are: systems, datasets" in ended.err


def test_what_answers_at_once_imports_nothing_heavy() -> None:
    """torch and scikit-learn take seconds to import, and no list of these needs them. Help needs not even numpy."""
    code = (
        "import sys\n"
        "from coterie.cli.app import main\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'matplotlib', 'numpy', 'cryptography', 'nats'}\n"
        "helps = ('--help', 'deploy init --help')\n"
        "for words in (*helps, 'list', *(f'list {one}' for one in sys.argv[1:])):\n"
        "    sys.argv = ['coterie', *words.split()]\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    allowed = set() if words in helps else {'numpy', 'cryptography', 'nats'}\n"
        "    print('HEAVY', sorted((heavy - allowed) & set(sys.modules)))\n"
        "    ours = [name for name in sys.modules if name.startswith('coterie.')]\n"
        "    if words == 'list': assert len(ours) < 40, ours\n"
        "    unused = ('audits', 'data', 'experiment', 'model', 'models', 'transport', 'record', 'reproductions')\n"
        "    if words == 'list systems': print('UNUSED', [x for x in ours if x.split('.')[-1] in unused])"
    )
    lists = ["systems", "systems mingledpie", "datasets", "partitions", "models"]
    out = subprocess.run([sys.executable, "-c", code, *lists], capture_output=True, text=True, check=True).stdout
    assert out.count("HEAVY []\n") == 3 + len(lists)
    assert out.count("UNUSED []\n") == 1
    for words in ("coterie run fedcaprivacy", "FedEPC: an efficient", "NAME.npz", "cnn"):
        assert words in out


def test_a_run_loads_no_library_that_it_does_not_need_and_none_under_the_garbage_collector(tmp_path: Path) -> None:
    """Of a run it would go some 500 times through torch's modules, which takes a quarter of their time."""
    code = (
        "import coterie, gc, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "from coterie.cli import guard, running\n"
        "def passes(): return sum(one['collections'] for one in gc.get_stats())\n"
        "before = passes()\n"
        "with guard.loading():\n"
        "    import torch\n"
        "    assert passes() == before and not gc.isenabled()\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "frozen = gc.get_freeze_count()\n"
        "with guard.loading(): assert gc.isenabled()\n"  # a second command of a process has made garbage of its own
        "assert gc.get_freeze_count() == frozen\n"
        "from coterie.cli.app import main\n"
        "sys.argv[1:1] = 'run fedavg --clients 2 --rounds 1 --samples 200 --quiet --out'.split()\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'matplotlib', 'PIL', 'sklearn', 'scipy', 'tenseal', 'pandas', 'ray', 'nats'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "run" / "report.html").exists()
    assert out.endswith("HEAVY []\n")


def test_what_is_imported_from_python_loads_what_it_needs_and_none_under_the_garbage_collector() -> None:
    """What trains is loaded without the tables of papers, and without what draws reports."""
    code = (
        "import gc, sys\n"
        "def passes(): return sum(one['collections'] for one in gc.get_stats())\n"
        "import coterie\n"
        "assert 'run' in dir(coterie) and not {'torch', 'numpy'} & {*sys.modules}\n"
        "before = passes()\n"
        "assert callable(coterie.run)\n"
        "assert gc.isenabled() and gc.get_freeze_count() == 0\n"  # a user's own garbage is collected, now or later
        "assert passes() - before < 50, passes() - before\n"  # 430 with it
        "later = {'matplotlib', 'PIL', 'sklearn', 'scipy', 'tenseal', 'pandas', 'jinja2', 'coterie.reproductions'}\n"
        "print('LATER', sorted(later & set(sys.modules)))\n"
        "gc.disable()\n"
        "coterie.reproduce\n"
        "assert not gc.isenabled()"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "LATER []\n"


def test_the_face_for_authors_is_light_and_the_modules_of_systems_are_looked_for_once() -> None:
    code = (
        "import pkgutil, sys, coterie.method as fl\n"
        "assert not {'torch', 'tenseal'} & {*sys.modules}\n"
        "assert all(hasattr(fl, name) for name in fl.__all__)\n"
        "usual, asked = pkgutil.iter_modules, []\n"
        "pkgutil.iter_modules = lambda *paths: asked.append(paths) or usual(*paths)\n"
        "from coterie.runs.registry import PACKAGES, SYSTEMS\n"
        "assert all(SYSTEMS[name].name == name for name in SYSTEMS)\n"
        "assert len(asked) == len(PACKAGES)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_imports_late_has_all_its_names() -> None:
    """What is looked up late is what its module has, and a name that is not there is an AttributeError."""
    import coterie.runs
    import coterie.training
    from coterie.training import engine, solvers

    assert coterie.training.fit_many is engine.fit_many
    assert coterie.training.Sgd is solvers.Sgd
    for package in (coterie.training, coterie.runs):
        assert all(hasattr(package, name) for name in package.__all__)
        with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
            package.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("words", "says"),
    [("systems mingldpie", "did you mean 'mingledpie'?"), ("datasets digits", "only systems are shown by name")],
)
def test_mistakes(words: str, says: str) -> None:
    ended = call("list", *words.split())
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert says in ended.stderr


def test_the_lists_are_one_screen() -> None:
    lines = CliRunner().invoke(app, ["list"], env={"COLUMNS": "100"}).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(LISTS)
    assert len(lines) < 24


def test_devices_have_units() -> None:
    rows = {line.split()[0]: line for line in call("list", "devices").stdout.splitlines()}
    slow, same = rows["slow_tail"], rows["uniform"]
    assert "2 to 20 GFLOP/s, 0.25 to 2.5 MB/s up, 1 to 10 MB/s down" in slow
    assert "20 GFLOP/s, 2.5 MB/s up, 10 MB/s down" in same
    assert "there 90 % of the time" in rows["mobile"]
    assert "0.433 to 2 GHz" in rows["paper"]
    assert "GiB" in rows["mixed"]
    assert "%" not in slow


def test_every_attack_of_misbehaving_clients_is_listed_with_its_strength() -> None:
    out = CliRunner().invoke(app, ["list", "poisoning"]).stdout
    for name, kind in KINDS.items():
        assert f"{name}[:STRENGTH]" in out
        assert f"[{kind.strength:g}]" in out
    assert "means over the honest clients" in " ".join(out.split())


def test_a_wrong_attack_is_an_error_that_names_the_right_one() -> None:
    ended = CliRunner().invoke(app, ["run", "fedavg", "--attack", "label-flip"])
    assert ended.exit_code == 2
    assert "did you mean 'label_flip'" in " ".join(ended.output.split())


def test_each_attack_is_listed_once_a_system_and_says_which() -> None:
    """Two systems may have attacks of one name: ``similar-pairs`` is of two parties."""
    rows = [
        line.split()[:2]
        for line in call("list", "attacks").stdout.splitlines()
        if line.startswith(" ") and line[1] != " "
    ]
    assert len({tuple(row) for row in rows}) == len(rows) > 20
    assert {system for name, system in rows if name == "similar-pairs"} == {"fedcaprivacy", "fedepc"}
    assert {system for name, system in rows} <= {"every", *SYSTEMS}
