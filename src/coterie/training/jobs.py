"""One client's local training, its batches, and checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import RunError, UserError
from coterie.training.model import Model, floats, has_conv2d, tensor
from coterie.training.private import Private, check_separable, mixed
from coterie.training.solvers import LEAST_SECRET, MOST_WEIGHT, Objective, Pull, Solver, is_private, largest, sampling

Trains = Callable[[str], bool]
"""Whether the part of this name is trained. ``bool``: every part."""


@dataclass(frozen=True, eq=False)
class Job:
    """One ``Fit`` and its data, x (n, ...) float32 and labels y (n,), int64 for cross entropy.

    private: of a checked job whose solver hides samples.  only: names of parts to train; () for all.
    """

    weights: Vector
    solver: Solver
    epochs: int
    seed: int
    x: Tensor
    y: Tensor
    state: Mapping[str, Vector] = field(default_factory=dict)
    sample_weights: Vector | None = None
    secret: bytes = field(default=b"", repr=False)
    private: Private | None = None
    only: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return int(self.x.shape[0])

    @property
    def batch(self) -> int:
        """Of a full batch: the solver's, or all samples."""
        return sampling(self.samples, self.solver.batch_size, self.epochs).size

    @property
    def steps(self) -> int:
        """Over all epochs, with smaller last batches."""
        return sampling(self.samples, self.solver.batch_size, self.epochs).steps

    @property
    def passed(self) -> int:
        """Samples that all steps see; of a private solver on average."""
        return self.samples * self.epochs if self.private is None else self.steps * self.batch

    def trains(self, name: str) -> bool:
        return not self.only or name in self.only


def job_of(fit: Fit, x: Tensor, y: Tensor, sample_weights: Vector | None) -> Job:
    return Job(
        fit.weights, fit.solver, fit.epochs, fit.seed, x, y, fit.state, sample_weights, fit.secret, only=fit.only
    )


class DivergedError(RunError):
    """A loss or weights are not finite, or beyond ``MOST_WEIGHT``.  job: its index.  results: of all jobs, in order;
    None where one diverged.
    """

    results: Sequence[Fitted | None] = ()

    def __init__(self, job: int, what: str) -> None:
        super().__init__(
            f"local training of job {job} gave {what} that is not finite, or beyond all measure: lower the learning "
            "rate, or look for infinite or unscaled values in its data and state"
        )
        self.job, self.what = job, what

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int, str]]:
        return type(self), (self.job, self.what)  # what travels to another process; results do not


