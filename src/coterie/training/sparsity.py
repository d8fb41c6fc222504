"""Sparsity features: the share of zeros in a ReLU's channels for a sample ("FedEPC", Tang et al., CMC 2025, section
3.2).

s_c is the share of zeros in channel c of a ReLU's feature map (eq. 1), and s = [s_1, ..., s_C] (eq. 2). A dense layer
has H = W = 1, so its s_c are 0 or 1.

ReLUs are seen in the forward pass: as a module, a function, a method, or a clamp at 0. TorchScript hides its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError, suggest
from coterie.training.jobs import check_device
from coterie.training.model import Model, placed

WORDS = ("auto", "dense", "conv")
"""The last dense ReLU, or a convolution's; auto is dense where there is one."""

_RELUS = frozenset({"relu", "relu_", "relu6"})
_CLAMPS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "clip_"})
_PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"})
_ROWS = 256
_CHUNK_BYTES = 4 << 20  # of one chunk of samples


@dataclass(frozen=True)
class Rectified:
    """One ReLU of a forward pass.  name: its module's path (``"4"``, ``"block.relu"``; ``"forward"`` for the model's
    own), with ``:2``, ``:3`` for further ones.  behind: the path of the last linear map or convolution before it, or
    None.  dense: its channels are its last axis, not axis 1.
    """

    name: str
    behind: str | None
    dense: bool


class _Watch(TorchFunctionMode):
    def __init__(self, module: nn.Module, seen: Callable[[Rectified, Tensor], None]) -> None:
        super().__init__()
        self._seen, self._inside = seen, [""]
        self._behind: str | None = None
        self._dense = False
        self._count: dict[str, int] = {}
        for path, layer in module.named_modules():
            layer.register_forward_pre_hook(partial(self._enter, path))
            layer.register_forward_hook(self._leave)

    def start(self) -> None:
        self._inside, self._behind, self._dense, self._count = [""], None, False, {}

    def _enter(self, path: str, *_: Any) -> None:
        self._inside.append(path)

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name, here = getattr(func, "__name__", ""), self._inside[-1] or "forward"
        if name in _PRODUCTS or name.startswith("conv"):
            self._behind, self._dense = here, name in _PRODUCTS
        elif isinstance(output, Tensor) and (name in _RELUS or _clamps_at_zero(name, args, kwargs or {})):
            count = self._count[here] = self._count.get(here, 0) + 1
            dense = output.dim() == 2 or self._dense
            self._seen(Rectified(here if count == 1 else f"{here}:{count}", self._behind, dense), output)
        return output


def _clamps_at_zero(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    least = kwargs.get("min", args[1] if len(args) > 1 else None)
    return name in _CLAMPS and isinstance(least, int | float) and least == 0


def rectified(model: Model) -> list[Rectified]:
    """In the order of a forward pass."""
    found: list[Rectified] = []
    module = model.module_with(model.flatten())
    with torch.inference_mode(), _Watch(module, lambda one, _: found.append(one)):
        module(torch.zeros(2, *model.input_shape))
    return found


def relu_layer(model: Model, layer: str = "auto") -> str:
    """A ReLU's name.  layer: one of ``WORDS``, a name (``Rectified.name``), or the name of the module before it. Raises
    UserError without such a ReLU.
    """
    found = rectified(model)
    dense, conv = ([one.name for one in found if one.dense is kind] for kind in (True, False))
    by_word = {"auto": dense or conv, "dense": dense, "conv": conv}
    names = by_word.get(layer) or [one.name for one in found if one.name == layer]
    names = names or [one.name for one in found if one.behind == layer][:1]
    if names:
        return names[-1]
    if not found:
        raise UserError(
            f"{model.name} has no ReLU (as a module, torch.relu or a clamp at 0), so nothing in it is exactly zero: "
            "sparsity features need a model with one"
        )
    known = [*dict.fromkeys(one.name for one in found), *WORDS]
    if layer in WORDS:
        raise UserError(f"{model.name} has no {layer} ReLU: choose one of {', '.join(known)}")
    raise UserError(f"{model.name} has no ReLU {layer!r}{suggest(layer, known)} There are: {', '.join(known)}")


class Extractor:
    """The sparsity features of one ReLU.

    weights: (d,) float32.  layer: as in ``relu_layer``.  accelerator: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. In float32
    and evaluation mode. Raises UserError for weights that are not finite or another model's, and for an unknown layer.
    """

    def __init__(self, model: Model, weights: NDArray[Any], layer: str = "auto", accelerator: str = "cpu") -> None:
        check_device(accelerator)
        checked = model.checked(weights, "the extractor's weights")
        if not np.isfinite(checked).all():
            raise UserError("the extractor's weights are not finite: its training has diverged")
        self.model, self.layer = model, relu_layer(model, layer)
        self._device = torch.device(accelerator)
        self._module = placed(model.module_with(checked), self._device)
        self._watch = _Watch(self._module, self._take)
        self._taken: Tensor | None = None

    def _take(self, one: Rectified, output: Tensor) -> None:
        if one.name == self.layer:
            zeros = (output == 0).float()
            channels = zeros.movedim(-1, 1) if one.dense else zeros
            self._taken = channels.flatten(2).mean(2) if channels.dim() > 2 else channels  # eq. (1)

    def __call__(self, x: NDArray[np.float32] | Tensor) -> Vector:
        """(n, C) float32 in [0, 1]: eq. (1) for samples x, (n, ...) float32, each by itself. Raises UserError for
        another shape.
        """
        samples = x if isinstance(x, Tensor) else torch.from_numpy(x if x.flags.writeable else x.copy())
        shape = tuple(samples.shape)
        if not shape or shape[0] < 1 or shape[1:] != self.model.input_shape or samples.dtype != torch.float32:
            raise UserError(
                f"sparsity: {self.model.name} takes at least one sample {self.model.input_shape} torch.float32, got "
                f"{shape} {samples.dtype}"
            )
        rows = max(1, min(_ROWS, _CHUNK_BYTES // (4 * max(1, samples[0].numel()))))
        return np.concatenate([self._some(samples[start : start + rows]) for start in range(0, len(samples), rows)])

    def _some(self, samples: Tensor) -> Vector:
        self._taken = None
        self._watch.start()
        with torch.inference_mode(), self._watch:
            self._module(samples.to(self._device))
        if self._taken is None or self._taken.dim() != 2 or len(self._taken) != len(samples):
            got = "nothing" if self._taken is None else f"{tuple(self._taken.shape)}"
            raise UserError(
                f"{self.model.name}: its ReLU {self.layer!r} gives {got} for {len(samples)} samples, where a row for "
                "each is needed: choose another layer"
            )
        return self._taken.cpu().numpy()


def sparsities(
    model: Model, weights: NDArray[Any], x: NDArray[np.float32] | Tensor, layer: str = "auto", accelerator: str = "cpu"
) -> Vector:
    """(n, C) float32 in [0, 1]: eq. (1), (2) of one ReLU.

    weights: (d,) float32.  x: (n, ...) float32, n >= 1.  layer: as in ``relu_layer``. Raises UserError as
        ``Extractor``.
    """
    return Extractor(model, weights, layer, accelerator)(x)
