"""One page about a run for those who answer for the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.protocol.system import BROKER
from coterie.record.load import Run, compared, find, load
from coterie.record.schema import CLIENT, SAMPLE
from coterie.report import comparison, gains
from coterie.report.ledger import between, in_words
from coterie.report.summary import lasted
from coterie.report.tables import audit_table
from coterie.report.templates import TEMPLATES
from coterie.runs.budget import LOCAL
from coterie.runs.views import VIEWS

_MOST = 12  # rows of a table: it is one page


def statement(folder: Path) -> str:
    """In Markdown: what left the house, how private it is, and whether it helps, by the comparison around the folder.
    Raises UserError.
    """
    run = load(_of_one(folder))
    told, runs = _compared(folder.resolve(), run)
    result, role, d = run.result, run.client_role, run.result.deployment
    sent = [(key.split(" "), n) for key, n in run.total("message_bytes").items() if key.startswith(f"{role} > ")]
    sees = [
        (one, words.partition("Learns ")[2]) for one, words in result.sees.items() if d is not None or one != BROKER
    ]
    return _MARKDOWN.get_template("statement.md.j2").render(
        result=result,
        alone=result.system == LOCAL,
        most=_MOST,
        lasted=lasted({"rounds": result.rounds, "rounds_done": result.done, "stopped": result.stopped}),
        simulated=d is None or d.rehearsal,
        left=run.total("bytes_up").get(role, 0) / result.clients,
        sent=[(to, message, n / result.clients) for (_, _, to, message), n in sent],
        sees=sees,
        **_attacks(audit_table([one.result.audit for one in runs]) or audit_table([result.audit])),
        seeds=[one.result.seed for one in runs],
        recorded=(folder / VIEWS).exists(),
        reporting=result.clients if d is None else d.reporting[1],
        leading=run.leading,
        score=result.score(f"local_{run.leading.name}"),
        help=None if told is None else _help(told),
        **_ledger(run),
    )


def _of_one(folder: Path) -> Path:
    if (found := find([folder])) == [folder]:
        return folder
    names = ", ".join([*map(str, found[:_MOST]), *["..."] * (len(found) > _MOST)])
    raise UserError(f"{folder} is no run, and a statement is about one: give one of {names}")


def _compared(folder: Path, run: Run) -> tuple[dict[str, Any] | None, list[Run]]:
    """The comparison around a run with this run's gains, if any, and the runs over which they are."""
    told = compared(folder.parent)
    row = next((row for row in told["rows"] if folder.name in row["runs"]), None) if told else None
    if told is None or row is None or not (own := [of for of in told["benefits"] if of["method"] == row["method"]]):
        return None, [run]
    here = [[one for one in of["clients"] if one["seed"] in (None, run.result.seed)] for of in own]
    is_mean = all(one["seed"] is None for clients in here for one in clients)
    gains_here = [{**of, "clients": clients} for of, clients in zip(own, here, strict=True)]
    every = [folder.parent / Path(name).name for name in row["runs"]]  # a file's words name no other folder
    whole = is_mean and all(one.is_dir() for one in every)
    return {**told, "benefits": gains_here}, [load(one) for one in every] if whole else [run]


def _attacks(audit: dict[str, Any] | None) -> dict[str, Any]:
    """Those on what did not happen are apart."""
    rows = audit["rows"] if audit else []
    return {
        "audit": audit,
        "attacks": [row for row in rows if not row["control"]],
        "controls": [row for row in rows if row["control"]],
    }


ANY = "anybody who sees it all, and knows no server's noise"


def _ledger(run: Run) -> dict[str, Any]:
    every, names = run.result.ledger or {}, run.partition.names
    alike: dict[tuple[str, str, str], list[str]] = {}
    for party, one in every.items():
        place = party.rpartition("/")[2]
        name = names[int(place)] if place.isdigit() and int(place) < len(names) else party
        for by, epsilon in {ANY: one.epsilon, **one.against}.items():
            of_sample, of_client = (in_words([epsilon.get(of, "infinite")]) for of in (SAMPLE, CLIENT))
            alike.setdefault((by, of_sample, of_client), []).append(name)
    return {
        "ledger": list(alike.items()),
        "clients": len(every),
        "delta": between([one.delta for one in every.values()]),
        "told": list(dict.fromkeys(release.what for one in every.values() for release in one.releases)),
    }


def _help(told: dict[str, Any]) -> dict[str, Any]:
    measure, first = comparison.measures(told)[0], max(told["benefits"], key=lambda one: one["tuned"])
    return {
        "title": gains.help_title(told),
        "note": gains.help_note(told),
        "heads": gains.HELP_HEADS,
        "rows": gains.help_rows(told),
        "sentences": list(gains.help_sentences(told)),
        "clients": list(gains.client_sentences(first, measure)),
        "tuned": first["tuned"],
    }


def _cell(words: object) -> str:
    plain = "".join(c if c.isprintable() else " " for c in str(words))
    return "".join(f"\\{c}" if c in r"\|*_<>[]`" else c for c in plain)


_MARKDOWN = TEMPLATES.overlay(autoescape=False, finalize=_cell)
