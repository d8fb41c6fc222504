"""What all parties' processes have in common."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import coterie.protocol.core as fl
from coterie.deploy import logs
from coterie.deploy.built_party import BuiltParty
from coterie.deploy.engine import EngineError, NotAdmittedError
from coterie.deploy.home import Home, plan_of, take_back
from coterie.deploy.kills import Kill, doomed
from coterie.deploy.logs import NodeObserver, Say, event
from coterie.deploy.plan import Plan
from coterie.deploy.status import RunStatus
from coterie.deploy.store import FileStore
from coterie.record.files import locked
from coterie.runs.failures import AllSkippedError, is_divergence

_HELD = "{} is at work in another process already: a party runs once. End that process first, or leave it alone"
GOES_ON = "Stopped. Started again, it goes on where it was."

Serve = Callable[[Callable[[], RunStatus]], contextlib.AbstractContextManager[object]]
Doom = Kill | None
"""How a rehearsal kills a process, if it does."""


def silent(words: str) -> None: ...


@contextlib.contextmanager
def running(home: Home, *, stderr: bool) -> Iterator[threading.Event]:
    stopped = threading.Event()
    with mending(), locked(home.path, _HELD):
        logs.start(home.log, home.name, stderr=stderr)
        before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield stopped
        except BaseException as error:
            event("failed", logging.ERROR, why=f"{type(error).__name__}: {error}")
            raise
        finally:
            event("stop")
            logs.stop()
            for number, handler in before.items():
                signal.signal(number, handler)


def started(home: Home) -> Plan:
    plan = plan_of(home)
    if 0 < plan.settings.not_after_s < time.time():
        raise fl.UserError(
            f"the deployment of {home.path} has ended, by its plan and this clock: look at the clock, or let the "
            "operator run coterie deploy renew DIR, and then run coterie deploy join NAME.cert --home H"
        )
    take_back(home, plan)
    digest = plan.sha256
    event("start", pid=os.getpid(), role=home.role, plan=plan.version, plan_sha256=digest, session=plan.session)
    return plan


def node_options(built: BuiltParty, observer: NodeObserver, doom: Doom) -> dict[str, Any]:
    effects, observer = doomed(doom, built.work.effects, observer)
    former = built.home.former
    return {
        "effects": effects,
        "store": FileStore(built.home.state),
        "observer": observer,
        "clock": built.clock,
        "limits": built.plan.settings.limits,
        "samples": built.samples,
        "former": None if former is None else FileStore(former.state).read(),
    }


def served(serve: Serve | None, status: Callable[[], RunStatus]) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if serve is None else serve(status)


def serve_on(serve: Serve | None, stopped: threading.Event, say: Say) -> None:
    """After the end, until this process is told to stop."""
    if serve is not None and not stopped.is_set():
        say("Its numbers are served until it is stopped.")
        stopped.wait()


@contextlib.contextmanager
def mending() -> Iterator[None]:
    """What does not mend itself is a UserError (exit code 2), after which a service manager starts no party again."""
    try:
        yield
    except NotAdmittedError as error:
        raise fl.UserError(f"{error}. Ask the operator why") from None
    except EngineError as error:
        raise fl.RunError(f"{error}. Started again, it goes on where it was") from None
    except fl.RunError as error:
        if is_divergence(error) or isinstance(error, AllSkippedError):
            raise fl.UserError(str(error)) from error
        raise
