"""``coterie deploy invite``, ``join``, ``approve`` and ``revoke``: who takes part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.deploy_runs import Folder, Offline, Yes, tell_server
from coterie.cli.guard import guarded, say
from coterie.cli.options import listed
from coterie.protocol.errors import RunError, UserError

Member = Annotated[str, typer.Argument(metavar="NAME", help="The member, as members.toml names it.")]
Report = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES", help="Scores that may be sent to the hub, with commas between. Can be repeated. [none]"
    ),
]


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
    from coterie.deploy.plan import grouped
    from coterie.operate import joining, tokens

    text = tokens.read_text(paper)
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
        say(joining.samples_in_words(place))
    say(f"Operator's key: {grouped(place.about.operator[:32])}")
    say(f"This party's keys: {joining.own_fingerprint(place)}")
    say("Compare both with the operator by telephone. If they differ, somebody is between you: go no further.")
    say(f"Next: send {request} to the operator, who answers with a certificate (.cert)")
    say(f"An invitation is good once. If it was used, this request is refused: remove {home}, and ask for another one.")


def _accept(home: Path, certificate: str) -> None:
    from coterie.deploy.home import read_home
    from coterie.deploy.plan import grouped
    from coterie.operate import joining, watching

    place = read_home(home)
    plan = joining.accept(place, certificate)
    say(f"{place.name} has joined as {place.role}: {watching.joined_in_words(plan)}")
    say(f"Operator's key: {grouped(place.about.operator[:32])}")
    say(f"Plan: {plan.shown}")
    say(f"Next: coterie deploy party --home {home}")


@guarded
def approve(
    folder: Folder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What the party sent: NAME.request.")],
    yes: Yes = False,
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
    from coterie.deploy.plan import fingerprint
    from coterie.operate import authority, tokens, watching

    text = tokens.read_text(request)
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
    say(f"Plan: {found.plan.shown}")
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
