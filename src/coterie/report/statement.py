"""One page about a run for those who answer for the data: what left the house, how private it is, whether it helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.system import BROKER
from coterie.record.load import Run, compared, load
from coterie.record.schema import CLIENT, SAMPLE
from coterie.report import comparison
from coterie.report.ledger import NO_PROOF, between
from coterie.report.summary import lasted
from coterie.report.tables import audit_table
from coterie.report.words import listed, metric, plural, size

_MOST = 12  # rows of a table: it is one page


def statement(folder: Path) -> str:
    """The page in Markdown. folder: of a run; if it lies in a comparison, that says whether it helps.

    Raises UserError.
    """
    run = load(folder)
    parts = [*_head(run), *_left(run), *_privacy(run), *_attacks(run), *_benefit(run, folder)]
    return "\n\n".join(parts) + "\n"


def _head(run: Run) -> Iterable[str]:
    result, d = run.result, run.result.deployment
    where = "in a simulation on one computer" if d is None or d.rehearsal else "between machines"
    cipher = {"real": "with real ciphers", "emulated": "with emulated ciphers, which keep nothing secret"}
    yield f"# Statement: {_cell(result.name)} on {_cell(result.data)}"
    yield (
        f"{plural(result.clients, 'client')} trained a model together for {lasted(_plain(run))}, {where}, "
        f"{cipher.get(result.crypto, 'without ciphers')}. Samples stayed where they were; the messages below did not."
    )


def _left(run: Run) -> Iterable[str]:
    yield "## What left each house"
    sent = {key: n for key, n in run.total("message_bytes").items() if key.startswith(f"{run.client_role} > ")}
    total = run.total("bytes_up").get(run.client_role, 0)
    mean = f"{size(total / run.result.clients)} from each client, on average, in the whole run"
    if not sent:
        yield f"{mean}. Which messages these were is not recorded."
    else:
        rows = [(*key.split(" > ", 1)[1].split(" ", 1), size(n / run.result.clients)) for key, n in sent.items()]
        yield f"{mean}:"
        yield _table(("to", "message", "from each client, mean"), rows)
    here = run.result.deployment is None
    learnt = {
        role: words.partition("Learns ")[2] for role, words in run.result.sees.items() if role != BROKER or not here
    }
    yield "\n".join(f"- **{_cell(role)}** learns {_cell(words)}" for role, words in learnt.items())


def _privacy(run: Run) -> Iterable[str]:
    yield "## How private it was"
    ledger = run.result.ledger
    if not ledger:
        own = run.result.deployment is not None
        yield (
            "Each client keeps its own account, which `coterie export` of its home shows."
            if own
            else "Nothing was counted for this method, so there is no proof of privacy."
        )
        return
    alike: dict[tuple[str, str, str], list[str]] = {}
    for party, one in ledger.items():
        for by, epsilon in {"everybody together": one.epsilon, **one.against}.items():
            of_sample, of_client = (between([epsilon.get(of, "infinite")]) for of in (SAMPLE, CLIENT))
            alike.setdefault((by, of_sample, of_client), []).append(_name(run, party))
    everybody = f"all {len(ledger)} clients"
    rows = [(everybody if len(names) == len(ledger) > 1 else listed(names), *row) for row, names in alike.items()]
    told = dict.fromkeys(release.what for one in ledger.values() for release in one.releases)
    yield (
        "Epsilon bounds what anybody can learn of one sample, or of a client as a whole, from all that the client has "
        f"released (delta {between([one.delta for one in ledger.values()])}). Below 1 is much protection, above 10 "
        f"hardly any. “{NO_PROOF.capitalize()}” means that nothing is promised, not that something was learnt."
    )
    yield _table(("of", "against", "epsilon for one sample", "epsilon for the client"), rows)
    yield f"Counted: {_cell('; '.join(told))}."


def _attacks(run: Run) -> Iterable[str]:
    yield "## What attacks found"
    audit = audit_table([run.result.audit])
    if audit is None:
        yield "This run was not attacked: record a run with --record, and use `coterie audit`."
        return
    rows = [(row["name"], row["verdict"], f"{row['leak']:.2f}") for row in audit["rows"]]
    yield "Leak: 0 is no better than guessing, 1 is everything. Attacks show what was learnt, not what could be."
    yield _table(("attack", "found", "leak"), rows)


def _benefit(run: Run, folder: Path) -> Iterable[str]:
    told = compared(folder.resolve().parent)
    rows, benefits = (told["rows"], told["benefits"]) if told else ((), ())
    methods = [row["method"] for row in rows if folder.resolve().name in row["runs"]]
    found = [one for one in benefits if one["method"] in methods]
    if told is None or not found:
        score = run.result.score(f"local_{run.leading.name}")
        yield "## Whether it helps"
        yield (
            f"Local {run.leading.label} is {metric(score, run.leading.share)}, the mean over the clients. Whether that "
            "is better than training alone was not compared: use `coterie compare`."
        )
        return
    yield f"## {comparison.help_title(told)}"
    yield comparison.help_note(told)
    rows = comparison.help_rows({**told, "benefits": found})
    yield (
        _table(comparison.HELP_HEADS, rows)
        if rows
        else "\n".join(comparison.help_sentences({**told, "benefits": found}))
    )


def _plain(run: Run) -> dict[str, Any]:
    result = run.result
    return {"rounds": result.rounds, "rounds_done": result.done, "stopped": result.stopped}


def _name(run: Run, party: str) -> str:
    place = party.rpartition("/")[2]
    names = run.partition.names
    return names[int(place)] if names and place.isdigit() and int(place) < len(names) else party


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows[:_MOST]]
    more = f"\n\nand {len(rows) - _MOST} more, in `result.json`" if len(rows) > _MOST else ""
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + more


def _cell(words: object) -> str:
    """Words of a run's folder, which are other people's, on one line of Markdown and without its marks."""
    plain = "".join(c if c.isprintable() else " " for c in str(words))
    return "".join(f"\\{c}" if c in r"\|*_<>[]`" else c for c in plain)
