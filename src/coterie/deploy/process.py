"""One party's process: its home, its engine and its node, from start to end."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.deploy import account, logs
from coterie.deploy import plan as plans
from coterie.deploy.built_party import BuiltParty, build_party
from coterie.deploy.engine import Delivery, Engine, EngineError, NotAdmittedError
from coterie.deploy.engines import check_apart, connect
from coterie.deploy.home import (
    HUB,
    PLAN,
    RESTORED,
    RUN,
    RUNS,
    Home,
    agreement_words,
    decode_json,
    has_agreed,
    hub_home,
    keyring_of,
    plan_of,
    read_home,
    read_private,
    take_back,
    take_plan,
)
from coterie.deploy.hub import HubNode, RoundOutcome
from coterie.deploy.kills import Doomed, DoomedEffects, Kill
from coterie.deploy.lead import wait_for
from coterie.deploy.logs import NodeObserver, Say, event
from coterie.deploy.node import Node
from coterie.deploy.own_numbers import OwnNumbers
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import Era, NewRun, PlanUpdate, unwrap, wrap
from coterie.deploy.plan import GIB, NewPlanError, Plan, plan_hash
from coterie.deploy.recorder import Recorder
from coterie.deploy.status import STATUS, RunStatus, at_words
from coterie.deploy.store import FileStore, unpack
from coterie.protocol.errors import PeerError, RunError, UserError
from coterie.protocol.party import Party
from coterie.protocol.setup_info import Common
from coterie.protocols.openings import stated
from coterie.record.files import atomic_write, locked, make_folder, writing
from coterie.record.folder import METRICS, read_lines
from coterie.report.words import plural
from coterie.runs.failures import AllSkippedError, check_not_all_skipped, is_divergence
from coterie.transport.envelope import Keyring
from coterie.transport.transcript import shown

_POLL_S = 0.5
_WAITS = "Connected. Waiting for the hub to begin. (If the run is over, the hub says so when it is started once more.)"
_HELD = "{} is at work in another process already: a party runs once. End that process first, or leave it alone"


Serve = Callable[[Callable[[], RunStatus]], contextlib.AbstractContextManager[object]]
Tell = Callable[[Collection[str], Sequence[str]], None]
_FOR_ANOTHER = "A further run reaches only a party that was started with --stay."
GOES_ON = "Stopped. Started again, it goes on where it was."


def silent(words: str) -> None: ...


def as_party(
    path: Path,
    kill: Kill | None = None,
    *,
    serve: Serve | None = None,
    stay: bool = False,
    stderr: bool = False,
    say: Say = silent,
) -> None:
    """Run a party from its home until the hub ends the run or SIGTERM comes. Raises what ends it early.

    serve: as for the hub, of this party's own numbers.  stay: wait for further runs then.  say: is told what it waits
    for, of each round and attempt, and how it has ended.  Raises UserError for what does not mend itself, or if another
    process runs from this home.
    """
    home = read_home(path)
    with _running(home, stderr=stderr) as stopped:
        numbers = OwnNumbers(home, say)
        with _served(serve, lambda: numbers.status, stopped, say):
            while not stopped.is_set():
                plan = _started(home)
                if has_agreed(home, plan):
                    try:
                        over = _take_part(home, plan, numbers, kill, stopped, say)
                        if not (over and stay):
                            if over:
                                say(_FOR_ANOTHER)
                            return
                        _wait_for_plan(home, plan, stopped, say)
                    except NewPlanError as error:
                        take_plan(home, error.plan)
                else:
                    say(f"This party waits, for {agreement_words(home, plan)}")
                    while not (stopped.is_set() or has_agreed(home, plan)):
                        stopped.wait(_POLL_S)
            say(GOES_ON)


def _take_part(
    home: Home, plan: Plan, numbers: OwnNumbers, kill: Kill | None, stopped: threading.Event, say: Say
) -> bool:
    """One run, or the rest of it. Gives whether the hub has ended it. Raises NewPlanError for another run's plan."""
    with contextlib.closing(connect(home, plan)) as engine:
        first = None
        if not home.state.exists() and plan.run == 1:
            say(_WAITS)
            first = wait_for_begin(home, plan, engine, stopped, say)
        if stopped.is_set():
            say(GOES_ON)
            return False
        built = build_party(home)

        def began(era: Era) -> None:
            say(at_words(*era, built.rounds))
            _log_privacy(built, node)

        if plan.run > 1:
            say(f"Takes part in run {plan.run}. Waiting for the hub.")
        numbers.begins = began
        options = _options(built, numbers, kill)
        node = Node(
            built.member,
            engine=engine,
            store=FileStore(home.state),
            stopped=stopped,
            first=first,
            scores=lambda r: built.scores(),
            renew=built.renew,
            account=built.account,
            announces=plan.run > 1,
            **options,
        )
        node.serve()
        if home.name in built.party.common.clients:
            _log_privacy(built, node)
            say(f"Released of its data so far: {account.in_words(node.kept.released, built.account)}.")
        say("The run has ended." if node.kept.ended else GOES_ON)
        return node.kept.ended


