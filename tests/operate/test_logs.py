"""A party's log, the numbers for Prometheus, and the two commands that show them."""

from __future__ import annotations

import io
import json
import logging
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import typer
from command import Command as Cli
from deployments import NOW_S, Study
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from coterie.cli import deploy_watching
from coterie.cli.command import Command, CommandGroup
from coterie.crypto.signing import SigningKey
from coterie.deploy import logs
from coterie.deploy.status import PartyStatus, RunStatus, at_words
from coterie.operate import prometheus, runs
from coterie.operate.watching import read_log
from coterie.protocol.errors import UserError
from coterie.protocol.setup_info import Identity
from coterie.transport.envelope import Envelope

STATUS = RunStatus(
    system="fedavg",
    title="FedAvg",
    mode="paper",
    crypto="none",
    session="ab" * 16,
    plan_sha256="cd" * 32,
    plan=3,
    engine="memory",
    pid=1,
    rounds=10,
    clients=1,
    phase="round",
    round=4,
    attempt=1,
    done=3,
    seconds=50.0,
    since=100.0,
    written=110.0,
    scores={"local_accuracy": 0.5, "local_loss": None},
    reported={"local_accuracy": 1},
    parties=(
        PartyStatus(name="server", role="server", fingerprint="0123 4567"),
        PartyStatus(
            name="client/0",
            role="client",
            fingerprint="89ab cdef",
            connected=True,
            last_seen=105.0,
            round=3,
            commit=7,
            bytes_up=1500,
            bytes_down=10,
            busy_s=2.5,
            refused={"Train": 2},
            missed={"late": 1},
        ),
    ),
)

app = typer.Typer(cls=CommandGroup)
app.command("status", cls=Command)(deploy_watching.status)
app.command("logs", cls=Command)(deploy_watching.logs)


def run(*words: str) -> str:
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "home" / "log.jsonl"
    path.parent.mkdir()
    logs.start(path, "client/3")
    yield path
    logs.stop()


def envelope(kind: str = "Train", src: str = "server") -> Envelope:
    return Envelope(src, "client/3", "server", kind, "s", 1, 0, 1, 0, False, 10)


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_log_is_json_for_its_owner_alone(log: Path) -> None:
    logs.event("begin", round=3, attempt=1)
    journal = logs.Journal()
    journal.refused(envelope(), "client", "value 799.375 at index 1\nand more")
    journal.late("csp")
    journal.began((4, 0))
    journal.committed(3, 10)  # of the level debug: not written
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["begin", "refused", "late", "begin"]
    assert lines[0] == {**lines[0], "level": "info", "party": "client/3", "round": 3, "attempt": 1}
    assert lines[0]["time"].endswith("Z")
    assert lines[1]["reason"].startswith("value 799.375")
    assert lines[1]["kind"] == "Train"
    assert log.stat().st_mode & 0o777 == 0o600


def test_attempts_count_from_1_for_people(log: Path, tmp_path: Path) -> None:
    """In the log, in the status, in its table and in the numbers for Prometheus."""
    logs.Journal().began((3, 1))
    logs.stop()
    assert "begin      round=3  attempt=2" in run("logs", str(log.parent))
    assert "\ncoterie_round_attempt 2.0\n" in prometheus.text(STATUS)
    assert at_words(4, 1, 10) == "Round 4 of 10, attempt 2"
    assert [at_words(r, 0, 10) for r in (0, 10, 11)] == ["Set-up", "Round 10 of 10", "After the last round"]
    party = PartyStatus(name="a", role="client", last_seen=1.0, round=3, attempt=1)
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(STATUS, parties=(party,))))
    assert "3, attempt 2" in run("status", str(tmp_path))


def test_no_key_and_no_array_gets_into_a_log(log: Path) -> None:
    secret = b"\x07" * 32
    values = {
        "key": SigningKey(secret),
        "identity": Identity(secret, secret),
        "raw": secret,
        "model": np.full(8, 1.25),
        "message": envelope(),
        "list": [secret, np.ones(2), 3],
        "table": {"a": secret, "b": 2.0},
        "against": {"hub": {"replace one sample": 1.5, "key": secret}},
    }
    logs.event("anything", **values)
    text = log.read_text()
    assert "1.25" not in text
    assert secret.hex() not in text
    assert "\\u0007" not in text
    assert "07070707" not in text
    line = json.loads(text)
    assert line["raw"] == "<bytes>"
    assert line["model"] == "<ndarray>"
    assert line["list"] == ["<bytes>", "<ndarray>", 3]
    assert line["table"] == {"a": "<bytes>", "b": 2.0}
    assert line["against"] == {"hub": {"replace one sample": 1.5, "key": "<bytes>"}}
    assert line["identity"] == "<Identity>"


