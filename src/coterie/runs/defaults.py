"""Options and settings that follow from the data set, and options that follow from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.data.catalogue import ALL_LABELS
from coterie.data.own import is_path
from coterie.devices.traces import parse
from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Defaults:
    """model: None for ``training.models.default_model``.  of_model: settings of other models, by name.  metrics, folds:
    as the options.
    """

    clients: int
    rounds: int
    partition: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    of_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: str | None = None
    folds: int | None = None


# The learning rates are measured with FedAvg (global accuracy; Dirichlet 0.3, where nothing else is said):
# digits, round 10: .92 at 0.05, .93 at 0.1, .94 at 0.2; SCAFFOLD .94, .96, .94; IFCA .67, .71, .78.
_DIGITS = Defaults(20, 10, "dirichlet:0.3", {"lr": 0.1, "batch_size": 10})
# MNIST, 50 clients, round 9: .945 at 0.1, .891 at the 0.01 that FedCAPrivacy prints.
_MNIST = Defaults(100, 30, "dirichlet:0.3", {"lr": 0.1, "batch_size": 50})
# CIFAR-10, 7,500 samples seen: loss 2.03 at 0.01, 2.29 (chance is 2.30) at the 0.001 that FedCAPrivacy prints. Still
# slow: the CNN wants hours on a CPU.
_COLOUR = Defaults(100, 100, "dirichlet:0.3", {"lr": 0.01, "batch_size": 50})
# Location30, round 20: .58 at 0.05, .67 at 0.1, .73 at 0.3.
_TABULAR = Defaults(20, 30, "dirichlet:0.3", {"lr": 0.1, "batch_size": 20})
_LOCATION = Defaults(20, 30, "dirichlet:0.3", {"lr": 0.3, "batch_size": 20})
# Words of single nodes, no edges: Cora .39, Citeseer .36 in round 10; the MLP, or a rate of 1, learns next to nothing
# from inputs whose rows sum to 1 and some 28 nodes a client.
_GRAPH = Defaults(
    5,
    20,
    "dirichlet:1.0",
    {"lr": 10.0, "batch_size": 64, "max_epochs": 20},
    model="linear",
    of_model={"gcn": {"lr": 0.3}},
)
_HEART = Defaults(
    4,
    10,
    "by:hospital",
    {"lr": 0.02, "batch_size": 16, "weight_decay": 0.03},
    model="linear",
    metrics="auroc",
    folds=5,
)

DEFAULTS: Mapping[str, Defaults] = {
    "digits": _DIGITS,
    "heart": _HEART,
    **dict.fromkeys(("mnist", "fashion_mnist"), _MNIST),
    **dict.fromkeys(("cifar10", "cifar100", "svhn"), _COLOUR),
    **dict.fromkeys(("purchase100", "texas100"), _TABULAR),
    "location30": _LOCATION,
    **dict.fromkeys((*ALL_LABELS, *ALL_LABELS.values()), _GRAPH),
}


def defaults_for(data: str) -> Defaults:
    """A user's own data set gets those of tabular data."""
    return DEFAULTS.get(data, _TABULAR)


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
