"""Digests of a run's inputs and of models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.partition import Split
from coterie.data.synthetic import Drawn
from coterie.data.tasks import Task
from coterie.protocol.digests import remembered, sha256
from coterie.protocol.import_path import code_of
from coterie.protocol.names import LazyMapping
from coterie.protocol.system import ClientModel, Federation, Mixture, System
from coterie.runs.config import Resolved
from coterie.training.model import Model

_COMPARED_BYTES = 64 << 20  # of models, of which later ones may be copies


def inputs_digest(config: Resolved, tasks: Sequence[Task], model: Model) -> str:
    parts = [*dict.fromkeys(task.dataset.digest for task in tasks)]
    if ":" in config.model:
        kinds = {type(layer) for layer in model.module.modules() if not type(layer).__module__.startswith("torch.")}
        parts += [re.sub(" at 0x[0-9a-f]+", "", repr(model.module)), *sorted(code_of(kind.forward) for kind in kinds)]
    if config.loss is not None and ":" in config.loss:
        parts.append(code_of(model.loss))
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def fingerprint(
    inputs: str, split: Split, tasks: Sequence[Task], starts: NDArray[np.float32], epochs: Mapping[str, int]
) -> str:
    """Equal for two builds of the same work: data, code, partition, tasks and initial weights."""
    arrays = [*split.train, *split.held_out, *split.test, starts]
    arrays += [] if split.groups is None else [split.groups]
    arrays += [split.public] if len(split.public) else []
    of_tasks = [
        ("0" if task.change is None else task.change.key, None if task.names is None else task.names.tolist())
        for task in tasks
    ]
    known: list[Any] = [inputs, of_tasks, "by the seed" if isinstance(epochs, LazyMapping) else sorted(epochs.items())]
    known += [split.spec, split.seed, split.clients] if isinstance(split, Drawn) else []
    hashed = hashlib.blake2b(repr(tuple(known)).encode(), digest_size=16)
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def models_digest(models: Mapping[str, ClientModel]) -> str:
    """Hexadecimal SHA-256 of all clients' models, bit for bit."""
    of = ((one.models, one.weights) if isinstance(one, Mixture) else (one,) for one in models.values())
    return arrays_digest(chain.from_iterable(of))


def arrays_digest(arrays: Iterable[NDArray[Any]]) -> str:
    """Hexadecimal SHA-256 of arrays in order."""
    return hashlib.sha256(b"".join(array_digests(list(arrays)))).hexdigest()


def array_digests(arrays: Sequence[NDArray[Any]]) -> list[bytes]:
    """SHA-256 of each; repeated ones are read once."""
    distinct = {id(array): array for array in arrays}
    with remembered(_COMPARED_BYTES):
        digests = {key: array_digest(array) for key, array in distinct.items()}
    return [digests[id(array)] for array in arrays]


def array_digest(array: NDArray[Any]) -> bytes:
    return sha256(np.ascontiguousarray(array).reshape(-1))


def federation_digest(system: System, federation: Federation) -> str:
    """Of all models, bit for bit; if clients choose among models, of these."""
    if system.pool is not None:
        return arrays_digest(system.pool(federation))
    models = system.models(federation).values()
    return arrays_digest(model.models if isinstance(model, Mixture) else model for model in models)
