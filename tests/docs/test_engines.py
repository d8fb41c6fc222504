"""The page on engines says what the records of its studies say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from coterie.deploy.nats_parts import MESSAGE, PART
from coterie.deploy.nats_stream import WAITING

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "engines.md").read_text()
FOUND = json.loads((DOCS / "engines" / "nats.json").read_text())
LOOPBACK = json.loads((DOCS / "engines" / "loopback.json").read_text())
LINES = json.loads((DOCS / "engines" / "lines.json").read_text())
PARTS = json.loads((DOCS / "engines" / "parts.json").read_text())


def spread(key: str, digits: int) -> str:
    row = FOUND[key]
    return f"{row['median']:.{digits}f} ({row['least']:.{digits}f} to {row['most']:.{digits}f})"


def test_the_table_is_the_record() -> None:
    hop, large = FOUND["hop"], FOUND["there and back, s"]
    for line in (
        f"| one hop of a small packet | {hop['median_ms']:.1f} ms, 95 % within {hop['p95_ms']:.0f} ms |",
        *(f"| {size} MB there and back | {seconds:.2f} s |" for size, seconds in large.items()),
        f"| server ready | {spread('server ready, ms', 0)} ms |",
        f"| memory of the server after {1000:,} small packets | {hop['server_mb']:.0f} MB |",
        f"| next packet there and back, after a server that was killed is ready again | "
        f"{spread('after the server was killed, s', 2)} s |",
        f"| packet there and back while the leader of three servers is killed | "
        f"{spread('after the leader of three was killed, s', 1)} s |",
        f"| packet that was not done, after a killed party is connected again | "
        f"{spread('after a party was killed, s', 3)} s |",
        f"| from `revoke`'s reload to the error at the party | {spread('revoked, s', 2)} s |",
    ):
        assert line in PAGE, line
    assert f"load {FOUND['load before']:.0f}" in PAGE
    assert f"nats-server {FOUND['server'].removeprefix('v')}" in PAGE


def test_the_table_of_slow_lines_is_its_record() -> None:
    assert f"`{LINES['command']}`" in PAGE
    assert f"(load {LINES['load before']:.0f})" in PAGE
    assert f"{1000 * LINES['latency_s']:.0f} ms of latency" in PAGE
    rows = {what: row for what, row in LINES.items() if isinstance(row, dict)}
    assert len(rows) == 7
    for what, row in rows.items():
        line = f"| {what} | {row['seconds']:.1f} | {row['line_s']:.1f} | {row['wire_mb']:.1f} MB |"
        assert line in PAGE, line


def test_what_smaller_parts_cost_is_its_record() -> None:
    before, now = (row for name, row in PARTS.items() if name.startswith("parts"))
    for what, words in (("50 MB, s", "s for 50 MB there and back"), ("50 MB, s of a core", "s of a core")):
        assert f"{median(before[what]):.2f} and {median(now[what]):.2f} {words}" in PAGE


def test_the_sizes_of_parts_are_those_of_the_code() -> None:
    assert f"parts of {(PART + 4096) >> 10} KiB less 4 KiB" in PAGE
    assert f"at most {WAITING:,} parts from one party to another" in PAGE
    assert f"at most {WAITING * MESSAGE / (1 << 30):.2f} GiB" in PAGE


def test_the_table_of_rounds_is_its_record() -> None:
    assert f"`{LOOPBACK['command']}`" in PAGE
    for case in LOOPBACK["cases"].values():
        sides = ("in_process_s", "in_process_together_s", "loopback_s")
        times = " | ".join(f"{1000 * case['medians'][side]:.0f} ms" for side in sides)
        assert f" | {times} | {case['ratio']:.2f} |" in PAGE
