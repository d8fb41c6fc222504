"""``coterie run``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.guard import guarded
from coterie.cli.progress import percent, progress, seconds, size
from coterie.protocol.errors import UserError

System = Annotated[
    str | None,
    typer.Argument(
        metavar="SYSTEM",
        autocompletion=completing.systems,
        help="A system; see `coterie list systems`. Or yours, as module:ATTRIBUTE.",
    ),
]


@guarded
@opt.shared()
def run(system: System = None, **options: Any) -> None:
    """Train one system once. Without options: handwritten digits, 20 unequal clients, 10 rounds.

    Writes a folder with config.toml (repeats the run), metrics.jsonl (one line for each round), result.json,
    report.html, the trained models (coterie export, coterie predict) and a checkpoint. Options can also be given in a
    TOML file (--config), with the system's settings in its table [settings]. The command line wins.

    Examples:

      coterie run fedcaprivacy

      coterie run fedavg --data mnist --clients 50 --partition shards:2 --set lr=0.05 --set max_epochs=3

      coterie run pafed --delta 0.5 --delay geometric:0.3 --devices mobile

      coterie run fedcaprivacy --mode hardened --crypto emulated --rounds 100 --out runs/hardened

      coterie run --resume --out runs/hardened
    """
    from coterie.runs.advice import advise, without_effect

    given, resume = opt.given({"system": system, **options}), options["resume"]
    resolved = configured(given, options["set"] or [], options["config"], resume)
    for text in without_effect(given, [resolved]):
        advise(text)
    execute(resolved, resume=resume, quiet=options["quiet"])


def configured(given: dict[str, Any], texts: list[str], file: Path | None, resume: bool) -> Any:
    """The resolved config of the command line, the TOML file and, on --resume without a system, the run folder."""
    from coterie.record.folder import CONFIG, check_writable
    from coterie.runs.config import RunConfig, check_options, from_toml, resolve, typed_settings
    from coterie.runs.folder import check_code, resumed
    from coterie.runs.settings import assignments

    if file is None and resume and "system" not in given:
        if "out" not in given:
            raise UserError("--resume continues the run in a folder: say which with --out")
        check_writable(Path(given["out"]))
        resumed(Path(given["out"]))
        file = Path(given["out"]) / CONFIG
    given = check_options(given)
    texts_by_key = assignments(texts)
    if file is not None:
        check_code(file, given)
        whole = from_toml(file, **given)
        settings = {**whole.settings, **typed_settings(whole.system, texts_by_key)}
        return resolve(replace(whole, settings=settings))
    if "system" not in given:
        raise UserError("which system? For example: coterie run fedcaprivacy; see coterie list systems")
    return resolve(RunConfig(**given, settings=typed_settings(given["system"], texts_by_key)))


def execute(config: Any, *, resume: bool, quiet: bool) -> None:
    """Run it with a progress bar, draw the report and print the result."""
    from coterie.runs.metrics import leading
    from coterie.runs.runner import run as run_it

    name = config.system
    with progress(quiet, {name: config.rounds}, leading=leading(config.metrics, config.task)) as tell:
        result = run_it(config, partial(tell, name), resume=resume)
    conclude(result, rows(result.summary))


def conclude(result: Any, found: Iterable[tuple[str, str]], how: str = "", below: str = "") -> None:
    """Draw the report of a run, and print its most important results.

    found: label and value of each result.  how: stands after the title.  below: a line after the table.
    """
    from coterie.report import render

    report, summary = render([result.folder], result.folder / "report.html"), result.summary
    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, value in found:
        table.add_row(label, value)
    console.print(f"[bold]{summary['title']}[/bold], {lasted(summary)} of {summary['clients']} clients{how}")
    console.print(table)
    if below:
        console.print(below)
    console.print(f"Report: {report}", markup=False)


def lasted(summary: Any) -> str:
    """``30 rounds``, or ``7 of 30 rounds`` for a run that stopped by itself."""
    early = f"{summary['rounds_done']} of " if summary.get("stopped") is not None else ""
    return f"{early}{summary['rounds']} rounds"


def rows(summary: Any) -> list[tuple[str, str]]:
    """The most important results."""
    from coterie.report import ledger
    from coterie.report.poisoning import attackers, detected
    from coterie.report.race import measures
    from coterie.runs.metrics import score

    first, found = measures(summary)[0], scores(summary)
    if summary.get("evaluated"):
        found.append(("evaluated", f"{summary['evaluated']:,} of {summary['clients']:,} clients, drawn by the seed"))
    tuned = [score(summary, f"fine_tuned_{side}_{first['name']}") for side in ("global", "local")]
    if any(value is not None for value in tuned):
        words = f"{first['label']}, both, after each client's fine-tuning"
        found.append((words, ", ".join(measured(first, tuned))))
    if summary.get("attack") is not None:
        found.append(("attackers", attackers(summary["attack"], summary["attacker_names"], summary["clients"])))
    if summary.get("backdoor_success") is not None:
        found.append(("with the trigger, other classes taken for class 0", percent(summary["backdoor_success"])))
    if summary.get("detection") is not None:
        found.append(("flagged as poisoned", detected(summary["detection"])))
    if "grouping" in summary:
        found += clusters(summary["grouping"])
    clock = f"{seconds(summary['seconds'])} here, {seconds(summary['virtual_seconds'])} on the simulated devices"
    found += [("cipher", summary["crypto"]), ("sent", size(summary["bytes_up"])), ("time", clock)]
    if summary.get("stopped") is not None:
        found.append(("stopped", f"after round {summary['rounds_done']}: {summary['stopped']}"))
    if summary.get("finish") and summary["finish"]["message_bytes"]:
        found.append(("after the last round", handed_out(summary)))
    if words := ledger.in_words(summary.get("ledger")):
        found.append(("privacy", words))
    found += [("privacy, audited", words) for words in audited(summary.get("dp_audit"))]
    if summary["refused"] or summary["lost"] or summary["late"]:
        trouble = f"{summary['refused']} refused, {summary['lost']} lost, {summary['late']} late"
        found.append(("messages", trouble))
    if summary["refused_why"]:
        why, times = max(summary["refused_why"].items(), key=lambda item: item[1])
        others = len(summary["refused_why"]) - 1
        found.append(("refused", f"{times} × {why}" + (f"; and for {others} other reasons" if others else "")))
    if summary["outliers"]:
        who = ", ".join(f"{name} in {times} rounds" for name, times in summary["outliers"].items())
        found.append(("updates that stand out", who))
    if summary["skipped"]:
        r, why = next(iter(summary["skipped"].items()))
        found.append(("skipped", f"{len(summary['skipped'])} of {summary['rounds']} rounds; round {r}: {why}"))
    return found


def scores(summary: Any) -> list[tuple[str, str]]:
    """All metrics at the end, the leading one first, on all test data and on each client's own."""
    from coterie.report.race import measures
    from coterie.runs.metrics import score

    first, *others = measures(summary)
    whole, own = measured(first, (score(summary, f"{side}_{first['name']}") for side in ("global", "local")))
    found = [(f"{first['label']} on all test data", whole)]
    found.append((f"{first['label']} on each client's own kind of data", own))
    for one in others:
        both = (score(summary, f"{side}_{one['name']}") for side in ("global", "local"))
        found.append((f"{one['label']} on all test data, on each client's own", ", ".join(measured(one, both))))
    return found


