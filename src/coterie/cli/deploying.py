"""``coterie deploy``: founding a federation between machines, its members, and its upkeep."""

from __future__ import annotations

import typer

from coterie.cli import (
    deploy_founding,
    deploy_members,
    deploy_running,
    deploy_runs,
    deploy_trying,
    deploy_upkeep,
    deploy_watching,
)
from coterie.cli.command import Command, CommandGroup

_EPILOG = """
A first look, with all parties on this machine:

  coterie deploy try /tmp/trial --system fedcaprivacy --clients 4 --rounds 3 --seed 7

A deployment from its beginning:

  coterie deploy init study --config run.toml --members members.toml --server nats://hub.example.org:4222

  coterie deploy server study --start                              or a NATS server of your own

  coterie deploy invite study hospital-a > a.token                 and hand it to hospital-a

  coterie deploy join a.token --data own.npz --home H              on its machine; it sends back hospital-a.request

  coterie deploy approve study hospital-a.request                  and send it hospital-a.cert

  coterie deploy join hospital-a.cert --home H                     on its machine

  coterie deploy party --home H                                    on each party's machine

  coterie deploy hub study                                         on the hub's machine

  coterie deploy status study --watch                              beside it: who is there, rounds, scores
"""

app = typer.Typer(
    cls=CommandGroup,
    name="deploy",
    help="Run a federation between machines that trust nobody else's.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

for _command in (
    deploy_founding.init,
    deploy_members.invite,
    deploy_members.join,
    deploy_members.approve,
    deploy_members.revoke,
    deploy_upkeep.renew,
    deploy_upkeep.server,
    deploy_upkeep.backup,
    deploy_upkeep.restore,
    deploy_watching.doctor,
    deploy_upkeep.files,
    deploy_runs.start,
    deploy_runs.runs,
    deploy_runs.abort,
    deploy_runs.agree,
    deploy_running.hub,
    deploy_running.party,
):
    app.command(_command.__name__, cls=Command)(_command)
app.command("try", cls=deploy_trying.Rehearsing)(deploy_trying.rehearse)
app.command("status", cls=Command)(deploy_watching.status)
app.command("logs", cls=Command)(deploy_watching.logs)
