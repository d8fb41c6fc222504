"""The page of shared keys quotes the record of the benchmark, and the bounds that the code states."""

from __future__ import annotations

import json
import math
from pathlib import Path

from coterie.crypto import threshold as th

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "threshold.md").read_text()
NAMES = tuple("abcdefgh")


def test_costs_are_the_record_s() -> None:
    record = json.loads((DOCS / "bench.json").read_text())["threshold"]
    assert (record["holders"], record["length"]) == (8, 178_110)
    for what in ("one_key", "shared", "padded", "joint"):
        ratio = record.get(f"{what}_over_one_key")
        shown = f"| {record[f'{what}_seconds']:.2f} | {'1' if ratio is None else f'{ratio:.2f}'} |"
        assert f"{shown} {record['errors_of_the_mean'][what]:.0e} |\n" in PAGE
    for seconds in record["operation_seconds"].values():
        assert f"| {seconds:.3f} |\n" in PAGE
    for what in ("ciphertext", "padded", "request"):
        assert f"{record['megabytes'][what]:.2f} MB" in PAGE
    assert f"for a sum of padded vectors {record['megabytes']['sum_request'] * 1e6:.0f} bytes" in PAGE
    assert f"together {record['c1_over_joint_round']:.0%}".replace("%", " %") in PAGE
    assert record["shared_over_one_key"] <= 2.5


def test_bounds_are_those_that_are_stated() -> None:
    group = th.Group("threshold-8192-sum", NAMES)
    for terms in (8, 8 * 2048):
        assert f"{group.error(terms) / terms:.1e}" in PAGE
        assert f"{th.padded_error(group, dict.fromkeys(NAMES, terms // 8)) / terms:.1e}" in PAGE
    at = th.Group("threshold-16384-dft", NAMES[:4])  # what a scalar of a server's own shows
    flood = at.flood(at.fresh_deviation, scalar=True) * 2 * 10
    bits = sum(math.log2(int(prime)) for prime in at.moduli(at.opened_limbs)[:, 0]) - math.log2(flood)
    assert f"room for {bits:.0f} bits beside the noise, so for {bits / math.log2(9):.0f} of the key's 16,384" in PAGE
    for name in ("threshold-8192-mul", "threshold-16384-dft"):
        assert f"| {th.Group(name, NAMES).error(8) / 8:.1e} |" in PAGE
