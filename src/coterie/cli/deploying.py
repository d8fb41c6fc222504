"""``coterie deploy``: founding a federation between machines, its members, and its upkeep."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli import deploy_running, deploy_runs, deploy_watching
from coterie.cli.command import Command, CommandGroup
from coterie.cli.deploy_runs import Folder, Offline, tell_server
from coterie.cli.guard import console, guarded, say
from coterie.cli.options import listed
from coterie.protocol.errors import RunError, UserError
from coterie.report.words import plural, size

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

Member = Annotated[str, typer.Argument(metavar="NAME", help="The member, as members.toml names it.")]
Scores = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Scores that parties may report where their owners allow it, too, with commas between. Can be repeated. "
        "[each metric of the config, such as local_accuracy; local_loss, samples]",
    ),
]
Report = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Scores that may be sent to the hub, with commas between. Can be repeated. [none]"
    ),
]
_MOST = 10  # lines of what waits at the server

app = typer.Typer(
    cls=CommandGroup,
    name="deploy",
    help="Run a federation between machines that trust nobody else's.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, which is the operator's.")],
    config: Annotated[Path, typer.Option(help="What to run: a TOML file with options of coterie run.")],
    members: Annotated[Path, typer.Option(help="Who takes part: names, roles and hosts (TOML).")],
    server: Annotated[str, typer.Option(metavar="URL", help="nats://host:port. Port 443 goes through HTTPS_PROXY.")],
    shape: Annotated[
        str | None, typer.Option(metavar="CxHxW", help="Of one sample, such as 1x28x28 or 30. [that of the data set]")
    ] = None,
    outputs: Annotated[int | None, typer.Option(help="Classes, or a model's outputs. [those of the data set]")] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="Schema of all parties' tables, which `coterie prepare` proposes (TOML). It gives both."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Public samples of the hub, where its system needs some (npz).")
    ] = None,
    scores: Scores = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long a step waits for answers, and the hub for its parties to connect."
        ),
    ] = 600.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a party may be away until it counts as gone.")
    ] = 30.0,
    quorum: Annotated[
        int | None,
        typer.Option(help="Fewest clients that must have joined and be connected before the first round. [all]"),
    ] = None,
    retries: Annotated[int, typer.Option(help="How often a round that fails is tried again.")] = 2,
    packet_gib: Annotated[float, typer.Option(metavar="GIB", max=3.0, help="The largest packet, at most 3 GiB.")] = 1.0,
    store_gib: Annotated[float, typer.Option(metavar="GIB", help="How much may wait at the server, in all.")] = 8.0,
    days: Annotated[float, typer.Option(help="How long certificates are valid, until deploy renew.")] = 365.0,
) -> None:
    """Found a deployment: the operator's keys, the hub's home, the first plan, and the server's files.

    DIR/authority holds the operator's secret keys. Keep it on a medium of its own: only init, invite, approve, renew,
    revoke, start, abort, server and doctor --clock need it. DIR/nats is for the host of the NATS server. The config is
    that of coterie run, without what makes sense in a simulation only. members.toml has a table for each party, such as
    these of fedavg. For another system the error for a wrong role names all of its roles.

    ```
    [[member]]
    role = "server"
    host = "hub.example.org"

    [[member]]
    name = "hospital-a"
    role = "client"
    ```

    Examples:

      coterie deploy init study --config run.toml --members members.toml --server nats://hub:4222 --schema schema.toml
    """
    from coterie.data.preparing import read_schema
    from coterie.deploy.plan import Settings
    from coterie.operate import deployable, founding
    from coterie.operate.members import read_members

    stated = None if schema is None else read_schema(schema)
    run, facts = deployable.read_config(config, shape, outputs, stated)
    settings = Settings(
        server=server,
        patience_s=_positive("--patience", patience),
        grace_s=_positive("--grace", grace),
        quorum=0 if quorum is None else _at_least(1, "--quorum", quorum),
        retries=_at_least(0, "--retries", retries),
        scores=deployable.scores_of(run) if scores is None else listed(scores),
        packet_gib=_positive("--packet-gib", packet_gib),
        store_gib=_positive("--store-gib", store_gib),
    )
    those, days = read_members(members), _positive("--days", days)
    text = members.read_text()
    plan = founding.init(folder, run, those, settings, facts, public=public, days=days, members_text=text)
    _say_founded(folder, plan)


def _say_founded(folder: Path, plan: Any) -> None:
    from coterie.deploy.plan import grouped
    from coterie.operate import folder as places

    key = places.operator_of(places.Folder(folder))
    say(f"Founded {folder} for {len(plan.members)} members. The hub, {plan.roster.hub}, has its home in {folder}/hub.")
    say(f"Parties train {_training(plan.resolved)}.")
    say(f"Operator's key: {grouped(key.hex()[:32])}")
    say(f"Keep {folder}/authority apart: whoever has it decides who takes part.")
    say(f"Next: coterie deploy server {folder} --start, and coterie deploy invite {folder} NAME > NAME.token for")
    say(f"  {', '.join(plan.missing)}")


def _training(config: Any) -> str:
    from coterie.data.own import PARTIES

    own = {key: config.settings[key] for key in ("lr", "batch_size", "max_epochs") if key in config.settings}
    settings = "".join(f", {key} {value}" for key, value in own.items())
    as_for = "data of their own" if config.data == PARTIES else config.data
    return (
        f"the model {config.model} for {config.rounds} rounds{settings}: as for {as_for}, where the config says nothing"
    )


@guarded
def invite(
    folder: Folder,
    name: Member,
    again: Annotated[
        bool, typer.Option("--again", help="For a member whose home is lost: it joins once more, with new keys.")
    ] = False,
    hours: Annotated[float, typer.Option(help="How long the invitation is valid.")] = 24.0,
) -> None:
    """Write an invitation to stdout, with which one member may join once.

    It is a secret: whoever has it may join in the member's place. Hand it over where nobody else reads it. A second
    invitation of a member replaces the first.

    Examples:

      coterie deploy invite study hospital-a > a.token

      coterie deploy invite study hospital-a --again > a.token    its disk was lost: it joins with new keys
    """
    from coterie.operate import authority

    say(authority.invite(folder, name, again=again, hours=hours), nl=False)
    valid = f"{hours:g} hour{'s' * (hours != 1)}"
    say(f"An invitation for {name}, valid for {valid}. It is a secret: hand it to {name} alone.", err=True)


@guarded
def join(
    paper: Annotated[Path, typer.Argument(metavar="FILE", help="An invitation, or later the certificate (.cert).")],
    home: Annotated[
        Path,
        typer.Option(
            metavar="H", help="The party's home: a new folder for an invitation, the same for its certificate."
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The party's samples: a csv or parquet file if the plan has a schema, or an .npz file with x, y and "
            "perhaps x_test and y_test."
        ),
    ] = None,
    report: Report = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs in a round. [as many as the plan has]")] = None,
    accelerator: Annotated[str, typer.Option(help="What to train on: cpu, cuda or auto.")] = "cpu",
) -> None:
    """Join a deployment: make the party's keys on this machine, and ask the operator.

    With an invitation this makes the home and writes NAME.request for the operator, which holds no secret. With the
    certificate that comes back the party is ready. Keys never leave the home. Samples are copied into it, as the
    model's inputs. The plan's schema prepares a table; scale arrays as all parties agreed. Bytes are divided by 255.
    Without x_test every fifth sample of each class is kept for tests.

    Examples:

      coterie deploy join a.token --data own.npz --home /srv/coterie/a --report local_accuracy

      coterie deploy join hospital-a.cert --home /srv/coterie/a
    """
    from coterie.crypto.roster import entry
    from coterie.deploy.plan import fingerprint, grouped
    from coterie.operate import joining, tokens

    text = _text(paper)
    if text.strip().startswith(f"{tokens.CERTIFICATE}:"):
        if data is not None or report or epochs is not None:
            raise UserError(f"{paper} is a certificate: --data, --report and --epochs are given with the invitation")
        _accept(home, text)
        return
    if accelerator not in ("cpu", "cuda", "auto"):
        raise UserError(f"--accelerator is {accelerator!r}; it is cpu, cuda or auto")
    kind: Any = accelerator
    place, request = joining.join(text, home, data, report=listed(report or ()), epochs=epochs, accelerator=kind)
    say(f"Made the home {home} of {place.name}, {place.role}.")
    if place.data.exists():
        say(_samples(place))
    say(f"Operator's key: {grouped(place.about.operator[:32])}")
    say(f"This party's keys: {fingerprint(entry(place.name, place.role, place.identity))}")
    say("Compare both with the operator by telephone. If they differ, somebody is between you: go no further.")
    say(f"Next: send {request} to the operator, who answers with a certificate (.cert)")
    say(f"An invitation is good once. If it was used, this request is refused: remove {home}, and ask for another one.")


def _accept(home: Path, certificate: str) -> None:
    from coterie.deploy.home import read_home
    from coterie.deploy.plan import grouped, plan_hash, shown
    from coterie.operate import joining, watching

    place = read_home(home)
    plan = joining.accept(place, certificate)
    say(f"{place.name} has joined as {place.role}: {watching.joined_in_words(plan)}")
    say(f"Operator's key: {grouped(place.about.operator[:32])}")
    say(f"Plan: {shown(plan.version, plan_hash(plan))}")
    say(f"Next: coterie deploy party --home {home}")


def _samples(place: Any) -> str:
    """What was copied into a home, so that its owner notices what is missing."""
    from coterie.data.form import read_data

    facts = place.about.facts
    own = read_data(place.data, facts)
    told = f"Its data: {plural(len(own.y), 'sample')} to train on, {len(own.y_test):,} for tests"
    if facts.task == "classes":
        told += f", {len({*own.y.tolist(), *own.y_test.tolist()})} of {facts.outputs} classes"
    return f"{told}."


@guarded
def approve(
    folder: Folder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the party sent: NAME.request.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal nothing is asked.")] = False,
    offline: Offline = False,
) -> None:
    """Put a party on the roster, and write its certificate (DIR/NAME.cert), which holds no secret.

    The request is approved if it was made with an invitation that is open, and proves that its sender holds its keys.
    The fingerprints are shown, to be compared by telephone. The invitation is used up. The same request again writes
    the certificate again, with the newest plan.

    Examples:

      coterie deploy approve study hospital-a.request

      coterie deploy approve study hospital-a.request --yes --offline
    """
    from coterie.deploy.plan import fingerprint, plan_hash, shown
    from coterie.operate import authority, watching

    text = _text(request)
    keys, invitation = authority.examine(folder, text)
    say(f"{keys.name} asks to join as {keys.role}, with the keys {fingerprint(keys.entry)}")
    if invitation is None:
        say("This very request is approved already: the certificate is written again.")
    elif invitation.again > 1:
        say(f"It has joined before, and its former keys will be refused. This is time {invitation.again}.")
    if not yes and invitation is not None and sys.stdin.isatty() and not typer.confirm("Are these its keys?"):
        say("Not approved. The invitation stays open.")
        raise typer.Exit(1)
    found = authority.approve(folder, text)
    say(f"Approved: {watching.joined_in_words(found.plan)}")
    say(f"Plan: {shown(found.plan.version, plan_hash(found.plan))}")
    if not found.now:
        say(f"{keys.name} takes part from the next run on: coterie deploy start {folder} writes its certificate.")
        return
    say(f"Next: send {found.certificate} to {keys.name}, for coterie deploy join {found.certificate.name} --home H")
    try:
        tell_server(folder, offline)
    except RunError as error:  # the approval stands, and the server may be started later
        say(f"Approved, but {error}")


@guarded
def revoke(
    folder: Folder,
    name: Member,
    offline: Offline = False,
) -> None:
    """Shut a party out: the server cuts it off, and the next round goes on without it.

    A new version of the plan says so to all parties. The hub brings it to them. A party that is to come back needs
    another invitation (--again), and joins with new keys.

    Examples:

      coterie deploy revoke study hospital-a
    """
    from coterie.operate import authority
    from coterie.operate.folder import current_plan, open_folder

    before = current_plan(open_folder(folder)).version
    plan = authority.revoke(folder, name)
    done = f"{name} was revoked already" if plan.version == before else f"Revoked {name}"
    say(f"{done}: version {plan.version} of the plan says so.")
    tell_server(folder, offline)


def _text(path: Path) -> str:
    from coterie.operate.tokens import MAX_TEXT
    from coterie.record.files import opened, reading

    with reading(path, "name the file that you were sent"), opened(path) as file:
        data = file.read(MAX_TEXT + 1)
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not an invitation, request or certificate of coterie") from None


@guarded
def server(
    folder: Folder,
    start: Annotated[bool, typer.Option("--start", help="Run a NATS server here, until Ctrl-C.")] = False,
) -> None:
    """Bring the NATS server to the newest plan; with --start, run one on this machine.

    approve, revoke and --start do this by themselves if they reach the server and the operator's keys are here. If it
    runs on another machine, first copy DIR/nats/nats.conf there, and have it read with nats-server --signal reload
    (after deploy start with new members twice).

    Also says what waits at the server, from which party and for which: a party that sends without end, or that is away.

    Examples:

      coterie deploy server study --start

      coterie deploy server study
    """
    from coterie.operate import server as nats
    from coterie.operate.folder import open_folder

    place = open_folder(folder)
    if start:
        nats.serve(place, say)
        return
    tell_server(folder, offline=False)
    for of, to, count in nats.waiting(place)[:_MOST]:
        say(f"From {of} to {to}: {count} part{'s' * (count != 1)} of packets wait{'s' * (count == 1)}")


@guarded
def renew(
    folder: Folder,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Members. [all that it is time for]")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Also those that end later than in 30 days.")] = False,
    days: Annotated[float, typer.Option(help="How long the new certificates are valid.")] = 365.0,
    offline: Offline = False,
) -> None:
    """Renew, with the same keys, the certificates that end within 30 days: the parties', the server's, the operator's.

    The hub brings each party its new certificate before the next attempt of a round, and nobody has to stop. A party
    whose certificate has ended is sent its NAME.cert, for coterie deploy join NAME.cert --home H.

    Examples:

      coterie deploy renew study

      coterie deploy renew study hospital-a
    """
    from coterie.deploy.names import ENGINE
    from coterie.operate import authority

    renewed = authority.renew(folder, names or (), everyone=everyone, days=_positive("--days", days))
    if not renewed:
        say("No certificate ends within 30 days: nothing to renew. (--all renews them all the same.)")
        return
    shown = ", ".join("the NATS server" if one == ENGINE else one for one in renewed)
    say(f"Renewed: {shown}. The hub brings parties theirs.")
    tell_server(folder, offline)


@guarded
def backup(
    folder: Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it. Replaces an earlier one.")],
    authority: Annotated[bool, typer.Option("--authority", help="Also the operator's keys.")] = False,
) -> None:
    """Copy the operator's folder and the hub in it to one file, also while the hub runs.

    The file holds the hub's keys and state: keep it as secret as the hub's disk. It holds no other party's home.

    Examples:

      coterie deploy backup study --out /backup/study.tgz
    """
    from coterie.operate.backup import back_up

    written = back_up(folder, out, authority=authority)
    say(f"Wrote {out} ({size(written)}), {'with' if authority else 'without'} the operator's keys: a secret.")


@guarded
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `deploy backup` has written.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Put a backup back. The rounds since are lost, and the run goes on after them with the hub's older model.

    The hub first asks all parties for their newest plan, and serves nobody until enough have shown it.

    The hub that was backed up must never run again.

    Examples:

      coterie deploy restore /backup/study.tgz study
    """
    from coterie.operate import backup

    backup.restore(file, folder)
    say(f"Restored {folder}. Next: coterie deploy server {folder}, and coterie deploy hub {folder}")


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
    from rich.text import Text

    from coterie.deploy.engines import check_apart
    from coterie.operate.doctor import doctor as looked
    from coterie.operate.server import clock_s

    style = {"problem": "bold red", "warning": "bold yellow", "ok": "green"}
    found = looked(
        places, ahead_s=clock_s if clock else None, check_apart=partial(check_apart, connect_s=5.0) if broker else None
    )
    shell = console()
    for one in found:
        shell.print(Text(f"{one.level:8}", style[one.level]) + Text(f"{one.where}: {one.text}"))
    if any(one.level == "problem" for one in found):
        raise typer.Exit(1)


