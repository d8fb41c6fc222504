"""Fully connected models, many at once: forward and backward by hand as batched matrix products.

A gradient is a product (deltas^T inputs), and every solver's step is linear in it, so the product is added to the
weights (or to the momentum) directly: without momentum there is no gradient buffer at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import Part
from coterie.training.jobs import Job, pulled
from coterie.training.model import Model, shaped
from coterie.training.solvers import Solver

aten = torch.ops.aten


@dataclass(frozen=True)
class Layer:
    """One linear layer of a chain and the activation behind it ("" for none)."""

    weight: Part
    bias: Part | None
    activation: str

    @property
    def fan_in(self) -> int:
        return self.weight.shape[1]

    @property
    def fan_out(self) -> int:
        return self.weight.shape[0]


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_FORWARD: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


def chain(model: Model) -> tuple[Layer, ...] | None:
    """The model as linear layers with activations between, or None if it is anything else.

    Flatten first, Linear, ReLU, Tanh, Sigmoid, Identity and Dropout(0), in any nesting of Sequential; cross entropy.
    """
    if not model.is_classifier or len(model.trainable) != len(model.spec.parts):
        return None
    parts = {part.name: part for part in model.spec.parts}
    layers: list[Layer] = []
    flat = len(model.input_shape) == 1
    for name, module in _leaves(model.module, ""):
        kind = type(module)
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return None
        if kind is nn.Identity or (kind is nn.Dropout and module.p == 0):
            continue
        if kind is nn.Flatten and module.start_dim == 1 and module.end_dim == -1 and not layers:
            flat = True
        elif kind is nn.Linear and flat:
            prefix = f"{name}." if name else ""
            layers.append(Layer(parts[f"{prefix}weight"], parts.get(f"{prefix}bias"), ""))
        elif kind in _ACTIVATIONS and layers and not layers[-1].activation:
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, _ACTIVATIONS[kind])
        else:
            return None
    return tuple(layers) if layers and not layers[-1].activation else None


def _leaves(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        return [(name, module)]
    return [
        leaf
        for key, child in module._modules.items()
        if child
        for leaf in _leaves(child, f"{name}.{key}" if name else key)
    ]


class Weights:
    """One weight matrix (slots, rows, cols) of every slot, its momentum, drift and low-precision operand.

    value: float32 master.  operand: what products read; the master itself, or its bfloat16 copy.
    velocity, drift, product, gradient: None where the solver or the precision needs none.
    """

    def __init__(self, slots: int, rows: int, cols: int, dtype: torch.dtype, device: torch.device, momentum: bool):
        def zeros(kind: torch.dtype) -> Tensor:
            return torch.zeros(slots, rows, cols, dtype=kind, device=device)

        self.value = zeros(torch.float32)
        low = dtype != torch.float32
        self.operand = zeros(dtype) if low else self.value
        self.product = zeros(dtype) if low else None
        self.gradient = zeros(torch.float32) if low else None
        self.velocity = zeros(torch.float32) if momentum else None
        self.drift: Tensor | None = None

    def first(self, width: int) -> Weights:
        """The same memory, narrowed to the first ``width`` slots."""
        view = Weights.__new__(Weights)
        for name, tensor in vars(self).items():
            setattr(view, name, None if tensor is None else tensor[:width])
        return view

    def load(self, slot: int, value: Tensor, drift: Tensor | None) -> None:
        """Start a job: value and drift (rows * cols,) float32; the velocity is zero again."""
        self.value[slot].view(-1).copy_(value)
        if self.operand is not self.value:
            self.operand[slot].copy_(self.value[slot])
        if self.velocity is not None:
            self.velocity[slot].zero_()
        if drift is not None:
            if self.drift is None:
                self.drift = torch.zeros_like(self.value)
            self.drift[slot].view(-1).copy_(drift)

    def descend(self, left: Tensor, right: Tensor, solver: Solver, shrink: float) -> None:
        """``solvers.descend`` with the gradient ``left @ right``, which is never stored in float32."""
        w, v, lr = self.value, self.velocity, solver.lr
        into, beta, alpha = (w, 1 - lr * shrink, -lr) if v is None else (v, solver.momentum, 1.0)
        if self.product is None or self.gradient is None:
            into.baddbmm_(left, right, beta=beta, alpha=alpha)
        else:
            torch.bmm(left, right, out=self.product)
            if beta != 1:
                into.mul_(beta)
            into.add_(self.gradient.copy_(self.product), alpha=alpha)  # a sum of two dtypes would allocate
        if v is None:
            if self.drift is not None:
                w.add_(self.drift, alpha=-lr)
        else:
            if shrink:
                v.add_(w, alpha=shrink)
            if self.drift is not None:
                v.add_(self.drift)
            w.add_(v, alpha=-lr)
        if self.operand is not self.value:
            self.operand.copy_(w)


@dataclass(frozen=True, eq=False)
class Stage:
    """One layer of every slot. output: (slots, batch, fan_out) activations.  delta: the loss's gradient at them."""

    layer: Layer
    weight: Weights
    bias: Weights | None
    output: Tensor
    delta: Tensor

    def first(self, width: int) -> Stage:
        """The same memory, narrowed to the first ``width`` slots."""
        bias = self.bias.first(width) if self.bias else None
        return Stage(self.layer, self.weight.first(width), bias, self.output[:width], self.delta[:width])

    def forward(self, inputs: Tensor) -> Tensor:
        """Activations for (slots, batch, fan_in) inputs."""
        matrix = self.weight.operand.transpose(1, 2)
        if self.bias is None:
            torch.bmm(inputs, matrix, out=self.output)
        else:
            torch.baddbmm(self.bias.operand, inputs, matrix, out=self.output)
        if self.layer.activation:
            _FORWARD[self.layer.activation](self.output)
        return self.output

    def parts(self) -> list[tuple[Part, Weights]]:
        """Where this layer's tensors lie in the flat vector."""
        pairs = [(self.layer.weight, self.weight)]
        if self.layer.bias is not None and self.bias is not None:
            pairs.append((self.layer.bias, self.bias))
        return pairs


