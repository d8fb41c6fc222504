"""A SuperLink and SuperNodes on this machine, with a party's pipe behind each: for measurements and tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.operate.nats_server import free_port

TASK_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    TASK_POLL: "0.1",
    "OMP_NUM_THREADS": "1",
}
BIN = Path(sys.executable).parent


class Flower:
    """at: for Flower's files.  tls: folder with the SuperLink's key and certificate, and the authority's.

    app: the folder that ``flwr run`` runs.  environment: beyond ``QUIET``.  Used as a context: all processes end then.
    """

    def __init__(self, at: Path, port: int, tls: Path, app: Path, environment: Mapping[str, str] | None = None) -> None:
        self.at, self.port, self.tls, self.app = at, port, tls, app
        at.mkdir(parents=True, exist_ok=True)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self._env = {**os.environ, **QUIET, **(environment or {}), "FLWR_HOME": str(at), "PATH": path}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (at / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
            f"root-certificates = {json.dumps(str(tls / 'authority.pem'))}\n"
        )

    def __enter__(self) -> Flower:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self.running):
            self.stop(name)

    def link(self, *options: str) -> None:
        """Start the SuperLink; returns when it answers."""
        files = [f"--ssl-{kind}={self.tls / name}.pem" for kind, name in CERTIFICATES.items()]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        given = [*files, *where, "--disable-runtime-dependency-installation", *options]
        self.start("link", [str(BIN / "flower-superlink"), *given])
        until = time.monotonic() + 90
        while self.flwr("list").returncode != 0:
            assert time.monotonic() < until, self.output("link")
            time.sleep(1)

    def node(self, name: str, home: Path, *options: str, port: int = 0) -> None:
        """Start a SuperNode whose app opens the pipe in this home. port: where it reaches the SuperLink."""
        config = f"coterie-home={json.dumps(str(home))}"
        words = ["--superlink", f"127.0.0.1:{port or self.port}"]
        words += ["--root-certificates", str(self.tls / "authority.pem")]
        words += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config, *options]
        self.start(name, [str(BIN / "flower-supernode"), *words])

    def run(self) -> int:
        """Start a run; its number."""
        told = self.flwr("run", str(self.app), "--format", "json")
        assert "run-id" in told.stdout, told.stdout + told.stderr
        return int(json.loads(told.stdout[told.stdout.index("{") :])["run-id"])

    def runs(self) -> list[dict[str, Any]]:
        """What Flower says of all runs."""
        told = self.flwr("list", "--format", "json")
        found: list[dict[str, Any]] = json.loads(told.stdout[told.stdout.index("{") :])["runs"]
        return found

    def stop(self, name: str, kill: bool = False) -> None:
        """End a process that was started here, and all that it has started."""
        one = self.running.pop(name)
        children = descendants(one.pid)
        (one.kill if kill else one.terminate)()
        try:
            one.wait(10)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
        for pid in children:
            _end(pid)

    def output(self, name: str) -> str:
        """The last of what a process has written."""
        return (self.at / f"{name}.txt").read_text(errors="replace")[-4000:]

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of Flower's, and what it has said."""
        return subprocess.run([str(BIN / "flwr"), *words], env=self._env, capture_output=True, text=True, timeout=120)

    def start(self, name: str, words: Sequence[str]) -> None:
        """Start a process that ends with the others."""
        with (self.at / f"{name}.txt").open("ab") as file:
            self.running[name] = subprocess.Popen(words, stdout=file, stderr=file, env=self._env)


CERTIFICATES: Mapping[str, str] = {"ca-certfile": "authority", "certfile": "certificate", "keyfile": "key"}


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(path.parent.name)
            found += [child, *descendants(child)]
    return found


def _end(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
