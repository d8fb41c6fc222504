"""The study of padded uploads: no thief got the key, and a pad costs what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pafed_parts import small_keys

from benchmarks import pads

FOUND = json.loads((Path(__file__).parents[2] / "docs" / "security" / "pads.json").read_text())


def test_no_thief_got_the_key_or_came_nearer_than_a_constant_guess() -> None:
    for row in FOUND["thieves"]:
        assert (row["with the key"], row["mode"]) == (0, "hardened")
        assert row["rounds skipped"] == [0] * row["thieves"]
        for agreement, chance in zip(row["agreement"], row["chance"], strict=True):
            assert abs(agreement - chance) < 3 * (2 * chance * (1 - chance) / 8192) ** 0.5


def test_the_study_measures_what_it_says() -> None:
    with small_keys():
        sealed, padded = pads.costs(3000, 3, "insecure-1024-deep")
    assert padded["bytes"] == (sealed["bytes"] - 40) // 2 + 32
    assert padded["helper_bytes"] == padded["bytes"] + 32
    assert 0 < padded["error"] < sealed["error"]


@pytest.mark.long
def test_the_command_writes_such_a_file(tmp_path: Path) -> None:
    """Round 7 is the second that asks ``client/0``, which reads the first model after its forged update there."""
    pads.main([str(tmp_path / "pads.json"), "--seeds", "1", "--sizes", "12", "--rounds", "7"])
    assert json.loads((tmp_path / "pads.json").read_text())["thieves"][0]["with the key"] == 0
