"""Trained models as files: those of a run, in ``models/`` of its folder, and exported ones.

    models/0.safetensors, models/1.safetensors, ...     each distinct model once, self-contained
    models/index.json                                   which client predicts with which, and the digest of each file

Models are as before fine-tuning, in a private folder. Tensors have state-dict names, in a mixture ``coterie.m.NAME``
beside ``coterie.shares`` (m,) float64. All files have ``coterie.zero`` and ``coterie.unit``, a regression's also
``coterie.target_zero`` and ``coterie.target_unit`` (numbers,) float64. The metadata's text ``coterie`` is
``ModelFacts`` as JSON.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

import coterie
import coterie.method as fl
from coterie.data.dataset import Dataset
from coterie.data.tasks import of_clients
from coterie.protocol.arrays import Doubles
from coterie.record.files import FILE_MODE, atomic_write, make_folder, opened, writing
from coterie.record.folder import CONFIG, RESULT, deployed, write_json
from coterie.runs.digests import array_digests
from coterie.runs.experiment import Experiment
from coterie.runs.own_code import came_in
from coterie.runs.trained import ModelFacts, TrainedModel, Word, Words, state

MODELS, INDEX, SUFFIX = "models", "index.json", ".safetensors"
MOST_BYTES = 8 << 30
"""Of a file. A sparse file can claim any size."""

_MOST_HEADER, _MOST_INDEX = 16 << 20, 256 << 20
_MOST_AXES = 64  # of a tensor: to multiply a million numbers takes minutes
_KEY = "coterie"
_ZERO, _UNIT, _SHARES = "coterie.zero", "coterie.unit", "coterie.shares"
_TARGETS = "coterie.target_zero", "coterie.target_unit"
_ADVICE = "export the model again, or run again"
_OURS = re.compile(r"(0|[1-9][0-9]*)\.safetensors|\.(index\.json|(0|[1-9][0-9]*)\.safetensors)\..*", re.DOTALL)

Party = Annotated[str, msgspec.Meta(pattern=r"\Aclient/[0-9]{1,9}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,8})\.safetensors\Z")]


class ClientEntry(msgspec.Struct, frozen=True):
    """data: in words.  files, shares: of its models (mostly one)."""

    name: Word | None
    data: Words
    files: Annotated[tuple[FileName, ...], msgspec.Meta(min_length=1, max_length=1 << 16)]
    shares: tuple[float, ...]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """``index.json``.  round: of the models.  sha256: of each file, in hex.  Others: ``ModelFacts`` of
    the run's data.
    """

    format: Literal[1]
    round: int
    model: Word
    input_shape: tuple[int, ...]
    classes: int
    class_names: tuple[Word, ...] | None
    task: fl.TaskKind
    data_kind: Word
    clients: Annotated[dict[Party, ClientEntry], msgspec.Meta(min_length=1)]
    sha256: dict[FileName, str]


def write_models(out: Path, experiment: Experiment, models: Mapping[str, fl.ClientModel], r: int) -> None:
    """Write every distinct model (``Experiment.models(r)``) and the index, and remove an earlier round's. Raises
    RunError, and UserError if ``models`` is a link or another user's.
    """
    folder, everybody = out / MODELS, experiment.data.clients
    make_folder(folder)
    with writing(folder / INDEX):
        (folder / INDEX).unlink(missing_ok=True)
    of_client, own_names = of_clients(experiment.split, experiment.tasks), experiment.split.names
    tasks = {name: of_client[everybody.index(name)] for name in models}
    names = {name: own_names[everybody.index(name)] for name in models} if own_names else {}
    files: dict[str, str] = {}  # by digest
    written: dict[tuple[bytes, int], tuple[str, ...]] = {}  # many clients have the same model, if not the same array
    clients = {}
    every = [own.models if isinstance(own, fl.Mixture) else own for own in models.values()]
    for (client, own), vectors, digest in zip(models.items(), every, array_digests(every), strict=True):
        task = tasks[client]
        key = digest, id(task.dataset)
        if key not in written:
            written[key] = tuple(_written(folder, experiment, task.dataset, v, files) for v in np.atleast_2d(vectors))
        shares = tuple(own.weights.tolist()) if isinstance(own, fl.Mixture) else (1.0,)
        clients[client] = ClientEntry(names.get(client), task.words, written[key], shares)
    sha256 = {file: digest for digest, file in files.items()}
    with writing(folder):
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in sha256:
                path.unlink()
    facts = msgspec.structs.asdict(_facts(experiment, experiment.tasks[0].dataset))
    told = {key: value for key, value in facts.items() if key in Index.__struct_fields__}
    write_json(folder / INDEX, msgspec.to_builtins(Index(**told, round=r, clients=clients, sha256=sha256)), FILE_MODE)


def _written(folder: Path, experiment: Experiment, dataset: Dataset, vector: fl.Vector, files: dict[str, str]) -> str:
    tensors = state(experiment.model.module) | experiment.model.unflatten(vector)
    own = dataset.targets
    data = encode(
        TrainedModel(
            _facts(experiment, dataset),
            np.ones(1),
            (tensors,),
            *dataset.zero_and_unit,
            where="",
            target_zero=own.zero,
            target_unit=own.unit,
        )
    )
    digest = hashlib.sha256(data).hexdigest()
    if digest not in files:
        files[digest] = f"{len(files)}.safetensors"
        atomic_write(folder / files[digest], data, FILE_MODE)
    return files[digest]


def _facts(experiment: Experiment, dataset: Dataset) -> ModelFacts:
    return ModelFacts(
        format=1,
        model=experiment.config.model,
        input_shape=tuple(dataset.input_shape),
        classes=dataset.classes,
        class_names=dataset.targets.names,
        task=dataset.targets.task,
        data_kind=dataset.kind,
        version=coterie.__version__,
        features=dataset.features,
        columns=dataset.columns,
        label_columns=dataset.label_columns,
        metrics=tuple(one.name for one in experiment.observer.metrics),
    )


@dataclass(frozen=True, eq=False)
class Models:
    """folder: ``models/``.  Files are read and verified on demand."""

    folder: Path
    index: Index

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.index.clients)

    @property
    def names(self) -> dict[str, str]:
        """By client, its data's own name, where there is one."""
        return {client: entry.name for client, entry in self.index.clients.items() if entry.name is not None}

    def of(self, client: str) -> TrainedModel:
        """client: a party or its own name. Raises UserError for an unknown one, and for files that are missing,
        damaged, or no models.
        """
        party = self._party(client)
        entry, index = self.index.clients[party], self.folder / INDEX
        read = {file: self._read(file) for file in dict.fromkeys(entry.files)}
        first, *others = parts = [read[file] for file in entry.files]
        if any(len(part.tensors) > 1 for part in parts) or len(entry.shares) != len(parts):
            raise fl.UserError(
                f"{index}: {party} needs one share for each of its files, with one model each: {_ADVICE}"
            )
        if any(_like(first) != _like(other) for other in others):
            raise fl.UserError(f"{index}: the files of {party} differ in their inputs or classes: {_ADVICE}")
        return replace(
            first,
            facts=msgspec.structs.replace(first.facts, client=party, name=entry.name, data=entry.data),
            shares=_shares(torch.tensor(entry.shares, dtype=torch.float64), f"{index}: {party}"),
            tensors=tuple(part.tensors[0] for part in parts),
            where=f"the model of {party if entry.name is None else entry.name!r} in {self.folder.parent}",
            home=came_in(self.folder.parent),
        )

    def _party(self, client: str) -> str:
        entries = self.index.clients
        own = {entry.name: party for party, entry in entries.items() if entry.name is not None}
        found = client if client in entries else own.get(client)
        if found is None:
            named = [party if one.name is None else f"{party} ({one.name!r})" for party, one in entries.items()]
            known = ", ".join(named if len(named) <= 12 else [*named[:5], "...", *named[-2:]])
            hint = fl.suggest(client, [*entries, *own])
            raise fl.UserError(f"{self.folder.parent} has no client {client!r}{hint} It has {known}")
        return found

    def _read(self, file: str) -> TrainedModel:
        path = self.folder / file
        data = _bytes(path, MOST_BYTES, follow=False)
        if hashlib.sha256(data).hexdigest() != self.index.sha256.get(file):
            raise fl.UserError(f"{path} is not the file that {INDEX} names: it was changed; restore it, or run again")
        return decode(data, str(path))


