"""This machine's accelerator, precision and paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.data.own import is_path
from coterie.devices.traces import parse
from coterie.protocol.errors import UserError


def of_machine(given: Mapping[str, Any]) -> dict[str, Any]:
    """Accelerator and precision, absolute paths, and the default model. Raises UserError."""
    import torch

    from coterie.training.jobs import has_fast_bf16
    from coterie.training.models import default_model

    accelerator, precision = given["accelerator"], given["precision"]
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    elif accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("option 'accelerator' is 'cuda', but torch finds no GPU here: use cpu, or auto")
    if precision == "auto":
        precision = "bf16" if has_fast_bf16(accelerator) else "fp32"
    paths = {"data_dir": given["data_dir"], "devices": given["devices"] if given["devices"].endswith(".toml") else None}
    paths |= {"data": given["data"] if is_path(given["data"]) else None, "schema": given["schema"]}
    absolute = {key: str(Path(path).expanduser().resolve()) for key, path in paths.items() if path is not None}
    model = given["model"] or default_model(given["data"])
    if given["availability"] is not None:
        absolute["availability"] = str(parse(given["availability"]).absolute())
    return {"model": model, "accelerator": accelerator, "precision": precision, **absolute}