def test_an_error_is_logged_with_its_place_and_without_values(log: Path) -> None:
    try:
        weights = np.full(3, 1.25)
        raise ValueError("no") from None
    except ValueError as error:
        logs.Journal().failed(envelope(), error)
    assert weights is not None
    (line,) = (json.loads(line) for line in log.read_text().splitlines())
    assert line["error"] == "ValueError: no"
    assert line["at"][0].startswith("test_logs.py:")
    assert "1.25" not in json.dumps(line)


def test_a_hostile_party_writes_neither_lines_nor_much(log: Path) -> None:
    kind = '\n{"event": "fake"}\x1b[31m' + "x" * 1000
    logs.refusal(kind, "client/1", kind * 5)
    lines = log.read_bytes().splitlines()
    assert len(lines) == 1
    assert len(lines[0]) < 2000
    assert b"\x1b" not in lines[0]
    shown = run("logs", str(log.parent))
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 1


def test_refusals_by_the_thousand_are_counted_and_not_written(log: Path) -> None:
    limited = logs.RateLimited(per_s=20.0)
    for _ in range(1000):
        limited.write("refused", kind="Train", src="client/1", reason="no")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert 20 <= len(lines) < 40
    limited._left = 1.0
    limited.write("refused", kind="Train", src="client/1", reason="no")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["unwritten"] == 1001 - len(lines) - 1


@pytest.mark.parametrize("what", ["late", "failed"])
def test_other_events_that_a_party_causes_are_as_few(log: Path, what: str) -> None:
    """Late messages and failures of handlers: by the thousand they would drive all older lines out of the log."""
    journal = logs.Journal()
    for _ in range(1000):
        if what == "late":
            journal.late("client/1")
        else:
            journal.failed(envelope(), ValueError("no"))
    assert 1 <= len(log.read_bytes().splitlines()) < 60


def test_a_log_is_rotated_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_FILE_BYTES", 2000)
    path = tmp_path / "log.jsonl"
    logs.start(path, "hub")
    for i in range(200):
        logs.event("begin", round=i)
    logs.stop()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    assert all(file.stat().st_size <= 2000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    rounds = [line["round"] for line in read_log(path)]
    assert rounds == list(range(rounds[0], 200))


def test_a_link_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="symbolic link"):
        logs.start(tmp_path / "log.jsonl", "hub")
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_without_a_log_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    logs.stop()
    logs.LOGGER.setLevel(logging.INFO)
    logs.event("begin", round=1)
    assert capfd.readouterr() == ("", "")


def test_logs_of_several_homes_are_shown_in_the_order_of_time(tmp_path: Path) -> None:
    for party, times in (("hub", ("10", "30")), ("csp", ("20", "40"))):
        home = tmp_path / "homes" / party
        home.mkdir(parents=True)
        line = '{{"time": "2030-01-01T00:00:{}.000Z", "level": "{}", "party": "{}", "event": "begin", "round": {}}}\n'
        text = "".join(line.format(at, "warning" if at == "40" else "info", party, at) for at in times)
        (home / "log.jsonl").write_text(text + '{"time": "2030-01-01T00:0')  # cut off by a kill
    shown = run("logs", str(tmp_path))
    assert [line.split("round=")[1] for line in shown.splitlines()] == ["10", "20", "30", "40"]
    assert run("logs", str(tmp_path), "--level", "warning").count("round=") == 1
    assert run("logs", str(tmp_path), "--last", "2").count("round=") == 2
    assert json.loads(run("logs", str(tmp_path / "homes" / "csp"), "--json").splitlines()[0])["round"] == 20
    for words in (["logs", str(tmp_path / "none")], ["logs", str(tmp_path), "--level", "loud"]):
        assert CliRunner().invoke(app, words).exit_code == 2