def _like(model: TrainedModel) -> tuple[ModelFacts, list[object]]:
    scales = (model.zero, model.unit, model.target_zero, model.target_unit)
    return model.facts, [None if scale is None else scale.tolist() for scale in scales]


def load_models(folder: str | Path) -> Models:
    """``load_models("runs/a").of("client/3").predict(x)``.

    Raises UserError for a missing or damaged index.
    """
    folder = Path(folder)
    path = folder / MODELS / INDEX
    if path.parent.is_symlink():
        raise fl.UserError(f"{path.parent} is a symbolic link, which a run never follows: name the folder it leads to")
    if not path.exists():
        if deployed(folder) == "machines":
            advice = "it is a deployment's run, whose models are with its parties alone: give the home of one"
        elif (folder / RESULT).is_file():
            advice = f"run it again with coterie run --config {folder / CONFIG} --out ANOTHER_FOLDER"
        elif (folder / CONFIG).is_file():
            advice = f"finish it with coterie run --resume --out {folder}"
        else:
            runs = sorted(path.parent.parent.name for path in folder.glob(f"*/{MODELS}/{INDEX}"))
            advice = "give the folder of a run" + (f", such as {folder / runs[0]}" if runs else "")
        raise fl.UserError(f"{folder} holds no models: {advice}")
    try:
        index = msgspec.json.decode(_bytes(path, _MOST_INDEX, follow=False), type=Index)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise fl.UserError(f"{path} is not an index of models ({error}): restore it, or run again") from None
    return Models(path.parent, index)