def _wait_for_plan(home: Home, plan: Plan, stopped: threading.Event, say: Say) -> None:
    say("Waiting for the plan of another run.")
    with contextlib.closing(connect(home, plan)) as engine:
        while (delivery := wait_for_begin(home, plan, engine, stopped, say)) is not None:
            delivery.done()  # of the run that is over


def _log_privacy(built: BuiltParty, node: Node) -> None:
    """What this party has released, and how many openings it states."""
    event("privacy", **account.facts(node.kept.released, built.account))
    if count := stated(built.party):
        event("openings", stated=count)


def as_hub(
    folder: Path,
    kill: Kill | None = None,
    *,
    serve: Serve | None = None,
    stderr: bool = False,
    say: Say = silent,
    adopted: Callable[[], object] = lambda: None,
) -> None:
    """Run the hub from the operator's folder: all rounds that are not done yet. Raises what ends it early.

    serve: a context in which the status is served, until SIGTERM also if the run has ended.  say: as for a party.
    adopted: is called when a party has shown a newer plan, which is the folder's then. Raises UserError for what does
    not mend itself, or if it runs already.
    """
    home = read_home(folder / HUB)
    with _running(home, stderr=stderr) as stopped:
        while True:
            try:
                _run_hub(folder, kill, serve, stopped, say)
                return
            except NewPlanError as error:
                say("A party has shown a newer plan than that of this hub, which takes it and begins anew.")
                adopt(folder, home, error.plan)
                adopted()


def adopt(folder: Path, home: Home, data: bytes) -> None:
    """Make this plan an operator's folder's, unless the operator has signed one meanwhile that is no older."""
    with locked(folder, wait=True):
        if _version(home, data) > _version(home, read_private(folder / PLAN)):
            atomic_write(folder / PLAN, data)


def _version(home: Home, data: bytes) -> int:
    return plans.check(data, home.operator).version


def _run_hub(folder: Path, kill: Kill | None, serve: Serve | None, stopped: threading.Event, say: Say) -> None:
    run = folder / RUN
    home = hub_home(folder)
    plan = _started(home)
    check_enough(plan)
    _put_by(folder, plan)
    check_apart(home)
    built, store = build_party(home), FileStore(home.state)
    size, done = built.model.spec.size, _done(store, built.party, built.rounds)
    with (
        contextlib.closing(Recorder(run, plan, parameters=size, done=done, say=say)) as recorder,
        _served(serve, lambda: recorder.status, stopped, say),
    ):
        try:
            _lead(built, store, recorder, PlanFile(folder / PLAN, home), stopped, kill, say)
        except (RunError, EngineError) as error:
            if stopped.is_set():
                say(GOES_ON)
                return
            recorder.fail(str(error))
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
    file: PlanFile,
    stopped: threading.Event,
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

    with contextlib.closing(connect(home, plan)) as engine:
        if store.load() is None and plan.run == 1:
            wait_for_parties(plan, engine, stopped, recorder.gathering)
        options = _options(built, recorder, kill)
        if plan.run > 1:
            options["awaited"] = partial(_awaited, plan, recorder.gathering)
        if file.restored.exists():
            options["unshown"] = partial(file.unshown, plan, partial(recorder.gathering, to="show the newest plan"))
        options |= {"renew": renew, "newest": file.newest, "over": file.over, "shown": file.shown}
        node = HubNode(built.member, engine=engine, store=store, stopped=stopped, **options)
        node.run(rounds, closed)