def test_following_a_log_gives_whole_lines_and_understands_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"one\ntw")
    lines, end = deploy_watching._since(path, 0)
    assert (lines, end) == ([b"one"], 4)
    path.write_bytes(b"one\ntwo\n")
    assert deploy_watching._since(path, end) == ([b"two"], 8)
    path.write_bytes(b"new\n")
    assert deploy_watching._since(path, 8) == ([b"new"], 4)


# -- status ------------------------------------------------------------------------------------------------------------


def test_the_status_is_shown_in_words_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(STATUS))
    shown = run("status", str(tmp_path))
    assert "No news of the hub" in shown
    assert "process 1 has ended" in shown
    assert "(3 rounds done, in 50.0 s)" in shown
    for words in ("client/0", "89ab cdef", "1.50 kB", "refused 2 × Train", "1 × late", "local accuracy 50.0 %"):
        assert words in shown
    assert msgspec.json.decode(run("status", str(tmp_path), "--json"), type=RunStatus) == STATUS
    live = msgspec.structs.replace(STATUS, written=1e12, since=1e12)
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(live))
    assert "Round 4 of 10, attempt 2" in run("status", str(tmp_path))
    assert CliRunner().invoke(app, ["status", str(tmp_path / "none")]).exit_code == 2


NAMES = ("business_server", "key_centre", "csp", "hospital-north-west")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_fits_the_terminal(width: int) -> None:
    one = STATUS.parties[1]
    parties = tuple(msgspec.structs.replace(one, name=name, role=name, bytes_up=543_210) for name in NAMES)
    status = msgspec.structs.replace(STATUS, parties=parties)
    shell = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    lines = list(deploy_watching._lines(status, 111.0, shell))
    (table,) = (line for line in lines if isinstance(line, Table))
    shell.print(table)
    drawn = shell.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, drawn)) <= width
    heads = drawn[1].split()
    assert {"party", "round", "missed", "refused"} <= set(heads)
    assert sum(any(f" {name} " in line for line in drawn) for name in NAMES) == len(NAMES)
    left_out = [str(line) for line in lines if str(line).startswith("Not shown")]
    assert [head for head in ("keys", "work", "role", "sent") if head not in heads] == [
        head for head in ("keys", "work", "role", "sent") if any(head in line for line in left_out)
    ]
    assert bool(left_out) == (width < 140)


def test_who_is_waited_for_before_the_first_round(tmp_path: Path) -> None:
    waiting = msgspec.structs.replace(STATUS, phase="waiting", attempt=0, written=1e12, since=1e12)
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(waiting))
    assert "The hub waits for server to connect, for" in run("status", str(tmp_path))
    here = [msgspec.structs.replace(one, connected=True) for one in STATUS.parties]
    waiting = msgspec.structs.replace(waiting, parties=(*here, PartyStatus(name="late", role="client")))
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(waiting))
    assert "All parties are connected, for" in run("status", str(tmp_path))


def test_a_run_that_is_signed_and_that_no_hub_has_taken_up(study: Study) -> None:
    study.enrol()
    study.folder.run.mkdir()
    (study.folder.run / "status.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(STATUS, phase="ended")))
    assert "is signed" not in run("status", str(study.path))
    runs.start(study.path, now_s=NOW_S)
    assert f"Run 2 is signed, and waits for the hub: coterie deploy hub {study.path}" in shown(study)
    (study.folder.run / "status.json").write_bytes(msgspec.json.encode(STATUS))
    assert "Run 2 is signed, and waits for run 1 to end" in shown(study)


def shown(study: Study) -> str:
    return " ".join(run("status", str(study.path)).split())


def test_scores_are_shown_as_in_other_tables(tmp_path: Path) -> None:
    scores = {"local_auroc": 0.8304, "prior_local_accuracy": 0.5, "local_mcc": 0.25, "local_loss": 0.1124, "own": None}
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(STATUS, scores=scores)))
    told = "local AUROC 83.0 %, local accuracy with the prior 50.0 %, local mcc 0.25, local loss 0.1124, own –, as"
    assert told.replace("mcc", "MCC") in run("status", str(tmp_path))


def test_before_the_hub_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path)
    study.found()
    study.enrol("hospital-a")
    ended = CliRunner().invoke(app, ["status", str(study.path)])
    assert ended.exit_code == 2
    said = " ".join(ended.stderr.split())
    assert "2 of 4 members have joined, without hospital-b, client/3" in said
    assert f"Start it with coterie deploy hub {study.path}" in said

    def begin(_: float) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        study.folder.run.mkdir()
        (study.folder.run / "status.json").write_bytes(msgspec.json.encode(STATUS))

    monkeypatch.setattr(time, "sleep", begin)
    ended = CliRunner().invoke(app, ["status", str(study.path), "--watch"])
    assert "No news of the hub" in ended.stdout


