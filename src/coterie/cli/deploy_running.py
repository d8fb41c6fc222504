"""``coterie deploy hub`` and ``party``: run the parties of a deployment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.deploy_runs import Folder
from coterie.cli.guard import guarded, say

if TYPE_CHECKING:
    from coterie.deploy.process import Serve
    from coterie.deploy.status import RunStatus

Home = Annotated[Path, typer.Option(help="The party's home, which `deploy join` has made.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also write the log to stderr.")]
Stay = Annotated[bool, typer.Option("--stay", help="Then wait for further runs, until it is stopped.")]
Metrics = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Serve metrics for Prometheus on this port, on loopback only, until SIGTERM."),
]


@guarded
def hub(
    folder: Folder,
    stay: Stay = False,
    metrics: Metrics = None,
    verbose: Verbose = False,
) -> None:
    """Lead all rounds, from the operator's folder. Started again after a crash, it goes on where it was.

    Says for which parties it waits, and each round. Writes the run folder DIR/run. `coterie deploy status DIR` shows
    how all parties fare.

    Examples:

      coterie deploy hub study

      coterie deploy hub study --stay --metrics 9464
    """
    from coterie.deploy.hub_process import as_hub
    from coterie.operate.folder import current_plan, open_folder
    from coterie.operate.server import read_anew
    from coterie.operate.watching import read_status, with_certificates

    serve = _serve(metrics, lambda status: with_certificates(status, folder))
    place = open_folder(folder)
    plan = current_plan(place)
    _say_plan(plan.roster.hub, "the hub", plan)
    say(f"Watch it with coterie deploy status {folder} --watch")
    as_hub(folder, serve=serve, stay=stay, stderr=verbose, say=_say, adopted=lambda: read_anew(place))
    if (now := read_status(folder)).phase == "ended" and now.done:
        say(f"Its numbers: coterie report {folder / 'run'}")


@guarded
def party(
    home: Home,
    stay: Stay = False,
    metrics: Metrics = None,
    verbose: Verbose = False,
) -> None:
    """Take part, from a party's home, until the hub has ended the run. Started again after a crash, it goes on.

    Prints the version and the hash of its plan: compare them with those of the operator and of other parties. Then it
    says each round, and when the run has ended.

    Examples:

      coterie deploy party --home /srv/coterie/a

      coterie deploy party --home /srv/coterie/a --metrics 9465
    """
    from coterie.deploy.home import plan_of, read_home
    from coterie.deploy.party_process import as_party

    own = read_home(home)
    _say_plan(own.name, own.role, plan_of(own))
    as_party(home, stay=stay, serve=_serve(metrics), stderr=verbose, say=_say)


def _serve(port: int | None, more: Callable[[RunStatus], RunStatus] = lambda status: status) -> Serve | None:
    if port is None:
        return None
    from coterie.operate.prometheus import serving  # refused where its library is missing

    return lambda read: serving(port, lambda: more(read()))


def _say(words: str) -> None:
    say(f"{time.strftime('%H:%M:%S')}  {words}")


def _say_plan(name: str, role: str, plan: Any) -> None:

    say(f"{name}, {role}. Plan: {plan.shown}")
