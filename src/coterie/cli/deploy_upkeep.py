"""``coterie deploy server``, ``renew``, ``backup``, ``restore`` and ``files``: upkeep by the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.deploy_runs import Folder, Offline, tell_server
from coterie.cli.guard import guarded, say
from coterie.cli.options import positive
from coterie.protocol.errors import UserError
from coterie.report.words import size

_MOST = 10  # lines of what waits at the server


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

    renewed = authority.renew(folder, names or (), everyone=everyone, days=positive("--days", days))
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
