"""The command line: what it does, how it ends, and that every mistake gives one message and leaves nothing behind."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import QUICK, Command
from forked import fork_code, wait_until

import coterie
from coterie.record.folder import read_lines


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# -- what it does ---------------------------------------------------------------------------------------------------


def test_a_run_and_its_repetition_from_its_config(cli: Command) -> None:
    ended = cli("run", "fedavg", *QUICK, "--seed", "3", "--out", "a")
    assert (ended.code, ended.err) == (0, "")
    assert "FedAvg" in ended.out
    assert "a/report.html" in ended.out
    assert {"config.toml", "metrics.jsonl", "result.json", "report.html", "checkpoint"} <= written(Path("a"))
    result = json.loads(Path("a/result.json").read_text())
    required = {"system", "mode", "crypto", "seed", "rounds", "clients", "data", "partition", "global_accuracy"}
    required |= {"local_accuracy", "bytes_up", "bytes_down", "seconds", "virtual_seconds", "version"}
    assert required <= set(result)
    assert (result["system"], result["crypto"], result["seed"], result["rounds"]) == ("fedavg", "none", 3, 2)
    assert 0 < result["local_accuracy"] <= 1
    assert result["version"] == coterie.__version__
    assert cli("run", "--config", "a/config.toml", "--out", "b", "-q").code == 0
    again = json.loads(Path("b/result.json").read_text())
    assert again["global_accuracy"] == result["global_accuracy"]
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()
    Path("a/report.html").unlink()
    assert cli("report", "a").code == cli("report", "a", "--out", "b.html").code == 0
    assert Path("a/report.html").read_bytes() == Path("b.html").read_bytes()


def test_the_command_line_wins_over_the_file(cli: Command) -> None:
    Path("run.toml").write_text('system = "ifca"\nclients = 5\nrounds = 9\n[settings]\nmax_epochs = 1\nclusters = 4\n')
    ended = cli("run", "--config", "run.toml", "--rounds", "1", "--set", "clusters=2", "--out", "a", "-q")
    assert ended.code == 0
    text = Path("a/config.toml").read_text()
    for line in ("rounds = 1", "clients = 5", "clusters = 2", "max_epochs = 1"):
        assert line in text.splitlines()


def test_progress_goes_to_stderr_and_default_folders_count_up(cli: Command) -> None:
    words = ["run", "fedavg", "--clients", "3", "--rounds", "1", "--set", "max_epochs=1"]
    ended = cli(*words)
    assert ended.code == 0
    assert ended.err.startswith("fedavg  round 1 of 1  own kind ")
    assert "Report: runs/fedavg-digits-0-1/report.html" in ended.out
    assert "fedavg-digits-0-2" in cli(*words).out


def test_the_command_line_has_every_option_of_a_run() -> None:
    from coterie.cli import comparing, running
    from coterie.runs.config import OPTIONS

    assert set(OPTIONS) <= set(inspect.signature(running.run).parameters)
    assert set(OPTIONS) - {"system"} <= set(inspect.signature(comparing.compare).parameters)


def test_python_m_coterie() -> None:
    ended = subprocess.run([sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == f"coterie {coterie.__version__}\n"


# -- mistakes ---------------------------------------------------------------------------------------------------------

NPZ = {"x_train": np.zeros((9, 4)), "y_train": np.arange(9) % 3, "x_test": np.zeros((3, 4)), "y_test": np.arange(3)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run", "which system?"),
        ("run fedavgg", "did you mean 'fedavg'?"),
        ("run no.such.module:SYSTEM", "there is no module 'no'"),
        ("run fedavg --data mnits", "unknown data set 'mnits'; did you mean 'mnist'?"),
        ("run fedavg --mode hardened", "no mode 'hardened'"),
        ("run fedavg --devices none.toml", "none.toml"),
        ("run fedavg --partition labelsets:99", "labelsets:99"),
        ("run fedavg --model mlpp", "unknown model 'mlpp'; did you mean 'mlp'?"),
        ("run fedavg --partition dirichlet", "partition 'dirichlet'"),
        ("run fedavg --min-samples 1000", "min_samples"),
        ("run fedavg --set lr=1 --set lr=2", "twice"),
        ("run fedavg --scaling percent", "'unit'"),
        ("compare fedavg ifca --set fedavg.clusters=3", "fedavg.clusters"),
        ("compare fedavg ifca --set fedprox.mu=3", "fedprox"),
        ("compare fedavg --budget ifca", "whose budget"),
        ("compare fedavg ifca --mode hardened", "hardened"),
        ("run fedavg --clients 2000", "2,000 clients cannot share 1,437 training samples"),
        ("run fedavg --clients 0", "at least 1"),
        ("run fedavg --set lrr=1", "did you mean 'lr'?"),
        ("run fedavg --set lr", "key=value"),
        ("run fedavg --config none.toml", "cannot read the config"),
        ("run --config BAD", "unknown option 'round'; did you mean 'rounds'?"),
        ("run fedavg --data broken --data-dir DATA", "broken"),
        ("run --resume", "--out"),
        ("run --resume --out nowhere", "no run to resume"),
        ("run fedavg --resume", "--out"),
        ("run fedavg --out FILE", "is a file"),
        ("run fedavg --out FULL", "not empty"),
        ("run fedavg --out /proc/nowhere/run", "cannot create"),
        ("run fedavg --out UNDER", "cannot write to"),
        ("compare", "compare needs methods"),
        ("compare fedavg fedavg", "takes each method once"),
        ("compare fedavg ifcaa", "did you mean 'ifca'?"),
        ("compare fedavg ifca --seeds 0", "--seeds"),
        ("compare fedavg ifca --set clusterz=3", "did you mean 'clusters'?"),
        ("compare fedavg@hardened", "mode of fedavg"),
        ("compare fedavg ifca --budget ifca --each-own", "leave one of the two out"),
        ("compare fedavg local --audit --set lr=x", "setting of fedavg 'lr'"),
        ("compare fedavg --out FULL", "not empty: choose another --out (out=), or continue"),
        ("compare fedavg --resume", "--out"),
        ("report nowhere", "nowhere"),
        ("report FULL", "no run"),
        ("report FULL nowhere", "--out"),
        ("reproduce", "--list"),
        ("reproduce fedcaprivacy/table9", "fedcaprivacy/table1"),
        ("reproduce pafed", "which item of pafed? It has: pafed/table5, pafed/parts"),
        ("reproduce pafed/table5 --only mnist/0.33", "did you mean 'mnist/0.3'? See coterie reproduce pafed/table5 -"),
        ("reproduce --list --only mnist", "name the item"),
        ("reproduce pafed/table5 --rounds 0", "at least 1 round"),
        ("reproduce mingledpie/table2 --out FILE", "cannot write to"),
        ("reproduce mingledpie/fig3 --out UNDER", "cannot write to"),
        ("run --resume --out FILE", "cannot write to"),
    ],
)
def test_a_mistake_ends_with_2_one_message_and_nothing_written(
    cli: Command, tmp_path: Path, words: str, says: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    (tmp_path / "bad.toml").write_text('system = "fedavg"\nround = 3\n')
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "own.npz", **NPZ)
    (tmp_path / "data" / "broken.npz").write_bytes(b"PK\x03\x04 not quite")
    places = {"FILE": "file", "UNDER": "file/run", "FULL": "full", "BAD": "bad.toml", "DATA": "data"}
    before = written(tmp_path)
    ended = cli(*(str(tmp_path / places[word]) if word in places else word for word in words.split()))
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("Error") == 1
    assert "Traceback" not in ended.err + ended.out
    assert ended.out == ""
    assert written(tmp_path) == before


@pytest.mark.parametrize(
    "words", ["run fedavg --nonsense", "run fedavg --rounds many", "frobnicate", "list everything"]
)
def test_wrong_usage_ends_with_2(cli: Command, words: str) -> None:
    ended = cli(*words.split())
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert written(Path()) == set()


def test_a_run_that_is_finished_or_unfinished_is_not_overwritten(cli: Command) -> None:
    assert cli("run", "fedavg", *QUICK, "--out", "a").code == 0
    ended = cli("run", "fedavg", *QUICK, "--out", "a")
    assert (ended.code, "finished run" in ended.err) == (2, True)
    ended = cli("run", "--resume", "--out", "a", "--seed", "9")
    assert (ended.code, "seed: 0, now 9" in ended.err) == (2, True)
    assert cli("run", "--resume", "--out", "a", "--rounds", "3", "-q").code == 0
    assert len(read_lines(Path("a/metrics.jsonl"))) == 3
    checkpoint = Path("a/checkpoint/checkpoint.bin")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    ended = cli("run", "--resume", "--out", "a", "--rounds", "4")
    assert (ended.code, "damaged" in ended.err) == (2, True)


def test_a_run_that_fails_ends_with_1(cli: Command) -> None:
    ended = cli("run", "fedavg", *QUICK, "--set", "lr=1e30", "--set", "weight_decay=1", "--out", "a")
    assert ended.code == 1
    assert "diverged" in ended.err
    assert ended.err.count("Error") == 1
    assert not Path("a").exists()


def test_what_the_system_forbids_is_no_bug(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "r/clients.json")

    monkeypatch.setattr("coterie.runs.runner.build", forbidden)
    ended = cli("run", "fedavg", "--quiet")
    assert (ended.code, "bug" in ended.err) == (1, False)
    assert "Error: r/clients.json: Permission denied; see that you may" in ended.err


def test_the_cells_of_an_item_and_the_items_of_a_paper(cli: Command) -> None:
    cells = cli(
        "reproduce", "pafed/table5", "--list", "--only", "mnist/0.3/constant", "--only", "mnist/iid"
    ).out.split()
    assert "mnist/0.3/constant/pafed" in cells
    assert {cell.split("/")[1] for cell in cells} == {"0.3", "iid"}
    items = cli("reproduce", "pafed", "--list")
    assert (items.code, items.err) == (0, "")
    assert {line.split("/")[0] for line in items.out.splitlines()} == {"pafed"}
    assert "pafed/table5" in items.out


def test_a_bug_is_reported_as_one(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.runner.build", None)
    ended = cli("run", "fedavg")
    assert (ended.code, ended.err.count("Error: "), "Traceback" in ended.err) == (1, 2, False)
    assert ended.err.splitlines()[-1].startswith("Error: unexpected TypeError: 'NoneType' object is not callable")
    assert "COTERIE_DEBUG=1" in ended.err
    monkeypatch.setenv("COTERIE_DEBUG", "1")
    assert "Traceback" in cli("run", "fedavg").err


# -- ends from outside ------------------------------------------------------------------------------------------------


MAIN = "import sys; from coterie.cli.app import main; sys.argv = ['coterie', *{words!r}]; main()"


def test_an_interruption_says_how_to_go_on(cli: Command, tmp_path: Path) -> None:
    """By Ctrl-C. ``test_command.py`` has SIGTERM, which every command takes alike."""
    out = tmp_path / "run"
    words = ["run", "toy_federation:SYSTEM", "--clients", "4", "--rounds", "6", "--out", str(out), "-q"]
    process = fork_code(MAIN.format(words=words), tmp_path / "err", COTERIE_TOY_SLEEP_S="0.5", COLUMNS="300")
    metrics = out / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and bool(metrics.read_bytes()), process)
    os.kill(process.pid, signal.SIGINT)
    process.join(200)
    err = (tmp_path / "err").read_text()
    assert process.exitcode == 130
    assert "Traceback" not in err
    assert "interrupted" in err
    assert f"coterie run --resume --out {out}" in err
    ended = cli("run", "--resume", "--out", str(out), "-q")
    assert ended.code == 0
    assert [line["round"] for line in read_lines(metrics)] == list(range(1, 7))


def test_control_c_in_a_comparison(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.runs import Interrupted, comparison

    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted(Path("c/fedavg-0"), 2)

    monkeypatch.setattr(comparison, "run", interrupted)
    ended = cli("compare", "fedavg", *QUICK, "--out", "c")
    assert ended.code == 130
    assert "2 rounds kept: continue with  the same coterie compare, with --resume --out c" in ended.err


def test_a_disk_that_takes_no_more_keeps_what_was_finished(cli: Command, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the system refuses the write."""
    out = tmp_path / "run"
    words = [
        "run",
        "fedavg",
        "--samples",
        "300",
        "--clients",
        "3",
        "--rounds",
        "16",
        "--set",
        "max_epochs=1",
        "--checkpoint-every",
        "1",
    ]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16000, 16000)); "
    process = fork_code(limit + MAIN.format(words=[*words, "--out", str(out)]), tmp_path / "err", COLUMNS="300")
    process.join(200)
    err = (tmp_path / "err").read_text()
    assert process.exitcode == 1
    assert err.count("Error") == 1
    assert "Traceback" not in err
    assert "cannot write" in err
    assert "File too large" in err
    assert "--resume goes on there" in err
    kept = len(read_lines(out / "metrics.jsonl"))
    assert 1 <= kept < 16
    assert cli("run", "--resume", "--out", str(out), "-q").code == 0
    assert cli(*words, "--out", "undisturbed").code == 0
    for a, b in zip(read_lines(out / "metrics.jsonl"), read_lines(Path("undisturbed/metrics.jsonl")), strict=True):
        assert a["global_loss"] == b["global_loss"]


def test_a_comparison_is_not_resumed_as_another_one(cli: Command) -> None:
    words = ["compare", "fedavg", *QUICK, "--out", "c"]
    assert cli(*words).code == 0
    ended = cli(*words, "--resume", "--set", "lr=0.001")
    assert ended.code == 2
    assert "holds another run" in ended.err
    assert cli(*words, "--resume").code == 0


@pytest.mark.long
@pytest.mark.usefixtures("figures")
def test_a_federation_that_never_meets_whole_is_reported_too(cli: Command) -> None:
    words = ["run", "fedcaprivacy", "--crypto", "emulated", "--clients", "6", "--rounds", "3", "--devices", "mobile"]
    ended = cli(*words, "--set", "participation=0.5", "--out", "part")
    assert ended.code == 0
    assert "Affinity of the clients" in Path("part/report.html").read_text()
