"""Commands, or other code, in processes of their own, which are forked: they have their imports already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command import heard

from coterie.operate.supervision import warm

PROXIES = ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY")


def fork(words: Sequence[str], out: Path, err: Path, at: Path | None = None, **env: str) -> Any:
    """``coterie WORDS`` of a shell, started: a ``multiprocessing.Process``. at: its folder.  env: what it has more."""
    warm()
    made = multiprocessing.get_context("forkserver").Process(target=_command, args=(words, at or Path(), env, out, err))
    made.start()
    return made


def fork_code(code: str, err: Path, **env: str) -> Any:
    """This code, started; it hears Ctrl-C.  err: of what it says to standard error."""
    warm()
    made = multiprocessing.get_context("forkserver").Process(target=_code, args=(code, env, err))
    made.start()
    return made


def wait_until(done: Callable[[], bool], process: Any) -> None:
    """Wait for what a process does."""
    deadline = time.monotonic() + 200
    while not done():
        assert process.exitcode is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_open(port: int) -> bool:
    """Whether a server listens here."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def command(log: Path, *words: str, **env: str) -> Iterator[Any]:
    """A command that is killed in the end if it still runs. log: of all it says."""
    made = fork(words, log, log, None, **env)
    try:
        yield made
    finally:
        made.kill()
        made.join()


def _command(words: Sequence[str], at: Path, env: dict[str, str], out: Path, err: Path) -> None:
    from coterie.cli.app import main

    os.chdir(at)
    os.umask(0o077)
    for name in PROXIES:
        os.environ.pop(name, None)
    os.environ.update(env)
    heard()
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        _into(path, stream)
    sys.argv = ["coterie", *words]
    main()


def _code(code: str, env: dict[str, str], err: Path) -> None:
    os.environ.update(env)
    heard()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _into(err, sys.stderr)
    exec(code, {})


def _into(path: Path, stream: Any) -> None:
    """Whatever the process writes to this stream goes to the file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
