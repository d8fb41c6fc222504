"""Many fully connected models at once: forward and backward by hand as batched matrix products. Gradients are added to
weights (or momentum) directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import Part
from coterie.training.jobs import Job, Trains, pulled
from coterie.training.model import Model, has_hooks, shaped
from coterie.training.private import clip_factors
from coterie.training.solvers import Solver, is_private

aten = torch.ops.aten


class Activation(NamedTuple):
    """In place: the function, and a delta times the derivative, from the output."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], object]


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda d, out: aten.threshold_backward.grad_input(d, out, 0, grad_input=d)),
    nn.Tanh: Activation(torch.tanh_, lambda d, out: aten.tanh_backward.grad_input(d, out, grad_input=d)),
    nn.Sigmoid: Activation(torch.sigmoid_, lambda d, out: aten.sigmoid_backward.grad_input(d, out, grad_input=d)),
}


class Layer(NamedTuple):
    weight: Part
    bias: Part | None
    activation: Activation | None = None


def chain(model: Model) -> tuple[Layer, ...] | None:
    """The model as linear layers with activations between: Flatten first, Linear, ReLU, Tanh, Sigmoid, Identity and
    Dropout(0), in any Sequential; cross entropy. None for another.
    """
    if not model.is_classifier or len(model.trainable) != len(model.spec.parts):
        return None
    parts = {part.name: part for part in model.spec.parts}
    layers: list[Layer] = []
    flat = len(model.input_shape) == 1
    for name, module in model.module.named_modules(remove_duplicate=False):
        kind = type(module)
        if has_hooks(module):
            return None
        if kind in (nn.Sequential, nn.Identity) or (kind is nn.Dropout and module.p == 0):
            continue
        if kind is nn.Flatten and module.start_dim == 1 and module.end_dim == -1 and not layers:
            flat = True
        elif kind is nn.Linear and flat:
            prefix = f"{name}." if name else ""
            layers.append(Layer(parts[f"{prefix}weight"], parts.get(f"{prefix}bias")))
        elif kind in _ACTIVATIONS and layers and not layers[-1].activation:
            layers[-1] = layers[-1]._replace(activation=_ACTIVATIONS[kind])
        else:
            return None
    return tuple(layers) if layers and not layers[-1].activation else None


class SlotWeights:
    """One weight matrix, or bias (1, n), of every slot: (slots, rows, cols) float32.

    velocity, drift: None where not needed.  trained: it descends.
    """

    def __init__(self, slots: int, part: Part, device: torch.device, momentum: bool, trains: Trains):
        self.trained = trains(part.name)
        self.at = slice(part.offset, part.offset + part.size)
        self.value = torch.zeros(slots, *part.shape[:-1] or (1,), part.shape[-1], device=device)
        self.velocity = torch.zeros_like(self.value) if momentum else None
        self.drift: Tensor | None = None

    def first(self, width: int) -> SlotWeights:
        view = SlotWeights.__new__(SlotWeights)
        for name, held in vars(self).items():
            setattr(view, name, held[:width] if isinstance(held, Tensor) else held)
        return view

    def load(self, slot: int, start: Tensor, drift: Tensor | None) -> None:
        """Start a job from flat vectors (d,) float32, with zero velocity."""
        self.value[slot].view(-1).copy_(start[self.at])
        if self.velocity is not None:
            self.velocity[slot].zero_()
        if drift is not None:
            if self.drift is None:
                self.drift = torch.zeros_like(self.value)
            self.drift[slot].view(-1).copy_(drift[self.at])

    def descend(
        self, left: Tensor | None, right: Tensor, solver: Solver, shrink: float, noise: Tensor | None = None
    ) -> None:
        """``solvers.descend`` with the gradient ``left @ right``, never stored, plus noise (slots, d)."""
        if not self.trained:
            return
        w, v, lr = self.value, self.velocity, solver.lr
        into, beta, alpha = (w, 1 - lr * shrink, -lr) if v is None else (v, solver.momentum, 1.0)
        if left is None:
            if beta != 1:
                into.mul_(beta)
            into.add_(right.sum(1, keepdim=True), alpha=alpha)
        else:
            into.baddbmm_(left, right, beta=beta, alpha=alpha)
        if noise is not None:
            into.add_(noise[:, self.at].reshape(into.shape), alpha=alpha)
        if v is None:
            if self.drift is not None:
                w.add_(self.drift, alpha=-lr)
        else:
            if shrink:
                v.add_(w, alpha=shrink)
            if self.drift is not None:
                v.add_(self.drift)
            w.add_(v, alpha=-lr)


