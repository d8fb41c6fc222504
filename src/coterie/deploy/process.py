"""One party's process: its place, its engine and its node, from start to end."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from coterie.deploy import logs
from coterie.deploy.clock import RealClock
from coterie.deploy.engine import Engine
from coterie.deploy.engines import connect
from coterie.deploy.home import Home, plan_of, read_home
from coterie.deploy.hub import HubNode, Round
from coterie.deploy.kills import Doomed, Interrupted, Kill
from coterie.deploy.logs import event
from coterie.deploy.node import Effects, Node, NodeObserver, Settings
from coterie.deploy.packets import Era, Report
from coterie.deploy.place import Place, place
from coterie.deploy.plan import Plan, roster_hash, spoken
from coterie.deploy.prometheus import serving
from coterie.deploy.recorder import Recorder
from coterie.deploy.store import FileStore, unpack
from coterie.protocol.errors import RunError
from coterie.protocol.party import Party
from coterie.transport.envelope import Envelope

HUB, RUN = "hub", "run"
"""Folders in that of the operator: the hub's home, and the run folder that it writes."""
_SEEN_S = 1.0


class Journal(logs.JournalObserver, NodeObserver):
    """The log of a node."""

    def dropped(self, src: str, kind: str, reason: str) -> None:
        logs.refusal(kind, src, reason)

    def failed(self, envelope: Envelope, error: BaseException) -> None:
        logs.LOGGER.error("failed", exc_info=error, extra={"fields": {"src": envelope.src, "kind": envelope.kind}})

    def began(self, era: Era) -> None:
        event("begin", round=era[0], attempt=era[1])

    def committed(self, commit: int, size: int) -> None:
        event("commit", logging.DEBUG, commit=commit, bytes=size)


class HubJournal(Journal):
    """The log of the hub's node, which also tells the recorder what happens."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def began(self, era: Era) -> None:
        super().began(era)
        self.recorder.begins(*era)

    def late(self, party: str) -> None:
        super().late(party)
        self.recorder.missed(party, "late")


class Watched:
    """An engine whose owner is told now and then which parties are connected."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine, self._recorder, self._told_s = engine, recorder, 0.0
        self.name = engine.name

    def nodes(self) -> Collection[str]:
        """The parties that are connected."""
        found = self._engine.nodes()
        if time.monotonic() - self._told_s > _SEEN_S:
            self._told_s = time.monotonic()
            self._recorder.present(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


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
    home = read_home(folder / HUB)
    with _logged(home, stderr=stderr), contextlib.ExitStack() as held:
        found, store = _placed(home), FileStore(home.state)
        recorder = Recorder(
            folder / RUN, found.plan, engine="nats", parameters=found.model.spec.size, done=max(0, _done(store, found.party))
        )
        held.callback(recorder.close)
        if metrics is not None:
            held.enter_context(serving(metrics, lambda: recorder.status))
        observer, effects = _doomed(kill, HubJournal(recorder), found.effects)
        node = HubNode(
            found.member,
            effects,
            Watched(connect(home, found.plan), recorder),
            store,
            clock=_clock(found),
            settings=_settings(found.plan),
            observer=observer,
            samples=found.samples,
        )

        def closed(one: Round) -> None:
            notes = noted(one)
            recorder.closed(one.round, len(one.attempts), notes)
            event("closed", round=one.round, attempts=len(one.attempts) + 1, skipped=bool(one.skipped))

        def heard(party: str, report: Report) -> None:
            recorder.heard(party, report)

        with _stopped_by_signals(node):
            try:
                node.run(found.rounds, closed, heard)
            except RunError as error:
                if node.stopped.is_set():
                    return
                recorder.failed(str(error))
                raise
        if not node.stopped.is_set():
            recorder.ended()


def noted(one: Round) -> dict[str, Any]:
    """The notes of a round as they stand in ``metrics.jsonl``: the hub's own, and what became of its parties."""
    more = {
        "skipped": one.skipped,
        "attempts": one.attempts,
        "gone": one.gone,
        "came_back": one.back,
        "refused_by": dict(one.refused),
    }
    return {**one.notes, **{key: value for key, value in more.items() if value}}


def _placed(home: Home) -> Place:
    """The place of a home. Tells which roster it believes."""
    plan = plan_of(home)
    event("start", role=home.role, plan=plan.version, session=plan.session, roster=spoken(roster_hash(plan)))
    return place(home)


def _settings(plan: Plan) -> Settings:
    of = plan.settings
    return Settings(patience_s=of.patience_s, grace_s=of.grace_s, retries=of.retries)


def _clock(found: Place) -> RealClock:
    return RealClock(found.plan.settings.begins_s)


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
