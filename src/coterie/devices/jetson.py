"""The four types of devices of OFL's testbed: Jetson Xavier NX boards in four working modes (section 6.1, table 2).

The paper has watts, cores and clocks. Speeds are nominal: a sample passes the CPU, 10 operations a cycle and core, and
then the GPU, 384 CUDA cores with two operations a cycle each, of which small models reach 5 %. Idle power, link and
speed in cryptography are ours, too.
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
    """One column of table 2. watts: of the whole board.  emc_mhz: of its memory, not used here."""

    watts: float
    cores: int
    cpu_ghz: float
    gpu_mhz: float
    emc_mhz: float

    @property
    def cpu_flops_per_s(self) -> float:
        return CPU_FLOPS_A_CYCLE * self.cores * self.cpu_ghz * 1e9

    @property
    def gpu_flops_per_s(self) -> float:
        return GPU_SHARE_OF_PEAK * 2 * CUDA_CORES * self.gpu_mhz * 1e6

    @property
    def flops_per_s(self) -> float:
        """Nominal operations a second in training: a sample's on the CPU, then on the GPU."""
        return 1 / (1 / self.cpu_flops_per_s + 1 / self.gpu_flops_per_s)

    @property
    def gpu_share(self) -> float:
        """The share of the training time in which the GPU works, not the CPU."""
        return self.flops_per_s / self.gpu_flops_per_s


BOARDS: Mapping[str, Board] = {
    "A": Board(10, 2, 1.497, 803.25, 1600),
    "B": Board(10, 4, 1.190, 803.25, 1600),
    "C": Board(15, 4, 1.420, 1109.25, 1600),
    "D": Board(20, 6, 1.420, 1109.25, 1866),
}
"""Table 2, by type."""
