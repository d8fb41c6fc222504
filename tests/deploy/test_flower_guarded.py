"""What docs/engines.md says of guarding a SuperLink and its SuperNodes, tried with Flower itself: minutes."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from benchmarks.flower_rig import BIN, Flower
from coterie.deploy.engines import connect
from coterie.deploy.flower import FlowerEngine
from coterie.deploy.home import hub_home, plan_of, read_home
from coterie.operate.allowed import deployable
from coterie.operate.nats_server import free_port
from coterie.operate.trial import found
from coterie.runs.config import RunConfig
from coterie.runs.experiment import build

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PARTIES = ("client/0", "client/1", "client/2")


class Guarded:
    """Homes and engines of a deployment whose SuperLink is not started yet."""

    def __init__(self, at: Path) -> None:
        self.at, self.port = at, free_port()
        experiment = build(deployable(RunConfig("fedavg", clients=3, rounds=1), rehearsal=True))
        ready = found(at / "d", experiment, f"flower://127.0.0.1:{self.port}", 120.0)
        experiment.close()
        self.homes = ready.homes
        homes = {name: read_home(path) for name, path in ready.homes.items()}
        homes[ready.hub] = hub_home(ready.folder.path)  # with the newest plan
        plan = plan_of(homes[ready.hub])
        self.engines: dict[str, FlowerEngine] = {}
        for name, home in homes.items():
            made = connect(home, plan)
            assert isinstance(made, FlowerEngine)
            self.engines[name] = made
        self.hub, self.tls = self.engines[ready.hub], ready.folder.nats
        self.flower = Flower(at / "flwr", self.port, self.tls, ready.folder.flower)

    def reached(self) -> set[str]:
        return set(self.hub.nodes()) - {self.hub.name}

    def node(self, name: str, *options: str, port: int = 0) -> None:
        self.flower.node(name.replace("/", "-"), self.homes[name], *options, port=port)

    def ended(self, name: str) -> bool:
        return self.flower.running[name.replace("/", "-")].poll() is not None

    def output(self, name: str) -> str:
        return self.flower.output(name.replace("/", "-"))

    def close(self) -> None:
        for engine in self.engines.values():
            engine._called_s = float("-inf")
            engine.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    with made.flower:
        yield made
    made.close()


def _eventually(holds: Callable[[], bool], wait_s: float = 180) -> bool:
    until = time.monotonic() + wait_s
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.5)
    return held


def _key(path: Path) -> tuple[Path, Path]:
    """A node's key as ``ssh-keygen -t ecdsa -b 384`` makes one: the private and the public file."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return path, public


def test_only_registered_nodes_are_admitted(guarded: Guarded, tmp_path: Path) -> None:
    known, public = _key(tmp_path / "known")
    stranger, _ = _key(tmp_path / "stranger")
    guarded.flower.link("--enable-supernode-auth")
    told = guarded.flower.flwr("supernode", "register", str(public))
    assert told.returncode == 0, told.stdout + told.stderr
    guarded.node(PARTIES[0], "--auth-supernode-private-key", str(known))
    guarded.node(PARTIES[1], "--auth-supernode-private-key", str(stranger))
    guarded.node(PARTIES[2])
    guarded.flower.run()
    assert _eventually(lambda: guarded.ended(PARTIES[1]) and guarded.ended(PARTIES[2]))
    assert _eventually(lambda: guarded.reached() == {PARTIES[0]}), guarded.output(PARTIES[0])


def test_a_node_with_trusted_entities_runs_no_app_of_a_folder(guarded: Guarded, tmp_path: Path) -> None:
    public = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "trusted.yaml").write_text(json.dumps({"fpk_1": public.decode()}))
    guarded.flower.link()
    guarded.node(PARTIES[0], "--trusted-entities", str(tmp_path / "trusted.yaml"))
    guarded.node(PARTIES[1])
    guarded.flower.run()
    assert _eventually(lambda: guarded.reached() == {PARTIES[1]})
    assert _eventually(lambda: "FAB could not be verified" in guarded.output(PARTIES[0]))
    assert guarded.reached() == {PARTIES[1]}


def test_a_nodes_own_port_gives_tasks_only_to_those_that_know_a_secret(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(os.urandom(32))
    secret = ["--superexec-auth-secret-file", str(tmp_path / "secret")]
    guarded.flower.link()
    closed, port = free_port(), free_port()
    guarded.node(PARTIES[0], "--port", str(closed), "--isolation", "process", *secret)
    where = ["--insecure", "--runtime-api-address", f"127.0.0.1:{closed}"]
    guarded.flower.start("exec", [str(BIN / "flower-superexec"), *where, *secret])
    guarded.node(PARTIES[1], "--port", str(port))
    guarded.flower.run()
    assert _eventually(lambda: guarded.reached() == set(PARTIES[:2])), guarded.output("exec")
    assert _status(f"http://127.0.0.1:{closed}", "runtime") == 401
    assert _status(f"http://127.0.0.1:{port}", "runtime") == 200


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_a_proxy_lets_nodes_through_and_nothing_else(guarded: Guarded, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "nginx.conf").write_text(f"""\
daemon off;
{"user root;" if os.getuid() == 0 else ""}
pid {tmp_path}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log {tmp_path}/access.log;
    client_body_temp_path {tmp_path}/body;
    proxy_temp_path {tmp_path}/proxy;
    fastcgi_temp_path {tmp_path}/fastcgi;
    uwsgi_temp_path {tmp_path}/uwsgi;
    scgi_temp_path {tmp_path}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {guarded.tls}/certificate.pem;
        ssl_certificate_key {guarded.tls}/key.pem;
        location /v1/fleet/ {{ proxy_pass https://127.0.0.1:{guarded.port}; client_max_body_size 0; }}
        location / {{ return 403; }}
    }}
}}
""")
    guarded.flower.link()
    guarded.flower.start("nginx", [str(shutil.which("nginx")), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
    for name in PARTIES[:2]:
        guarded.node(name, port=port)
    guarded.flower.run()
    assert _eventually(lambda: guarded.reached() == set(PARTIES[:2])), guarded.output(PARTIES[0])
    body = bytes(8 << 20)
    guarded.engines[PARTIES[1]].push(PARTIES[0], body, "large")
    until = time.monotonic() + 200
    while (came := guarded.engines[PARTIES[0]].pull(1.0)) is None and time.monotonic() < until:
        guarded.engines[PARTIES[1]].pull(0.1)
    assert came is not None
    assert came.body == body
    for path in ("control", "runtime"):
        assert _status(f"https://127.0.0.1:{port}", path, guarded.tls) == 403
        assert _status(f"https://127.0.0.1:{guarded.port}", path, guarded.tls) == 200  # and asks for no password


def _status(where: str, path: str, tls: Path | None = None) -> int:
    """What a stranger gets who asks for the runs, or for a task."""
    word = {"control": "list-runs", "runtime": "acquire-task"}[path]
    request = urllib.request.Request(
        f"{where}/v1/{path}/{word}", b"", {"Content-Type": "application/protobuf"}, method="POST"
    )
    try:
        context = None if tls is None else ssl.create_default_context(cafile=str(tls / "authority.pem"))
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
