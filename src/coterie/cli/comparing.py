"""``coterie compare``, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.guard import guarded
from coterie.cli.progress import console, named, percent, progress, seconds, size, telling, work
from coterie.protocol.errors import UserError

_HEADS = {
    "models": "models\n%",
    "identity": "links\n%",
    "labels": "labels\n%",
    "groups": "alike\n%",
    "samples": "samples\n%",
    "other": "other\n%",
}
"""The heads of the columns, by topic of ``report/race.py``."""
_CIPHER = "cipher"
Row = Mapping[str, Any]
"""Of a method in ``compare.json``."""

Methods = Annotated[
    list[str] | None,
    typer.Argument(
        autocompletion=completing.methods, help="Systems, as NAME or NAME@MODE; see `coterie list systems`."
    ),
]
Seeds = Annotated[
    int, typer.Option("--seeds", help="Run each method with this many seeds. Several seeds give 95 % intervals.")
]
Audit = Annotated[
    bool,
    typer.Option("--audit", help="Record all views and attack them. Adds what was learned to the tables."),
]
_fair = partial(typer.Option, rich_help_panel=opt.FAIR)
Budget = Annotated[
    str | None, _fair("--budget", metavar="METHOD", help="The method whose budget all share. [the first]")
]
EachOwn = Annotated[bool, _fair("--each-own", help="Every method keeps its own defaults, so the race is not fair.")]
Local = Annotated[bool, _fair("--local/--no-local", help="Add the baseline of clients that train alone. [local]")]


@guarded
@opt.shared("fine_tune")
def compare(
    methods: Methods = None,
    seeds: Seeds = 1,
    audit: Audit = False,
    budget: Budget = None,
    each_own: EachOwn = False,
    local: Local = True,
    **options: Any,
) -> None:
    """Compare several methods on the same data, partition, seeds and budget, in one table and one report.

    The budget (participation, epochs, batches, optimiser, learning rate, server step, delays) is that of the first
    method. What a method cannot share is listed. --set key=value applies to every method that has this setting, --set
    method.key=value to that method. Clients that train alone are added as `local`. Every model is also scored after
    fine-tuning. A method is really better if it is ahead of `local`, also after fine-tuning. Writes a folder with a run
    folder for each method, compare.json and report.html.

    Examples:

      coterie compare fedcaprivacy fedcaprivacy@hardened fedavg

      coterie compare fedcaprivacy@hardened ifca fedavg --data fashion_mnist --partition permute:4 --crypto emulated
      --seeds 3

      coterie compare fedavg fedprox --set fedprox.mu=0.1 --set max_epochs=10
    """
    from coterie.cli.auditing import tables as audit_tables
    from coterie.report import race, render
    from coterie.runs.advice import advise, without_effect
    from coterie.runs.audited import kept, learned, together
    from coterie.runs.comparison import compare as compare_them
    from coterie.runs.comparison import plan
    from coterie.runs.config import check_options, read_toml, resolve
    from coterie.runs.folder import check_code
    from coterie.runs.metrics import leading
    from coterie.runs.registry import audit_of, get
    from coterie.runs.settings import assignments

    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    config = options["config"]
    file = {} if config is None else read_toml(config)
    unused = [key for key in ("system", "settings") if file.pop(key, None)]
    if unused:
        raise UserError(
            f"{config}: {' and '.join(unused)} cannot stand in a comparison's file: use arguments and --set"
        )
    chosen = check_options(opt.given(options))
    if config is not None:
        check_code(config, chosen)
    given = {"fine_tune": "held_out", **file, **chosen}
    where, first = given.pop("out", None), given.pop("seed", 0)
    if audit:
        given["record"] = True
    settings = assignments(options["set"] or [])
    planned = plan(methods or [], given, settings, budget_from=budget, each_own=each_own, local=local)
    if audit:
        for planned_run in planned.methods.values():
            audit_of(get(planned_run.system))  # a wrong name of one shows before anything is run
    attacked = partial(learned, data_dir=given.get("data_dir")) if audit else None
    wanted = [first + k for k in range(seeds)]
    resolved = [resolve(one) for one in planned.methods.values()]
    for text in without_effect(opt.given(options), resolved):
        advise(text)
    length = int(resolved[0].rounds or 0)
    shows = leading(resolved[0].metrics, resolved[0].task)
    with progress(options["quiet"], work(planned.methods, wanted, length, attacked=audit), leading=shows) as tell:

        def told(label: str, of_seed: int, line: Mapping[str, Any]) -> None:
            tell(named(label, of_seed), line)

        attack = None if attacked is None else telling(tell, attacked)
        done = compare_them(planned, wanted, where, told, resume=options["resume"], learned=attack)
    report = render([done.folder], done.folder / "report.html")
    content, shell = done.content, console(140)
    shell.print(race.budget(content), markup=False)
    if said := race.attack(content):
        shell.print(said, markup=False)
    for line in race.not_shared(content):
        shell.print(line, markup=False)
    for table in tables(content["rows"], shell, content["measures"]):
        shell.print(table)
    if seeds > 1:
        shell.print(lead_table(content))
    for line in race.sentences(content):
        shell.print(line, markup=False)
    if audit:
        runs = [done.folder / name for row in content["rows"] if row["learned"] is not None for name in row["runs"]]
        wide = console(180)
        wide.print()
        for part in audit_tables(together({run: found for run in runs if (found := kept(run))})["methods"]):
            wide.print(part)
    shell.print(f"\nReport: {report}", markup=False)


def tables(rows: Sequence[Row], shell: Console, measures: Sequence[Row] = ()) -> list[Table]:
    """Tables with one row for each method: one table, or on a narrow console three, for accuracies, leaks and costs."""
    from coterie.report.race import measures as metrics_of
    from coterie.report.race import topics_of
    from coterie.runs.metrics import score

    topics, found = topics_of(rows), metrics_of({"measures": measures})
    grouped = any(row["ari"] for row in rows)
    accuracies = {_CIPHER: [row["crypto"] for row in rows]}

    def column(head: str, field: str, share: bool) -> bool:
        """Add a column, unless no row has such a value."""
        values = [score(row, field) for row in rows]
        if any(values):
            accuracies[head] = [_spread(value, *((100, ".1f") if share else (1, ".4g"))) for value in values]
        return any(values)

    tuned = False
    for one in found:
        name, share, unit = one["name"], one["share"], " %" if one["share"] else ""
        head = unit.strip() if len(found) == 1 and name == "accuracy" else one["label"] + unit
        column(f"local\n{head}", f"local_{name}", share)
        if one is found[0]:
            tuned = column(f"local {head},\ntuned", f"fine_tuned_local_{name}", share)
        column(f"global\n{head}", f"global_{name}", share)
    for head, measure in (
        ("backdoor\nworks %", "backdoor_success"),
        ("flagged\n%", "detection_rate"),
        ("false\nalarms %", "false_alarms"),
    ):
        if any(row.get(measure) for row in rows):
            accuracies[head] = _percents(rows, measure)
    if grouped:
        accuracies["groups\nfound"] = [_spread(row["ari"], 1, ".2f") for row in rows]
    leaks = {_HEADS[topic]: [_leak(row, topic) for row in rows] for topic in topics}
    shown = {"sent": ("bytes_up", size), "time": ("seconds", seconds), "virtual\ntime": ("virtual_seconds", seconds)}
    costs = {head: [words(row[of] and row[of]["mean"]) for row in rows] for head, (of, words) in shown.items()}
    made = [_table(rows, accuracies | leaks | costs)]
    if Measurement.get(shell, shell.options.update(width=10_000), made[0]).maximum > shell.width:
        made = [_table(rows, part) for part in (accuracies, leaks, costs) if part]
    notes = ["local, global: accuracy or metric on data of each client's own kind, and on all test data"]
    if any(len(row["runs"]) > 1 for row in rows):
        notes.append("±: half of the 95 % interval of the mean over the seeds")
    if tuned:
        notes.append("tuned: after each client's own fine-tuning")
    if any(row.get("detection_rate") or row.get("false_alarms") for row in rows):
        notes.append("flagged, false alarms: poisoned and other contributions that the method takes for poisoned")
    if grouped:
        notes.append("groups found: adjusted Rand index, 1 for the data's own groups, 0 for chance")
    if topics:
        notes.append(
            "models, links, labels, alike, samples, other: what the servers learn on their own, by the best of our "
            "attacks (clients' models, which models of two rounds are of the same client, label shares, which clients "
            "have similar data, training samples, other secrets); 0 is chance or luck, 100 is everything; a "
            "dash: no attack applies"
        )
    made[-1].caption = ". ".join(note[0].upper() + note[1:] for note in notes) + "."
    made[-1].caption_justify = "left"
    return made


def _table(rows: Sequence[Row], columns: Mapping[str, Sequence[str]]) -> Table:
    made = Table(Column("method", no_wrap=True), box=SIMPLE, collapse_padding=True, pad_edge=False)
    for head in columns:
        made.add_column(head, justify="left" if head == _CIPHER else "right", no_wrap=head == _CIPHER)
    for row, *cells in zip(rows, *columns.values(), strict=True):
        made.add_row(row["method"], *cells)
    return made


def lead_table(content: Row) -> Table:
    """The lead of the first method over each other one, paired by seed. content: ``compare.json``."""
    from coterie.report import race
    from coterie.runs.metrics import score

    columns = race.lead_columns(content)
    heads = (Column(head, justify="right") for _, head, _ in columns)
    made = Table(Column(no_wrap=True), *heads, box=SIMPLE, pad_edge=False)
    made.title, made.caption = race.lead_title(content), race.lead_note(content)
    made.title_justify = made.caption_justify = "left"
    for lead in content["leads"]:
        cells = (race.with_interval(score(lead, field), measure["share"]) for field, _, measure in columns)
        made.add_row(f"over {lead['over']}", *cells)
    return made


def _percents(rows: Sequence[Row], measure: str) -> list[str]:
    return [_spread(row[measure], 100, ".1f") for row in rows]


def _spread(spread: Row | None, scale: float, form: str) -> str:
    if spread is None:
        return percent(None)
    interval = "" if spread["interval"] is None else f" ± {scale * spread['interval']:{form}}"
    return f"{scale * spread['mean']:{form}}{interval}"


def _leak(row: Row, topic: str) -> str:
    leak = (row.get("learned") or {}).get(topic)
    return percent(None) if leak is None else f"{100 * max(leak['mean'], 0.0):.0f}"