class DenseKernel:
    """``slots`` copies of a chain of linear layers; a ``slots.Kernel``.

    dtype: of the products, torch.float32 or torch.bfloat16 (activations and deltas too; masters stay float32).
    """

    def __init__(
        self,
        model: Model,
        solver: Solver,
        *,
        slots: int,
        batch: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        layers = chain(model)
        if layers is None:
            raise UserError(f"{model.name} is no chain of linear layers")
        self.slots, self.device, self.sample_dtype = slots, device, dtype
        self._solver, self._shrink, self._size = solver, 0.0, model.spec.size

        def stage(layer: Layer) -> Stage:
            def weights(rows: int, cols: int) -> Weights:
                return Weights(slots, rows, cols, dtype, device, solver.momentum > 0)

            bias = weights(1, layer.fan_out) if layer.bias else None
            output = torch.empty(slots, batch, layer.fan_out, dtype=dtype, device=device)
            return Stage(layer, weights(layer.fan_out, layer.fan_in), bias, output, torch.empty_like(output))

        self._stages = [stage(layer) for layer in layers]
        self._ones = torch.ones(slots, 1, batch, dtype=dtype, device=device)
        self._log_p = torch.empty(slots, batch, layers[-1].fan_out, device=device)
        self._gradient = torch.empty_like(self._log_p)
        self._narrowed: list[Stage] = []  # to the width of the last step

    def load(self, slot: int, job: Job) -> None:
        start, pull = pulled(job)
        self._shrink = pull.shrink
        for part, weights in self._parts():
            at = slice(part.offset, part.offset + part.size)
            weights.load(slot, start[at], None if pull.drift is None else pull.drift[at])
        self._narrowed = []  # there may be a drift now

    def store(self, slot: int) -> Tensor:
        vector = torch.empty(self._size)
        for part, weights in self._parts():
            vector[part.offset : part.offset + part.size] = weights.value[slot].view(-1)
        return vector

    def _parts(self) -> list[tuple[Part, Weights]]:
        return [pair for stage in self._stages for pair in stage.parts()]

    @torch.inference_mode()
    def step(self, x: Tensor, y: Tensor, scale: Tensor, nll: Tensor) -> None:
        width = x.shape[0]
        if not self._narrowed or len(self._narrowed[0].output) != width:
            self._narrowed = [stage.first(width) for stage in self._stages]
        stages, ones = self._narrowed, self._ones[:width]

        inputs = [x]
        for stage in stages:
            inputs.append(stage.forward(inputs[-1]))
        delta = self._loss(inputs[-1], y.unsqueeze(2), scale.unsqueeze(2), nll.unsqueeze(2))
        if delta.dtype != stages[-1].delta.dtype:
            delta = stages[-1].delta.copy_(delta)
        for at in reversed(range(len(stages))):
            stage = stages[at]
            if at:  # before the step, which changes the weights
                below = torch.bmm(delta, stage.weight.operand, out=stages[at - 1].delta)
                _backward(stages[at - 1].layer.activation, below, inputs[at])
            stage.weight.descend(delta.transpose(1, 2), inputs[at], self._solver, self._shrink)
            if stage.bias is not None:
                stage.bias.descend(ones, delta, self._solver, self._shrink)
            if at:
                delta = below

    def _loss(self, logits: Tensor, labels: Tensor, scale: Tensor, nll: Tensor) -> Tensor:
        """Fill nll with the samples' cross entropy; returns its gradient (softmax - one hot) scale, in float32."""
        log_p, gradient = self._log_p[: len(logits)], self._gradient[: len(logits)]
        torch.log_softmax(logits, 2, dtype=torch.float32, out=log_p)
        torch.gather(log_p, 2, labels, out=nll)
        nll.neg_()
        torch.exp(log_p, out=gradient).mul_(scale)
        return gradient.scatter_add_(2, labels, -scale)


def _backward(activation: str, delta: Tensor, output: Tensor) -> None:
    """Multiply delta in place by the activation's derivative, taken from its output."""
    if activation == "relu":
        aten.threshold_backward.grad_input(delta, output, 0, grad_input=delta)
    elif activation == "tanh":
        aten.tanh_backward.grad_input(delta, output, grad_input=delta)
    elif activation == "sigmoid":
        aten.sigmoid_backward.grad_input(delta, output, grad_input=delta)


def logits(layers: tuple[Layer, ...], weights: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """(models, n, classes) float32 of models (models, d) float32 on the same samples x (n, f).

    dtype: of all products but the last layer's, which are float32: it is narrow, and its sums are what is compared.
    """
    h = x.to(dtype).expand(weights.shape[0], -1, -1)
    for layer in layers:
        if layer is layers[-1]:
            dtype = torch.float32
            h = h.float()
        w = shaped(weights, layer.weight).to(dtype).transpose(1, 2)
        if layer.bias is None:
            h = torch.bmm(h, w)
        else:
            h = torch.baddbmm(shaped(weights, layer.bias).to(dtype).unsqueeze(1), h, w)
        if layer.activation:
            _FORWARD[layer.activation](h)
    return h
