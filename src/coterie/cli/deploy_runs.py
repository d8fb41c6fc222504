"""``coterie deploy start``, ``runs``, ``abort`` and ``agree``: further runs of a deployment."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.guard import guarded, say
from coterie.protocol.errors import UserError
from coterie.report.words import plural

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The operator's folder, which `deploy init` has made.")]
Offline = Annotated[bool, typer.Option("--offline", help="Leave the server alone: `deploy server` tells it later.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Without a terminal nothing is asked.")]
_SETTINGS = {
    "server": "address of the broker",
    "patience_s": "seconds that a step waits for answers",
    "grace_s": "seconds that a party may be away",
    "quorum": "fewest clients of a round",
    "retries": "how often a round that fails is tried again",
    "scores": "scores that parties may report",
    "public": "public samples of the hub",
    "begins_s": "valid from",
    "not_after_s": "valid until",
    "packet_gib": "largest packet, in GiB",
    "store_gib": "what may wait at the broker, in GiB",
    "input_shape": "shape of a sample",
    "outputs": "classes, or outputs of the model",
}


@guarded
def start(
    folder: Folder,
    config: Annotated[Path | None, typer.Option(help="What to run (TOML). [what the last run had]")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds. [that of the config]")] = None,
    warm: Annotated[
        bool, typer.Option("--begin-from-models", help="Parties begin with their models of the last run.")
    ] = False,
    offline: Offline = False,
) -> None:
    """Start another run of all members that have joined and are not revoked. Homes and keys stay.

    It is a new version of the plan. Each owner agrees to it with coterie deploy agree. `coterie deploy hub DIR` then
    hands it out (with --stay by itself), and begins when enough have agreed. Members that were approved in the
    meantime take part, and get their certificates (DIR/NAME.cert) now. The set-up runs anew, so groups and joint keys
    are made anew, too.

    Examples:

      coterie deploy start study --rounds 20 --begin-from-models

      coterie deploy start study --config other.toml
    """
    from coterie.operate import runs as of
    from coterie.runs.advice import advise, surplus_clusters

    plan = of.start(folder, config, rounds=rounds, warm=warm)
    advise(surplus_clusters(plan.resolved))
    say(f"Run {plan.run} of {plural(len(plan.members), 'member')}, {plural(plan.resolved.rounds, 'round')}.")
    say(f"Plan: {plan.shown}")
    say(
        f"Next: coterie deploy hub {folder}, unless it runs with --stay, and each owner: coterie deploy party --home H "
        "--stay, and coterie deploy agree --home H"
    )
    tell_server(folder, offline, reloads=2)


@guarded
def runs(folder: Folder) -> None:
    """List the runs of a deployment, with their folders.

    Examples:

      coterie deploy runs study
    """
    from coterie.operate.folder import current_plan, open_folder
    from coterie.operate.watching import all_statuses

    place = open_folder(folder)
    found, newest = list(all_statuses(place)), current_plan(place)
    for one in found:
        where = folder / ("run" if one is found[-1] else f"runs/{one.run}")
        how = f"{one.phase}{', ended early' if one.aborted else ''}"
        say(f"Run {one.run}: {one.title}, {one.done} of {plural(one.rounds, 'round')}, {how}. {where}")
    if newest.run not in [one.run for one in found]:
        say(f"Run {newest.run}: not begun. Start it with coterie deploy hub {folder}")


@guarded
def abort(folder: Folder) -> None:
    """End the present run before its next round. Clients keep their models. `coterie deploy start` begins another run.

    Examples:

      coterie deploy abort study
    """
    from coterie.operate import runs as of

    plan = of.abort(folder)
    say(f"Run {plan.run} ends before its next round: version {plan.version} of the plan says so.")


@guarded
def agree(
    home: Annotated[Path, typer.Option(help="The party's home.")],
    hash_: Annotated[
        str, typer.Option("--hash", metavar="DIGITS", help="The first digits of the plan's hash, to be compared.")
    ] = "",
    yes: Yes = False,
) -> None:
    """Agree to another run, as the owner of a home. Shows its changes, what was released so far, and its hash.

    `coterie deploy party --stay` has received the plan from the hub, and waits for this. Compare the hash with the
    operator by telephone, or give the digits with --hash.

    Examples:

      coterie deploy agree --home /srv/coterie/a

      coterie deploy agree --home /srv/coterie/a --hash "4c31 d8fa 0f7e 90b2 6c15 22a9 be07 51d4 c3aa 08e6" --yes
    """
    from coterie.deploy.home import read_home
    from coterie.operate import runs as of

    own = read_home(home)
    plan = of.offered(own)
    say(f"Run {plan.run}: {plan.resolved.definition.title}, {plural(plan.resolved.rounds, 'round')}. It changes:")
    for line in changes(own):
        say(f"  {line}")
    if own.role == plan.client_role:
        say(f"{own.name} has released of its data so far: {_released(home)}")
    say(f"Plan: {plan.shown}")
    if not yes and sys.stdin.isatty() and not typer.confirm("Do you agree?"):
        raise typer.Exit(1)
    of.agree_to(own, hash_ or plan.sha256)  # another may have come meanwhile
    say(f"{own.name} has agreed to run {plan.run}.")


def changes(home: Any) -> Iterator[str]:
    """What the home's newest plan changes of the last agreed run, a line each, in the operator's words."""
    from coterie.deploy import plan as plans
    from coterie.deploy.home import RUNS, Home, has_agreed, plan_of, read_private
    from coterie.runs.config_file import differences

    new = plan_of(home)
    former = (Home(home.path, home.about, int(one.name)) for one in (home.path / RUNS).glob("[0-9]*"))
    held = [plans.check(read_private(one.plan), home.operator) for one in former if one.plan.exists()]
    agreed = [plan for plan in held if has_agreed(home, plan)]
    if not agreed:
        yield "everything: this home has no plan of a run to which its owner has agreed"
        return
    old = max(agreed, key=lambda plan: plan.version)
    if new.warm:
        yield "parties begin with their models of the last run"
    before, now = old.resolved, new.resolved
    yield from (f"rounds: {before.rounds}, now {now.rounds}", *differences(before, now))
    for word, here, there in (("without", old, new), ("with", new, old)):
        names = [name for name, _ in here.members if name not in dict(there.members)]
        if names:
            yield f"{word} {', '.join(names)}"
    known = old.roster.by_name
    again = [one.name for one in new.roster.entries if one.name in known and one != known[one.name]]
    if again:
        yield f"with other keys: {', '.join(again)}"
    for one, other in ((old.facts, new.facts), (old.settings, new.settings)):
        for name in one.__struct_fields__:
            a, b = getattr(one, name), getattr(other, name)
            if a != b:
                yield f"{_SETTINGS.get(name, name)}: {_shown(name, a)}, now {_shown(name, b)}"


def _shown(name: str, value: object) -> object:
    if name in ("begins_s", "not_after_s") and isinstance(value, float):
        return time.strftime("%Y-%m-%d", time.gmtime(value))
    return value


def _released(home: Path) -> str:
    from coterie.operate.own_model import own_account

    try:
        return own_account(home)
    except UserError:  # it has begun no run
        return "nothing that this home knows of"


def tell_server(folder: Path, offline: bool, reloads: int = 1) -> None:
    from coterie.operate.folder import open_folder
    from coterie.operate.server import apply

    if offline:
        say(f"The server was not told: run coterie deploy server {folder}")
        return
    apply(open_folder(folder), reloads)
    say("The server has the newest plan.")