def load_exported(path: str | Path) -> TrainedModel:
    """``load_exported("ours.safetensors").predict(x)``.

    Raises UserError for a file that is missing, damaged, or no model.
    """
    model = decode(_bytes(Path(path), MOST_BYTES, follow=True), str(path))
    return replace(model, where=f"the model in {path}")


def export_model(model: TrainedModel, path: str | Path) -> None:
    """Write one self-contained file. Raises UserError if the path exists or has another format, and RunError."""
    if check_new(path).suffix not in ("", SUFFIX):
        raise fl.UserError(
            f"{path}: a model is written as FILE{SUFFIX}, and in no other format. load_exported(FILE).module() gives "
            "the torch module, which torch can write in others"
        )
    atomic_write(Path(path), encode(model))


def check_new(path: str | Path) -> Path:
    """Raises UserError if the path exists, or has no folder."""
    path = Path(path)
    if path.is_symlink() or path.exists():
        raise fl.UserError(f"{path} is there already: choose another name, or remove it")
    if not path.parent.is_dir():
        raise fl.UserError(f"{path.parent} is not a folder, so {path.name} cannot be written there: make it first")
    return path


def encode(model: TrainedModel) -> bytes:
    """Raises UserError for tensors with reserved names."""
    tensors: dict[str, Tensor] = {_ZERO: torch.tensor(model.zero), _UNIT: torch.tensor(model.unit)}
    for name, scale in zip(_TARGETS, (model.target_zero, model.target_unit), strict=True):
        tensors |= {} if scale is None else {name: torch.tensor(scale)}
    mixture = len(model.tensors) > 1
    if mixture:
        tensors[_SHARES] = torch.tensor(model.shares)
    for m, own in enumerate(model.tensors):
        if taken := [name for name in own if name.startswith("coterie.")]:
            raise fl.UserError(
                f"the model has a tensor {taken[0]!r}, and names with 'coterie.' are reserved: rename it"
            )
        tensors |= {f"coterie.{m}.{name}" if mixture else name: value for name, value in own.items()}
    copies = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    return safetensors.torch.save(copies, {_KEY: msgspec.json.encode(model.facts).decode()})


def decode(data: bytes, where: str) -> TrainedModel:
    """Raises UserError for what is no model; ``TrainedModel.module`` checks the architecture."""
    facts = _told(data, len(data), where)
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # the library has several, down to torch's own
        raise fl.UserError(f"{where} is not a complete .safetensors file ({_short(error)}): {_ADVICE}") from None
    for name, value in tensors.items():
        known = value.dtype in (torch.float32, torch.float64)  # torch cannot even judge some others
        if (value.is_floating_point() and not known) or value.is_complex():
            raise fl.UserError(f"{where}: {name!r} is {value.dtype}, and a model's numbers are float32: {_ADVICE}")
        if known and not bool(torch.isfinite(value).all()):
            raise fl.UserError(f"{where}: {name!r} holds numbers that are not finite: {_ADVICE}")
    zero, unit = (
        _scale(tensors.pop(name, None), name, facts.input_shape, torch.float32, where) for name in (_ZERO, _UNIT)
    )
    target_zero, target_unit = (
        _scale(tensors.pop(name, None), name, (facts.classes,), torch.float64, where)
        if facts.task == "regression"
        else None
        for name in _TARGETS
    )
    if not (unit > 0).all() or not (target_unit is None or (target_unit > 0).all()):
        raise fl.UserError(f"{where}: {_UNIT!r} or {_TARGETS[1]!r} holds numbers that are not above 0: {_ADVICE}")
    shares = _shares(tensors.pop(_SHARES, torch.ones(1, dtype=torch.float64)), where)
    parts = (tensors,) if len(shares) == 1 else _parts(tensors, len(shares), where)
    return TrainedModel(facts, shares, parts, zero, unit, where, target_zero=target_zero, target_unit=target_unit)


