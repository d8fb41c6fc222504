"""A user's ``torch.nn.Module`` seen as a flat ``(d,) float32`` vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

import coterie.protocol.core as fl

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs (n, ...) and labels (n, ...): the batch's mean, or each sample's, (n,)."""


def _per_sample(loss: Callable[..., Tensor]) -> Loss:
    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.shape != labels.shape:
            raise fl.UserError(
                f"outputs are {tuple(outputs.shape)}, but labels {tuple(labels.shape)}: this loss needs the same"
            )
        return loss(outputs, labels, reduction="none").flatten(1).mean(1)

    return losses


LOSSES: dict[str, Loss] = {
    "cross_entropy": nn.functional.cross_entropy,
    "binary_cross_entropy": _per_sample(nn.functional.binary_cross_entropy_with_logits),
    "mse": _per_sample(nn.functional.mse_loss),
    "mae": _per_sample(nn.functional.l1_loss),
    "huber": _per_sample(nn.functional.huber_loss),
}
"""By name. Cross entropy takes classes, others labels (n, outputs) float32."""


class Model:
    """module: an ``nn.Module`` (copied) or a factory without arguments.
    input_shape: of one sample, ``(C, H, W)`` for images or ``(f,)``; samples are float32.
    loss: a name of ``LOSSES`` (cross entropy takes ``(N, classes)`` logits and int64 labels), or a function of
        outputs and labels (``Loss``).
    personal: name prefixes of parameters that stay with the client (``Part.scope == "personal"``).

    spec: the flat vector's layout: parameters and floating-point buffers in state-dict order. Integer buffers
        restart with every training.
    classes: length of the logits, or None with another loss.  outputs: numbers for each sample, None if no vector.
    stochastic: training draws from torch's generator (dropout).

    Raises UserError naming the layer for what a flat float32 vector cannot hold.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        input_shape: Sequence[int],
        *,
        loss: str | Loss = "cross_entropy",
        personal: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        self._factory = None if isinstance(module, nn.Module) else module
        with torch.random.fork_rng(devices=[]):
            made = module if isinstance(module, nn.Module) else module()
        if not isinstance(made, nn.Module):
            raise fl.UserError(f"a model must be a torch.nn.Module or a factory of one, got {type(made).__name__}")
        self.module: nn.Module = copy.deepcopy(made)
        self.name = name or type(made).__name__
        self.input_shape = tuple(int(n) for n in input_shape)
        if callable(loss):
            self.loss: Loss = loss
        elif loss in LOSSES:
            self.loss = LOSSES[loss]
        else:
            hint = fl.suggest(loss, LOSSES)
            raise fl.UserError(
                f"unknown loss {loss!r}{hint} Known: {', '.join(LOSSES)}, or a function of outputs and labels"
            )
        _refuse_unsupported(self.module)
        flops, activations, output, self.stochastic = _dry_run(self.module, self.input_shape)
        self.outputs = int(output.shape[1]) if output.dim() == 2 else None
        self.classes: int | None = None
        if self.is_classifier:
            if output.dim() != 2 or output.shape[1] < 2:
                shape = tuple(output.shape[1:])
                raise fl.UserError(
                    f"cross entropy needs (N, classes) logits; {self.name} gives {shape} for each sample"
                )
            self.classes = int(output.shape[1])
        self.spec = fl.ModelSpec(_parts(self.module, tuple(personal)), flops, self.outputs or 0, activations)
        trainable = {name for name, p in self.module.named_parameters() if p.requires_grad}
        self.trainable: tuple[str, ...] = tuple(part.name for part in self.spec.parts if part.name in trainable)

    @property
    def is_classifier(self) -> bool:
        """Whether the loss is cross entropy."""
        return self.loss is nn.functional.cross_entropy

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(n,). Raises UserError for an own loss with one number a batch."""
        if self.is_classifier:
            return nn.functional.cross_entropy(outputs, labels, reduction="none")
        losses = self.loss(outputs, labels)
        if losses.shape != labels.shape[:1]:
            raise fl.UserError(
                f"{self.name}: its loss gives one number for a whole batch, and here one for each sample is needed: "
                "let it return (n,)"
            )
        return losses

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(outputs, labels).mean()

    def initial(self, seed: int) -> fl.Vector:
        """Fresh weights (d,) float32 from the seed, by the factory or ``reset_parameters``."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(torch_seed(seed))  # all others, which weights never need, take 1 ms
            if self._factory is not None:
                return self.flatten(self._factory())
            module = copy.deepcopy(self.module)
            for name, layer in module.named_modules():
                reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
                if callable(reset):
                    reset()
                elif any(True for _ in layer.parameters(recurse=False)):
                    raise fl.UserError(
                        f"{_where(name, layer)} has parameters but no reset_parameters() to draw them again: "
                        "add one, or give a factory instead of a module"
                    )
            return self.flatten(module)

    def flatten(self, module: nn.Module | None = None) -> fl.Vector:
        """The weights (d,) float32 of ``module``, by default those at first."""
        tensors = (module or self.module).state_dict()
        vector = np.empty(self.spec.size, np.float32)
        for part in self.spec.parts:
            if part.name not in tensors or tuple(tensors[part.name].shape) != part.shape:
                raise fl.UserError(
                    f"the module has no {part.name!r} of shape {part.shape}: not this model's architecture"
                )
            vector[part.offset : part.offset + part.size] = tensors[part.name].detach().cpu().numpy().reshape(-1)
        return vector

    def unflatten(self, vector: NDArray[Any]) -> dict[str, Tensor]:
        """By name; sharing the memory of a writable (d,) float32 vector."""
        flat = tensor(self.checked(vector))
        return {part.name: shaped(flat, part) for part in self.spec.parts}

    def module_with(self, vector: NDArray[Any]) -> nn.Module:
        """A new module with these weights (d,), in evaluation mode."""
        module = copy.deepcopy(self.module)
        load(module, self.unflatten(vector))
        return module.eval()

    def checked(self, vector: NDArray[Any], what: str = "weights") -> fl.Vector:
        """A contiguous (d,) float32 array, itself if it is one. Raises UserError."""
        return floats(vector, (self.spec.size,), what, f" (was it made for another model than {self.name}?)")


def floats(values: NDArray[Any], shape: tuple[int | str, ...], what: str, advice: str = "") -> fl.Vector:
    """A contiguous float32 array. shape: a name stands for any length. Raises UserError."""
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        isinstance(n, str) or n == m for m, n in zip(array.shape, shape, strict=True)
    )
    if not fits or not np.issubdtype(array.dtype, np.floating):
        wanted = str(shape).replace("'", "")
        raise fl.UserError(f"{what} must be {wanted} float32, got {array.shape} {array.dtype}{advice}")
    return np.ascontiguousarray(array, np.float32)


def torch_seed(seed: int) -> int:
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    module.to(device)
    if has_conv2d(module):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's own stubs
    return module


def pooled_first(module: nn.Module) -> nn.Module:
    """ReLU and a max pooling after it change places in an ``nn.Sequential``, and in those that are its layers.

    Outputs and gradients stay the same bit for bit, but for the sign of a zero, and ReLU has a fraction of the work.
    Other modules may use a part of a sequence alone, and hooks may change what a layer gives, so these stay as they
    are.
    """
    if type(module) is nn.Sequential:
        layers = [pooled_first(layer) for layer in module]
        for at, (first, second) in enumerate(pairwise(layers)):
            moves = type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices
            if moves and not (has_hooks(first) or has_hooks(second)):
                module[at], module[at + 1] = second, first
    return module


def has_hooks(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def has_conv2d(module: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in module.modules())


def tensor(vector: fl.Vector) -> Tensor:
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


def shaped(vectors: Tensor, part: fl.Part) -> Tensor:
    return vectors[..., part.offset : part.offset + part.size].view(*vectors.shape[:-1], *part.shape)


def load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = module.state_dict()
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def _parts(module: nn.Module, personal: tuple[str, ...]) -> tuple[fl.Part, ...]:
    parameters = dict(module.named_parameters())
    parts: list[fl.Part] = []
    offset = 0
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        kind = "parameter" if name in parameters else "buffer"
        scope = "personal" if personal and name.startswith(personal) else "shared"
        parts.append(fl.Part(name, tuple(value.shape), "float32", kind, scope, offset))
        offset += value.numel()
    if not any(part.kind == "parameter" for part in parts):
        raise fl.UserError(f"{type(module).__name__} has no parameters to train")
    for prefix in personal:
        if not any(part.name.startswith(prefix) for part in parts):
            raise fl.UserError(f"personal: no parameter starts with {prefix!r}; there are {[p.name for p in parts]}")
    return tuple(parts)


def _refuse_unsupported(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        where = _where(name, layer)
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats and layer.momentum is None:
            raise fl.UserError(
                f"{where}: momentum=None averages by a counter that the flat vector does not hold; set one"
            )
        for own, value in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            if isinstance(value, UninitializedParameter | UninitializedBuffer):
                raise fl.UserError(f"{where}: {own} has no shape yet; run one batch through the module first")
            if value.is_complex() or (value.is_floating_point() and value.dtype != torch.float32):
                raise fl.UserError(f"{where}: {own} is {value.dtype}; only float32 is supported, call module.float()")
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            raise fl.UserError(
                f"{name!r} is the same tensor as {seen[id(parameter)]!r}: shared layers are not supported"
            )
        seen[id(parameter)] = name


def _where(name: str, layer: nn.Module) -> str:
    return f"layer {name or '(the module itself)'!r} ({type(layer).__name__})"


def _dry_run(module: nn.Module, input_shape: tuple[int, ...]) -> tuple[float, int, Tensor, bool]:
    """Nominal FLOPs of one sample's forward and backward pass (6 per multiply-accumulate of a linear or convolutional
    layer, 6 per parameter of others); all leaf layers' output numbers for it; the output in evaluation mode; whether
    training moves torch's generator.
    """
    name, macs, activations = type(module).__name__, 0.0, 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal macs, activations
        if isinstance(output, Tensor) and not any(True for _ in layer.children()):
            activations += output.numel() // 2
        if isinstance(layer, nn.Linear):
            macs += output[0].numel() * layer.in_features
        elif isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd):
            macs += output[0].numel() * layer.in_channels // layer.groups * prod(layer.kernel_size)
        else:
            macs += sum(p.numel() for p in layer.parameters(recurse=False))

    def output_of(probe: nn.Module, fault: str) -> Any:
        try:
            return probe(torch.zeros(2, *input_shape))
        except Exception as error:  # whatever a user's module raises
            raise fl.UserError(f"{name} {fault}: {type(error).__name__}: {error}") from error

    evaluating, training = copy.deepcopy(module).eval(), copy.deepcopy(module).train()
    for layer in evaluating.modules():
        layer.register_forward_hook(count)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        output = output_of(evaluating, f"does not accept samples of shape {input_shape}")
        if not isinstance(output, Tensor) or output.shape[:1] != (2,):
            raise fl.UserError(f"{name} must give one tensor with a row for each sample")
        before = torch.get_rng_state()
        output_of(training, "fails in training mode on two samples")
        return 6.0 * macs, activations, output, not torch.equal(before, torch.get_rng_state())
