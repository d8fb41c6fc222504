"""The process of a party that is not the hub."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import coterie.protocol.core as fl
from coterie.deploy.built_party import BuiltParty, build_party
from coterie.deploy.engines import connect
from coterie.deploy.gathering import POLL_S, wait_for_begin
from coterie.deploy.home import Home, agreement_words, has_agreed, read_home, take_plan
from coterie.deploy.logs import Say, event
from coterie.deploy.node import Node
from coterie.deploy.plan import NewPlanError, Plan
from coterie.deploy.process import GOES_ON, Doom, Serve, node_options, running, serve_on, served, silent, started
from coterie.deploy.status import OwnNumbers, at_words
from coterie.protocols.openings import stated

_WAITS = "Connected. Waiting for the hub to begin. (If the run is over, the hub says so when it is started once more.)"
_FOR_ANOTHER = "A further run reaches only a party that was started with --stay."


def as_party(
    path: Path,
    kill: Doom = None,
    *,
    serve: Serve | None = None,
    stay: bool = False,
    stderr: bool = False,
    say: Say = silent,
) -> None:
    """Run a party from its home until the hub ends the run or SIGTERM comes. Raises what ends it early, and UserError
    for what does not mend itself, or if it runs already.

    serve: as for the hub, of own numbers.  stay: then wait for further runs.  say: is told of waits, rounds, attempts
    and the end.
    """
    home = read_home(path)
    with running(home, stderr=stderr) as stopped:
        numbers = OwnNumbers(home, say)
        with served(serve, lambda: numbers.status):
            while not stopped.is_set():
                plan = started(home)
                if has_agreed(home, plan):
                    try:
                        over = _take_part(home, plan, numbers, kill, stopped, say)
                        if not (over and stay):
                            if over:
                                say(_FOR_ANOTHER)
                            serve_on(serve, stopped, say)
                            return
                        _wait_for_plan(home, plan, stopped, say)
                    except NewPlanError as error:
                        take_plan(home, error.plan)
                else:
                    say(f"This party waits, for {agreement_words(home, plan)}")
                    while not (stopped.is_set() or has_agreed(home, plan)):
                        stopped.wait(POLL_S)
            say(GOES_ON)


def _take_part(home: Home, plan: Plan, numbers: OwnNumbers, kill: Doom, stopped: threading.Event, say: Say) -> bool:
    """Whether the hub has ended the run. Raises NewPlanError for another run's plan."""
    with contextlib.closing(connect(home, plan)) as engine:
        first = None
        if not home.state.exists() and plan.run == 1:
            say(_WAITS)
            first = wait_for_begin(home, plan, engine, stopped, say)
        if stopped.is_set():
            say(GOES_ON)
            return False
        built = build_party(home)

        def began(era: tuple[int, int]) -> None:
            say_why(built.party, say)
            say(at_words(*era, built.rounds))
            _log_privacy(built, node)

        if plan.run > 1:
            say(f"Takes part in run {plan.run}. Waiting for the hub.")
        numbers.begins = began
        options = node_options(built, numbers, kill)
        options |= {"stopped": stopped, "first": first, "scores": lambda r: built.scores()}
        options |= {"renew": built.renew, "account": built.account, "announces": plan.run > 1}
        node = Node(built.member, engine=engine, **options)
        node.serve()
        say_why(built.party, say)
        if home.name in built.party.common.clients:
            _log_privacy(built, node)
            say(f"Released of its data so far: {built.account.in_words(node.kept.released)}.")
        say("The run has ended." if node.kept.ended else GOES_ON)
        return node.kept.ended


def _wait_for_plan(home: Home, plan: Plan, stopped: threading.Event, say: Say) -> None:
    say("Waiting for the plan of another run.")
    with contextlib.closing(connect(home, plan)) as engine:
        while (delivery := wait_for_begin(home, plan, engine, stopped, say)) is not None:
            delivery.done()  # of the run that is over


def say_why(party: fl.Party, say: Say) -> None:
    if why := party.kept_back:
        event("kept", reason=why)
        say(f"In its last round this party kept its model, or added nothing to the others': {why}.")


def _log_privacy(built: BuiltParty, node: Node) -> None:
    event("privacy", **built.account.facts(node.kept.released))
    if count := stated(built.party):
        event("openings", stated=count)
