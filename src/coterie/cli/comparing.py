"""``coterie compare``, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.guard import console, fits, guarded, loading, new_table
from coterie.protocol.errors import UserError
from coterie.report.words import duration, size

if TYPE_CHECKING:
    from coterie.api import Comparison

_CIPHER = "cipher"
_FEW_TESTED = 50
"""Test samples of a client, below which folds are worth their runs."""
Row = Mapping[str, Any]
"""Of a method in ``compare.json``."""

_fair = partial(typer.Option, rich_help_panel=opt.FAIR)


@guarded
@opt.shared("fine_tune")
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completing.methods, help="Systems, as NAME or NAME@MODE; see `coterie list systems`."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Run each method with this many seeds. Several seeds give 95 % intervals.")
    ] = 1,
    audit: Annotated[
        bool, typer.Option("--audit", help="Record all views and attack them. Adds what was learned to the tables.")
    ] = False,
    budget: Annotated[
        str | None, _fair(metavar="METHOD", help="The method whose budget all share. [the first]")
    ] = None,
    each_own: Annotated[
        bool, _fair("--each-own", help="Every method keeps its own defaults, so the race is not fair.")
    ] = False,
    local: Annotated[
        bool, _fair("--local/--no-local", help="Add the baseline of clients that train alone. [local]")
    ] = True,
    tune: Annotated[
        list[str] | None,
        _fair(
            metavar="KEY=A,B,...",
            help="Choose a setting for each method among these values, by samples held out of training. Can be "
            "repeated: every combination is tried. [none]",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare several methods on the same data, partition, seeds and budget, in one table and one report.

    The budget (participation, epochs, batches, optimiser, learning rate, server step, delays) is that of the first
    method. What a method cannot share is listed. --set key=value applies to every method that has this setting, --set
    method.key=value to that method. Clients that train alone are added as `local`. Every model is also scored after
    fine-tuning. A method is really better if it is ahead of `local`, also after fine-tuning. Of every client it says
    whether training together helps. Writes a folder with a run folder for each method, compare.json and report.html.

    Examples:

      coterie compare fedcaprivacy fedcaprivacy@hardened fedavg

      coterie compare fedcaprivacy@hardened ifca fedavg --data fashion_mnist --partition permute:4 --crypto emulated
      --seeds 3

      coterie compare fedavg fedprox --set fedprox.mu=0.1 --set max_epochs=10

      coterie compare fedavg scaffold --tune lr=0.03,0.1,0.3 --seeds 3
    """
    with loading():
        from coterie.api import race

    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    given, settings = opt.shared_options(opt.given(options), options["set"] or [], options["config"])
    done = race(
        methods or [],
        given,
        settings,
        seeds=seeds,
        budget=budget,
        each_own=each_own,
        local=local,
        tune=opt.tried_values(tune or []),
        audit=audit,
        progress=not options["quiet"],
        resume=options["resume"],
    )
    _print(done, given, audit=audit)


def _print(done: Comparison, given: Mapping[str, Any], *, audit: bool) -> None:
    from coterie.report import comparison

    report, content, shell = done.report(), done.content, console(140)
    if content["benefits"]:
        _print_help(content, given, shell)
    said = [comparison.budget(content), *comparison.chosen(content), comparison.attack(content)]
    said += comparison.not_shared(content)
    for line in filter(None, said):
        shell.print(line, markup=False)
    for table in tables(content["rows"], shell, content["measures"]):
        shell.print(table)
    if len(content["seeds"]) > 1:
        shell.print(lead_table(content))
    if (alone := alone_table(content)) is not None:
        shell.print(alone)
    for line in comparison.sentences(content):
        shell.print(line, markup=False)
    if audit:
        _print_audits(done)
    shell.print(f"\nReport: {report}", markup=False)


def _print_help(content: Row, given: Mapping[str, Any], shell: Console) -> None:
    from coterie.report import gains

    shell.print(gains.help_title(content), markup=False)
    for line in gains.help_sentences(content):
        shell.print(f"  {line}", markup=False)
    if gains.help_rows(content):
        shell.print(benefit_table(content))
    shell.print(gains.help_note(content), markup=False)
    if hint := folds_hint(content, given):
        shell.print(hint, markup=False)


def folds_hint(content: Row, given: Mapping[str, Any]) -> str | None:
    """A line about folds, if clients of one's own data have few test samples."""
    from coterie.data.own import is_path

    clients = content["benefits"][0]["clients"]
    tested = [one["samples"] for one in clients if one["name"]]
    if not is_path(content["data"]) or min(tested, default=_FEW_TESTED) >= _FEW_TESTED:
        return None
    if given.get("folds") or given.get("test_share"):
        return None
    return f"Only {sum(tested)} samples are tested; without a column split, --folds 5 --seeds 5 tests all."


