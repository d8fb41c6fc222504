"""One party's process: its place, its engine and its node, from start to end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch

from coterie.deploy import logs
from coterie.deploy.clock import Clock, RehearsedClock
from coterie.deploy.engines import connect
from coterie.deploy.folder import Folder, hub_home
from coterie.deploy.home import Home, plan_of, read_home
from coterie.deploy.hub import HubNode
from coterie.deploy.kills import Doomed, Interrupted, Kill
from coterie.deploy.logs import Journal, event
from coterie.deploy.node import Effects, Node, NodeObserver, Settings
from coterie.deploy.place import Place, place
from coterie.deploy.plan import Plan, roster_hash, spoken
from coterie.deploy.prometheus import serving
from coterie.deploy.recorder import HubJournal, Recorder
from coterie.deploy.store import FileStore, unpack
from coterie.protocol.errors import RunError
from coterie.protocol.party import Party
from coterie.runs.evaluation import check_not_all_skipped
from coterie.runs.folder import METRICS, read_lines


def as_party(path: Path, kill: Kill | None = None, *, stderr: bool = False) -> None:
    """The life of a party, from its home on, until the hub ends the run or SIGTERM comes. Raises what ends it early."""
    home = read_home(path)
    with _logged(home, stderr=stderr):
        found = _placed(home)
        observer, effects = _doomed(kill, Journal(), found.effects)
        node = Node(
            found.member,
            effects,
            connect(home, found.plan),
            FileStore(home.state),
            clock=_clock(found),
            settings=_settings(found.plan),
            observer=observer,
            scores=lambda r: found.scores(),
            samples=found.samples,
        )
        with _stopped_by_signals(node):
            node.serve()


def as_hub(folder: Path, kill: Kill | None = None, *, metrics: int | None = None, stderr: bool = False) -> None:
    """The life of the hub, from the operator's folder on: all rounds that are not done yet. Raises what ends it early.

    metrics: the port of a Prometheus endpoint on this machine's loopback.
    """
    of = Folder(folder)
    home = hub_home(of)
    with _logged(home, stderr=stderr), contextlib.ExitStack() as held:
        found, store = _placed(home), FileStore(home.state)
        recorder = Recorder(
            of.run,
            found.plan,
            engine="nats",
            parameters=found.model.spec.size,
            done=max(0, _done(store, found.party)),
        )
        held.callback(recorder.close)
        if metrics is not None:
            held.enter_context(serving(metrics, lambda: recorder.status))
        observer, effects = _doomed(kill, HubJournal(recorder), found.effects)
        node = HubNode(
            found.member,
            effects,
            connect(home, found.plan),
            store,
            clock=_clock(found),
            settings=_settings(found.plan),
            observer=observer,
            samples=found.samples,
        )

        with _stopped_by_signals(node):
            try:
                node.run(found.rounds, recorder.closed, recorder.heard)
            except RunError as error:
                if node.stopped.is_set():
                    return
                recorder.failed(str(error))
                raise
        if not node.stopped.is_set():
            recorder.ended()
            check_not_all_skipped(read_lines(of.run / METRICS))


def _placed(home: Home) -> Place:
    """The place of a home. Tells which roster it believes."""
    plan = plan_of(home)
    event(
        "start",
        pid=os.getpid(),
        role=home.role,
        plan=plan.version,
        session=plan.session,
        roster=spoken(roster_hash(plan)),
    )
    return place(home)


def _settings(plan: Plan) -> Settings:
    of = plan.settings
    return Settings(patience_s=of.patience_s, grace_s=of.grace_s, retries=of.retries)


def _clock(found: Place) -> Clock:
    """The machine's clock, or in a rehearsal the virtual one."""
    if found.links is None:
        return Clock(found.plan.settings.begins_s)
    return RehearsedClock(found.home.name, [one.name for one in found.plan.roster.entries], found.links)


def _done(store: FileStore, party: Party) -> int:
    """The last round that the hub has committed; 0 before the first."""
    data = store.load()
    return 0 if data is None else max(0, unpack(data, party)[0].done)


def _doomed(kill: Kill | None, observer: NodeObserver, effects: Effects) -> tuple[NodeObserver, Effects]:
    if kill is None:
        return observer, effects
    doomed = Doomed(kill, observer)
    return doomed, Interrupted(effects, doomed)


@contextlib.contextmanager
def _logged(home: Home, *, stderr: bool) -> Iterator[None]:
    """The party's log. One thread computes: a machine may have other parties to serve."""
    torch.set_num_threads(1)
    logs.start(home.log, home.name, stderr=stderr)
    try:
        yield
    except BaseException as error:
        event("failed", logging.ERROR, why=f"{type(error).__name__}: {error}")
        raise
    finally:
        event("stop")
        logs.stop()


@contextlib.contextmanager
def _stopped_by_signals(node: Node) -> Iterator[None]:
    """SIGTERM and SIGINT let the node stop after what it does now."""
    before = {number: signal.signal(number, lambda *_: node.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