class Stage(NamedTuple):
    """output: (slots, batch, fan_out) activations.  delta: the loss's gradient at them."""

    activation: Activation | None
    weight: SlotWeights
    bias: SlotWeights | None
    output: Tensor
    delta: Tensor

    def first(self, width: int) -> Stage:
        bias = self.bias.first(width) if self.bias else None
        return Stage(self.activation, self.weight.first(width), bias, self.output[:width], self.delta[:width])

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (slots, batch, fan_in)."""
        matrix = self.weight.value.transpose(1, 2)
        if self.bias is None:
            torch.bmm(inputs, matrix, out=self.output)
        else:
            torch.baddbmm(self.bias.value, inputs, matrix, out=self.output)
        return self.activation.forward(self.output) if self.activation else self.output


class DenseKernel:
    """``slots`` copies of a chain in float32; a ``slots.Kernel``."""

    def __init__(
        self,
        model: Model,
        solver: Solver,
        *,
        slots: int,
        batch: int,
        device: torch.device,
        trains: Trains = bool,
    ):
        layers = chain(model)
        if layers is None:
            raise UserError(f"{model.name} is no chain of linear layers")
        self.slots, self.device = slots, device
        self._solver, self._shrink, self._size = solver, 0.0, model.spec.size
        weights = partial(SlotWeights, slots, device=device, momentum=solver.momentum > 0, trains=trains)

        def stage(layer: Layer) -> Stage:
            output = torch.empty(slots, batch, layer.weight.shape[0], device=device)
            bias = weights(layer.bias) if layer.bias else None
            return Stage(layer.activation, weights(layer.weight), bias, output, torch.empty_like(output))

        self._stages = [stage(layer) for layer in layers]
        self._weights = [held for own in self._stages for held in (own.weight, own.bias) if held]
        self._log_p = torch.empty(slots, batch, layers[-1].weight.shape[0], device=device)
        self._gradient = torch.empty_like(self._log_p)
        self._narrowed: list[Stage] = []  # to the width of the last step
        self._noises: list[Iterator[Tensor] | None] = [None] * slots
        self._noise, self._clips = (torch.zeros(slots, n * is_private(solver), device=device) for n in (self._size, 1))

    def load(self, slot: int, job: Job) -> None:
        start, pull = pulled(job)
        self._shrink = pull.shrink
        if job.private is not None:
            self._noises[slot] = job.private.noises(self._size)
            self._clips[slot] = job.private.clip / job.batch
        for weights in self._weights:
            weights.load(slot, start, pull.drift)
        self._narrowed = []  # there may be a drift now

    def store(self, slot: int) -> Tensor:
        vector = torch.empty(self._size)
        for weights in self._weights:
            vector[weights.at] = weights.value[slot].view(-1)
        return vector

    @torch.inference_mode()
    def step(self, x: Tensor, y: Tensor, scale: Tensor, nll: Tensor) -> None:
        width = x.shape[0]
        if not self._narrowed or len(self._narrowed[0].output) != width:
            self._narrowed = [stage.first(width) for stage in self._stages]
        stages = self._narrowed

        inputs = [x]
        for stage in stages:
            inputs.append(stage.forward(inputs[-1]))
        deltas = [self._loss(inputs[-1], y.unsqueeze(2), scale.unsqueeze(2), nll.unsqueeze(2))]
        for below, stage, output in zip(stages[-2::-1], stages[:0:-1], inputs[-2:0:-1], strict=True):
            deltas.append(torch.bmm(deltas[-1], stage.weight.value, out=below.delta))
            if below.activation:
                below.activation.backward(deltas[-1], output)
        deltas.reverse()
        noise = self._hide(stages, inputs, deltas) if is_private(self._solver) else None
        for stage, delta, fed in zip(stages, deltas, inputs, strict=False):
            stage.weight.descend(delta.transpose(1, 2), fed, self._solver, self._shrink, noise)
            if stage.bias is not None:
                stage.bias.descend(None, delta, self._solver, self._shrink, noise)

    def _hide(self, stages: list[Stage], inputs: list[Tensor], deltas: list[Tensor]) -> Tensor:
        """Clip each sample's gradient in its deltas; returns the step's noise, (width, d).

        A layer's gradient is an outer product, with the norm of the delta times the input's (Goodfellow 2015, section
        4).
        """
        width = len(deltas[0])
        squares = torch.zeros_like(deltas[0][..., 0])
        for stage, delta, fed in zip(stages, deltas, inputs, strict=False):
            ones = 0.0 if stage.bias is None else 1.0
            squares += delta.square().sum(2) * (fed.square().sum(2) + ones)
        factors = clip_factors(squares.sqrt_(), self._clips[:width]).unsqueeze(2)
        for delta in deltas:
            delta.mul_(factors)
        for slot, noises in enumerate(self._noises[:width]):
            if noises is not None:
                self._noise[slot] = next(noises)
        return self._noise[:width]

    def _loss(self, logits: Tensor, labels: Tensor, scale: Tensor, nll: Tensor) -> Tensor:
        """Fill nll with the samples' cross entropy; returns its gradient (softmax - one hot) scale."""
        log_p, gradient = self._log_p[: len(logits)], self._gradient[: len(logits)]
        torch.log_softmax(logits, 2, out=log_p)
        torch.gather(log_p, 2, labels, out=nll)
        nll.neg_()
        torch.exp(log_p, out=gradient).mul_(scale)
        return gradient.scatter_add_(2, labels, -scale)


def logits(layers: tuple[Layer, ...], weights: Tensor, x: Tensor) -> Tensor:
    """(models, n, classes) float32 of models (models, d) float32 on the same samples x (n, f)."""
    h = x.expand(weights.shape[0], -1, -1)
    for layer in layers:
        w = shaped(weights, layer.weight).transpose(1, 2)
        bias = None if layer.bias is None else shaped(weights, layer.bias).unsqueeze(1)
        h = torch.bmm(h, w) if bias is None else torch.baddbmm(bias, h, w)
        if layer.activation:
            layer.activation.forward(h)
    return h
