"""``benchmarks.training_speed``: its parts run, and dense models have no precision but float32."""

from __future__ import annotations

import torch

from benchmarks import training_speed as bench


def test_dense_models_are_trained_and_scored_in_float32_alone() -> None:
    cores = torch.get_num_threads()
    for found in (bench.mlp(2, 1), bench.scoring(2, 1)):
        assert set(found["times"]) == {"loop", "loop_share", "fp32"}
        assert set(found["samples_per_s"]) == {"loop", "fp32"}
        assert found["fp32_over_loop"] > 0
        assert found["max_difference_to_loop"] < 1e-4
    assert torch.get_num_threads() == cores
