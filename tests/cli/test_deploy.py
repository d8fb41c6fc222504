"""``coterie deploy``: the operator's and a party's commands, from founding to revoking, with a server of NATS."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from command import Command
from deployments import samples
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.engine import Engine, EngineError
from coterie.deploy.engines import connect
from coterie.deploy.home import Home, plan_of, read_home
from coterie.operate.folder import Folder, current_plan

COMMANDS = ("init", "invite", "join", "approve", "revoke", "renew", "server", "backup", "restore", "doctor", "files")
RUN = 'system = "fedavg"\ndata = "digits"\nrounds = 2\n'
MEMBERS = """
[[member]]
role = "server"
host = "hub.example.org"
[[member]]
name = "hospital-a"
role = "client"
[[member]]
name = "hospital-b"
role = "client"
"""


def founded(*more: str, server: str = "nats://hub.example.org:4222") -> str:
    """Found a deployment in the current folder; gives what the command says."""
    ground, said = _ground(server, more)
    shutil.copytree(ground, ".", dirs_exist_ok=True)
    return said


@cache
def _ground(server: str, more: tuple[str, ...]) -> tuple[Path, str]:
    ground = Path(mkdtemp())
    with chdir(ground):
        Path("run.toml").write_text(RUN)
        Path("bare.toml").write_text('system = "fedavg"\n')
        Path("members.toml").write_text(MEMBERS)
        samples(Path("own.npz"))
        words = "deploy init study --config run.toml --members members.toml --server"
        ended = CliRunner().invoke(app, [*words.split(), server, *more], env={"COLUMNS": "200"})
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ground, ended.stdout


def invited(cli: Command, name: str = "hospital-a", *more: str) -> None:
    ended = cli("deploy", "invite", "study", name, *more)
    assert ended.code == 0
    Path("a.token").write_text(ended.out)


def joined(cli: Command, home: str = "H") -> str:
    ended = cli("deploy", "join", "a.token", "--data", "own.npz", "--home", home)
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def between(text: str, before: str) -> str:
    """The rest of the line that begins so, or has it in its middle."""
    return next(line.split(before, 1)[1].strip() for line in text.splitlines() if before in line)


def test_from_founding_to_a_certificate(cli: Command) -> None:
    said = founded()
    operator = between(said, "Operator's key: ")
    assert "for hospital-a" in said.replace("\n  ", " ")
    ended = cli("deploy", "invite", "study", "hospital-a")
    assert ended.out.startswith("coterie-invitation-1:")
    assert ended.out.count("\n") == 1
    assert "It is a secret" in ended.err
    Path("a.token").write_text(ended.out)
    said = joined(cli)
    y = np.load("own.npz")["y"]
    train, test, classes = (int(word) for word in re.findall(r"(\d+)\ssample.* (\d+) for tests, (\d+) of 10", said)[0])
    assert (train + test, classes) == (len(y), len({*y.tolist()}))
    assert between(said, "Operator's key: ") == operator
    keys = between(said, "This party's keys: ")
    assert "hospital-a.request" in said
    ended = cli("deploy", "approve", "study", "hospital-a.request", "--offline")
    assert ended.code == 0
    assert between(ended.out, "hospital-a asks to join as client, with the keys ") == keys
    assert "2 of 3 members have joined, without hospital-b" in ended.out
    plan = between(ended.out, "Plan: ")
    ended = cli("deploy", "join", "study/hospital-a.cert", "--home", "H")
    assert ended.code == 0
    assert (between(ended.out, "Plan: "), between(ended.out, "Operator's key: ")) == (plan, operator)
    assert "deploy party --home H" in ended.out
    assert plan_of(read_home(Path("H"))) == current_plan(Folder(Path("study")))
    ended = cli("deploy", "revoke", "study", "hospital-a", "--offline")
    assert "Revoked hospital-a: version 3 of the plan" in ended.out
    ended = cli("deploy", "doctor", "H")
    assert f"holds the plan, {plan}" in " ".join(ended.out.split())
    ended = cli("deploy", "revoke", "study", "hospital-a", "--offline")
    assert "hospital-a was revoked already: version 3 of the plan" in ended.out
    assert "Revoked" not in ended.out
    ended = cli("deploy", "doctor", "study", "H")
    assert (ended.code, ended.err) == (0, "")
    assert "no secret of one party lies in another's home" in ended.out


def test_more_clusters_than_clients_are_told_when_a_run_is_planned(cli: Command) -> None:
    """As ``coterie run`` tells it: of those that are named, and in a further run of those that have joined."""
    founded()
    Path("run.toml").write_text('system = "ifca"\ndata = "digits"\n[settings]\nclusters = 3\n')
    words = "--config run.toml --members members.toml --server nats://hub.example.org:4222"
    first = cli("deploy", "init", "other", *words.split())
    assert (first.code, "ifca has more clusters (3) than clients (2)" in " ".join(first.err.split())) == (0, True)
    invited(cli)
    joined(cli)
    assert cli("deploy", "approve", "study", "hospital-a.request", "--offline").code == 0
    further = cli("deploy", "start", "study", "--config", "run.toml", "--offline")
    assert (further.code, "more clusters (3) than clients (1)" in " ".join(further.err.split())) == (0, True)


def test_options_of_init_and_join(cli: Command) -> None:
    options = "--shape 30 --outputs 2 --patience 5 --grace 2 --quorum 1 --retries 0 --days 9"
    founded(*options.split(), "--scores", "local_loss", "--scores", "samples")
    plan = current_plan(Folder(Path("study")))
    assert (plan.facts.input_shape, plan.facts.outputs) == ((30,), 2)
    set_up = plan.settings
    assert (set_up.patience_s, set_up.grace_s, set_up.quorum, set_up.retries) == (5, 2, 1, 0)
    assert set_up.scores == ("local_loss", "samples")
    assert 8.9 < (set_up.not_after_s - time.time()) / 86400 < 9.1
    np.savez("own.npz", x=np.zeros((9, 30)), y=np.arange(9) % 2)
    invited(cli)
    words = "deploy join a.token --data own.npz --home H --report local_loss,samples --epochs 1 --accelerator auto"
    assert cli(*words.split()).code == 0
    about = read_home(Path("H")).about
    assert (about.report, about.epochs, about.accelerator) == (("local_loss", "samples"), 1, "auto")


def test_the_terminal_asks_before_it_approves(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    founded()
    invited(cli)
    joined(cli)
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda words: asked.append(words))
    ended = cli("deploy", "approve", "study", "hospital-a.request", "--offline")
    assert (ended.code, asked) == (1, ["Are these its keys?"])
    assert "Not approved. The invitation stays open." in ended.out
    assert cli("deploy", "approve", "study", "hospital-a.request", "--offline", "--yes").code == 0
    assert len(asked) == 1
    again = cli("deploy", "approve", "study", "hospital-a.request", "--offline")
    assert "approved already" in again.out
    assert len(asked) == 1


def test_no_secret_is_printed(cli: Command) -> None:
    from coterie.operate.doctor import _holder_of_home, _holders_of_folder
    from coterie.record.leaks import Patterns

    told = founded()
    invited(cli)
    told += joined(cli)
    for words in (
        "approve study hospital-a.request --offline",
        "approve study hospital-a.request --offline",
        "approve study a.token --offline",
        "join study/hospital-a.cert --home H",
        "join study/hospital-a.cert --home study/hub",
        "invite study hospital-a",
        "revoke study hospital-a --offline",
        "doctor study H",
        "files study --systemd --compose",
    ):
        ended = cli("deploy", *words.split())
        told += ended.out + ended.err
    holders = [_holder_of_home(read_home(Path("H"))), *_holders_of_folder(Folder(Path("study")))]
    secrets = {name: value for holder in holders for name, value in holder.secrets.items()}
    token = Path("a.token").read_text().strip()
    assert set(Patterns(secrets, {"token": token.encode()})._names(told.encode())) == set()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("init study --config run.toml --members members.toml --server nats://h", "is there already"),
        ("init other --config none.toml --members members.toml --server nats://h", "cannot read the config none.toml"),
        ("init other --config run.toml --members none.toml --server nats://h", "cannot read the members none.toml"),
        ("init other --config run.toml --members members.toml --server h:1", "no address of a server"),
        ("init other --config run.toml --members members.toml --server nats://h --shape x", "--shape is 'x'"),
        ("init other --config bare.toml --members members.toml --server nats://h", "say what samples look like"),
        ("init other --config bare.toml --members members.toml --server nats://h --shape 30", "say what samples"),
        ("init other --config run.toml --members members.toml --server nats://h --grace 0", "--grace must be above 0"),
        (
            "init other --config run.toml --members members.toml --server nats://h --quorum 0",
            "--quorum must be at least",
        ),
        ("init other --config run.toml --members members.toml --server nats://h --quorum 9", "more than the 2 clients"),
        ("init other --config run.toml --members members.toml --server nats://h --scores x", "there is no score 'x'"),
        ("init other --config run.toml --members members.toml --server nats://h --days nan", "--days must be"),
        ("invite study hospital-c", "did you mean"),
        ("invite . hospital-a", "holds no deployment"),
        ("join own.npz --home H", "is not an invitation, request or certificate"),
        ("join run.toml --home H", "this is no invitation"),
        ("join none --home H", "cannot read none"),
        ("join a.token --home H", "name them with --data"),
        ("join a.token --home H --data own.npz --accelerator gpu", "--accelerator is 'gpu'"),
        ("join a.token --home H --data own.npz --report acc", "no score 'acc'"),
        ("approve study a.token", "the request is refused"),
        ("approve study run.toml", "the request is refused"),
        ("revoke study server", "is the hub"),
        ("doctor .", "holds no deployment"),
        ("files study", "Give --systemd, --compose or --kubernetes"),
        ("invite study hospital-a --hour 3", "did you mean --hours"),
    ],
)
def test_a_mistake_gives_one_message_and_leaves_nothing(cli: Command, words: str, says: str) -> None:
    founded()
    invited(cli)
    before = {str(path) for path in Path().rglob("*")}
    ended = cli("deploy", *words.split())
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("Error:") == 1
    assert {str(path) for path in Path().rglob("*")} == before


def test_a_certificate_takes_no_options_of_an_invitation(cli: Command) -> None:
    founded()
    invited(cli)
    joined(cli)
    cli("deploy", "approve", "study", "hospital-a.request", "--offline")
    ended = cli("deploy", "join", "study/hospital-a.cert", "--home", "H", "--data", "own.npz")
    assert (ended.code, "are given with the invitation" in ended.err) == (2, True)


def test_the_doctor_ends_with_1(cli: Command) -> None:
    founded()
    os.chmod("study/authority/signing", 0o644)
    ended = cli("deploy", "doctor", "study")
    assert ended.code == 1
    assert "chmod 600 study/authority/signing" in ended.out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_in_words(command: str) -> None:
    said = CliRunner().invoke(app, ["deploy", *command.split(), "--help"], env={"COLUMNS": "200"}).stdout
    assert f"coterie deploy {command}".strip() in said.replace("Usage: root", "coterie")
    assert "Show this message and exit." in said
    if command:
        assert "Examples:" in said
    for kind in ("bool", "str", "int", "float", "Path", "path", "file", "list"):
        assert f"<{kind}" not in said, kind


# -- with a server ----------------------------------------------------------------------------------------------------


@contextmanager
def server(port: int) -> Iterator[None]:
    """``coterie deploy server study --start``, in a process of its own, until it takes connections."""
    from forked import command, is_open

    log, end = Path("server.log").absolute(), time.monotonic() + 200
    with command(log, "deploy", "server", "study", "--start") as process:
        while not is_open(port):
            assert process.exitcode is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield
        process.terminate()
        process.join(60)


def pushed(home: Home) -> None:
    """A packet of a party to itself, as soon as the server takes it: within 30 attempts."""
    engine = connect(home, plan_of(home), connect_s=30)
    try:
        for attempt in range(30):
            try:
                engine.push(home.name, b"x", "k")
                delivery = engine.pull(60)  # a busy machine takes long
                assert delivery is not None
                return delivery.done()
            except EngineError:
                assert attempt < 29
                time.sleep(0.2)
    finally:
        engine.close()


def pull_until(end: float, engine: Engine) -> None:
    while time.monotonic() < end:
        engine.pull(0.2)


def test_a_taken_port_is_named(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(os, "execv", lambda *words: pytest.fail("it was started"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        founded(server=f"nats://127.0.0.1:{port}")
        ended = cli("deploy", "server", "study", "--start")
    assert (ended.code, ended.err.count("Error:")) == (1, 1)
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in ended.err
    assert "coterie deploy init --server" in ended.err


def test_a_server_without_the_operators_keys_says_where_to_go_on(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may lie on a medium of their own. Then the server runs all the same."""
    from coterie.operate.nats_server import free_port

    pytest.importorskip("nats")
    ran = list[str]()
    monkeypatch.setattr(os, "execv", lambda program, words: ran.append(program))
    founded(server=f"nats://127.0.0.1:{free_port()}")
    Path("study/authority").rename("elsewhere")
    ended = cli("deploy", "server", "study", "--start")
    assert (ended.code, ended.err, len(ran)) == (0, "", 1)
    assert ended.out == "The operator's keys are not here. Where they are, run: coterie deploy server study\n"


