"""A client's trained model outside its run, with what it needs to predict. New samples are in stored units. If groups
had different tasks, samples and labels are the client's (``ModelFacts.data``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from coterie.data.columns import Column, check_columns, inputs_of
from coterie.data.graphs import row_normalised
from coterie.data.targets import Targets
from coterie.protocol.arrays import Doubles, Floats
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.import_path import check_elsewhere
from coterie.protocol.model_spec import TaskKind
from coterie.runs.metrics import METRICS, Metric, metrics_of
from coterie.training.model import load
from coterie.training.models import NAMES, Factory, factory

OwnModel = nn.Module | Factory | str
"""A module (copied), a function of input_shape and classes, or its name ``module:FACTORY``."""

INPUTS = "inputs"
"""``ModelFacts.data_kind`` of samples that are the model's inputs; bytes (uint8) are divided by 255."""
_CHUNK_BYTES = 4 << 20  # of the samples that are predicted at once

Word = Annotated[str, msgspec.Meta(max_length=1 << 16)]
Words = Annotated[str, msgspec.Meta(max_length=1 << 20)]
Length = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """model: the architecture.  class_names: of each class (label or number, for other tasks), or None.  data_kind:
    ``Dataset.kind``, or ``INPUTS``.  client, name: the party and its own name, in a file of one client.  data:
    ``Task.words``.  features: a table's columns, in the order of the inputs, or ().  columns: of a table with gaps or
    categories.  metrics: of the run, the leading one first.
    """

    format: Literal[1]
    model: Word
    input_shape: Annotated[tuple[Length, ...], msgspec.Meta(min_length=1, max_length=8)]
    classes: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    class_names: tuple[Word, ...] | None
    task: TaskKind
    data_kind: Word
    version: Word
    client: Word | None = None
    name: Word | None = None
    data: Words | None = None
    features: tuple[Word, ...] = ()
    label_columns: tuple[Word, ...] = ()
    columns: tuple[Column, ...] = ()
    metrics: tuple[Word, ...] = ()

    def __post_init__(self) -> None:
        if prod(self.input_shape) > 1 << 31:
            raise ValueError(f"input_shape {self.input_shape} is too large")
        check_columns(self.columns)
        if self.columns and (len(inputs_of(self.columns)),) != self.input_shape:
            raise ValueError(f"columns make {len(inputs_of(self.columns))} inputs, not {self.input_shape}")
        names = self.class_names
        if names is not None and not len(names) == len({*names}) == self.classes:
            raise ValueError(
                f"class_names are {len(names)} names, {len({*names})} of them different, for {self.classes} classes"
            )