@contextlib.contextmanager
def _running(home: Home, *, stderr: bool) -> Iterator[threading.Event]:
    stopped = threading.Event()
    with _mending(), locked(home.path, _HELD):
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


def _started(home: Home) -> Plan:
    plan = plan_of(home)
    if 0 < plan.settings.not_after_s < time.time():
        raise UserError(
            f"the deployment of {home.path} has ended, by its plan and this clock: look at the clock, or let the "
            "operator run coterie deploy renew DIR, and then run coterie deploy join NAME.cert --home H"
        )
    take_back(home, plan)
    digest = plan_hash(plan)
    event("start", pid=os.getpid(), role=home.role, plan=plan.version, plan_sha256=digest, session=plan.session)
    return plan


def _options(built: BuiltParty, observer: NodeObserver, kill: Kill | None) -> dict[str, Any]:
    of, doomed = built.plan.settings, observer if kill is None else Doomed(kill, observer)
    most = int(2 * GIB * of.packet_gib)
    return {
        "effects": DoomedEffects(built.effects, doomed) if isinstance(doomed, Doomed) else built.effects,
        "observer": doomed,
        "clock": built.clock(),
        "limits": NodeLimits(of.patience_s, of.grace_s, of.retries, most_bytes=most),
        "samples": built.samples,
        "former": None if built.home.former is None else FileStore(built.home.former.state).read(),
    }


def _done(store: FileStore, party: Party, rounds: int) -> int:
    if (data := store.load()) is None:
        return 0
    kept, _ = unpack(data, party)
    return max(0, min(kept.done, kept.stops or rounds))


@contextlib.contextmanager
def _served(serve: Serve | None, status: Callable[[], RunStatus], stopped: threading.Event, say: Say) -> Iterator[None]:
    """Serve the status while the block runs, and after it until this process is told to stop."""
    if serve is None:
        yield
        return
    with serve(status):
        yield
        if not stopped.is_set():
            say("Its numbers are served until it is stopped.")
        stopped.wait()


@contextlib.contextmanager
def _mending() -> Iterator[None]:
    """What does not mend itself is a UserError (exit code 2), after which a service manager starts no party again."""
    try:
        yield
    except NotAdmittedError as error:
        raise UserError(f"{error}. Ask the operator why") from None
    except EngineError as error:
        raise RunError(f"{error}. Started again, it goes on where it was") from None
    except RunError as error:
        if is_divergence(error) or isinstance(error, AllSkippedError):
            raise UserError(str(error)) from error
        raise


# -- before a node starts --


def wait_for_begin(
    home: Home, plan: Plan, engine: Engine, stopped: threading.Event, say: Say = silent
) -> Delivery | None:
    """Wait until the hub has begun and the home holds the newest plan. Gives its first packet, or None if ``stopped``.

    say: is told once if the engine has nothing for this party, such as a broker that was not told of the approvals.
    Raises NotAdmittedError, and NewPlanError for the plan of a later run.
    """
    keyring, hub, told = keyring_of(home, plan), plan.roster.hub, False
    while not stopped.is_set():
        try:
            delivery = engine.pull(_POLL_S)
        except NotAdmittedError:
            raise
        except EngineError as error:
            if not told:
                say(f"{error}. This party waits")
            told = True
            logs.refusal("engine", home.name, str(error))
            stopped.wait(_POLL_S)
            continue
        if delivery is None:
            continue
        try:
            packet = unwrap(keyring, delivery.src, home.name, delivery.body)[1]
            if delivery.src != hub:
                raise PeerError("only the hub begins")
            if not isinstance(packet, PlanUpdate | NewRun):
                return delivery
            try:
                taken = take_plan(home, packet.plan)
            finally:
                if isinstance(packet, NewRun):  # a hub that was restored asks for the newest plan
                    answer = wrap(keyring, home.name, hub, 0, NewRun(read_private(home.plan)))
                    engine.push(hub, answer, secrets.token_hex(16))
            event("plan", plan=taken.version, plan_sha256=plan_hash(taken))
            if taken.run > plan.run:
                raise NewPlanError(packet.plan)  # it comes again, and is known then
        except PeerError as error:
            logs.refusal("packet", delivery.src, str(error))
        delivery.done()
    return None