def batch_order(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """An epoch's (from 0) samples, on every path and machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(samples)


def draws(model: Model, solver: Solver) -> bool:
    """Whether a training may draw from torch's generator: dropout, or an own loss."""
    return model.stochastic or isinstance(solver, Objective)


def pulled(job: Job) -> tuple[Tensor, Pull]:
    """The start weights (d,) and what the solver adds to the gradient, on the CPU."""
    start = tensor(job.weights)
    return start, job.solver.pull(start, {name: tensor(vector) for name, vector in job.state.items()})


def fitted(index: int, job: Job, model: Model, weights: Tensor, loss_sum: float) -> Fitted | DivergedError:
    """weights: (d,) at the end.  loss_sum: over all steps' samples. State entries are zero at buffers and parameters
    without gradient.
    """
    loss = loss_sum / job.passed
    if not np.isfinite(loss):
        return DivergedError(index, "a loss")
    end = weights.detach().cpu()
    state = {name: tensor(vector) for name, vector in job.state.items()}
    kept = {name: value.numpy() for name, value in job.solver.keep(tensor(job.weights), end, job.steps, state).items()}
    for part in model.spec.parts:
        if part.name not in model.trainable:
            for vector in kept.values():
                vector[part.offset : part.offset + part.size] = 0
    result = end.numpy()
    if not all(largest(vector) <= MOST_WEIGHT for vector in (result, *kept.values())):
        return DivergedError(index, "a weight or a state vector")
    return Fitted(weights=result, samples=job.samples, steps=job.steps, loss=loss, state=kept)


def check(model: Model, job: Job, index: int) -> Job:
    """The job with tensors in the paths' form. Raises UserError naming it and what is wrong."""
    where = f"job {index}"
    if not isinstance(job.solver, Solver) or isinstance(job.solver, type) or not isinstance(job.solver, Hashable):
        raise UserError(f"{where}: solver must be one of coterie.training.solvers (or alike), not {job.solver!r}")
    weights = model.checked(job.weights, f"{where}, weights")
    if not np.isfinite(weights).all():
        raise UserError(f"{where}: its start weights are not finite; the model it was sent has already diverged")
    for name, value, least in (("epochs", job.epochs, 1), ("seed", job.seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise UserError(f"{where}: {name} must be a whole number of at least {least}, not {value!r}")
    x, y = check_data(model, job.x, job.y, where)
    known, name = {*job.solver.needs, *job.solver.takes}, type(job.solver).__name__
    if unknown := set(job.state) - known:
        raise UserError(f"{where}: {name} knows no state {sorted(unknown)}; it takes {sorted(known) or 'none'}")
    if missing := set(job.solver.needs) - set(job.state):
        raise UserError(f"{where}: {name} needs the state {sorted(missing)}; give zeros (d,) in the first round")
    state = {key: model.checked(vector, f"{where}, state {key!r}") for key, vector in job.state.items()}
    of_samples = None if job.sample_weights is None else _sample_weights(job.sample_weights, len(x), where)
    check_only(model, job, where)
    whole = int(job.epochs), int(job.seed)
    checked = Job(weights, job.solver, *whole, x, y, state, of_samples, job.secret, only=job.only)
    return replace(checked, private=hidden(model, checked, where)) if is_private(job.solver) else checked


def check_only(model: Model, job: Job, where: str) -> None:
    """Raises UserError for unknown parts, and for a private training of some parts."""
    if job.only and not (set(job.only) <= set(model.spec.names) and any(map(job.trains, model.trainable))):
        known = ", ".join(model.trainable)
        raise UserError(f"{where}: only={job.only} names no part to train, or an unknown one; there are {known}")
    if job.only and is_private(job.solver):
        raise UserError(f"{where}: a training of some parts has no sample_noise: leave the setting out")


def hidden(model: Model, job: Job, where: str) -> Private:
    """Of a private training. Raises UserError for what would let more than a sample's gradient out.

    It follows from the secret and the training.
    """
    if len(job.secret) < LEAST_SECRET:
        raise UserError(
            f"{where}: a training with sample_noise needs a secret of {LEAST_SECRET} bytes, from which its noise "
            "follows: coterie.method.fit gives it one"
        )
    if job.sample_weights is not None:
        raise UserError(
            f"{where}: with sample_noise no sample has a weight, since weights may follow from other samples: leave "
            "class_weights and sample_weights out"
        )
    check_separable(model)
    named = (f"{name}\x1f".encode() + vector.tobytes() for name, vector in sorted(job.state.items()))
    settings = repr((job.solver, job.epochs, tuple(job.x.shape), tuple(job.y.shape))).encode()
    content = (settings, job.weights, *map(np.ascontiguousarray, (job.x, job.y)), *named)
    batches = sampling(job.samples, job.solver.batch_size, job.epochs)
    return Private.of(job.solver, batches, job.samples, mixed(job.secret, *content))


def _sample_weights(weights: Vector, samples: int, where: str) -> Vector:
    array = floats(weights, (samples,), f"{where}: sample_weights")
    if not np.isfinite(array).all() or (array < 0).any():
        raise UserError(f"{where}: sample_weights must be finite and at least 0")
    return array


def check_data(model: Model, x: Tensor, y: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """As tensors. Raises UserError for a wrong shape or type."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if x.shape[0:1] == (0,) or not x.dim():
        raise UserError(f"{where}: it has no samples; leave such a client out")
    if tuple(x.shape[1:]) != model.input_shape or x.dtype != torch.float32:
        raise UserError(
            f"{where}: {model.name} takes samples {model.input_shape} torch.float32, got {tuple(x.shape[1:])} {x.dtype}"
        )
    if y.shape[:1] != x.shape[:1]:
        raise UserError(f"{where}: {x.shape[0]} samples but labels of shape {tuple(y.shape)}")
    if model.classes is not None:
        if y.dim() != 1 or y.is_floating_point() or y.dtype == torch.bool:
            raise UserError(f"{where}: labels must be (n,) int64, got {tuple(y.shape)} {y.dtype}")
        y = y.to(torch.int64)
        low, high = (int(bound) for bound in torch.aminmax(y))
        if low < 0 or high >= model.classes:
            raise UserError(f"{where}: labels span {low} to {high}, but {model.name} has {model.classes} classes")
    return x, y


_PRECISIONS = ("fp32", "bf16", "auto")


class How(TypedDict):
    """Of products: precision, and device that computes them."""

    precision: str
    device: str


FP32: How = {"precision": "fp32", "device": "cpu"}


def has_fast_bf16(device: str = "cpu") -> bool:
    """Whether bfloat16 beats float32: on a GPU that has it, by AMX, or by AVX512-BF16 on processors other than Intel's,
    whose float32 products are faster.
    """
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_tile") or (has.get("avx512_bf16") and "Intel" not in has.get("cpu_name", "")))


def products(model: Model, precision: str, device: str) -> torch.dtype:
    """The dtype of products; bfloat16 is for classifiers with convolutions. Raises UserError for an unknown precision
    or an unusable device.
    """
    if precision not in _PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: choose one of {', '.join(_PRECISIONS)}")
    check_device(device)
    low = precision == "bf16" or (precision == "auto" and has_fast_bf16(device))
    return torch.bfloat16 if low and model.is_classifier and has_conv2d(model.module) else torch.float32


def check_device(device: str) -> None:
    """Raises UserError for an unknown or absent device."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise UserError(f"unknown device {device!r}: choose cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this machine, or this build of torch, has no usable GPU; use cpu")