def test_names_in_a_status_cannot_change_the_terminal(tmp_path: Path) -> None:
    party = PartyStatus(name="\x1b[2Jx[bold]", role="client", refused={"\x1b]0;a": 1}, last_seen=1.0)
    hostile = msgspec.structs.replace(STATUS, parties=(party,), why="\x1b[1m", phase="failed")
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(hostile))
    shown = run("status", str(tmp_path))
    assert "\x1b" not in shown
    assert "[bold]" in shown


# -- Prometheus --------------------------------------------------------------------------------------------------------


def get(port: int, path: str = "/metrics", host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_numbers_are_in_the_exposition_format() -> None:
    text = prometheus.text(STATUS)
    lines = text.splitlines()
    assert text.endswith("\n")
    assert len(lines) == len(set(lines))
    assert 'coterie_party_refused_total{kind="Train",party="client/0",role="client"} 2.0' in lines
    assert 'coterie_party_busy_seconds_total{party="client/0",role="client"} 2.5' in lines
    assert 'coterie_party_connected{party="server",role="server"} 0.0' in lines
    assert 'coterie_score{score="local_accuracy"} 0.5' in lines
    assert "local_loss" not in text
    assert "coterie_round 4.0" in lines
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for line in lines:
        if not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert name in families
            assert name.endswith("_total") == ("counter" in _type(lines, name))


def _type(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(f"# TYPE {name} "))


def test_without_the_library_a_hub_runs_and_only_metrics_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coterie.operate.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    assert "prometheus_client is not installed: pip install" in cli("deploy", "hub", "nowhere", "--metrics", "9464").err
    assert "holds no deployment" in cli("deploy", "hub", "nowhere").err


def test_labels_are_escaped() -> None:
    party = PartyStatus(name='a"b\\c\nd', role="client", connected=True)
    text = prometheus.text(msgspec.structs.replace(STATUS, parties=(party,)))
    assert '{party="a\\"b\\\\c\\nd",role="client"} 1.0' in text


def test_numbers_are_served_on_loopback_alone() -> None:
    with prometheus.serving(0, lambda: STATUS) as port:
        code, text = get(port)
        assert code == 200
        assert text == prometheus.text(STATUS)
        assert get(port, "/")[0] == 404
        assert get(port, host="evil.example:80")[0] == 403  # a page that leads another name to this address
        assert get(port, host=f"localhost:{port}")[0] == 200
        with pytest.raises(UserError, match="name another port"), prometheus.serving(port, lambda: STATUS):
            pass
        with socket.socket() as other:
            other.settimeout(1.0)
            assert other.connect_ex((_own_address(), port)) != 0  # no other address of this machine answers
    with pytest.raises(urllib.error.URLError):
        get(port)


def _own_address() -> str:
    """An address of this machine that is not the one served; 127.0.0.2 where there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        try:
            some.connect(("192.0.2.1", 9))
            return str(some.getsockname()[0])
        except OSError:
            return "127.0.0.2"


def test_slow_and_wrong_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_SLOW_S", 0.2)
    with prometheus.serving(0, lambda: STATUS) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        held[0].sendall(b"\x00\xff\xfe rubbish \r\n\r\n")
        before = threading.active_count()
        assert get(port)[0] == 200
        assert threading.active_count() <= before + 1  # the clock of the request that is answered now
        for one in held:
            one.close()


def test_a_client_that_drips_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the request never ends."""
    monkeypatch.setattr(prometheus, "_SLOW_S", 0.3)
    ended = threading.Event()

    def drip(one: socket.socket) -> None:
        try:
            for _ in range(100):
                one.sendall(b"G")
                time.sleep(0.1)
        except OSError:
            ended.set()

    with prometheus.serving(0, lambda: STATUS) as port, socket.create_connection(("127.0.0.1", port)) as one:
        threading.Thread(target=drip, args=(one,), daemon=True).start()
        time.sleep(0.1)
        assert get(port)[0] == 200
        assert ended.wait(5.0)
