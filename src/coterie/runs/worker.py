"""A worker's part: the run's data and model, from its config alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import coterie
from coterie.protocol.errors import UserError
from coterie.runs.config_file import from_text
from coterie.runs.digests import inputs_digest
from coterie.runs.inputs import inputs_of
from coterie.runs.metrics import class_weights
from coterie.runs.on_data import Here, Wanted
from coterie.runs.own_code import own_code, with_code


class Worker:
    """text: the run's config.  inputs: of its data and code (``own_code.with_code``). Raises
    UserError for others here.
    """

    def __init__(self, text: str, inputs: str) -> None:
        torch.set_num_threads(1)
        config = replace(from_text(text), workers=None)
        hub = next(iter(config.definition.roles(config.own, ())))
        found = inputs_of(config, hub)
        if with_code(inputs_digest(config, found.tasks, found.model), own_code(config)) != inputs:
            raise UserError("a worker has other data, or other code of your own, than the run: make them the same")
        targets = found.dataset.targets
        weights = class_weights(config.class_weights, targets, found.dataset.classes)
        self._givers, self._data = found.givers, found.data
        self._here = Here(found.model, found.data, config.how, weights)
        self._drifted = False

    def run(self, wanted: Wanted, drifted: bool) -> list[Any]:
        if drifted and not self._drifted:
            self._data.exchange(self._givers)
            self._drifted = True
        return self._here.run(wanted)


def versions() -> dict[str, str]:
    return {"coterie": coterie.__version__, "torch": torch.__version__, "numpy": np.__version__}
