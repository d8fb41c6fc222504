"""OFL's testbed: Jetson Xavier NX boards in four working modes (section 6.1, table 2). ``docs/resources.md`` says which
numbers are the paper's. The GPU has 384 CUDA cores with two operations a cycle each, of which small models reach 5
%.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CUDA_CORES = 384
GPU_SHARE_OF_PEAK = 0.05
CPU_FLOPS_A_CYCLE = 10
IDLE_WATTS = 3.5
MEMORY_GIB = 8.0


@dataclass(frozen=True)
class Board:
    """A column of table 2. watts: of the whole board."""

    watts: float
    cores: int
    cpu_ghz: float
    gpu_mhz: float

    @property
    def cpu_flops_per_s(self) -> float:
        return CPU_FLOPS_A_CYCLE * self.cores * self.cpu_ghz * 1e9

    @property
    def gpu_flops_per_s(self) -> float:
        return GPU_SHARE_OF_PEAK * 2 * CUDA_CORES * self.gpu_mhz * 1e6

    @property
    def flops_per_s(self) -> float:
        """Nominal, in training: on the CPU, then on the GPU."""
        return 1 / (1 / self.cpu_flops_per_s + 1 / self.gpu_flops_per_s)

    @property
    def gpu_share(self) -> float:
        """The GPU's share of the training time."""
        return self.flops_per_s / self.gpu_flops_per_s


BOARDS: Mapping[str, Board] = {
    "A": Board(10, 2, 1.497, 803.25),
    "B": Board(10, 4, 1.190, 803.25),
    "C": Board(15, 4, 1.420, 1109.25),
    "D": Board(20, 6, 1.420, 1109.25),
}
"""Table 2, by type."""
