"""``compare.json``: a comparison's methods, what they share, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1 + 1e-6)]  # a mean of float32 shares may exceed 1 by rounding
FolderName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\\x00]+\Z")]  # of a subfolder


PRIOR = "prior_"
FORMS: Mapping[str, str] = {"": "as it is", "fine_tuned_": "tuned", PRIOR: "prior", "mixed_": "mixed"}
"""How the scores of each form begin, and its name."""
MIXES: Mapping[str, str] = {
    "local": "its own",
    "own_classes": "uniform over its own classes",
    "all_classes": "uniform over all classes",
}
"""The scores on each mix of test labels, and its name."""


class Measure(msgspec.Struct, frozen=True):
    name: str
    label: str
    share: bool = True
    higher: bool = True


ACCURACY = Measure("accuracy", "accuracy")
"""Leads where a folder names no metric."""


class Difference(msgspec.Struct, frozen=True):
    """A method's own setting.  value: None without the setting.

    shared: the value of all others, None for work beyond the budget.  why: in words.
    """

    method: str
    setting: str
    value: Any
    shared: Any
    why: str


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all methods share (``runs/budget.py``); meaningless ones are absent."""

    server_lr: float
    server_decay: float
    server_rounds: Count | msgspec.UnsetType = 0
    delta: float
    participation: float | msgspec.UnsetType = msgspec.UNSET
    deadline_s: float | msgspec.UnsetType | None = msgspec.UNSET
    founders: Count | msgspec.UnsetType = msgspec.UNSET
    newcomers: Count | msgspec.UnsetType = msgspec.UNSET
    join_every: Count | msgspec.UnsetType = msgspec.UNSET
    max_epochs: Count | msgspec.UnsetType = msgspec.UNSET
    slowest: float | msgspec.UnsetType = msgspec.UNSET
    batch_size: Count | msgspec.UnsetType = msgspec.UNSET
    lr: float | msgspec.UnsetType = msgspec.UNSET
    momentum: float | msgspec.UnsetType = msgspec.UNSET
    weight_decay: float | msgspec.UnsetType = msgspec.UNSET
    delay: str | msgspec.UnsetType = msgspec.UNSET
    public: float | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        training = ("slowest", "batch_size", "lr", "momentum", "weight_decay")
        for key, needs in (("max_epochs", training), ("delta", ("delay",)), ("founders", ("newcomers", "join_every"))):
            missing = [name for name in needs if getattr(self, name) is msgspec.UNSET]
            if missing and getattr(self, key) not in (msgspec.UNSET, 0):
                raise ValueError(f"{key} without {', '.join(missing)}")


class Spread(msgspec.Struct, frozen=True):
    mean: float
    values: tuple[float, ...]
    interval: float | None = None


class MethodScores(msgspec.Struct, frozen=True, kw_only=True):
    global_accuracy: Spread | None = None
    local_accuracy: Spread | None = None
    fine_tuned_local_accuracy: Spread | None = None
    prior_local_accuracy: Spread | None = None
    mixed_local_accuracy: Spread | None = None
    metrics: dict[str, Spread | None] = {}


class OverClients(msgspec.Struct, frozen=True):
    """interval: half of the 95 % interval of a seed's mean, a mean over the seeds.

    worst_decile: a tenth of the clients are worse.
    """

    worst_decile: Spread | None = None
    interval: float | None = None


class Row(MethodScores, frozen=True, kw_only=True):
    """runs: folders of a method's runs.  learned: by topic, by its servers. clients: by score (``runs/forms.py``)."""

    clients: dict[str, OverClients] = {}
    runs: tuple[FolderName, ...] = ()
    method: str = ""
    system: str = ""
    crypto: str | None = None
    bytes_up: Spread | None = None
    learned: dict[str, Spread | None] | None = None
    not_attacked: str | None = None


class Lead(MethodScores, frozen=True, kw_only=True):
    over: str


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """A client's gain by training together, in the leading metric on its own test samples (``runs/benefit.py``).

    name: its own, if any.  seed: None for the mean over all.  samples: that tested.  gain: above 0 is better.  low,
    high: of its 95 % interval.  None where undefined, or not drawn.  instead: of accuracy, where all labels are one.
    """

    client: str
    samples: Count
    name: str | None = None
    seed: int | None = None
    alone: float | None = None
    together: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Literal["better", "worse", "undecided"] | None = None
    instead: Literal["accuracy"] | None = None


class Benefit(msgspec.Struct, frozen=True):
    """Every client's gain over training alone. tuned: whether both models are fine-tuned."""

    method: str
    tuned: bool
    clients: tuple[Gain, ...]


class Candidate(msgspec.Struct, frozen=True):
    """Settings that were tried, as texts. held_out_loss: None if training diverged."""

    settings: dict[str, str]
    held_out_loss: float | None = None


NO_SETTING = "it has no such setting"
"""A reason in ``Chosen.lacks``."""


class Chosen(msgspec.Struct, frozen=True):
    """lacks: settings tried for others only, with the reason."""

    method: str
    candidates: tuple[Candidate, ...]
    settings: dict[str, str]
    lacks: dict[str, str] = {}


class ChosenSettings(msgspec.Struct, frozen=True):
    """What ``--tune`` has chosen (``runs/choosing.py``). tune: values by setting.  seed: of candidates' runs."""

    tune: dict[str, tuple[str, ...]]
    seed: int
    methods: tuple[Chosen, ...] = ()


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The runs' own numbers are read from their folders."""

    clients: Count | None = None
    rounds: Count | None = None
    devices: str = ""
    availability: str | None = None
    samples: Count | None = None
    fine_tune: str = "no"
    task: str = "classes"
    budget: SharedSettings | None = None
    budget_from: str | None = None
    differences: tuple[Difference, ...] = ()
    measures: tuple[Measure, ...] = ()
    attack: str | None = None
    attackers: Share | None = None
    rows: tuple[Row, ...] = ()
    leads: tuple[Lead, ...] = ()
    benefits: tuple[Benefit, ...] = ()
    chosen: ChosenSettings | None = None

    def __post_init__(self) -> None:
        found = (
            of for row in self.rows for of in (row.local_accuracy, row.fine_tuned_local_accuracy, *row.metrics.values())
        )
        if len(lengths := {len(of.values) for of in found if of}) > 1 or 0 in lengths:
            raise ValueError("rows of unequally many values, or of none; each has one a seed")