class Mixed(nn.Module):
    """A mixture of modules. Its outputs (n, classes) are log(sum_m shares[m] softmax(modules[m](x)))."""

    shares: Tensor

    def __init__(self, modules: Sequence[nn.Module], shares: Doubles) -> None:
        super().__init__()
        self.models = nn.ModuleList(modules)
        self.register_buffer("shares", torch.from_numpy(np.array(shares)))

    def forward(self, x: Tensor) -> Tensor:
        log_p = torch.stack([torch.log_softmax(model(x).double(), 1) for model in self.models])
        return torch.logsumexp(log_p + self.shares.log()[:, None, None], 0).float()


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """One set of tensors, or a mixture of several.

    shares: (m,) float64, which sum to 1.  tensors: m mappings from state-dict names.  zero, unit: float32, what inputs
    subtract and divide by.  where: file or folder and client, for errors.  home: the run folder, or None;
    ``module:FACTORY`` is never imported out of it.  target_zero, target_unit: (numbers,) float64, the same for a
    regression; else None.  limits: the least and the largest input that is not refused as unscaled.
    """

    facts: ModelFacts
    shares: Doubles
    tensors: tuple[Mapping[str, Tensor], ...]
    zero: Floats
    unit: Floats
    where: str
    home: Path | None = None
    target_zero: Doubles | None = None
    target_unit: Doubles | None = None
    limits: tuple[float, float] | None = None

    @property
    def targets(self) -> Targets:
        return Targets(self.facts.task, self.facts.class_names, self.target_zero, self.target_unit)

    def module(self, model: OwnModel | None = None) -> nn.Module:
        """A new module in evaluation mode, for scaled samples (``scaled``); a ``Mixed`` for a mixture.

        model: the architecture, needed for one's own. Raises UserError for one that these tensors do not fit.
        """
        if len(self.tensors) > 1 and self.facts.task != "classes":
            raise UserError(
                f"{self.where}: a mixture mixes probabilities of classes, and its task is {self.facts.task}"
            )
        if model is None and self.facts.model in NAMES:
            with torch.device("meta"):  # no memory is taken for shapes that only the facts claim
                self._check(self._made(None))
        modules = []
        for tensors in self.tensors:
            module = self._made(model)
            self._check(module)
            load(module, dict(tensors))
            modules.append(module.eval())
        return modules[0] if len(modules) == 1 else Mixed(modules, self.shares).eval()

    def scaled(self, x: ArrayLike, where: str = "x") -> Floats:
        """New samples as the module takes them, (n, *input_shape) float32.

        x: (n, *input_shape) in stored units; images also as (n, H, W, C), or (n, H, W) in one channel. Raises UserError
        for other shapes, no samples, and numbers that are not finite.
        """
        rows = self.shaped(x, where)
        bytes_of_inputs = self.facts.data_kind == INPUTS and rows.dtype == np.uint8
        with np.errstate(over="ignore"):
            rows = np.array(rows, dtype=np.float32, order="C")
            if bytes_of_inputs:
                rows /= np.float32(255)
            _check_finite(rows, where)
            self._check_limits(rows, where)
            if self.facts.data_kind == "graph" and rows.ndim > 2:
                return rows  # neighbourhoods, made from such frequencies
            if self.facts.data_kind == "graph":
                frequencies: Floats = row_normalised(rows)  # as on loading
                return frequencies
            rows -= self.zero
            rows /= self.unit
        _check_finite(rows, f"{where}, scaled as the training samples were")
        return rows

    def predict(
        self, x: ArrayLike, proba: bool = False, *, model: OwnModel | None = None, where: str = "x"
    ) -> NDArray[Any]:
        """Label of each sample (n,): its class name, or a number without names.

        Several labels at once: (n, labels) zeros and ones. Regression: (n, numbers). proba: the probabilities (n,
        classes) float64 instead.
        """
        found = self._scores(self.scaled(x, where), self.module(model), where)
        return found if proba else self.labels(found)

    def labels(self, scores: Doubles) -> NDArray[Any]:
        """From scores (n, classes), each sample's likeliest class (n,), by its name or number. Several labels at once:
        (n, labels), those likelier than not. Regression: the scores.
        """
        facts = self.facts
        if facts.task != "classes":
            return (scores > 0.5).astype(np.int64) if facts.task == "multilabel" else scores
        known: NDArray[Any] = np.arange(facts.classes) if facts.class_names is None else np.array(facts.class_names)
        found: NDArray[Any] = known[scores.argmax(axis=1)]
        return found

    def checked_labels(self, y: ArrayLike, samples: int, where: str = "y") -> NDArray[Any]:
        """Known labels (n,) in the form of ``labels``. Raises UserError for others."""
        found, names = np.asarray(y), self.facts.class_names
        if self.facts.task != "classes":
            raise UserError(
                f"{where}: labels are compared for task classes, and not for {self.facts.task}: leave them out"
            )
        if found.shape != (samples,):
            raise UserError(f"{where} has shape {found.shape}, and there are {samples:,} samples: give one label each")
        if names is None and found.dtype.kind not in "bui":
            raise UserError(f"{where} has type {found.dtype}, and the labels of {self.where} are numbers 0, 1, 2, ...")
        found = found.astype(np.int64 if names is None else np.str_)
        known = np.arange(self.facts.classes) if names is None else np.array(names)
        unknown = ~np.isin(found, known)
        if unknown.any():
            first = int(unknown.argmax())
            label = str(found[first])
            raise UserError(
                f"{where}: sample {first} has label {label!r}, and {self.where} knows {len(known)} others"
                f"{suggest(label, map(str, known))} They are {np.array2string(known, separator=', ', threshold=12)}"
            )
        return found

    def measured(self, known: NDArray[Any], scores: Doubles) -> list[tuple[Metric, float]]:
        """The run's metrics but one's own, and the accuracy.  known: of ``checked_labels``.  scores: (n, classes)."""
        facts = self.facts
        index = {label: k for k, label in enumerate(facts.class_names or range(facts.classes))}
        labels = np.array([index[label] for label in known.tolist()])
        names = [name for name in facts.metrics if name in METRICS[facts.task]]
        return [(metric, metric(labels, scores)) for metric in metrics_of(names, facts.task)]

    def _scores(self, rows: Floats, module: nn.Module, where: str) -> Doubles:
        facts = self.facts
        step = max(1, min(256, _CHUNK_BYTES // (4 * prod(facts.input_shape))))
        found = []
        for start in range(0, len(rows), step):
            some = torch.from_numpy(rows[start : start + step])
            with torch.inference_mode():
                outputs = module(some)
            shape = tuple(getattr(outputs, "shape", ()))
            if shape != (len(some), facts.classes):
                raise UserError(
                    f"{self.where}: the module gives {shape} for {len(some)} samples, and {facts.classes} outputs for "
                    "each are needed: give the architecture that was trained"
                )
            found.append(self.targets.scores(outputs.numpy()))
        result = np.concatenate(found)
        bad = ~np.isfinite(result).all(axis=1)
        if bad.any():
            raise UserError(
                f"{where}: sample {int(bad.argmax())} is so far from the training samples that the model gives no "
                "finite output: see that it has the units of the training data"
            )
        return result

    def _check_limits(self, rows: Floats, where: str) -> None:
        low, high = self.limits or (-np.inf, np.inf)
        beyond = ((rows < low) | (rows > high)).reshape(len(rows), -1)
        if beyond.any():
            sample = int(beyond.any(axis=1).argmax())
            value = rows.reshape(len(rows), -1)[sample][beyond[sample]][0]
            raise UserError(
                f"{where}: sample {sample} holds {value:g}, far beyond the training samples of {self.where}: scale it "
                "as these are scaled. Bytes (uint8) are divided by 255"
            )

    def shaped(self, x: ArrayLike, where: str) -> NDArray[Any]:
        """(n, *input_shape) numbers of any type, or UserError. Values are not checked."""
        shape, image = self.facts.input_shape, self.facts.data_kind == "image"
        try:
            rows = np.asarray(x)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: samples differ in shape ({error})") from None
        if rows.dtype.kind not in "buif":
            raise UserError(f"{where} has type {rows.dtype}; it must hold numbers, as many in every sample")
        if image and rows.ndim == 3 and shape[0] == 1:
            rows = rows[:, None]
        elif image and rows.ndim == 4 and (rows.shape[3], *rows.shape[1:3]) == shape:
            rows = np.moveaxis(rows, 3, 1)
        if rows.shape[1:] != shape:
            if rows.shape == shape or (image and rows.shape == shape[1:]):
                raise UserError(f"{where} has the shape {rows.shape} of one sample: give x[None], a batch of one")
            if len(shape) == 1 and rows.ndim == 2:
                raise UserError(f"{where} has {rows.shape[1]} features a sample, and {self.where} takes {shape[0]}")
            also = f", or {('n', *shape[1:], shape[0])}" if image else ""
            raise UserError(f"{where} has shape {rows.shape}, and {self.where} takes {('n', *shape)}{also}")
        if not len(rows):
            raise UserError(f"{where} holds no samples")
        return rows

    def _made(self, model: OwnModel | None) -> nn.Module:
        name = self.facts.model
        given = ":" not in name or name.startswith("given:")
        if model is None and name not in NAMES and (given or self.home is None):
            if given:
                raise UserError(
                    f"{self.where} was trained with a model that was given as an object of Python ({name!r}): give it "
                    "again with model=, as a module or as a function of input_shape and classes"
                )
            raise UserError(
                f"{self.where} was trained as {name!r}, which is code of somebody's own and is not imported on the "
                f"word of a file: if you trust it, give model={name!r} (--model {name} on the command line)"
            )
        if model is None and name not in NAMES and self.home is not None:
            check_elsewhere(name, "model", self.home)
        make = factory(model or name) if model is None or isinstance(model, str) else model
        if isinstance(make, nn.Module):
            return copy.deepcopy(make)
        with torch.random.fork_rng(devices=[]):
            try:
                made = make(self.facts.input_shape, self.facts.classes)
            except Exception as error:  # whatever a user's code raises
                raise UserError(f"{self.where}: model {name!r} cannot be made: {error}") from error
        if not isinstance(made, nn.Module):
            raise UserError(f"{self.where}: model= gave a {type(made).__name__}, not a torch.nn.Module")
        return made

    def _check(self, module: nn.Module) -> None:
        own = state(module)
        for tensors in self.tensors:
            for name in sorted({*own, *tensors}):
                mine, theirs = (_form(some.get(name)) for some in (tensors, own))
                if mine != theirs:
                    raise UserError(
                        f"{self.where}: {name!r} is {mine} in the file and {theirs} in the architecture: give the one "
                        f"that was trained ({self.facts.model!r}) with model="
                    )


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _form(value: Tensor | None) -> str:
    return "missing" if value is None else f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _check_finite(rows: Floats, where: str) -> None:
    bad = ~np.isfinite(rows).reshape(len(rows), -1)
    if bad.any():
        sample, at = (int(index[0]) for index in np.nonzero(bad))
        feature = f", feature {at}" if rows.ndim == 2 else ""
        more = int(bad.any(axis=1).sum()) - 1
        raise UserError(
            f"{where}: sample {sample}{feature} holds NaN, infinity or a value too large for float32"
            + (f", and so do {more:,} more samples" if more else "")
            + ": clean them first"
        )
