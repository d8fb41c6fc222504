"""The benchmark measures what it says, on a small vector."""

from __future__ import annotations

import pytest

from coterie.crypto import bench


def test_a_small_run():
    result = bench.run(parameters=62 * 8, sample=2)
    assert (result["lanes_per_ciphertext"], result["ciphertexts"]) == (62, 8)
    assert result["megabytes_per_client"] == pytest.approx((40 + 8 * 512) / 1e6)
    assert result["max_error"] <= 2**-17
    # per ciphertext both sides cost the same order; 62 values a ciphertext are what packing alone gains
    assert result["encrypt_ratio"] > 62
    assert result["decrypt_ratio"] > 62


@pytest.mark.long
def test_the_targets_are_met():
    assert bench.run()["met"]
