"""DP-SGD (Abadi et al., "Deep learning with differential privacy", 2016, algorithm 1).

Each step takes every sample with probability q, independently (Poisson sampling), clips each one's gradient to an L2
norm of C, adds Gaussian noise of standard deviation z C to the sum, and divides by the expected size.

Batches and noise are secret: AES-256 in counter mode under a key (NIST SP 800-38A).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from coterie.protocol.errors import UserError
from coterie.training.model import Model
from coterie.training.solvers import Sampling

_ROWS = 16  # rows of padded batches are a multiple of this, so that jobs can be trained together
_CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of gradients that are held of each sample


def mixed(secret: bytes, *content: Any) -> bytes:
    """A key of 32 bytes from the secret and these buffers."""
    keyed = hashlib.blake2b(key=secret, digest_size=32, person=b"coterie dp-sgd/1")
    for part in content:
        keyed.update(memoryview(part).nbytes.to_bytes(8, "little"))
        keyed.update(part)
    return keyed.digest()


def stream(key: bytes, use: int, step: int, count: int) -> bytearray:
    """``count`` secret bytes for one use (0 to 255) of a step."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # slow to import

    start = bytes([use]) + step.to_bytes(7, "big") + bytes(8)
    return bytearray(Cipher(algorithms.AES256(key), modes.CTR(start)).encryptor().update(bytes(count)))


def poisson(key: bytes, step: int, samples: int, probability: float) -> NDArray[np.int64]:
    """Places of a step's samples. The probability is rounded down to 32 bits."""
    # a batch of fixed size would need twice the noise, since a sample that leaves lets another in (Lebeda et al.,
    # "Avoiding pitfalls for privacy accounting of subsampled mechanisms", 2024)
    if probability == 1:
        return np.arange(samples)
    words = np.frombuffer(stream(key, 0, step, 4 * samples), "<u4")
    return np.flatnonzero(words < np.uint32(probability * 2.0**32))


def normal(key: bytes, step: int, count: int) -> Tensor:
    """(count,) float32 standard normal numbers (Box and Muller, 1958), up to 8.6."""
    half = -(-count // 2)
    words = torch.frombuffer(stream(key, 1, step, 16 * half), dtype=torch.int64).view(2, half)
    uniform = words.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).double().add_(0.5).mul_(2.0**-53)
    radius, angle = uniform[0].log_().mul_(-2).sqrt_().float(), uniform[1].float().mul_(2 * pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


@dataclass(frozen=True, eq=False)
class Private:
    """clip: C.  deviation: of the mean gradient's noise, z C over the expected batch.  key: SECRET."""

    clip: float
    deviation: float
    samples: int
    sampling: Sampling
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, solver: Any, sampling: Sampling, samples: int, key: bytes) -> Private:
        clip = solver.sample_clip
        return cls(clip, solver.sample_noise * clip / sampling.size, samples, sampling, key)

    @cached_property
    def batches(self) -> list[NDArray[np.int64]]:
        q = self.sampling.probability
        return [poisson(self.key, step, self.samples, q) for step in range(self.sampling.steps)]

    @property
    def rows(self) -> int:
        return _ROWS * -(-max(map(len, self.batches)) // _ROWS) or _ROWS

    def padded(self, rows: int) -> tuple[Tensor, NDArray[np.int64]]:
        """Batches' places, padded to so many rows, (steps * rows,), and each one's samples, (steps,)."""
        places = np.zeros((self.sampling.steps, rows), np.int64)
        for own, batch in zip(places, self.batches, strict=True):
            own[: len(batch)] = batch
        return torch.from_numpy(places.reshape(-1)), np.array(list(map(len, self.batches)))

    def noises(self, size: int) -> Iterator[Tensor]:
        """By step, the noise (size,) of the mean gradient."""
        for step in range(self.sampling.steps):
            yield normal(self.key, step, size).mul_(self.deviation)


def check_separable(model: Model) -> None:
    """Raises UserError if samples have no gradient of their own."""
    for name, layer in model.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"{model.name}: with sample_noise no layer may mix samples, as the batch normalisation {name} does: "
                "take nn.GroupNorm"
            )
    if model.spec.buffers.any():
        raise UserError(f"{model.name} keeps statistics of its samples in buffers, which sample_noise does not cover")


def clip_factors(norms: Tensor, clip: float | Tensor) -> Tensor:
    """Factors <= 1 that scale vectors of these norms to ``clip`` at most."""
    return (clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)


def clipped_sums(model: Model, module: nn.Module, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, list[Tensor]]:
    """The sum of losses, and of clipped gradients by trainable parameter. Raises UserError for a module unknown to
    ``torch.func.vmap``.
    """
    named = {name: held.detach() for name, held in module.named_parameters() if name in model.trainable}
    sums = [torch.zeros_like(named[name]) for name in model.trainable]
    total = torch.zeros((), dtype=torch.float64)
    if not len(x):
        return total, sums

    def loss(weights: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        output = functional_call(module, weights, (one.unsqueeze(0),))
        return model.losses(output.float(), label.unsqueeze(0))[0]

    gradients = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    most = max(1, _CHUNK_BYTES[x.device.type] // (4 * model.spec.size))
    for samples, labels in zip(torch.split(x, most), torch.split(y, most), strict=True):
        try:
            found, losses = gradients(named, samples, labels)
        except UserError:
            raise
        except Exception as error:  # whatever a user's module raises
            raise UserError(
                f"{model.name} has no gradients of single samples, which sample_noise needs: torch.func.vmap says "
                f"{str(error).splitlines()[0]}"
            ) from error
        each = [found[name] for name in model.trainable]
        norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in each]).sum(0).sqrt_()
        factors = clip_factors(norms, clip)
        for held, gradient in zip(sums, each, strict=True):
            held.add_(torch.tensordot(factors, gradient, dims=1))
        total += losses.detach().sum(dtype=torch.float64).cpu()
    return total, sums
