"""What all parties' samples look like: as the operator says, or as those of the data set that the config names."""

from __future__ import annotations

import re
from dataclasses import replace

from coterie.data.neighbourhoods import as_nodes
from coterie.data.own import is_path
from coterie.data.sources import load
from coterie.deploy.plan import Facts
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig, resolve
from coterie.training.models import build
from coterie.training.names import GRAPH_MODEL

_SHAPE = re.compile(r"[1-9][0-9]{0,8}(?:x[1-9][0-9]{0,8}){0,3}")


def facts_of(config: RunConfig, shape: str | None = None, outputs: int | None = None) -> Facts:
    """The facts of a deployment. shape: ``1x28x28``.  outputs: of the model. Raises UserError for a model that cannot
    take them.
    """
    if shape is not None and not _SHAPE.fullmatch(shape):
        raise UserError(f"--shape is {shape[:40]!r}; it is the shape of one sample, such as 1x28x28 or 30")
    if outputs is not None and outputs < 1:
        raise UserError(f"--outputs is {outputs}; it is the number of classes, or of a model's outputs, 1 or more")
    if shape is None or outputs is None:
        found = _of_data(config)
        shape = shape or "x".join(map(str, found.input_shape))
        outputs = outputs or found.outputs
    facts = Facts(tuple(int(n) for n in shape.split("x")), outputs, config.task)
    resolved = resolve(replace(config, accelerator="cpu"))
    build(str(resolved.model), facts.input_shape, facts.outputs, config.task, config.loss)
    return facts


def _of_data(config: RunConfig) -> Facts:
    if is_path(config.data):
        raise UserError(
            f"data is {config.data!r}, but every party brings its own: say what samples look like with --shape and "
            "--outputs, such as --shape 1x28x28 --outputs 10, or name a data set that looks like them"
        )
    dataset = load(config.data, config.data_dir)
    dataset = as_nodes(dataset) if config.model == GRAPH_MODEL else dataset
    return Facts(dataset.input_shape, dataset.classes, config.task)
