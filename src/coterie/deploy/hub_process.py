"""The process of the hub."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coterie.protocol.core as fl
from coterie.deploy.built_party import BuiltParty, build_party
from coterie.deploy.engine import EngineError
from coterie.deploy.engines import check_apart, connect
from coterie.deploy.gathering import wait_for_parties
from coterie.deploy.home import HUB, PLAN, RUN, hub_home, plan_of, read_home
from coterie.deploy.hub import HubNode
from coterie.deploy.logs import Say
from coterie.deploy.plan import NewPlanError
from coterie.deploy.plan_file import PlanFile, adopt, check_enough, put_by, wait_for_run
from coterie.deploy.process import GOES_ON, Doom, Serve, node_options, running, serve_on, served, silent, started
from coterie.deploy.recorder import Recorder


def as_hub(
    folder: Path,
    kill: Doom = None,
    *,
    serve: Serve | None = None,
    stay: bool = False,
    stderr: bool = False,
    say: Say = silent,
    adopted: Callable[[], object] = lambda: None,
) -> None:
    """Run all rounds that are not done yet, from the operator's folder. Raises what ends it early, and UserError for
    what does not mend itself, or if it runs already.

    serve: a context in which the status is served, until SIGTERM.  stay: then wait for further runs.  adopted: called
    when the folder has a newer plan that a party has shown.
    """
    home = read_home(folder / HUB)
    with running(home, stderr=stderr) as stopped:
        while True:
            try:
                _run_hub(folder, kill, serve, stopped, say, stay)
                if not stay or stopped.is_set():
                    return
            except NewPlanError as error:
                say("A party has shown a newer plan than that of this hub, which takes it and begins anew.")
                adopt(folder, home, error.plan)
                adopted()


def _run_hub(folder: Path, kill: Doom, serve: Serve | None, stopped: threading.Event, say: Say, stay: bool) -> None:
    run = folder / RUN
    home = hub_home(folder)
    plan = started(home)
    check_enough(plan)
    put_by(folder, plan)
    check_apart(home)
    built = build_party(home)
    with (
        contextlib.closing(Recorder(run, plan, parameters=built.party.spec.size, done=built.done, say=say)) as recorder,
        served(serve, lambda: recorder.status),
    ):
        try:
            _lead(built, recorder, PlanFile(folder / PLAN, home, recorder.gathering), stopped, kill)
        except (fl.RunError, EngineError) as error:
            if stopped.is_set():
                say(GOES_ON)
                return
            recorder.fail(str(error))
            raise
        if stopped.is_set():
            say(GOES_ON)
            return
        recorder.ended()
        if stay:
            say("Waiting for the plan of another run.")
            wait_for_run(folder, home, plan, stopped)
        else:
            serve_on(serve, stopped, say)


def _lead(built: BuiltParty, recorder: Recorder, plans: PlanFile, stopped: threading.Event, kill: Doom) -> None:
    home, plan = built.home, built.plan

    def renew(data: bytes) -> tuple[Any, fl.Common]:
        keys = built.renew(data)
        recorder.renewed(plan_of(home))
        return keys

    with contextlib.closing(connect(home, plan)) as engine:
        if not home.state.exists() and plan.run == 1:
            wait_for_parties(plans.present, engine, stopped, recorder.gathering, over=plans.over)
        options = node_options(built, recorder, kill)
        node = HubNode(built.member, engine=engine, stopped=stopped, renew=renew, plans=plans, **options)
        node.run(built.rounds, recorder.closed)