def test_a_party_is_let_in_and_cut_off(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nats")
    from coterie.operate.nats_server import free_port

    port = free_port()
    founded(server=f"nats://127.0.0.1:{port}")
    invited(cli)
    joined(cli)
    with monkeypatch.context() as patched:
        patched.setattr("coterie.operate.server.CONNECT_S", 0.3)
        late = cli("deploy", "approve", "study", "hospital-a.request")
    assert (late.code, late.err) == (0, ""), "an approval is whole without the server, which may be started later"
    assert "Approved, but the server does not know of it yet" in late.out
    assert cli("deploy", "join", "study/hospital-a.cert", "--home", "H").code == 0
    home = read_home(Path("H"))
    with server(port):
        pushed(home)  # the stream is there by itself, though the server was started after the approval
        assert "The server has the newest plan." in Path("server.log").read_text()
        ended = cli("deploy", "server", "study")
        assert (ended.code, ended.err) == (0, "")
        assert cli("deploy", "server", "study", "--start").err.count("runs already") == 1
        ended = cli("deploy", "doctor", "study", "H", "--clock", "--broker")
        apart = "the broker keeps this member apart from its API and from the others"
        assert (ended.code, ended.out.count(apart)) == (0, 2)
        assert re.search(r"the server's clock is [01]\.[0-9] s (ahead of|behind) this one", ended.out)
        engine = connect(home, plan_of(home), connect_s=30)
        assert engine.pull(0.1) is None
        began = time.monotonic()
        ended = cli("deploy", "revoke", "study", "hospital-a")
        assert (ended.code, ended.err) == (0, "")
        with pytest.raises(EngineError):
            pull_until(began + 60, engine)
        engine.close()
        with pytest.raises(EngineError):
            connect(home, plan_of(home), connect_s=0.5)
        invited(cli, "hospital-a", "--again")
        joined(cli, "new")
        assert cli("deploy", "approve", "study", "hospital-a.request").code == 0
        assert cli("deploy", "join", "study/hospital-a.cert", "--home", "new").code == 0
        new = read_home(Path("new"))
        engine = connect(new, plan_of(new), connect_s=30)
        assert engine.pull(0.1) is None
        engine.close()
        with pytest.raises(EngineError):  # the name is let in again, and its lost key is not
            connect(home, plan_of(home), connect_s=0.5)
    assert stat.S_IMODE(os.stat("study/authority").st_mode) == 0o700
