"""The benchmarks of ciphers and of training measure what they say, on small vectors."""

from __future__ import annotations

import pytest
import torch

from benchmarks import crypto_speed as bench
from benchmarks import threshold_speed, training_speed


def test_a_small_run():
    result = bench.run(parameters=62 * 8, sample=2)
    assert (result["lanes_per_ciphertext"], result["ciphertexts"]) == (62, 8)
    assert result["megabytes_per_client"] == pytest.approx((40 + 8 * 512) / 1e6)
    assert result["max_error"] <= 2**-17
    # per ciphertext both sides cost the same order; 62 values a ciphertext are what packing alone gains
    assert result["encrypt_ratio"] > 62
    assert result["decrypt_ratio"] > 62


def test_a_small_run_of_ckks():
    result = bench.run_ckks(length=8192, repeats=3)
    small, large = result["sets"]["ckks-4096-add"], result["sets"]["ckks-8192-mul"]
    assert (small["ciphertexts"], large["ciphertexts"]) == (2, 1)
    assert small["times_float32"] == pytest.approx(4.0, abs=0.01)
    assert large["times_float32"] == pytest.approx(7.5, abs=0.01)
    for entry in (small, large):
        assert 0 < entry["max_error"] < entry["stated_error"]
        assert entry["add_seconds"] < entry["encrypt_seconds"]
    assert "times_seconds" in large
    assert "times_seconds" not in small


def test_a_small_run_of_deep_ckks():
    result = bench.run_deep(length=20_000, repeats=1)
    assert result["megabytes"]["update"] == pytest.approx((40 + 3 * 2 * 8192 * 22) / 1e6)
    assert result["megabytes"]["converted"] == pytest.approx((40 + 3 * 2 * 8192 * 7) / 1e6)
    assert result["megabytes"]["own_public"] < result["megabytes"]["service_public"] / 4
    assert 0 < result["twin_dot_seconds"] < result["dot_seconds"]
    assert result["conversion_seconds"] > result["convert_seconds"]


def test_a_small_run_of_shared_keys():
    result = threshold_speed.run(length=5000, holders=3, repeats=1)
    assert max(result["errors_of_the_mean"].values()) < result["stated_error_of_the_mean"]
    assert result["megabytes"]["padded"] < 0.51 * result["megabytes"]["ciphertext"]
    assert all(result[f"{what}_over_one_key"] > 0 for what in ("shared", "padded", "joint"))


def test_dense_models_are_trained_and_scored_in_float32_alone() -> None:
    cores = torch.get_num_threads()
    for found in (training_speed.mlp(2, 1), training_speed.scoring(2, 1)):
        assert set(found["times"]) == {"loop", "loop_share", "fp32"}
        assert set(found["samples_per_s"]) == {"loop", "fp32"}
        assert found["fp32_over_loop"] > 0
        assert found["max_difference_to_loop"] < 1e-4
    assert torch.get_num_threads() == cores


@pytest.mark.long
@pytest.mark.parametrize("measure", [bench.run, bench.run_ckks, bench.run_deep, threshold_speed.run])
def test_the_targets_are_met(measure):
    assert measure()["met"]
