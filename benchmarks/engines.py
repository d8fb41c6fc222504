"""How fast the engine over NATS is on one machine, and how long packets stand still when something is killed.

``python -m benchmarks.engines docs/engines/nats.json`` (some two minutes). A server and two parties, mutual TLS on
loopback, packets stored on disk. Both parties' engines are in this process, the server is in one of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

from nats.js.api import StreamInfo

from coterie.crypto import certificates
from coterie.deploy.engine import STREAM, Access, Delivery, NotAdmittedError, Tls
from coterie.deploy.names import ENGINE, OPERATOR, common
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link
from coterie.deploy.nats_stream import provision
from coterie.operate.nats_server import Listen, NatsServer, ServerCluster, binary, free_port
from coterie.record.provenance import write_record

HUB, CLIENT = "hub", "client/1"
HOPS, SMALL = 500, 1000
DAYS = 30.0
MEGABYTES = (1, 10, 50, 100)


def kill(server: NatsServer) -> None:
    server.stop(signal.SIGKILL)


def reload(server: NatsServer, access: Access) -> None:
    """Admit these parties from now on; all others are cut off."""
    server.access = access
    server.write()
    if server.pid is not None:
        os.kill(server.pid, signal.SIGHUP)


@dataclass
class Authority:
    """A certificate authority whose files lie in a folder."""

    folder: Path
    key: bytes = field(default_factory=certificates.new_key)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = certificates.new_authority(self.key, time.time(), DAYS)
        self.path.write_bytes(self.certificate)

    @property
    def path(self) -> Path:
        return self.folder / "authority.pem"

    def tls(self, name: str, hosts: Sequence[str] = (), *, now_s: float | None = None, days: float = DAYS) -> Tls:
        """A fresh key and its certificate."""
        key = certificates.new_key()
        public = certificates.public_of(key)
        begins_s = time.time() if now_s is None else now_s
        signed = certificates.sign(self.certificate, self.key, common(name), public, begins_s, days, hosts)
        stem = f"{name.replace('/', '-')}-{hashlib.sha256(key).hexdigest()[:8]}"
        paths = Tls(self.folder / f"{stem}.pem", self.folder / f"{stem}.key", self.path)
        paths.certificate.write_bytes(signed)
        paths.key.write_bytes(key)
        return paths


class Deployment:
    """One server, or several that form a cluster, and the parties' keys. The first party watches.

    As a context manager it is started, and closed at the end, with all engines.
    """

    def __init__(self, folder: Path, parties: Sequence[str] = (HUB, CLIENT), servers: int = 1, **setting: Any) -> None:
        self.folder, self.parties, self.setting = folder, tuple(parties), setting
        self.authority = Authority(folder / "keys")
        self.tls = {name: self.authority.tls(name) for name in parties}
        self.operator = self.authority.tls(OPERATOR)
        own = self.authority.tls(ENGINE, ["127.0.0.1"])
        self.access = self.admitting(parties)
        self.servers = servers_in(folder, servers, own, self.access)
        self.engines: list[NatsEngine] = []

    @property
    def server(self) -> NatsServer:
        return self.servers[0]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def admitting(self, parties: Collection[str]) -> Access:
        pins = {name: pin(self.tls[name]) for name in self.parties}
        refused = [pins.pop(name) for name in self.parties if name not in parties]
        return Access(pins, frozenset(self.parties[:1]), pin(self.operator), self.parties, refused)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.provision()

    def provision(self) -> None:
        provision(self.urls, self.operator, self.access, **self.setting)

    def engine(self, name: str, url: str | None = None, **setting: Any) -> NatsEngine:
        """A connection of this party. Its older ones are closed: a party has one at a time. url: another way there."""
        for older in [one for one in self.engines if one.name == name]:
            older.close()
            self.engines.remove(older)
        setting = {"tls": self.tls[name], "parties": self.parties, "spool": self.folder, **setting}
        found = NatsEngine(name, [url] if url else self.urls, **setting)
        self.engines.append(found)
        return found

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def servers_in(folder: Path, count: int, own: Tls, access: Access) -> list[NatsServer]:
    """Servers of one cluster, or one server, on free ports of the loopback interface; not yet started.

    own: their key and certificate.
    """
    ports = [free_port() for _ in range(2 * count)]
    made = []
    for number, (port, inner) in enumerate(zip(ports, ports[count:], strict=False)):
        others = [f"127.0.0.1:{other}" for other in ports[count:] if other != inner]
        cluster = ServerCluster(inner, others, [pin(own)]) if others else None
        listen = Listen(
            folder / f"store{number}",
            own.certificate,
            own.key,
            own.authority,
            port,
            name=f"server{number}",
            cluster=cluster,
        )
        made.append(NatsServer(folder / f"server{number}", access, listen))
    return made


def stream_of(servers: Sequence[NatsServer], operator: Tls) -> StreamInfo:
    """What the servers say of the stream of packets."""
    link = Link(OPERATOR, [server.url for server in servers], operator, 20)
    try:
        return link.run(link.stream.stream_info(STREAM))
    finally:
        link.close()


def leader(servers: Sequence[NatsServer], operator: Tls) -> NatsServer:
    """The server of a cluster that leads the stream."""
    cluster = stream_of(servers, operator).cluster
    assert cluster is not None
    return next(server for server in servers if server.listen.name == cluster.leader)


def pin(tls: Tls) -> str:
    """The hash of its public key, by which a server admits a party."""
    return hashlib.sha256(certificates.public_of(tls.key.read_bytes())).hexdigest()


@contextmanager
def deployment(servers: int = 1, parties: Sequence[str] = (HUB, CLIENT)) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory() as folder, Deployment(Path(folder), parties, servers) as made:
        yield made


@contextmanager
def echoing(engine: NatsEngine) -> Iterator[None]:
    """The other party sends back what comes, as a party does: the answer is stored, then the packet is done."""
    stop = threading.Event()

    def echo() -> None:
        number = 0
        while not stop.is_set():
            if (delivery := engine.pull(0.2)) is not None:
                engine.push(HUB, delivery.body, f"{CLIENT}.{number}")
                delivery.done()
                number += 1

    thread = threading.Thread(target=echo)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def there_and_back(hub: NatsEngine, body: bytes, key: str) -> float:
    """Seconds until the echo is here and done."""
    began = time.perf_counter()
    hub.push(CLIENT, body, key)
    answer = waited(hub)
    assert answer.body == body
    answer.done()
    return time.perf_counter() - began


def waited(engine: NatsEngine) -> Delivery:
    while (delivery := engine.pull(30)) is None:
        pass
    return delivery


def hops() -> dict[str, float]:
    """Milliseconds of one hop, half of the way there and back, of a small packet; and what the server then takes."""
    with deployment() as made:
        hub, client = made.engine(HUB), made.engine(CLIENT)
        with echoing(client):
            times = [there_and_back(hub, os.urandom(SMALL), f"{n}") / 2 * 1000 for n in range(HOPS)]
        resident = _resident(made.server.pid)
    return {"median_ms": median(times), "p95_ms": quantiles(times, n=20)[-1], "server_mb": resident / 1e6}


def large(repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """By megabytes: seconds there and back, the median; and seconds of a core that parties and server spend on it."""
    found, spent = dict[str, float](), dict[str, float]()
    with deployment() as made:
        hub, client = made.engine(HUB), made.engine(CLIENT)
        with echoing(client):
            for size in MEGABYTES:
                before_s = time.process_time() + _busy(made.server.pid)
                times = [there_and_back(hub, os.urandom(size * 1_000_000), f"{size}.{n}") for n in range(repeats)]
                found[str(size)] = median(times)
                spent[str(size)] = (time.process_time() + _busy(made.server.pid) - before_s) / repeats
    return found, spent


def started() -> float:
    """Milliseconds until a server is ready."""
    with deployment() as made:
        made.server.stop()
        began = time.perf_counter()
        made.server.start()
        return (time.perf_counter() - began) * 1000


def server_killed() -> float:
    """Seconds from the moment in which a killed server is ready again to the next packet that has come and is done."""
    with deployment() as made:
        hub, client = made.engine(HUB), made.engine(CLIENT)
        with echoing(client):
            there_and_back(hub, b"before", "0")
            kill(made.server)
            made.server.start()
            return there_and_back(hub, b"after", "1")


PARTY = """
import sys
from pathlib import Path
from coterie.deploy.nats import NatsEngine
from coterie.deploy.nats_link import Link
from coterie.deploy.engine import Tls
name, url, *files = sys.argv[1:]
engine = NatsEngine(name, [url], Tls(*map(Path, files)), ["hub", name])
while True:
    if (delivery := engine.pull(5)) is not None:
        print(delivery.body.decode(), flush=True)
