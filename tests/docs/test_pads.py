"""PAFed's page says of padded uploads what the record says that it names."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
from pafed_parts import small_keys

from benchmarks import pads

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "systems" / "pafed.md").read_text()
FOUND = json.loads((DOCS / "security" / "pads.json").read_text())


def short(x: float, digits: int) -> str:
    return f"{x:.{digits}f}".lstrip("0")


def test_no_thief_got_the_key_or_came_nearer_than_a_constant_guess() -> None:
    for row in FOUND["thieves"]:
        assert (row["with the key"], row["mode"]) == (0, "hardened")
        assert row["rounds skipped"] == [0] * row["thieves"]
        for agreement, chance in zip(row["agreement"], row["chance"], strict=True):
            assert abs(agreement - chance) < 3 * (2 * chance * (1 - chance) / 8192) ** 0.5
        at = max(range(row["thieves"]), key=lambda i: row["agreement"][i])
        forged = ", ".join(map(str, row["forged"]))
        means = " | ".join(short(fmean(row[key]), 2) for key in ("accuracy", "accuracy without"))
        agreed = " | ".join(short(row[key][at], 3) for key in ("agreement", "chance"))
        assert f"| {row['clients']} | 0 of {row['thieves']} | {forged} | {agreed} | {means} |\n" in PAGE


def test_the_table_of_costs_is_the_record() -> None:
    sealed, padded = FOUND["costs"]
    assert f"| ciphertext | {sealed['bytes']:,} | {short(sealed['client_s'], 3)} s |" in PAGE
    assert f"| {sealed['error']:.1e} |\n" in PAGE
    times = " | ".join(f"{short(padded[key], 3)} s" for key in ("client_s", "helper_s", "helper_each_s"))
    assert (
        f"| one-time pad | {padded['bytes']:,} | {times} | {padded['helper_bytes']:,} | {padded['error']:.1e} |" in PAGE
    )
    assert padded["bytes"] == (sealed["bytes"] - 40) // 2 + 32
    assert padded["error"] < sealed["error"]
    assert FOUND["command"] in PAGE


def test_the_study_measures_what_it_says() -> None:
    with small_keys():
        sealed, padded = pads.costs(3000, 3, "insecure-1024-deep")
    assert padded["bytes"] == (sealed["bytes"] - 40) // 2 + 32
    assert padded["helper_bytes"] == padded["bytes"] + 32
    assert 0 < padded["error"] < sealed["error"]


@pytest.mark.long
def test_the_command_writes_such_a_file(tmp_path: Path) -> None:
    pads.main([str(tmp_path / "pads.json"), "--seeds", "1", "--sizes", "12", "--rounds", "3"])
    assert json.loads((tmp_path / "pads.json").read_text())["thieves"][0]["with the key"] == 0
