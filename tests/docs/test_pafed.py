"""Every number in the tables and conclusions of PAFed's pages is the one in the record that they name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from coterie.reproductions.study import _text
from papers.pafed import PRINTED, TABLE_5

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reproduction" / "pafed.md").read_text()
RECORDS = {path: json.loads(path.read_text()) for path in sorted((DOCS / "reproduction" / "pafed").rglob("*.json"))}
TABLES = RECORDS[DOCS / "reproduction/pafed/table5.json"]["rows"]
PARTS = RECORDS[DOCS / "reproduction/pafed/parts.json"]["rows"]
INTERVAL = student.ppf(0.975, 2) / math.sqrt(3)  # of the mean of three, in standard deviations

Row = dict[str, Any]


# -- tables ------------------------------------------------------------------------------------------------------------


def shown() -> list[tuple[str, list[list[str]]]]:
    """Every table after a command: that command, and the rows with the head first."""
    found = []
    for command, table in re.findall(r"^`(coterie reproduce [^`]+)`\n\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        found.append((command, [head, *rows]))
    return found


@pytest.mark.parametrize(("command", "table"), shown(), ids=[command[20:60] for command, _ in shown()])
def test_a_table_is_the_record_that_its_command_writes(command: str, table: list[list[str]]) -> None:
    (record,) = [record for record in RECORDS.values() if record["command"] == command]
    head, *rows = table
    assert head == [column for column in record["rows"][0] if column in head]
    assert rows == [[_text(row[column]) for column in head] for row in record["rows"]]


def test_every_record_is_on_the_page() -> None:
    tables = [command for command, _ in shown()]
    assert len(tables) == len(set(tables))
    pictures = {path: record for path, record in RECORDS.items() if record["item"].startswith("pafed/fig")}
    assert all(record["command"] in tables for path, record in RECORDS.items() if path not in pictures)
    for path, record in pictures.items():
        assert f"({path.with_suffix('.svg').relative_to(DOCS / 'reproduction')})" in PAGE
        assert record["command"] in PAGE or path.parent.name == "cnn"  # drawn of the runs of the table beside it


# -- conclusions -------------------------------------------------------------------------------------------------------


def one(number: str | float) -> str:
    """With one decimal, halves away from zero, as written in a text: a true minus."""
    return str(Decimal(str(number)).quantize(Decimal("0.1"), ROUND_HALF_UP)).replace("-", "−")


def spread(text: str, sign: bool = False) -> str:
    """``"+1.30 ± 0.57"`` as 1.3 ± 0.6, with its sign where that is told."""
    mean, _, sd = text.partition(" ± ")
    shown = one(mean) if sign else one(mean).strip("−")
    if sign and not mean.startswith("-"):
        shown = f"+{one(mean.strip('+'))}"
    return f"{shown} ± {one(sd)}" if sd else shown


def gained(delta: str, without: str, with_it: str) -> Row:
    (row,) = [r for r in PARTS if (r["delta"], r["without"], r["with"]) == (delta, without, with_it)]
    return row


def gain(delta: str, without: str, with_it: str, sign: bool = False, of: str = "mean") -> str:
    return spread(gained(delta, without, with_it)[f"gain: {of}, points"], sign)


def clear(delta: str, without: str, with_it: str, of: str = "mean") -> bool:
    mean, sd = map(float, gained(delta, without, with_it)[f"gain: {of}, points"].split(" ± "))
    return abs(mean) > INTERVAL * sd


def mean(delta: str, method: str, of: str = "ours: mean %", rows: Sequence[Row] = TABLES, sd: bool = True) -> str:
    (row,) = [r for r in rows if (r["delta"], r["method"]) == (delta, method)]
    return spread(row[of] if sd else row[of].split(" ")[0])


def number(delta: str, method: str) -> float:
    (row,) = [r for r in TABLES if (r["delta"], r["method"]) == (delta, method)]
    return float(row["ours: mean %"].split(" ")[0])


def ends(delta: str, method: str, rows: Sequence[Row] = TABLES) -> list[str]:
    (row,) = [r for r in rows if (r["delta"], r["method"]) == (delta, method)]
    return str(row["last 10 rounds"]).split(" to ")


def printed(delta: str, method: str) -> float:
    return TABLE_5["fashion_mnist"][delta][PRINTED.index(method)]


def rows_of(name: str, data: str | None = None) -> list[Row]:
    rows = RECORDS[DOCS / "reproduction/pafed" / name / "table5.json"]["rows"]
    return [row for row in rows if data in (None, row["data"])]


BEST = "ours: best so far %"
FULL, HALF = rows_of("cnn", "fashion_mnist"), rows_of("cnn", "fashion_mnist-bf16")
CLAIMS: dict[str, list[str]] = {
    "PAFed is behind FedAvg": [
        *(gain(d, "fedavg_drop", "pafed") for d in ("0", "0.5", "0.7")),
        *(gain(d, "fedavg_drop", "pafed", of="best so far") for d in ("0", "0.5", "0.7")),
        *(one(printed(d, "pafed") - printed(d, "fedavg_drop")) for d in ("0", "0.5", "0.7")),
        *ends("0.7", "pafed"),
        *ends("0.7", "fedavg_drop"),
    ],
    "The means move": [
        *(
            mean(d, m, sd=False)
            for m in ("pafed", "fedadmm_drop", "fedprox_drop", "fedavg_drop")
            for d in ("0.5", "0.7")
        ),
        one(number("0", "fedavg_drop") - number("0.7", "fedavg_drop")),
        one(printed("0", "fedavg_drop") - printed("0.7", "fedavg_drop")),
    ],
    "The highest means": [
        *(mean(d, m) for m in ("fedavg_late", "fedasync", "fedadmm_own", "fedavg_drop") for d in ("0.5", "0.7")),
        mean("0", "fedasync"),
    ],
    "Late updates help": [
        *(gain(d, "fedavg_drop", "fedavg_late") for d in ("0.7", "0.5")),
        *(gain(d, "fedadmm_drop", "fedadmm_late") for d in ("0.7", "0.5")),
        *(gain(d, "fedavg_drop", "fedavg_stale", sign=True) for d in ("0.7", "0.5")),
    ],
    "ADMM, under": [
        *(gain(d, "fedavg_drop", "fedadmm_drop", sign=True) for d in ("0", "0.5", "0.7")),
        *(gain(d, "fedavg_late", "fedadmm_late", sign=True) for d in ("0.5", "0.7")),
        "−0.1",
        "−2.4",
    ],
    "Length 1": [
        *(gain(d, "fedavg_drop", "sgd_drop") for d in ("0", "0.5", "0.7")),
        *(gain(d, "fedavg_late", "sgd_average") for d in ("0.5", "0.7")),
        gain("0.7", "admm_length", "pafed"),
        "2.8",
        "9.4",
    ],
    "Inside PAFed": [
        *(gain(d, f"{s}_drop", f"{s}_average") for d in ("0.5", "0.7") for s in ("sgd", "admm")),
        spread(gained("0.7", "admm_drop_twice", "admm_average")["without: mean %"].split(" ")[0]),
        spread(gained("0.7", "admm_drop", "admm_average")["without: mean %"].split(" ")[0]),
        gain("0.7", "admm_drop_twice", "admm_average"),
    ],
    "Classifying": [
        *(
            gain(d, *pair, sign=True)
            for d in ("0.5", "0.7")
            for pair in (("sgd_average", "sgd_turn"), ("admm_average", "pafed"))
        ),
        "−0.2",
        "+0.5",
        gain("0.7", "admm_printed", "pafed", sign=True),
    ],
    "Of three lengths": [
        mean("0.7", "pafed", sd=False),
        *(spread(gained("0.7", "pafed", m)["with: mean %"].split(" ")[0]) for m in ("admm_third", "admm_thrice")),
        *(gain("0.7", "pafed", m, sign=True) for m in ("admm_third", "admm_thrice")),
    ],
    "With the printed constant": [
        *(mean("0.7", m, BEST, rows_of("constant")) for m in ("pafed", "fedavg_drop")),
        *(one(printed("0.7", m)) for m in ("pafed", "fedavg_drop")),
        *(mean("0.7", m, rows=rows_of("constant")) for m in ("pafed", "fedavg_drop", "fedavg_late")),
        *(mean("0.7", m, sd=False) for m in ("pafed", "fedavg_drop", "fedavg_late")),
    ],
    "On IID data": [
        *(mean("iid", m, rows=rows_of("single")) for m in PRINTED),
        one(printed("iid", "pafed") - printed("iid", "fedavg_drop")),
        one(max(float(b) - float(a) for a, b in (ends("iid", m, rows_of("single")) for m in PRINTED))),
    ],
    "The CNN": [
        mean("0.5", "pafed", rows=HALF),
        mean("0.5", "pafed", rows=FULL),
        mean("0.5", "fedavg_drop", rows=HALF),
        *(mean("0.5", "pafed", BEST, rows) for rows in (HALF, FULL)),
        mean("0.5", "fedavg_drop", BEST, HALF),
        *(one(printed("0.5", m)) for m in ("pafed", "fedavg_drop")),
        *ends("0.5", "pafed", HALF),
        *ends("0.5", "pafed", FULL),
        *ends("0.5", "fedavg_drop", HALF),
    ],
}
"""By how a statement begins, every number in it."""


def statements() -> dict[str, str]:
    section = PAGE.partition("## What holds and what does not\n")[2].partition("\n## ")[0]
    return {re.sub(r"\s+", " ", text).strip("* "): text for text in re.split(r"^- ", section, flags=re.MULTILINE)[1:]}


def numbers(text: str) -> set[str]:
    """All with a decimal point, but shares of delayed clients; nothing of what stands in backticks."""
    plain = re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "", text))
    return set(re.findall(r"[+−]?\d+\.\d+(?: ± \d+\.\d+)?", plain)) - {"0.5", "0.7"}


@pytest.mark.parametrize("begins", CLAIMS)
def test_a_statement_has_the_numbers_of_its_rows_and_no_other(begins: str) -> None:
    (text,) = [text for statement, text in statements().items() if statement.startswith(begins)]
    assert numbers(text) == set(CLAIMS[begins]) - {"0.5", "0.7"}
    assert ".json`" in text


def test_every_statement_is_compared() -> None:
    assert len(statements()) == len(CLAIMS)
    assert all(any(statement.startswith(begins) for begins in CLAIMS) for statement in statements())


def test_what_is_said_of_bfloat16_is_in_the_records() -> None:
    (text,) = re.findall(r"^Whether bfloat16 moves.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    ten = {data: rows_of("precision", data) for data in ("fashion_mnist", "fashion_mnist-bf16")}
    single = [float(end) for rows in ten.values() for m in ("pafed", "fedavg_drop") for end in ends("0.5", m, rows)]
    assert numbers(text) == {
        *(mean("0.5", m, rows=rows) for rows in ten.values() for m in ("pafed", "fedavg_drop")),
        one(min(single)),
        one(max(single)),
        *(mean("0.5", "pafed", BEST, rows) for rows in (FULL, HALF)),
        *(mean("0.5", "pafed", rows=rows) for rows in (FULL, HALF)),
    }


def test_ranges_that_a_statement_tells_are_those_of_all_its_rows() -> None:
    inside = [r["gain: mean, points"] for r in PARTS if r["part"] == "ADMM" and not r["without"].startswith("fedavg")]
    means = [float(text.split(" ")[0]) for text in inside]
    assert (one(max(means)), one(min(means))) == ("−0.1", "−2.4")
    lengths = [r for r in PARTS if r["part"] == "unit length" and r["without"] != "admm_length"]
    losses = [-float(r["gain: mean, points"].split(" ")[0]) for r in lengths]
    assert (one(min(losses)), one(max(losses))) == ("2.8", "9.4")
    turned = [r for r in PARTS if r["part"] == "projection" and r["without"] != "admm_printed"]
    best = [float(r["gain: best so far, points"].split(" ")[0]) for r in turned]
    assert (one(min(best)), one(max(best))) == ("−0.2", "0.5")
    highest = {
        d: max((float(r["ours: mean %"][:5]), r["method"]) for r in TABLES if r["delta"] == d)
        for d in ("0", "0.5", "0.7")
    }
    assert [method for _, method in highest.values()] == ["fedasync", "fedavg_late", "fedavg_late"]


def test_what_is_called_clear_is() -> None:
    """By Student's t for three pairs; and what is said not to be isn't."""
    assert one(INTERVAL) == "2.5"
    told = {
        ("fedavg_drop", "pafed"): {"0": True, "0.5": True, "0.7": False},
        ("fedavg_drop", "fedavg_late"): {"0.5": False, "0.7": True},
        ("fedadmm_drop", "fedadmm_late"): {"0.5": True, "0.7": True},
        ("fedavg_drop", "fedavg_stale"): {"0.5": False, "0.7": False},
        ("fedavg_drop", "fedadmm_drop"): {"0": True, "0.5": True, "0.7": False},
        ("fedavg_late", "fedadmm_late"): {"0.5": False, "0.7": False},
        ("fedavg_drop", "sgd_drop"): {"0": True, "0.5": True, "0.7": True},
        ("fedavg_late", "sgd_average"): {"0.5": True, "0.7": True},
        ("sgd_drop", "sgd_average"): {"0.5": False, "0.7": True},
        ("admm_drop", "admm_average"): {"0.5": True, "0.7": True},
        ("admm_drop_twice", "admm_average"): {"0.7": False},
        ("sgd_average", "sgd_turn"): {"0.5": False, "0.7": False},
        ("admm_average", "pafed"): {"0.5": False, "0.7": False},
        ("admm_printed", "pafed"): {"0.7": False},
        ("pafed", "admm_third"): {"0.7": True},
        ("pafed", "admm_thrice"): {"0.7": True},
    }
    assert {pair: {d: clear(d, *pair) for d in cells} for pair, cells in told.items()} == told
    best = [clear(d, "fedavg_drop", "pafed", "best so far") for d in ("0", "0.5", "0.7")]
    assert best == [True, True, False]
    for pair in (("sgd_drop", "admm_drop"), ("sgd_average", "admm_average"), ("sgd_turn", "pafed")):
        assert not any(clear(d, *pair) for d in ("0.5", "0.7"))
