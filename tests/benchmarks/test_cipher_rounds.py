"""Rounds with real ciphers over emulated ones: which cases are measured, and what is made of the seconds."""

from __future__ import annotations

import pytest

from benchmarks import cipher_rounds as bench


def test_ratios_are_of_the_medians_and_only_what_is_named_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter(
        [
            bench.Cost(1, 10),
            bench.Cost(4, 30),
            bench.Cost(2, 11),
            bench.Cost(5, 31),
            bench.Cost(9, 90),
            bench.Cost(5, 31),
        ]
    )
    asked = []

    def job(*case: str) -> bench.Cost:
        asked.append(case)
        return next(found)

    monkeypatch.setattr(bench, "job", job)
    result = bench.run(["pafed-paper"])
    assert asked == [("pafed", "paper", crypto) for _ in range(3) for crypto in ("emulated", "real")]
    assert result["cases"] == {
        "pafed-paper": {
            "emulated_round_seconds": 2,
            "emulated_cpu_seconds": 11,
            "real_round_seconds": 5,
            "real_cpu_seconds": 31,
            "round_ratio": 2.5,
            "cpu_seconds_of_ciphers_a_round": 20 / bench.ROUNDS,
        }
    }
    assert result["met"]
