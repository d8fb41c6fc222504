"""``coterie deploy try``: a deployment rehearsed on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.command import Command
from coterie.cli.guard import guarded, say
from coterie.cli.running import conclude
from coterie.protocol.errors import UserError
from coterie.report.progress import show_progress

_SIMULATED = "it is for simulations alone, so give it to coterie run"
_OBSERVED = "it needs somebody who sees all parties, so give it to coterie run"
_NOT_REHEARSED = {
    "out": "the run folder is DIR/run",
    "resume": "a rehearsal runs once, in a new DIR",
    "record": _OBSERVED,
    "record_mib": _OBSERVED,
    "checkpoint_every": "every party stores each step that it has done",
    "availability": f"{_SIMULATED}. A rehearsal has --kill",
    "drift": _SIMULATED,
    "attack": f"no party is made to misbehave here. {_SIMULATED[0].upper()}{_SIMULATED[1:]}",
    "attackers": f"no party is made to misbehave here. {_SIMULATED[0].upper()}{_SIMULATED[1:]}",
    "fine_tune": _OBSERVED,
    "no_fine_tune": _OBSERVED,
    "fine_tune_every": _OBSERVED,
    "log": "DIR/run/metrics.jsonl has the numbers of every round",
    "workers": "every party is a process of its own",
}


class Rehearsing(Command):
    """``coterie deploy try``."""

    absent = _NOT_REHEARSED


@guarded
@opt.shared("clients", without=_NOT_REHEARSED)
def rehearse(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, for everything.")],
    system: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A system; see `coterie list systems`. Or yours, as module:ATTRIBUTE.",
            autocompletion=completing.systems,
            rich_help_panel=opt.WORK,
        ),
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTY@ROUND[:mid]",
            help="Kill this party's process when that round begins (or the `setup`), and start it again at once. A "
            "party is `hub`, `client/1`, its home `client-1`, or its data's name, such as `va`. With :mid, kill it in "
            "the middle of its work, and leave it away until the others notice. Can be repeated.",
            rich_help_panel=opt.HOW,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Rehearse a deployment on this machine: every party in a process of its own, over a NATS server of its own.

    Takes the options of `coterie run`, and ends with the same models. All parties share the seed of the run and are
    dealt its data, and a virtual clock replaces the real one; everything else is as between machines. DIR then holds
    the operator's folder, all homes with their logs, and the run folder DIR/run.

    Examples:

      coterie deploy try /tmp/trial --system fedcaprivacy --clients 4 --rounds 3 --seed 7

      coterie deploy try /tmp/trial --system pafed --crypto emulated --kill hub@2 --kill client/1@2:mid
    """
    from coterie.operate.supervision import warm

    warm()  # imports while this process does
    from coterie.operate import rehearsal
    from coterie.report import render
    from coterie.report.summary import rehearsed
    from coterie.runs.metrics import run_metrics

    given = opt.given({"system": system, **options})
    if system is None and options["config"] is None:
        raise UserError("which system? For example: --system fedcaprivacy; see coterie list systems")
    config = opt.configured(given, options["set"] or [], options["config"], False)
    first = run_metrics(config)[0].facts
    with show_progress(options["quiet"], {config.system: config.rounds}, leading=first) as tell:
        told = partial(tell, config.system)
        aloud = (lambda text: None) if options["quiet"] else partial(say, err=True)
        result = rehearsal.rehearse(folder, config, kill or (), told, say=aloud)
    render([result.folder])
    digest = f"models_sha256: {result.summary['models_sha256']}"
    conclude(result, rehearsed(result.summary), ", each a process", digest)
    if names := result.models.names:
        say(f"Clients: {', '.join(f'{client} = {name}' for client, name in names.items())}")
    say(f"Predict with a client's model: coterie predict {result.folder} NEW.csv (or .npz) --client client/0")
