"""Many clients of any stateless module: ``torch.func.vmap`` over the gradient, for GPUs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from coterie.training.jobs import Job, Trains, pulled
from coterie.training.model import Model, shaped
from coterie.training.solvers import Pull, Solver, descend


def stackable(model: Model) -> bool:
    """Cross entropy, no buffers, no dropout, and torch can map it."""
    if not model.is_classifier or model.stochastic or any(True for _ in model.module.buffers()):
        return False
    try:
        weights = torch.zeros(2, model.spec.size)
        x, y = torch.zeros(2, 2, *model.input_shape), torch.zeros(2, 2, dtype=torch.int64)
        _gradients(model, model.module, torch.float32)(_named(model, weights), x, y, torch.ones(2, 2))
    except Exception:  # whatever a user's module raises: data-dependent control flow, missing batching rules
        return False
    return True


def _named(model: Model, weights: Tensor) -> dict[str, Tensor]:
    return {part.name: shaped(weights, part) for part in model.spec.parts}


def _gradients(model: Model, module: nn.Module, dtype: torch.dtype):  # type: ignore[no-untyped-def]
    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = functional_call(module, weights, (x,))
        nll = nn.functional.cross_entropy(output.float(), y, reduction="none")
        return (nll * scale).sum(), nll

    return vmap(grad_and_value(loss, has_aux=True))


class StackedKernel:
    """``slots`` copies of a module; a ``slots.Kernel``.  dtype: of products, torch.float32 or torch.bfloat16."""

    def __init__(
        self,
        model: Model,
        solver: Solver,
        *,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        trains: Trains = bool,
    ):
        self.slots, self.device = slots, device
        self._model, self._solver = model, solver
        self._names = tuple(filter(trains, model.trainable))
        module = copy.deepcopy(model.module).to(device).train()
        self._gradients = _gradients(model, module, dtype)
        self._weights = torch.zeros(slots, model.spec.size, device=device)
        self._velocity = torch.zeros_like(self._weights) if solver.momentum else None
        self._pull = Pull(0.0)

    def load(self, slot: int, job: Job) -> None:
        start, pull = pulled(job)
        drift = self._pull.drift
        if pull.drift is not None:
            drift = torch.zeros_like(self._weights) if drift is None else drift
            drift[slot] = pull.drift
        self._pull = Pull(pull.shrink, drift)
        self._weights[slot] = start
        if self._velocity is not None:
            self._velocity[slot] = 0

    def store(self, slot: int) -> Tensor:
        return self._weights[slot].clone()

    def step(self, x: Tensor, y: Tensor, scale: Tensor, nll: Tensor) -> None:
        width = x.shape[0]
        weights = _named(self._model, self._weights[:width])
        samples = x.view(*x.shape[:2], *self._model.input_shape)
        gradients, (_, losses) = self._gradients(weights, samples, y, scale)
        nll.copy_(losses)
        velocity = {} if self._velocity is None else _named(self._model, self._velocity[:width])
        drift = {} if self._pull.drift is None else _named(self._model, self._pull.drift[:width])
        for name in self._names:
            pull = Pull(self._pull.shrink, drift.get(name))
            descend(weights[name], gradients[name], velocity.get(name), pull, self._solver)
