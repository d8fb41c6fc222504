"""Local training of many clients: by which path, and how many at a time.

- ``dense``  fully connected chains: batched matrix products, the fastest on a CPU
- ``vmap``   any stateless module, mapped over clients (``stacked.py``), for GPUs
- ``loop``   one client after the other: any module; convolutions on a CPU; losses of one's own
All agree with a plain PyTorch loop within float32 rounding (on a GPU with ``torch.backends.cudnn.allow_tf32`` off).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import torch

from coterie.protocol.effects import Fitted
from coterie.protocol.errors import UserError
from coterie.training import dense, loop, slots, stacked
from coterie.training.jobs import DivergedError, Job, check, draws, products
from coterie.training.model import Model
from coterie.training.solvers import Objective, Solver, is_private
from coterie.training.workers import run_all, shares

PATHS = ("auto", "dense", "vmap", "loop")

_CHUNK_BYTES = {"cpu": 5 << 20, "cuda": 1 << 30}  # weights of one worker's slots; on a CPU they stay in its cache
_BLOCK_BYTES = 16 << 20  # samples gathered ahead
# up to this batch size all batches are padded to it, since the last bits of a product follow from its shape: so on the
# dense path a client's model is the same, bit for bit, whoever trains beside it in as many slots; beyond it batches are
# padded to the largest one there is
_PADDED = 256
_WORKER_FLOPS = 25e6  # a step shorter than this (0.3 ms) is bound by the interpreter, which only one worker can use


def choose_path(model: Model, device: str = "cpu", path: str = "auto", solver: Solver | None = None) -> str:
    """The path of ``fit_many``; UserError for one that cannot run this model or solver."""
    if path not in PATHS:
        raise UserError(f"unknown training path {path!r}: choose one of {', '.join(PATHS)}")
    if isinstance(solver, Objective):  # the batched paths know no loss but cross entropy
        if path not in ("auto", "loop"):
            raise UserError(f'an Objective trains one network at a time, and takes no {path} path: use path="auto"')
        return "loop"
    if path == "vmap" and is_private(solver):
        raise UserError('with sample_noise a model takes the dense or the loop path: use path="auto"')
    if path == "dense" and dense.chain(model) is None:
        raise UserError(
            f"{model.name} cannot take the dense path, which is for chains of Flatten, Linear, ReLU, Tanh, Sigmoid "
            'and Dropout(0) under cross entropy: use path="auto"'
        )
    if path == "vmap" and not stacked.stackable(model):
        raise UserError(
            f"{model.name} cannot take the vmap path, which needs cross entropy, no buffers, no dropout and operations "
            'that torch.func.vmap knows: use path="auto"'
        )
    if path != "auto":
        return path
    if torch.device(device).type != "cpu" and not is_private(solver):
        return "vmap" if stacked.stackable(model) else "loop"
    return "loop" if dense.chain(model) is None else "dense"


def fit_many(
    model: Model, jobs: Sequence[Job], *, precision: str = "fp32", device: str = "cpu", path: str = "auto"
) -> list[Fitted]:
    """Results in the order of jobs, whose data are only read.

    precision: "fp32"; "bf16" for bfloat16 products of classifiers with convolutions, with float32 master weights;
        "auto" for bf16 where the processor or GPU has it.
    path: "auto", or one of "dense", "vmap", "loop".

    Raises UserError for a job that cannot be trained, and DivergedError.
    """
    dtype = products(model, precision, device)
    choose_path(model, device, path)
    groups: dict[tuple[Solver, int, tuple[str, ...]], dict[int, Job]] = {}
    for index, job in enumerate(jobs):
        checked = check(model, job, index)
        groups.setdefault((job.solver, rows_of(checked), job.only), {})[index] = checked
    results: dict[int, Fitted | DivergedError] = {}
    for (solver, *_), group in groups.items():
        results |= _fit_group(model, group, choose_path(model, device, path, solver), dtype, torch.device(device))
    found = [results[index] for index in range(len(jobs))]
    for error in found:
        if isinstance(error, DivergedError):
            error.results = [result if isinstance(result, Fitted) else None for result in found]
            raise error
    return [result for result in found if isinstance(result, Fitted)]


def _fit_group(
    model: Model, jobs: dict[int, Job], path: str, dtype: torch.dtype, device: torch.device
) -> dict[int, Fitted | DivergedError]:
    run = loop.run if path == "loop" else partial(_fit_slots, path)
    indices = list(jobs)
    costs = [jobs[index].steps for index in indices]
    step_flops = max(job.batch for job in jobs.values()) * model.spec.flops_per_sample
    solver = next(iter(jobs.values())).solver
    if device.type != "cpu" or (path == "loop" and draws(model, solver)):
        workers = 1  # there is one GPU; and one random generator
    elif path == "loop":
        workers = len(jobs)
    else:
        workers = int(slot_count(model, len(jobs), device) * step_flops / _WORKER_FLOPS)
    split = shares(costs, workers)
    parts = [{indices[at]: jobs[indices[at]] for at in share} for share in split]
    small = isinstance(solver, Objective) and step_flops < _WORKER_FLOPS  # a dense model, say
    threads = torch.get_num_threads() if path == "loop" and len(parts) == 1 and not small else 1
    done = run_all([partial(run, model, part, dtype, device) for part in parts], threads)
    return {index: fitted for part in done for index, fitted in part}


def _fit_slots(
    path: str, model: Model, jobs: dict[int, Job], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[int, Fitted | DivergedError]]:
    first = next(iter(jobs.values()))
    solver = first.solver
    batch = max(map(rows_of, jobs.values())) or max(job.batch for job in jobs.values())
    width = slot_count(model, len(jobs), device)
    sample_bytes = width * batch * prod(model.input_shape) * 4
    block = max(1, min(_BLOCK_BYTES // sample_bytes, max(job.steps for job in jobs.values())))
    kernel: slots.Kernel
    if path == "dense":
        kernel = dense.DenseKernel(model, solver, slots=width, batch=batch, device=device, trains=first.trains)
    else:
        kernel = stacked.StackedKernel(model, solver, slots=width, dtype=dtype, device=device, trains=first.trains)
    return slots.run(model, jobs, kernel, block, batch)


def rows_of(job: Job) -> int:
    """That the job's batches are padded to; 0 for as many as the largest beside it."""
    if job.private is not None:
        return job.private.rows
    return job.solver.batch_size if job.solver.batch_size <= _PADDED else 0


def slot_count(model: Model, jobs: int, device: torch.device) -> int:
    most = max(2, min(128, _CHUNK_BYTES[device.type] // (4 * model.spec.size)))
    rounds = -(-jobs // most)
    return -(-jobs // rounds)