"""


def leader_killed() -> float:
    """Seconds of the packet there and back during which the server that leads the stream dies, of three."""
    with deployment(3) as made:
        hub, client = made.engine(HUB), made.engine(CLIENT)
        with echoing(client):
            there_and_back(hub, b"before", "0")
            kill(leader(made.servers, made.operator))
            return there_and_back(hub, b"after", "1")


def party_killed() -> float:
    """Seconds from the moment in which a party that was killed is connected again to the packet that was not done."""
    with deployment() as made:
        hub, tls = made.engine(HUB), made.tls[CLIENT]
        command = [sys.executable, "-c", PARTY, CLIENT, made.server.url]
        files = [str(path) for path in (tls.certificate, tls.key, tls.authority)]
        process = subprocess.Popen([*command, *files], stdout=subprocess.PIPE, text=True)
        hub.push(CLIENT, b"not done", "0")
        assert process.stdout is not None
        assert process.stdout.readline() == "not done\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        client = made.engine(CLIENT)
        began = time.perf_counter()
        assert waited(client).body == b"not done"
        return time.perf_counter() - began


def revoked() -> float:
    """Seconds from the reload without a party to the error in its engine."""
    with deployment() as made:
        client = made.engine(CLIENT)
        client.pull(0.1)
        began = time.perf_counter()
        reload(made.server, made.admitting([HUB]))
        try:
            while time.perf_counter() - began < 60:
                client.pull(0.05)
        except NotAdmittedError:
            return time.perf_counter() - began
    raise AssertionError("it goes on")


def _resident(pid: int | None) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


def _busy(pid: int | None) -> float:
    """Seconds of a core that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _several(measure: Callable[[], float], repeats: int) -> dict[str, float]:
    found = [measure() for _ in range(repeats)]
    return {"median": median(found), "least": min(found), "most": max(found)}


def study(repeats: int) -> dict[str, Any]:
    version = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    there_and_back_s, core_s = large(repeats)
    return {
        "server": version,
        "load before": os.getloadavg()[0],
        "repeats": repeats,
        "hop": hops(),
        "there and back, s": there_and_back_s,
        "there and back, s of a core": core_s,
        "server ready, ms": _several(started, repeats),
        "after the server was killed, s": _several(server_killed, repeats),
        "after the leader of three was killed, s": _several(leader_killed, repeats),
        "after a party was killed, s": _several(party_killed, repeats),
        "revoked, s": _several(revoked, repeats),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    command = f"python -m benchmarks.engines {given.out.as_posix()} --repeats {given.repeats}"
    write_record(given.out, command, study(given.repeats))