def handed_out(summary: Any) -> str:
    """What was sent after the last round, in bytes by kind of message, and how long that took on the devices."""
    finish, before = summary["finish"], summary["finish"]["began_virtual_seconds"]
    sent = [f"{what}: {size(much)}" for what, much in finish["message_bytes"].items()]
    return ", ".join([*sent, f"in {seconds(finish['virtual_seconds'] - before)}"])


def audited(rows: Any) -> list[str]:
    """Each claim of an epsilon beside what neighbouring data prove (``result.json: dp_audit``)."""
    import msgspec

    from coterie.record.schema import Audited
    from coterie.report import ledger
    from coterie.report.words import MISSING

    return [
        f"{row['mechanism']}: epsilon claimed {row['claimed']}, at least {row['proved']} by a test"
        + (f", {row['exact']} by a formula" if row["exact"] != MISSING else "")
        + f" ({row['neighbours']}): {row['verdict']}"
        for row in ledger.audited(msgspec.convert(rows or [], tuple[Audited, ...]))
    ]


def measured(measure: Any, values: Iterable[float | None]) -> list[str]:
    """Values of a metric as it is shown: shares in percent."""
    return [percent(v) if measure["share"] or v is None else f"{v:.4g}" for v in values]


def clusters(grouping: Any) -> list[tuple[str, str]]:
    """Number and sizes of the clusters, clusters of a client, and agreement with the data's own groups."""
    sizes = ", ".join(map(str, grouping["sizes"][:8])) + (", …" if len(grouping["sizes"]) > 8 else "")
    each = f"; a client is in {grouping['per_client']:.2f} on average" if grouping["per_client"] > 1 else ""
    words = f"{grouping['clusters']} (of {sizes} clients){each}" if sizes else "none"
    found = [("clusters", words + (f", {grouping['without']} clients in none" if grouping["without"] else ""))]
    if grouping["ari"] is not None:
        found.append(("the data's own groups found", f"adjusted Rand index {grouping['ari']:.2f}"))
    return found
