"""``coterie deploy``: federations between machines. Other commands of the group are in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli import deploy_running, deploy_watching
from coterie.cli.command import Command, Group
from coterie.cli.deploy_joining import Folder, approve, invite, join, revoke, tell_server
from coterie.cli.guard import guarded
from coterie.cli.options import listed

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

_MOST = 10  # lines of what waits at the server

app = typer.Typer(
    cls=Group,
    name="deploy",
    help="Run a federation between machines that trust nobody else's.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, which is the operator's.")],
    config: Annotated[Path, typer.Option("--config", help="What to run: a TOML file with options of coterie run.")],
    members: Annotated[Path, typer.Option("--members", help="Who takes part: names, roles and hosts (TOML).")],
    server: Annotated[
        str,
        typer.Option("--server", metavar="URL", help="The NATS server, as nats://host:port."),
    ],
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="CxHxW", help="Of one sample, such as 1x28x28 or 30. [that of the data set]"),
    ] = None,
    outputs: Annotated[
        int | None, typer.Option("--outputs", help="Classes, or a model's outputs. [those of the data set]")
    ] = None,
    public: Annotated[
        Path | None, typer.Option("--public", help="Public samples of the hub, where its system needs some (npz).")
    ] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--scores",
            metavar="NAMES",
            help="Scores that parties may report where their owners allow it, too, with commas between. Can be "
            "repeated. [each metric of the config, such as local_accuracy; local_loss, samples]",
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            metavar="SECONDS",
            help="How long a step waits for answers, and the hub for its parties to connect.",
        ),
    ] = 600.0,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="How long a party may be away until it counts as gone.")
    ] = 30.0,
    quorum: Annotated[
        int | None,
        typer.Option(
            "--quorum", help="Fewest clients that must have joined and be connected before the first round. [all]"
        ),
    ] = None,
    retries: Annotated[int, typer.Option("--retries", help="How often a round that fails is tried again.")] = 2,
    days: Annotated[float, typer.Option("--days", help="How long keys and certificates are valid.")] = 365.0,
) -> None:
    """Found a deployment: the operator's keys, the hub's home, the first plan, and the server's files.

    DIR/authority holds the operator's secret keys. Keep it on a medium of its own: only init, invite, approve, revoke,
    server and doctor --clock need it. DIR/nats is for the host of the NATS server. The config is that of coterie run,
    without what makes sense in a simulation only. members.toml has a table for each party:

      [[member]]

      role = "csp"

      host = "csp.example.org"

      [[member]]

      name = "hospital-a"

      role = "participant"

    Examples:

      coterie deploy init study --config run.toml --members members.toml --server nats://hub.example.org:4222

      coterie deploy init study --config run.toml --members members.toml --server nats://hub:4222 --shape 30 --outputs 2
    """
    from coterie.data.own import PARTIES
    from coterie.deploy.plan import Settings, grouped
    from coterie.operate.deployable import facts_of, scores_of, training
    from coterie.operate.folder import Folder as Place
    from coterie.operate.folder import operator_of
    from coterie.operate.founding import init as found
    from coterie.operate.members import read_members
    from coterie.protocol.errors import UserError
    from coterie.runs.config import from_text, from_toml, read_toml

    named = "data" in read_toml(config)
    run = from_toml(config) if named else from_toml(config, data=PARTIES)
    if not named and None in (shape, outputs):
        raise UserError(
            f"say what samples look like: with --shape and --outputs, such as --shape 1x28x28 --outputs 10, or in "
            f'{config} with a data set that looks like them, such as data = "mnist"'
        )
    plan = found(
        folder,
        run,
        read_members(members),
        Settings(
            server=server,
            patience_s=_positive("--patience", patience),
            grace_s=_positive("--grace", grace),
            quorum=0 if quorum is None else _at_least(1, "--quorum", quorum),
            retries=_at_least(0, "--retries", retries),
            scores=scores_of(run) if scores is None else listed(scores),
        ),
        facts_of(run, shape, outputs),
        public=public,
        days=_positive("--days", days),
        members_text=members.read_text(),
    )
    say = typer.echo
    say(f"Founded {folder} for {len(plan.members)} members. The hub, {plan.roster.hub}, has its home in {folder}/hub.")
    say(f"Parties train {training(from_text(plan.config))}.")
    say(f"Operator's key: {grouped(operator_of(Place(folder)).hex()[:32])}")
    say(f"Keep {folder}/authority apart: whoever has it decides who takes part.")
    say(f"Next: coterie deploy server {folder} --start, and coterie deploy invite {folder} NAME > NAME.token for")
    say(f"  {', '.join(plan.missing)}")


@guarded
def server(
    folder: Folder,
    start: Annotated[bool, typer.Option("--start", help="Run a NATS server here, until Ctrl-C.")] = False,
) -> None:
    """Bring the NATS server to the newest plan; with --start, run one on this machine.

    approve, revoke and --start do this by themselves if they reach the server and the operator's keys are here. If it
    runs on another machine, first copy DIR/nats/nats.conf there, and have it read with nats-server --signal reload.

    Also says what waits at the server, from which party and for which: a party that sends without end, or that is away.

    Examples:

      coterie deploy server study --start

      coterie deploy server study
    """
    from coterie.operate.folder import open_folder
    from coterie.operate.server import serve, waiting

    place = open_folder(folder)
    if start:
        serve(place, typer.echo)
        return
    tell_server(folder, offline=False)
    for of, to, count in waiting(place)[:_MOST]:
        typer.echo(f"From {of} to {to}: {count} part{'s' * (count != 1)} of packets wait{'s' * (count == 1)}")


@guarded
def doctor(
    places: Annotated[list[Path], typer.Argument(metavar="DIR", help="The operator's folder, or homes, or both.")],
    clock: Annotated[
        bool, typer.Option("--clock", help="Also compare this clock with the server's. Needs the operator's keys.")
    ] = False,
    broker: Annotated[
        bool,
        typer.Option(
            "--broker",
            help="Also ask the NATS server, as the parties of these homes, whether its configuration keeps members "
            "from each other and from its API. They show as connected for a moment.",
        ),
    ] = False,
) -> None:
    """Look whether secrets are where they belong, and files, clocks, certificates and plans in order.

    All files in the folders are searched for the secret keys of all parties in them, as bytes, in hex and in base64.
    Ends with code 1 if something is to be mended.

    Examples:

      coterie deploy doctor study

      coterie deploy doctor study --clock

      coterie deploy doctor /srv/coterie/a --broker
    """
    from rich.console import Console
    from rich.text import Text

    from coterie.operate.doctor import doctor as looked

    style = {"problem": "bold red", "warning": "bold yellow", "ok": "green"}
    console = Console(highlight=False, soft_wrap=True)
    found = looked(places, ahead_s=_clock() if clock else None, check_apart=_check_apart if broker else None)
    for one in found:
        console.print(Text(f"{one.level:8}", style[one.level]) + Text(f"{one.where}: {one.text}"))
    if any(one.level == "problem" for one in found):
        raise typer.Exit(1)


@guarded
def files(
    folder: Folder,
    systemd: Annotated[bool, typer.Option("--systemd", help="Units for systemd, in DIR/systemd.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="Files for docker compose, in DIR/compose.")] = False,
) -> None:
    """Write what runs a deployment as services: for each host a folder with its services and a README.

    Servers are on hosts of their own. Each service has a user of its own, may write its own folder only, and has no
    rights that it does not need.

    Examples:

      coterie deploy files study --systemd

      coterie deploy files study --compose
    """
    from coterie.operate.service_files import Kind, service_files
    from coterie.protocol.errors import UserError

    if not systemd and not compose:
        raise UserError("which files? Give --systemd or --compose, or both")
    kinds: list[Kind] = [*(["systemd"] if systemd else []), *(["compose"] if compose else [])]  # type: ignore[list-item]
    for kind in kinds:
        at = service_files(folder, kind)
        for host in sorted(at.iterdir()):
            typer.echo(f"{host}: {', '.join(sorted(one.name for one in host.iterdir()))}")


def _clock() -> Any:
    from coterie.operate.server import clock_s

    return clock_s


def _check_apart(home: Any) -> None:
    from coterie.deploy.engines import check_apart

    check_apart(home, connect_s=5.0)


def _positive(option: str, value: float) -> float:
    from coterie.protocol.errors import UserError

    if not 0 < value < 1e9:
        raise UserError(f"{option} must be above 0, not {value:g}")
    return value


def _at_least(least: int, option: str, value: int) -> int:
    from coterie.protocol.errors import UserError

    if value < least:
        raise UserError(f"{option} must be at least {least}, not {value}")
    return value


for _command in (init, invite, join, approve, revoke, server, doctor, files):
    app.command(_command.__name__, cls=Command)(_command)
app.command("hub", cls=Command)(deploy_running.hub)
app.command("party", cls=Command)(deploy_running.party)
app.command("try", cls=deploy_running.Rehearsing)(deploy_running.rehearse)
app.command("status", cls=Command)(deploy_watching.status)
app.command("logs", cls=Command)(deploy_watching.logs)