@guarded
def files(
    folder: Folder,
    systemd: Annotated[bool, typer.Option("--systemd", help="Units for systemd, in DIR/systemd.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="Files for docker compose, in DIR/compose.")] = False,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Examples, in DIR/kubernetes.")] = False,
) -> None:
    """Write what runs a deployment as services: for each host a folder with its services and a README.

    Servers are on hosts of their own. Each service has a user of its own, may write its own folder only, and has no
    rights that it does not need. With the hub's come rules for Prometheus (rules.yml) and a dashboard (grafana.json).

    Examples:

      coterie deploy files study --systemd

      coterie deploy files study --compose
    """
    from coterie.operate.service_files import Kind, service_files

    wanted: dict[Kind, bool] = {"systemd": systemd, "compose": compose, "kubernetes": kubernetes}
    if not any(wanted.values()):
        raise UserError("which files? Give --systemd, --compose or --kubernetes, or several")
    for kind in (kind for kind, given in wanted.items() if given):
        at = service_files(folder, kind)
        for host in sorted(at.iterdir()):
            say(f"{host}: {', '.join(sorted(one.name for one in host.iterdir()))}")


def _positive(option: str, value: float) -> float:
    if not 0 < value < 1e9:
        raise UserError(f"{option} must be above 0, not {value:g}")
    return value


def _at_least(least: int, option: str, value: int) -> int:
    if value < least:
        raise UserError(f"{option} must be at least {least}, not {value}")
    return value


_here: tuple[Any, ...] = (init, invite, join, approve, revoke, renew, server, backup, restore, doctor, files)
for _command in (*_here, deploy_runs.start, deploy_runs.runs, deploy_runs.abort, deploy_runs.agree):
    app.command(_command.__name__, cls=Command)(_command)
app.command("hub", cls=Command)(deploy_running.hub)
app.command("party", cls=Command)(deploy_running.party)
app.command("try", cls=deploy_running.Rehearsing)(deploy_running.rehearse)
app.command("status", cls=Command)(deploy_watching.status)
app.command("logs", cls=Command)(deploy_watching.logs)
