"""``coterie compare``, and the tables that it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.guard import console, fits, guarded, in_parts, loading, new_table
from coterie.protocol.errors import UserError
from coterie.report.words import duration, size

if TYPE_CHECKING:
    from coterie.api import Comparison

_CIPHER = "cipher"
_HELP_KEPT = 7, 6, 4  # columns of the gains: alone and together are a pair
_FEW_TESTED = 50  # a client's test samples, below which folds are worth their runs
Row = Mapping[str, Any]

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
        from coterie.api import compare as raced

    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    given, settings = opt.shared_options(opt.given(options), options["set"] or [], options["config"])
    done = raced(
        methods or [],
        settings=settings,
        seeds=seeds,
        budget=budget,
        each_own=each_own,
        local=local,
        tune=opt.tried_values(tune or []),
        audit=audit,
        progress=not options["quiet"],
        resume=options["resume"],
        **given,
    )
    _print(done, given, audit=audit)


def _print(done: Comparison, given: Mapping[str, Any], *, audit: bool) -> None:
    from coterie.report import comparison

    content, shell = done.content, console(140)
    if content["benefits"]:
        _print_help(content, given, shell)
    said = [comparison.budget(content), *comparison.chosen(content), comparison.attack(content)]
    said += comparison.not_shared(content)
    for line in filter(None, said):
        shell.print(line, markup=False)
    parts = tables(content["rows"], shell, content["measures"])
    if len(content["seeds"]) > 1:
        parts += lead_tables(content, shell)
    for table in [*parts, *form_tables(content, shell)]:
        note, table.caption = table.caption, None  # as wide as the console, not as the table
        shell.print(table)
        if note:
            shell.print(note, markup=False)
    for line in comparison.sentences(content):
        shell.print(line, markup=False)
    if audit:
        _print_audits(done)
    shell.print(f"\nReport: {done.folder / 'report.html'}", markup=False)


def _print_help(content: Row, given: Mapping[str, Any], shell: Console) -> None:
    from coterie.report import gains

    shell.print(gains.help_title(content), markup=False)
    for line in gains.help_sentences(content):
        shell.print(f"  {line}", markup=False)
    if any(one["name"] for one in content["benefits"][0]["clients"]) and gains.help_rows(content):
        shell.print(benefit_table(content, shell))  # of the user's own clients: rows of made ones are in the report
    shell.print(gains.help_note(content), markup=False)
    if hint := folds_hint(content, given):
        shell.print(hint, markup=False)


def folds_hint(content: Row, given: Mapping[str, Any]) -> str | None:
    """About folds, if clients of own data have few test samples."""
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
    """One table, or on a narrow console accuracies, leaks and costs."""
    from coterie.report import comparison
    from coterie.report.score_table import score_columns

    topics, scored = comparison.topics_of(rows), score_columns(rows, measures)
    methods = {"method": [row["method"] for row in rows]}
    named = {**methods, _CIPHER: [row["crypto"] for row in rows]}
    accuracies = {one.wrapped: one.texts() for one in scored}
    leaks = {
        f"{comparison.TOPICS[topic].head}\n%": [comparison.leak_cell(row, topic) for row in rows] for topic in topics
    }
    costs = {
        "sent\nby all": [size(row["bytes_up"] and row["bytes_up"]["mean"]) for row in rows],
        "time": [duration(row["seconds"] and row["seconds"]["mean"]) for row in rows],
        "virtual\ntime": [duration(row["virtual_seconds"] and row["virtual_seconds"]["mean"]) for row in rows],
    }
    made = in_parts(named, accuracies | leaks | costs, shell)
    if len(made) > 1:
        made = [*in_parts(named, accuracies, shell), *in_parts(methods, leaks, shell)[: len(leaks)]]
        made += in_parts(methods, costs, shell)
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


def lead_tables(content: Row, shell: Console) -> list[Table]:
    from coterie.report import comparison

    heads = [head.replace(" ", "\n") for _, head, _ in comparison.lead_columns(content)]
    if not content["leads"]:
        return []
    over, cells = zip(*comparison.lead_rows(content), strict=True)
    numbers = dict(zip(heads, zip(*cells, strict=True), strict=True))
    title, note = comparison.lead_title(content), comparison.lead_note(content)
    return in_parts({"": [f"over {one}" for one in over]}, numbers, shell, title, note)


def form_tables(content: Row, shell: Console) -> list[Table]:
    """Clients' models in all forms, and on other test labels."""
    from coterie.report.score_table import FORMS_TITLE, form_note, form_table

    heads, rows = form_table(content)
    if not rows:
        return []
    methods, forms, *cells = zip(*rows, strict=True)
    words = {heads[0]: _once(methods), heads[1]: forms}
    numbers = {head.replace(", %", " %").replace(" ", "\n"): of for head, of in zip(heads[2:], cells, strict=True)}
    return in_parts(words, numbers, shell, FORMS_TITLE, form_note(content))


def _once(names: Sequence[str]) -> list[str]:
    return ["" if place and names[place - 1] == name else name for place, name in enumerate(names)]


def benefit_table(content: Row, shell: Console) -> Table:
    """Without the last columns where there is no room, then with long names in two lines."""
    from coterie.report import gains

    clients, *columns = zip(*gains.help_rows(content), strict=True)
    cells = dict(zip(gains.HELP_HEADS, ([*map(escape, _once(clients))], *columns), strict=True))
    for kept in _HELP_KEPT:
        heads, made = [*cells][:kept], new_table()
        for head in heads:
            side: JustifyMethod = "left" if head in gains.HELP_WORDS else "right"
            made.add_column(head, justify=side, no_wrap=head not in ("client", "method"), overflow="fold")
        for row in zip(*(cells[head] for head in heads), strict=True):
            made.add_row(*row)
        if fits(made, shell):
            break
    if left := [*cells][kept:]:
        made.caption = f"In the report, for want of room here: {', '.join(left)}."
    return made
