"""``coterie deploy init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.guard import guarded, say
from coterie.cli.options import listed, positive
from coterie.protocol.errors import UserError

Scores = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Scores that parties may report where their owners allow it, too, with commas between. Can be repeated. "
        "[each metric of the config, such as local_accuracy; local_loss, samples]",
    ),
]


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
    from coterie.runs.advice import advise, surplus_clusters

    stated = None if schema is None else read_schema(schema)
    run, facts = deployable.read_config(config, shape, outputs, stated)
    settings = Settings(
        server=server,
        patience_s=positive("--patience", patience),
        grace_s=positive("--grace", grace),
        quorum=0 if quorum is None else _at_least(1, "--quorum", quorum),
        retries=_at_least(0, "--retries", retries),
        scores=deployable.scores_of(run) if scores is None else listed(scores),
        packet_gib=positive("--packet-gib", packet_gib),
        store_gib=positive("--store-gib", store_gib),
    )
    those, days = read_members(members), positive("--days", days)
    text = members.read_text()
    plan = founding.init(folder, run, those, settings, facts, public=public, days=days, members_text=text)
    advise(surplus_clusters(plan.resolved))
    _say_founded(folder, plan)


def _say_founded(folder: Path, plan: Any) -> None:
    from coterie.deploy.plan import grouped
    from coterie.operate import folder as places

    hub = "" if plan.roster.hub == "hub" else f", {plan.roster.hub},"
    key = places.operator_of(places.Folder(folder))
    say(f"Founded {folder} for {len(plan.members)} members. The hub{hub} has its home in {folder}/hub.")
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


def _at_least(least: int, option: str, value: int) -> int:
    if value < least:
        raise UserError(f"{option} must be at least {least}, not {value}")
    return value