def _told(data: bytes, size: int, where: str) -> ModelFacts:
    """data: at least the header.  size: of the whole file. Raises UserError unless they fit."""
    header = int.from_bytes(data[:8], "little")
    if header > _MOST_HEADER:
        raise fl.UserError(f"{where} has a header of {header:,} bytes, so it is no file of a model: {_ADVICE}")
    try:
        told: dict[str, Any] = msgspec.json.decode(data[8 : 8 + header])
        metadata = told.pop("__metadata__", None) or {}
        if any(len(one["shape"]) > _MOST_AXES for one in told.values()):
            raise ValueError(f"a tensor has more than {_MOST_AXES} axes")
        claimed = [(prod(one["shape"]), *map(int, one["data_offsets"])) for one in told.values()]
        end = 8 + header + max((end for _, _, end in claimed), default=0)
        if any(numbers > 8 * (end - begin) for numbers, begin, end in claimed):
            raise ValueError("a tensor has fewer bits than numbers")
    except Exception as error:  # of JSON, or of its form
        raise fl.UserError(f"{where} is not a complete .safetensors file ({_short(error)}): {_ADVICE}") from None
    if end != size:
        raise fl.UserError(
            f"{where} is not a complete .safetensors file (it has {size:,} bytes and should have {end:,}): {_ADVICE}"
        )
    if _KEY not in metadata:
        raise fl.UserError(
            f"{where} has no metadata of Coterie, so its inputs and classes are not known: load it with "
            "safetensors.torch.load_file, or give a file that coterie export wrote"
        )
    try:
        return msgspec.json.decode(metadata[_KEY], type=ModelFacts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError) as error:
        raise fl.UserError(f"{where}: its metadata are not those of a model ({_short(error)}): {_ADVICE}") from None


def _bytes(path: Path, most: int, *, follow: bool) -> bytes:
    try:
        with opened(path, follow=follow) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise fl.UserError(f"{path} has more than {most >> 20:,} MiB, so it is no file of a model: {_ADVICE}")
            if path.name != INDEX:
                head = file.read(8)
                _told(head + file.read(min(int.from_bytes(head, "little"), _MOST_HEADER)), size, str(path))
                file.seek(0)
            return file.read(most)
    except OSError as error:
        raise fl.UserError(f"cannot read {path}: {error.strerror or error}") from None


def _shares(shares: Tensor, where: str) -> Doubles:
    if shares.dtype != torch.float64 or shares.dim() != 1 or not 1 <= len(shares) <= 1 << 16:
        raise fl.UserError(f"{where}: shares of a mixture are {tuple(shares.shape)} {shares.dtype}: {_ADVICE}")
    if not (bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) <= 1e-6):  # NaN fails both
        raise fl.UserError(f"{where}: shares of a mixture must be at least 0 and sum to 1: {_ADVICE}")
    return shares.numpy()


def _scale(value: Tensor | None, name: str, shape: tuple[int, ...], kind: torch.dtype, where: str) -> NDArray[Any]:
    own = () if value is None else tuple(value.shape)
    try:
        fits = np.broadcast_shapes(own, shape) == shape
    except ValueError:
        fits = False
    if value is None or value.dtype != kind or not fits:
        found = "missing" if value is None else f"{own} {value.dtype}"
        raise fl.UserError(f"{where}: {name!r} is {found}, and {kind} for the shape {shape} is needed: {_ADVICE}")
    return value.numpy()


def _parts(tensors: Mapping[str, Tensor], count: int, where: str) -> tuple[dict[str, Tensor], ...]:
    parts: tuple[dict[str, Tensor], ...] = tuple({} for _ in range(count))
    for name, value in tensors.items():
        match = re.fullmatch(r"coterie\.(0|[1-9][0-9]{0,5})\.(.+)", name, re.DOTALL)
        if match is None or int(match[1]) >= count:
            raise fl.UserError(f"{where}: {name!r} belongs to none of the {count} models of the mixture: {_ADVICE}")
        parts[int(match[1])][match[2]] = value
    return parts


def _short(error: Exception) -> str:
    return f"{str(error)[:200] or type(error).__name__}"
