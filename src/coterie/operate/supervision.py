"""The processes of a rehearsal, one for each party, restarted when killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Self

from coterie.deploy.kills import Kill
from coterie.protocol.errors import CoterieError, RunError

OUTPUT = "output.txt"
"""A process's standard output and error, in the party's home."""
PRELOADED = (
    "coterie.deploy.hub_process",
    "coterie.deploy.party_process",
    "coterie.deploy.nats",
    "coterie.runs.registry",
    "scipy.optimize",
)
_MOST_STARTS = 10  # a party that dies more often does not die of kills alone
_ENDS_S = 30.0  # for parties to hear that the run is over
_STOPS_S = 5.0
_LOOKS_S = 0.2
_WORDS = 400

Life = Callable[[Path, Kill | None], None]
"""Of a process: its folder, and how it will be killed."""


def warm() -> None:
    from multiprocessing import forkserver

    if sys.platform == "win32":
        raise RunError("a rehearsal forks its processes, which Windows does not: use coterie run, or Linux or macOS")
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *PRELOADED])
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # many processes share the cores
    try:
        forkserver.ensure_running()
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads


class Supervision:
    """All parties' processes by name, until the hub's has ended. A context that stops them all.

    kills: in order.  absence_s: of a party killed in mid-work.  back: told of a kill when its party restarts.
    """

    def __init__(
        self,
        hub: str,
        folders: Mapping[str, Path],
        lives: Mapping[str, Life],
        kills: Iterable[Kill] = (),
        *,
        absence_s: float = 0.0,
        back: Callable[[Kill], None] = lambda kill: None,
    ) -> None:
        self.hub, self.folders, self.lives, self.absence_s, self._back = hub, folders, lives, absence_s, back
        self.kills = sorted(kills, key=lambda kill: kill.round)
        self.started: Counter[str] = Counter()
        self._context = multiprocessing.get_context("forkserver")
        self._running: dict[str, ForkServerProcess] = {}
        self._doomed: dict[str, Kill] = {}
        self._due: dict[str, float] = {}  # when those that were killed are started again
        self._killed: dict[str, Kill] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        for name in [*(name for name in self.folders if name != self.hub), self.hub]:
            self._start(name)

    def watch(self, tell: Callable[[], None]) -> None:
        """Return when all parties have ended.  tell: called a few times a second. Raises RunError, with a failed
        party's own words.
        """
        until = float("inf")
        while self._running or self._due:
            wait([one.sentinel for one in self._running.values()], _LOOKS_S)
            for name in [name for name, one in self._running.items() if not one.is_alive()]:
                self._ended(name)
                if name == self.hub and name not in self._due:
                    until = time.monotonic() + _ENDS_S
            for name in [name for name, at in self._due.items() if at <= time.monotonic()]:
                del self._due[name]
                self._start(name)
                if name in self._killed:
                    self._back(self._killed.pop(name))
            tell()
            if time.monotonic() > until:
                raise RunError(f"the run is over, but {', '.join(self._running)} did not end within {_ENDS_S:.0f} s")

    def stop(self) -> None:
        self._due.clear()
        for one in self._running.values():
            one.terminate()
        until = time.monotonic() + _STOPS_S
        for one in self._running.values():
            one.join(max(0.0, until - time.monotonic()))
            if one.is_alive():
                one.kill()
                one.join()
        self._running.clear()

    def _start(self, name: str) -> None:
        kill = next((one for one in self.kills if one.party == name), None)
        if kill is not None:
            self.kills.remove(kill)
            self._doomed[name] = kill
        self.started[name] += 1
        arguments = (self.lives[name], self.folders[name], kill)
        self._running[name] = one = self._context.Process(target=_live, args=arguments, name=name, daemon=True)
        one.start()

    def _ended(self, name: str) -> None:
        one = self._running.pop(name)
        one.join()
        code = one.exitcode or 0
        kill = self._doomed.pop(name, None)
        if code == 0:
            if kill is not None:
                self.kills.insert(0, kill)  # its time never came
        elif code < 0 and self.started[name] < _MOST_STARTS:
            mid = kill is not None and kill.mid
            self._due[name] = time.monotonic() + self.absence_s * mid
            if kill is not None:
                self._killed[name] = kill
        else:
            raise RunError(f"{name} has failed: {self._words(name) or f'exit code {code}'}")

    def _words(self, name: str) -> str:
        path = self.folders[name] / OUTPUT
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1][-_WORDS:] if lines else ""


def _live(life: Life, folder: Path, kill: Kill | None) -> None:
    import torch  # here, so that a caller may call ``warm`` before it imports as much itself

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for whoever started all parties
    descriptor = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    _end_with_parent()
    torch.set_num_threads(1)  # the parties share the cores
    try:
        life(folder, kill)
    except CoterieError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
