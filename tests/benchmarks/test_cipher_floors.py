"""Operations on ciphertexts are counted where they happen, without those within, and by size; and what is made of the
seconds of rounds with real ciphers and emulated ones.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from benchmarks import cipher_floors as bench
from benchmarks import cipher_rounds, pages
from coterie.crypto import ckks, paillier, seal
from coterie.crypto.ckks_parameters import named


def counted(work: Any) -> dict[str, float]:
    counter = bench.Counter()
    with bench.counting(counter):
        result = work()
    assert result is None
    return {name: one["count"] for name, one in counter.operations(1).items()}


def test_what_is_within_counts_apart_and_a_batch_is_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0, 20.0, 26.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    counter = bench.Counter()
    inner = counter.timed("inner", lambda: None, lambda: (1, 0))
    counter.timed("outer", inner, lambda: (1, 0))()  # 10 s, of which the inner takes 2
    counter.timed("outer", lambda: None, lambda: (3, 1))()  # three of another size in 6 s
    assert dict(counter.calls) == {("inner", 0): [2.0], ("outer", 0): [8.0], ("outer", 1): [2.0] * 3}
    found = counter.operations(2)
    assert found["outer"] == {"count": 2.0, "seconds": (8 + 3 * 2) / 2, "seconds_of_one": 3.5}
    assert list(found) == ["outer", "inner"]


def test_ckks_is_counted() -> None:
    def work() -> None:
        key = ckks.keygen("insecure-1024-deep", allow_insecure=True)
        evaluation, values = key.evaluation(), np.ones(2_000)  # two ciphertexts
        vector = key.public.encrypt(values)
        assert key.decrypt(vector)[0] == pytest.approx(1.0, abs=1e-3)
        vector.dot(vector.conjugated(evaluation), evaluation)

    seal.ring.cache_clear()
    found = counted(work)
    seal.ring.cache_clear()
    times = sum(times for _, times in named("insecure-1024-deep", allow_insecure=True).rotations) + 1
    assert found["encryption"] >= 2
    assert found["rotation"] == 2 + times  # conjugations, and the trace
    assert found["relinearisation"] == 1
    assert found["product of ciphertexts"] == 2
    assert found["rescaling"] == 1


def test_paillier_is_counted() -> None:
    key = paillier.keygen(2048)
    vector = key.public.encrypt(np.ones(1))
    ciphertexts = len(vector.array)

    def work() -> None:
        key.public.encrypt(np.ones(1))
        key.decrypt(vector)

    found = counted(work)
    assert found == {"power of an encryption": ciphertexts, "power of an opening": 2 * ciphertexts}


def test_a_table_has_the_operations_that_take_most() -> None:
    operations = {
        name: {"count": 1000.0, "seconds": 2.0, "seconds_of_one": 0.002} for name in ("one", "two", "three", "four")
    }
    case = {"emulated_s": 0.1, "measured_s": 9.0, "floor_s": 8.0, "operations": operations}
    line = pages.TABLES["floors"]({"floors": {"cases": {"a-b": case}}}).splitlines()[2]
    assert line == "| a, b | 0.10 | 1,000 x one, 2 ms; 1,000 x two, 2 ms; 1,000 x three, 2 ms | 8.00 | 9.00 |"


def test_ratios_are_of_the_medians_and_only_what_is_named_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [(1, 10), (4, 30), (2, 11), (5, 31), (9, 90), (5, 31)]
    found = iter([cipher_rounds.Cost(*one) for one in costs])
    asked = []

    def job(*case: str) -> cipher_rounds.Cost:
        asked.append(case)
        return next(found)

    monkeypatch.setattr(cipher_rounds, "job", job)
    result = cipher_rounds.run(["pafed-paper"])
    assert asked == [("pafed", "paper", crypto) for _ in range(3) for crypto in ("emulated", "real")]
    assert result["cases"] == {
        "pafed-paper": {
            "emulated_round_seconds": 2,
            "emulated_cpu_seconds": 11,
            "real_round_seconds": 5,
            "real_cpu_seconds": 31,
            "round_ratio": 2.5,
            "cpu_seconds_of_ciphers_a_round": 20 / cipher_rounds.ROUNDS,
        }
    }
    assert result["met"]