def _print_audits(done: Comparison) -> None:
    from coterie.cli.auditing import tables as audit_tables
    from coterie.runs.audited import kept_together

    attacked = [row for row in done.content["rows"] if row["learned"] is not None]
    audits = kept_together(done.folder / name for row in attacked for name in row["runs"])
    wide = console(180)
    wide.print()
    for part in audit_tables(audits["methods"], wide):
        wide.print(part)


def tables(rows: Sequence[Row], shell: Console, measures: Sequence[Row] = ()) -> list[Table]:
    """One table, or on a narrow console three: accuracies, leaks and costs."""
    from coterie.report import comparison
    from coterie.report.score_table import score_columns

    topics, scored = comparison.topics_of(rows), score_columns(rows, measures)
    accuracies: dict[str, Sequence[str]] = {_CIPHER: [row["crypto"] for row in rows]}
    accuracies |= {one.wrapped: one.texts() for one in scored}
    leaks = {
        f"{comparison.TOPICS[topic].head}\n%": [comparison.leak_cell(row, topic) for row in rows] for topic in topics
    }
    costs = {
        "sent": [size(row["bytes_up"] and row["bytes_up"]["mean"]) for row in rows],
        "time": [duration(row["seconds"] and row["seconds"]["mean"]) for row in rows],
        "virtual\ntime": [duration(row["virtual_seconds"] and row["virtual_seconds"]["mean"]) for row in rows],
    }
    made = [_table(rows, accuracies | leaks | costs)]
    if not fits(made[0], shell):
        made = [_table(rows, part) for part in (accuracies, leaks, costs) if part]
    made[-1].caption = _caption(rows, [one.explained for one in scored if one.explained], bool(topics))
    return made


def _caption(rows: Sequence[Row], explained: Sequence[str], attacked: bool) -> str:
    from coterie.report import comparison
    from coterie.report.score_table import interval_note

    notes = ["local, global: accuracy or metric on data of each client's own kind, and on all test data"]
    if note := interval_note(max(len(row["runs"]) for row in rows)):
        notes.append(note.removesuffix("."))
    notes += dict.fromkeys(explained)
    notes += comparison.sent_notes(rows)
    if attacked:
        notes.append(
            "models, links, labels, alike, samples, other: what the servers learn on their own, by the best of our "
            "attacks (clients' models, which models of two rounds are of the same client, label shares, which clients "
            "have similar data, training samples, other secrets); 0 is chance or luck, 100 is everything; a "
            "dash: no attack applies; ?: the attacks cannot tell"
        )
    return ". ".join(note[0].upper() + note[1:] for note in notes) + "."


def _table(rows: Sequence[Row], columns: Mapping[str, Sequence[str]]) -> Table:
    made = new_table(Column("method", no_wrap=True), collapse_padding=True)
    for head in columns:
        made.add_column(head, justify="left" if head == _CIPHER else "right", no_wrap=head == _CIPHER)
    for row, *cells in zip(rows, *columns.values(), strict=True):
        made.add_row(row["method"], *cells)
    return made


def lead_table(content: Row) -> Table:
    """content: ``compare.json``."""
    from coterie.report import comparison

    heads = (Column(head, justify="right") for _, head, _ in comparison.lead_columns(content))
    title, note = comparison.lead_title(content), comparison.lead_note(content)
    made = new_table(Column(no_wrap=True), *heads, title=title, caption=note)
    for over, cells in comparison.lead_rows(content):
        made.add_row(f"over {over}", *cells)
    return made


def alone_table(content: Row) -> Table | None:
    """Clients' models in all forms, and on other test labels."""
    from coterie.report.score_table import FORMS_TITLE, form_note, form_table

    heads, rows = form_table(content)
    if not rows:
        return None
    words = (Column(head, no_wrap=True) for head in heads[:2])
    numbers = (Column(head, justify="right") for head in heads[2:])
    made = new_table(*words, *numbers, title=FORMS_TITLE, caption=form_note(content))
    last = ""
    for method, *cells in rows:
        made.add_row("" if method == last else method, *cells)
        last = method
    return made


def benefit_table(content: Row) -> Table:
    from coterie.report import gains

    made = new_table()
    for head in gains.HELP_HEADS:
        made.add_column(head, justify="left" if head in ("client", "method", "") else "right", no_wrap=True)
    last = ""
    for client, tested, *cells in gains.help_rows(content):
        made.add_row(*(("", "") if client == last else (escape(client), tested)), *cells)
        last = client
    return made
