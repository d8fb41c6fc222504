"""One client after the other: any module; best for convolutions on a CPU (channels-last)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.protocol.effects import Fitted
from coterie.protocol.errors import UserError
from coterie.training.jobs import DivergedError, Job, batch_order, draws, fitted, pulled
from coterie.training.model import Model, has_conv2d, load, placed, pooled_first, tensor, torch_seed
from coterie.training.private import clipped_sums
from coterie.training.solvers import Objective, Pull, State, descend

_ONE_VALUE = "Expected more than 1 value per channel when training"


def run(
    model: Model, jobs: Mapping[int, Job], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[int, Fitted | DivergedError]]:
    """dtype: torch.bfloat16 casts the products (autocast); weights stay float32."""
    module = copy.deepcopy(model.module)
    if not any(isinstance(job.solver, Objective) for job in jobs.values()):  # which may use a part of the network alone
        module = pooled_first(module)
    module = placed(module, device).train()
    counters = {name: value for name, value in model.module.state_dict().items() if not value.is_floating_point()}
    for index, job in jobs.items():
        load(module, model.unflatten(job.weights) | counters)
        devices = [device] if device.type == "cuda" else []
        random = draws(model, job.solver)
        with torch.random.fork_rng(devices, enabled=random):  # dropout follows from the seed
            if random:
                torch.manual_seed(torch_seed(job.seed))
            loss = _train(model, module, job, dtype, device)
        yield index, fitted(index, job, model, torch.from_numpy(model.flatten(module)), loss)


def _train(model: Model, module: nn.Module, job: Job, dtype: torch.dtype, device: torch.device) -> float:
    _, pull = pulled(job)
    named = dict(module.named_parameters())
    names = [name for name in model.trainable if job.trains(name)]
    parameters = [named[name] for name in names]
    drifts: list[Tensor | None] = [None] * len(parameters)
    if pull.drift is not None:
        by_name = model.unflatten(pull.drift.numpy())
        drifts = [torch.empty_like(p).copy_(by_name[name]) for name, p in zip(names, parameters, strict=True)]
    velocities = [torch.zeros_like(p) if job.solver.momentum else None for p in parameters]
    x, y = job.x.to(device), job.y.to(device)
    of_samples = None if job.sample_weights is None else tensor(job.sample_weights).to(device)
    images_last = x.dim() == 4 and has_conv2d(module)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
    own = job.solver if isinstance(job.solver, Objective) else None
    start = {} if own is None else _parameters(model, job, device)
    total = torch.zeros((), dtype=torch.float64)
    noises = iter(()) if job.private is None else job.private.noises(model.spec.size)
    for rows in _batches(job):
        samples, labels = (held.index_select(0, rows.to(device)) for held in (x, y))
        if images_last:
            samples = samples.contiguous(memory_format=torch.channels_last)
        gradients: Sequence[Any]
        if job.private is not None:
            with autocast:
                loss, gradients = clipped_sums(model, module, samples, labels, job.private.clip)
            noise = model.unflatten(next(noises).numpy())
            for name, gradient in zip(names, gradients, strict=True):
                gradient.div_(job.batch).add_(noise[name].to(device))
            total += loss
        else:
            weights = None if of_samples is None else of_samples.index_select(0, rows.to(device))
            with autocast:
                work = partial(module, samples) if own is None else partial(own.losses, module, start, samples, labels)
                found = _normalised(module, len(rows), work)
            mean = _mean(model, own, found.float(), labels, weights)
            gradients = torch.autograd.grad(mean, parameters, allow_unused=True)
            total += mean.detach().cpu().double() * len(rows)
        with torch.no_grad():
            for p, g, v, drift in zip(parameters, gradients, velocities, drifts, strict=True):
                descend(p, torch.zeros_like(p) if g is None else g, v, Pull(pull.shrink, drift), job.solver)
    return float(total)


def _normalised(module: nn.Module, samples: int, work: Callable[[], Any]) -> Any:
    """What ``work`` finds. A single sample that batch normalisation refuses, since its variance is 0, is normalised by
    the running means as they were.
    """
    if samples > 1:
        return work()
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.training]
    before = [buffer.clone() for layer in layers for buffer in layer.buffers()]
    try:
        return work()
    except (ValueError, UserError) as error:
        refusal = error.__cause__ if isinstance(error, UserError) else error  # the former from a loss of one's own
        if not (layers and isinstance(refusal, ValueError) and str(refusal).startswith(_ONE_VALUE)):
            raise
    for buffer, value in zip((buffer for layer in layers for buffer in layer.buffers()), before, strict=True):
        buffer.copy_(value)  # layers before the one that refused have counted the sample
    for layer in layers:
        layer.eval()
    try:
        return work()
    finally:
        for layer in layers:
            layer.train()


def _batches(job: Job) -> Iterator[Tensor]:
    if job.private is not None:
        yield from map(torch.from_numpy, job.private.batches)
        return
    for epoch in range(job.epochs):
        yield from torch.split(torch.from_numpy(batch_order(job.seed, epoch, job.samples)), job.batch)


def _parameters(model: Model, job: Job, device: torch.device) -> State:
    tensors, parts = model.unflatten(job.weights), model.spec.parts
    return {part.name: tensors[part.name].clone().to(device) for part in parts if part.kind == "parameter"}


def _mean(model: Model, own: Objective | None, found: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return model.mean_loss(found, labels) if own is None else found.mean()
    losses = model.losses(found, labels) if own is None else found
    if losses.shape != weights.shape:
        raise UserError(
            "class weights and sample weights weigh each sample's loss, and this objective gives one number for a "
            "batch: leave the weights out, or let it return one number for each sample, (n,)"
        )
    return (losses * weights).mean()
