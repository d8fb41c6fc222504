"""``coterie deploy status``, ``logs`` and ``doctor``, for the operator and for a party."""

from __future__ import annotations

import heapq
import json
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from coterie.cli.guard import console, fits, guarded, new_table, say
from coterie.protocol.errors import UserError, shown
from coterie.report.words import CIPHERS, MISSING, duration, metric, plural, size

if TYPE_CHECKING:
    from coterie.deploy.status import PartyStatus, RunStatus

_POLL_S = 0.5
_WATCH_S = 1.0
_KEYS = 19  # characters of a fingerprint: the first 16 digits
_NUMBERS = ("round", "sent", "received", "work", "missed", "refused")
_HEADS = ("party", "role", "keys", "", "last seen", *_NUMBERS)
# columns that a narrow terminal lacks, the first first
_SPARED = ("keys", "work", "role", "received", "sent", "last seen")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@guarded
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The operator's folder, or its run folder.")],
    json_: Annotated[bool, typer.Option("--json", help="Everything as one JSON object on stdout.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
) -> None:
    """Show how a deployment fares: each party's role, keys, presence, round, bytes, work and refusals.

    The hub writes what is shown. It knows what parties report: bytes, seconds, and scores that their owners allow. It
    does not know why a party has refused something: that stands in the party's own log.

    Examples:

      coterie deploy status study

      coterie deploy status study --json

      ssh -t hub.example.org coterie deploy status study --watch     from another machine
    """
    from coterie.operate.watching import NotBegunError, next_run, read_status, with_certificates

    def read() -> RunStatus:
        return with_certificates(read_status(folder), folder)

    def lines() -> Iterator[Text | Table]:
        found = read()
        return _lines(found, time.time(), shell, next_run(found, folder))

    shell = console(140)
    if json_:
        import msgspec

        say(msgspec.json.format(msgspec.json.encode(read()), indent=1).decode())
        return
    if not watch:
        for line in lines():
            shell.print(line)
        return
    with suppress(KeyboardInterrupt), Live(console=shell, auto_refresh=False) as live:  # Ctrl-C is how it ends
        while True:
            try:
                shown_now = [*lines()]
            except NotBegunError as error:
                shown_now = [Text(str(error))]
            live.update(Group(*shown_now), refresh=True)
            time.sleep(_WATCH_S)


def _lines(status: RunStatus, now: float, shell: Console, following: str = "") -> Iterator[Text | Table]:
    from coterie.deploy.plan import shown as shown_plan
    from coterie.operate.watching import is_alive

    cipher = CIPHERS.get(status.crypto, "")
    run = f", run {status.run}" if status.run > 1 else ""
    rehearsed = ", a rehearsal on one machine" if status.rehearsal else ""
    yield Text.assemble((shown(status.title), "bold"), f"{run}, mode {shown(status.mode)}, {cipher}{rehearsed}")
    yield _where(status, now)
    if following:
        yield Text(following, "bold yellow")
    if status.waits and is_alive(status, now):
        yield Text(f"The hub waits: {shown(status.waits)}", "bold yellow")
    if status.scores:
        told = starmap(_told, status.scores.items())
        most = max(status.reported.values(), default=0)
        whose = f"{most} of {plural(status.clients, 'client')} report{'s' * (most == 1)}"
        last = "last round that was not skipped" if status.skipped else "last round"
        yield Text(f"Scores of the {last}: {', '.join(told)}, as {whose}")
    yield from (Text(line, "bold yellow") for line in _ending(status, now))
    for count in range(len(_SPARED) + 1):
        table = _table(status, now, _SPARED[:count])
        if fits(table, shell):
            break
    yield table
    if count:
        yield Text(f"Not shown, for want of room: {', '.join(_SPARED[:count])}. --json has everything.", "dim")
    yield from map(Text, _remarks(status))
    yield Text("Epsilon is not reported: each party's own log and coterie export state what it has released.", "dim")
    yield Text(
        f"engine {status.engine}, session {status.session[:8]}, plan: {shown_plan(status.plan, status.plan_sha256)}",
        "dim",
    )


def _where(status: RunStatus, now: float) -> Text:
    from coterie.operate.watching import is_alive

    done = f"{plural(status.done, 'round')} done" + (f", {status.skipped} of them skipped" if status.skipped else "")
    done += f", {plural(status.repeated, 'attempt')} repeated" if status.repeated else ""
    done += f", in {duration(status.seconds)}" if status.done else ""
    if status.phase == "failed":
        return Text.assemble(("Failed", "bold red"), f" ({done}): {shown(status.why)}")
    if status.phase == "ended":
        return Text.assemble(("Ended", "bold green"), f": {done}")
    if not is_alive(status, now):
        return Text.assemble(
            ("No news of the hub", "bold red"),
            f" for {_ago(status.written, now)} ({done}). If its process {status.pid} has ended, start it again: "
            "coterie deploy hub DIR",
        )
    where = {"round": f"Round {status.round} of {status.rounds}", "set-up": "Set-up", "finish": "After the last round"}
    again = f", attempt {status.attempt + 1}" if status.attempt else ""
    away = [shown(one.name) for one in status.parties if one.fingerprint and not (one.connected or one.revoked)]
    does = "connect" if status.run == 1 else "agree"
    awaited = f"The hub waits for {', '.join(away)} to {does}" if away else "All parties are connected"
    head = where.get(status.phase) or awaited
    return Text.assemble((head, "bold"), f"{again}, for {_ago(status.since, now)}: {done}")


def _ending(status: RunStatus, now: float) -> Iterator[str]:
    from coterie.crypto.certificates import DAY_S, SOON_S

    soon = sorted((end, name) for name, end in status.certificates.items() if end < now + SOON_S)
    for end, name in soon[:1]:
        when = f"in {plural(round((end - now) / DAY_S), 'day')}" if end > now else "already"
        yield f"Certificates that end within 30 days: {len(soon)}. That of {name} ends {when}: coterie deploy renew DIR"


def _ago(then: float, now: float) -> str:
    return duration(max(0.0, now - then), whole=True)


def _table(status: RunStatus, now: float, without: Collection[str] = ()) -> Table:
    heads = [head for head in _HEADS if head not in without]
    columns = (Column(head, justify="right" if head in _NUMBERS else "left") for head in heads)
    table = new_table(*columns)
    hub = next(iter(status.parties), None)
    for one in status.parties:
        presence = _presence(one, status.phase in ("ended", "failed"), status.run > 1 and one is not hub)
        at = f"{min(one.round, status.rounds)}" + (f", attempt {one.attempt + 1}" if one.attempt else "")
        seen = MISSING if one.last_seen is None else f"{_ago(one.last_seen, now)} ago"
        counts = (sum(one.missed.values()), sum(one.refused.values()))
        cells: tuple[Text | str, ...] = (
            Text(shown(one.name)),
            Text(one.role),
            one.fingerprint[:_KEYS] or MISSING,
            Text(presence, _STYLES.get(presence, "yellow")),
            seen,
            MISSING if one.last_seen is None else at,
            size(one.bytes_up),
            size(one.bytes_down),
            duration(one.busy_s),
            *(Text(str(count), "yellow") if count else MISSING for count in counts),
        )
        table.add_row(*(cell for head, cell in zip(_HEADS, cells, strict=True) if head not in without))
    return table


_STYLES = {"here": "green", "revoked": "red", "rolled back": "red", "not joined": "dim", "not seen": "dim"}


def _presence(one: PartyStatus, over: bool, agrees: bool) -> str:
    if one.revoked:
        return "revoked"
    if not one.fingerprint:
        return "not joined"
    if one.rolled_back:
        return "rolled back"
    if agrees and one.last_seen is None:
        return "not agreed"
    if over:
        return ""
    return "here" if one.connected else "not seen" if one.last_seen is None else "away"


def _remarks(status: RunStatus) -> Iterator[str]:
    for one in status.parties:
        name = shown(one.name)
        if one.refused:
            kinds = ", ".join(f"{count} × {shown(kind)}" for kind, count in sorted(one.refused.items()))
            yield f"{name} refused {kinds}. The reasons are in its own log."
        if one.rolled_back:
            yield f"{name} has an older state than the hub has heard of: its disk went back. Enrol it again."
        if one.missed:
            whys = ", ".join(f"{count} × {why}" for why, count in sorted(one.missed.items()))
            yield f"The hub went on without {name}: {whys}."
        if one.implausible:
            yield f"{plural(one.implausible, 'report')} of {name} said what cannot be, and was dropped."


def _told(name: str, value: float | None) -> str:
    """``local AUROC 83.0 %``; ``local accuracy with the prior 91.2 %``."""
    from coterie.record.comparison import PRIOR
    from coterie.runs.metrics import METRICS

    own = name.removeprefix(PRIOR)
    plain = own.removeprefix("local_")
    facts = (known[plain].facts for known in METRICS.values() if plain in known)
    of: dict[str, Any] = next(facts, {"label": plain.replace("_", " "), "share": False})
    words = ("local" if own != plain else "", of["label"], "with the prior" if own != name else "")
    return " ".join(filter(None, (*words, metric(value, of["share"]))))


@guarded
def logs(
    place: Annotated[Path, typer.Argument(metavar="PLACE", help="A party's home, or a folder with homes in it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    level: Annotated[str, typer.Option("--level", help="Least level: debug, info, warning, error.")] = "info",
    last: Annotated[int, typer.Option("--last", help="How many lines at most; 0 for all.")] = 200,
    json_: Annotated[bool, typer.Option("--json", help="Lines as they are in the file.")] = False,
) -> None:
    """Show the log of a party, or those of all parties whose homes are below a folder, in the order of time.

    A log is on the machine of its party, and for its user alone. It says why the party refused what it refused.

    Examples:

      coterie deploy logs home

      coterie deploy logs study --level warning
    """
    from coterie.operate import watching

    if level not in _LEVELS:
        raise UserError(f"unknown level {level!r}: {', '.join(_LEVELS)}")
    least = _LEVELS[level]

    def show(line: dict[str, Any]) -> None:
        if _at_least(line, least):
            say(json.dumps(line) if json_ else _line_in_words(line))

    paths = watching.log_files(place)
    ends = {path: path.stat().st_size for path in paths}
    merged = heapq.merge(*map(watching.read_log, paths), key=lambda line: str(line.get("time", "")))
    kept = [line for line in merged if _at_least(line, least)]
    for line in kept[-last:] if last else kept:
        show(line)
    while follow:
        time.sleep(_POLL_S)
        for path in paths:
            fresh, ends[path] = _since(path, ends[path])
            for line in watching.parse_lines(fresh):
                show(line)


def _at_least(line: dict[str, Any], level: int) -> bool:
    return _LEVELS.get(str(line.get("level")), logging.INFO) >= level


def _line_in_words(line: dict[str, Any]) -> str:
    def word(value: Any) -> str:
        words = shown(value if isinstance(value, str) else json.dumps(value))
        return f'"{words}"' if isinstance(value, str) and " " in words else words

    head = f"{str(line.get('time', ''))[:23]:23}  {shown(str(line.get('party', ''))):14} "
    rest = {key: value for key, value in line.items() if key not in ("time", "level", "party", "event")}
    fields = "  ".join(f"{shown(key)}={word(value)}" for key, value in rest.items())
    return f"{head}{shown(str(line.get('event', ''))):10} {fields}".rstrip()


def _since(path: Path, end: int) -> tuple[list[bytes], int]:
    """Whole lines after this place, and the place after them. A rotated file begins anew."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < end:
                end = 0
            file.seek(end)
            data = file.read()
    except OSError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    return whole.splitlines(), end + len(whole)


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