def check_enough(plan: Plan) -> None:
    """Raises UserError unless all servers and a quorum of the clients have joined."""
    if plan.lacking:
        needed = f"the servers and {plural(plan.settings.quorum, 'client')} must have joined"
        raise UserError(f"the hub cannot begin: {needed}, and there are not yet {', '.join(plan.lacking)}")


def wait_for_parties(
    plan: Plan,
    engine: Engine,
    stopped: threading.Event,
    tell: Tell = lambda here, away: None,
    *,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until all servers and a quorum of the clients are connected, or ``stopped``.

    tell: is told repeatedly of connected and missing parties. Raises RunError, naming the missing, after the plan's
    ``patience_s``.
    """
    awaited = partial(_awaited, plan, tell)
    if away := wait_for(lambda: awaited(engine.nodes()), stopped, plan.settings.patience_s, poll_s):
        raise RunError(
            f"the first round has not begun: {', '.join(away)} did not connect within {plan.settings.patience_s:g} "
            "seconds; start their processes, and then the hub again"
        )


def _awaited(plan: Plan, tell: Tell, here: Collection[str]) -> Sequence[str]:
    """Those who are not here; nobody if all servers and a quorum of the clients are. tell: as ``wait_for_parties``."""
    client, hub = plan.client_role, plan.believed.hub
    of_role = {one.name: one.role for one in plan.believed.entries if one.name != hub}
    quorum = min(plan.settings.quorum, sum(role == client for role in of_role.values()))
    away = [name for name in of_role if name not in here]
    tell(here, away)
    there = sum(role == client for name, role in of_role.items() if name not in away)
    return () if there >= quorum and all(of_role[name] == client for name in away) else away


class PlanFile:
    """The plan of a hub's run, in the file that the operator's commands replace."""

    def __init__(self, path: Path, hub: Home) -> None:
        self._path, self._hub, self._run, self._known = path, hub, plan_of(hub).run, b""
        self.restored = path.parent / RESTORED

    def newest(self) -> bytes | None:
        """The plan at the first call and after each change; else None."""
        found = read_private(self._path)
        if self.over() or found == self._known:
            return None
        self._known = found
        return found

    def over(self) -> bool:
        """Whether the newest plan ends the run."""
        with contextlib.suppress(PeerError):  # the hub refuses it with the reason
            plan = plans.check(read_private(self._path), self._hub.operator)
            return plan.run > self._run or plan.aborted
        return False

    def shown(self, data: bytes) -> None:
        """Raises NewPlanError for a newer plan than that of the file, and PeerError for one of somebody else."""
        if _version(self._hub, data) > _version(self._hub, read_private(self._path)):
            raise NewPlanError(data)

    def unshown(self, plan: Plan, tell: Tell, here: Collection[str]) -> Sequence[str]:
        """As ``_awaited``; when nobody is awaited, this is the newest plan."""
        if not (away := _awaited(plan, tell, here)):
            self.restored.unlink(missing_ok=True)
        return away


def _put_by(folder: Path, plan: Plan) -> None:
    """Move the run folder of a former run in an operator's folder to one by its number, before this plan's run."""
    path = folder / RUN / STATUS
    if not path.exists():
        return
    former = decode_json(path, read_private(path), RunStatus)
    if former.session != plan.session and former.run < plan.run:
        make_folder(folder / RUNS)
        with writing(folder / RUNS):
            os.replace(folder / RUN, folder / RUNS / str(former.run))
