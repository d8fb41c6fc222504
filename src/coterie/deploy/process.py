"""One party's process: its place, its engine and its node, from start to end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from coterie.deploy import account, logs
from coterie.deploy.built_party import BuiltParty, build_party
from coterie.deploy.clock import Clock, RehearsedClock
from coterie.deploy.engine import EngineError, NotAdmittedError
from coterie.deploy.engines import check_apart, connect
from coterie.deploy.home import PLAN, RUN, Home, hub_home, plan_of, read_home
from coterie.deploy.hub import HubNode, Newest, RoundOutcome
from coterie.deploy.kills import Doomed, DoomedEffects, Kill
from coterie.deploy.logs import Journal, event
from coterie.deploy.node import Node
from coterie.deploy.packets import Era
from coterie.deploy.plan import Plan, plan_hash
from coterie.deploy.recorder import HubJournal, Recorder
from coterie.deploy.start_check import check_enough, wait_for_begin, wait_for_parties, watch_plan
from coterie.deploy.status import RunStatus, at_words
from coterie.deploy.store import FileStore, unpack
from coterie.deploy.surroundings import NodeObserver, NodeSettings, PartyEffects
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.party import Party
from coterie.protocol.setup_info import Common
from coterie.record.files import locked
from coterie.record.folder import METRICS, read_lines
from coterie.report.words import plural
from coterie.runs.evaluation import check_not_all_skipped
from coterie.transport.envelope import Keyring
from coterie.transport.transcript import shown

_WAITS = "Connected. Waiting for the hub to begin. (If the run is over, the hub says so when it is started once more.)"
_HELD = "{} is at work in another process already: a party runs once. End that process first, or leave it alone"


Say = Callable[[str], None]
"""Is told in a line what a process is at."""
Serve = Callable[[Callable[[], RunStatus]], contextlib.AbstractContextManager[object]]
GOES_ON = "Stopped. Started again, it goes on where it was."


def silent(words: str) -> None:
    """Say nothing."""


def as_party(path: Path, kill: Kill | None = None, *, stderr: bool = False, say: Say = silent) -> None:
    """Run a party from its home until the hub ends the run or SIGTERM comes. Raises what ends it early.

    say: is told what it waits for, of each round and attempt, and how it has ended.  Raises UserError if another
    process runs from this home: two would each use the same numbers and masks.
    """
    home = read_home(path)
    with _running(home, stderr=stderr) as stopped, contextlib.closing(connect(home, _started(home))) as engine:
        first = None
        if not home.state.exists():
            say(_WAITS)
            first = wait_for_begin(home, plan_of(home), engine, stopped, say)
        if stopped.is_set():
            say(GOES_ON)
            return
        built = build_party(home)

        def began(era: Era) -> None:
            say(at_words(*era, built.rounds))
            event("privacy", **account.facts(node.kept.released, built.account))

        observer, effects = _doomed(kill, Journal(began, say), built.effects)
        node = Node(
            built.member,
            effects,
            engine,
            FileStore(home.state),
            first=first,
            clock=_clock(built),
            settings=_settings(built.plan),
            observer=observer,
            scores=lambda r: built.scores(),
            samples=built.samples,
            renew=built.renew,
            account=built.account,
        )
        stopped.node = node
        node.serve()
        if home.name in built.common.clients:
            event("privacy", **account.facts(node.kept.released, built.account))
            say(f"Released of its data so far: {account.in_words(node.kept.released, built.account)}.")
        say("The run has ended." if node.kept.ended else GOES_ON)


def as_hub(
    folder: Path, kill: Kill | None = None, *, serve: Serve | None = None, stderr: bool = False, say: Say = silent
) -> None:
    """Run the hub from the operator's folder: all rounds that are not done yet. Raises what ends it early.

    serve: a context in which the status is served while the hub runs.  say: as for a party.
    Raises UserError if it runs already.
    """
    home, run = hub_home(folder), folder / RUN
    with _running(home, stderr=stderr) as stopped:
        plan = _started(home)
        check_enough(plan)
        check_apart(home)
        built, store = build_party(home), FileStore(home.state)
        size, done = built.model.spec.size, _done(store, built.party, built.rounds)
        with contextlib.closing(Recorder(run, plan, parameters=size, done=done)) as recorder:
            with serve(lambda: recorder.status) if serve is not None else contextlib.nullcontext():
                try:
                    _lead(built, store, recorder, watch_plan(folder / PLAN), stopped, kill, say)
                except (RunError, EngineError) as error:
                    if stopped.is_set():
                        say(GOES_ON)
                        return
                    recorder.failed(str(error))
                    raise
            if stopped.is_set():
                say(GOES_ON)
                return
            recorder.ended()
            say(f"The run has ended: {plural(recorder.status.done, 'round')} done.")
            check_not_all_skipped(read_lines(run / METRICS))


def _lead(
    built: BuiltParty,
    store: FileStore,
    recorder: Recorder,
    newest: Newest,
    stopped: _Stopped,
    kill: Kill | None,
    say: Say,
) -> None:
    home, plan, rounds = built.home, built.plan, built.rounds

    def renew(data: bytes) -> tuple[Keyring, Common]:
        keys = built.renew(data)
        recorder.renewed(plan_of(home))
        return keys

    def closed(one: RoundOutcome) -> None:
        if one.notes.get("participants") == 0 and "skipped" not in one.notes:
            one.notes["skipped"] = "no update came"  # nobody here sees that no model has changed
        if one.skipped:
            say(f"{at_words(one.round, 0, rounds)} was given up: {shown(one.skipped)}")
        elif why := one.notes.get("skipped"):
            say(f"{at_words(one.round, 0, rounds)} was skipped: {shown(str(why))}")
        recorder.closed(one)

    journal = HubJournal(recorder, lambda era: say(at_words(*era, rounds)), say)
    observer, effects = _doomed(kill, journal, built.effects)
    with contextlib.closing(connect(home, plan)) as engine:
        if store.load() is None:
            wait_for_parties(plan, engine, stopped, _gathering(recorder, say))
        node = HubNode(
            built.member,
            effects,
            engine,
            store,
            clock=_clock(built),
            settings=_settings(plan),
            observer=observer,
            samples=built.samples,
            renew=renew,
            newest=newest,
        )
        stopped.node = node
        node.run(rounds, closed, recorder.heard)


@contextlib.contextmanager
def _running(home: Home, *, stderr: bool) -> Iterator[_Stopped]:
    """This process alone runs from this home, has its log, and stops in order at SIGTERM and SIGINT."""
    with _admitted(), locked(home.path, _HELD), _logged(home, stderr=stderr), _signals() as stopped:
        yield stopped


def _gathering(recorder: Recorder, say: Say) -> Callable[[Collection[str], Sequence[str]], None]:
    """Tells the recorder which parties are connected, and says for which the hub waits, at each change."""
    said: list[str] = []

    def tell(here: Collection[str], away: Sequence[str]) -> None:
        recorder.present(here)
        if away and said != [*away]:
            said[:] = away
            say(f"Waiting for {', '.join(away)} to connect")

    return tell


def _started(home: Home) -> Plan:
    """The plan of a home, logged, if it has not ended. Raises UserError."""
    plan = plan_of(home)
    if 0 < plan.settings.not_after_s < time.time():
        raise UserError(
            f"the deployment of {home.path} has ended, by its plan and this clock: look at the clock, or found another"
        )
    digest = plan_hash(plan)
    event("start", pid=os.getpid(), role=home.role, plan=plan.version, plan_sha256=digest, session=plan.session)
    return plan


def _settings(plan: Plan) -> NodeSettings:
    of = plan.settings
    return NodeSettings(patience_s=of.patience_s, grace_s=of.grace_s, retries=of.retries)


def _clock(built: BuiltParty) -> Clock:
    if built.links is None:
        return Clock(built.plan.settings.begins_s)
    return RehearsedClock(built.home.name, [one.name for one in built.plan.roster.entries], built.links)


def _done(store: FileStore, party: Party, rounds: int) -> int:
    """The last round that the hub has committed; 0 before the first. The finish does not count."""
    if (data := store.load()) is None:
        return 0
    kept, _ = unpack(data, party)
    return max(0, min(kept.done, kept.stops or rounds))


def _doomed(kill: Kill | None, observer: NodeObserver, effects: PartyEffects) -> tuple[NodeObserver, PartyEffects]:
    if kill is None:
        return observer, effects
    doomed = Doomed(kill, observer)
    return doomed, DoomedEffects(effects, doomed)


@contextlib.contextmanager
def _admitted() -> Iterator[None]:
    """A party that the engine does not admit or does not reach ends with a RunError, not as a fault of this program."""
    try:
        yield
    except NotAdmittedError as error:
        raise RunError(f"{error}. Ask the operator why") from None
    except EngineError as error:
        raise RunError(f"{error}. Started again, it goes on where it was") from None


@contextlib.contextmanager
def _logged(home: Home, *, stderr: bool) -> Iterator[None]:
    logs.start(home.log, home.name, stderr=stderr)
    try:
        yield
    except BaseException as error:
        event("failed", logging.ERROR, why=f"{type(error).__name__}: {error}")
        raise
    finally:
        event("stop")
        logs.stop()


class _Stopped(threading.Event):
    """Set by a signal; then the node stops after its current packet."""

    node: Node | None = None

    def set(self) -> None:
        super().set()
        if self.node is not None:
            self.node.stop()


@contextlib.contextmanager
def _signals() -> Iterator[_Stopped]:
    """An event that SIGTERM and SIGINT set, instead of ending the process."""
    stopped = _Stopped()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
