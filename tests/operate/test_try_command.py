"""``coterie deploy try`` as a command: what it prints, what it leaves, and how it ends when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import Command, caller, heard

from coterie.operate.doctor import doctor
from coterie.operate.watching import read_log
from coterie.record.folder import read_lines
from coterie.report.words import duration

pytest.importorskip("nats", reason="the engine is an extra, deploy")

command = pytest.fixture(caller)
OF = ["--clients", "4", "--rounds", "2", "--seed", "7", "--set", "max_epochs=1"]


def test_the_command_ends_as_coterie_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: no party's secret lies in another's home, and what is private is for its owner alone.

    The server runs in a folder of its own, and finds its files though this one is relative. A digest is told whole.
    """
    monkeypatch.setenv("COLUMNS", "60")
    folder = Path("d")
    ended = command("deploy", "try", str(folder), "--system", "fedavg", *OF, "--kill", "client/1@2")
    assert ended.code == 0
    assert "fedavg  round 2 of 2" in ended.err
    assert ended.err.count("--kill client/1@2: client/1 was killed, and was started again at once\n") == 1
    ran = command("run", "fedavg", *OF, "--out", str(tmp_path / "r"), "--quiet")
    assert ran.code == 0
    digest = json.loads((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()[-1])["models_sha256"]
    for result in (tmp_path / "r" / "result.json", folder / "run" / "result.json"):
        assert json.loads(result.read_text())["models_sha256"] == digest
    assert f"models_sha256: {digest}\n" in ended.out
    for score in ("local_accuracy", "local_loss"):  # also of the models between
        ours, theirs = (
            [line[score] for line in read_lines(at / "metrics.jsonl")] for at in (folder / "run", tmp_path / "r")
        )
        assert ours == pytest.approx(theirs)
    found = doctor([folder])
    assert [one for one in found if one.level != "ok"] == []
    private = [path for home in [folder / "hub", *(folder / "homes").iterdir()] for path in home.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private if path.is_file()} <= {0o600}
    assert command("report", str(folder / "run")).code == 0
    assert command("predict", str(folder / "run"), "nothing.npz", "--client", "client/3").code == 2
    took = duration(json.loads((folder / "run" / "result.json").read_text())["seconds"])
    assert f"time {took}" in " ".join(ended.out.split())
    status = command("deploy", "status", str(folder))
    assert (status.code, f"Ended: 2 rounds done, in {took}\n" in status.out) == (0, True)


def test_tables_end_with_a_way_to_predict_and_status_shows_the_prior(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "own").mkdir()
    for name in ("a", "b", "c"):
        rows = [f"{x:.3f},{rng.normal():.3f},{'yes' if x > 0 else 'no'}" for x in rng.normal(size=40)]
        (tmp_path / "own" / f"{name}.csv").write_text("\n".join(["one,two,label", *rows]))
    options = ("--data", str(tmp_path / "own"), "--rounds", "1", "--set", "label_counts=true", "--quiet")
    ended = command("deploy", "try", "d", "--system", "fedavg", *options)
    assert ended.code == 0, ended.err
    assert "coterie predict d/run NEW.csv" in ended.out
    assert "Clients: client/0 = a, client/1 = b, client/2 = c\n" in ended.out
    shown = command("deploy", "status", "d").out
    assert "local accuracy with the prior" in " ".join(shown.split())
    table = str(tmp_path / "own" / "a.csv")
    predicted = command("predict", "d/run", table, "--client", "client/0")
    assert predicted.out.startswith("label,probability,P(no),P(yes)\n")
    assert command("predict", "d/run", table, "--client", "client/0", "--prior").code == 0
    refused = command("predict", "d/homes/client-0", table)
    assert refused.code == 2
    assert "d/run" in refused.err
    assert "--client client/0" in refused.err
    missing = command("predict", "d/homes/west", table)
    assert missing.code == 2
    told = "d/homes/west is not there. d/homes has the homes client-0 (a), client-1 (b), client-2 (c)"
    assert told in missing.err


def test_without_the_extra_nothing_is_made(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    monkeypatch.setitem(sys.modules, "nats", None)
    ended = command("deploy", "try", str(folder), "--system", "fedavg", *OF)
    assert (ended.code, "nats-py is not installed: pip install 'nats-py" in ended.err, folder.exists()) == (
        2,
        True,
        False,
    )


def test_what_it_lacks_is_an_option_of_a_run() -> None:
    """Those that `coterie run` has and it has not, each with a reason."""
    from coterie.cli.deploy_trying import _NOT_REHEARSED
    from coterie.cli.options import _OPTIONS

    assert set(_NOT_REHEARSED) - {"no_fine_tune"} <= {one.name for one in _OPTIONS}


def test_it_refuses_before_it_makes_anything(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    for words, error in (
        (["--system", "fedavg", "--attack", "scale:10"], "no option --attack: no party is made to misbehave here"),
        (["--system", "fedavg", "--attackers=0.3"], "so give it to coterie run. See"),
        (["--system", "fedavg", "--no-fine-tune"], "no option --no-fine-tune: it needs somebody who sees all parties"),
        (["--system", "fedavg", "--resume"], "no option --resume: a rehearsal runs once"),
        (["--system", "fedavk"], "did you mean 'fedavg'"),
        (["--system", "fedavg", *OF, "--kill", "client/9@1"], "there is no party 'client/9'"),
        (["--system", "fedavg", *OF, "--kill", "client/1"], "PARTY@ROUND"),
        (["--system", "fedavg", "--workers", "ray"], "no option --workers: every party is a process of its own"),
        ([], "--system fedcaprivacy"),
    ):
        ended = command("deploy", "try", str(folder), *words)
        assert (ended.code, error in ended.err) == (2, True), ended.err
        assert not folder.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGTERM))]
)
def test_nothing_runs_on_when_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """By Ctrl-C, politely, or killed itself: all parties and the server end, and the logs stay."""
    folder = tmp_path / "d"
    words = [sys.executable, "-m", "coterie", "deploy", "try", str(folder), "--system", "fedavg", *OF]
    words += ["--rounds", "5000"]
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    metrics, until = folder / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size):
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)
    homes = [folder / "hub", *(folder / "homes").iterdir()]
    pids = [line["pid"] for home in homes for line in read_log(home / "log.jsonl") if line["event"] == "start"]
    assert len(pids) == 5 == sum(map(alive, pids))
    running.send_signal(number)
    words_of_end = running.communicate(timeout=30)[1]
    assert running.returncode == (-number if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "interrupted" in words_of_end
    while any(map(alive, pids)) or served(folder):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert all((home / "log.jsonl").stat().st_size for home in homes)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def served(folder: Path) -> bool:
    """Whether a server of this folder runs."""
    conf = os.fsencode(folder / "nats" / "nats.conf")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(conf in path.read_bytes())
        except OSError:
            continue
    return any(found)
