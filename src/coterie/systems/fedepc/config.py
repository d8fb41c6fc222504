"""The settings of FedEPC, and their valid combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import inf
from typing import Annotated, Literal

import coterie.method as fl
from coterie.clustering.density import FEW
from coterie.clustering.divergence import FLOORS_PER_SCALE
from coterie.clustering.isomorphic import Aidc
from coterie.dp.gaussian import LEAST_DELTA, MOST_EPSILON, noise_multiplier
from coterie.protocols.cluster_sums import EncryptedTraining
from coterie.selection.bandit import Cics

CLIP = (1e-6, 1e6)
"""L2 norms to clip to."""
# far outside, noise would be lost in the last bits of what it hides


@fl.settings
class FedEPCConfig(EncryptedTraining):
    """Settings of FedEPC. The paper gives theta_merge and theta_split (table 2); all others had to be chosen.

    mu: weight of the proximal term of eq. (14).
    participation: p, the largest share of the devices that trains in a round, with ``time_budget=auto``. If it is
    too small for all clusters, they take turns.  time_budget: T_max of algorithm 3 in samples / GHz, for each cluster;
    or "auto": the share p of sum_i |D_i| / f_i over the cluster's devices, and at least ``straggler`` times the median
    |D_i| / f_i of all devices. It is fixed when clusters are made.  straggler: the budget makes no time for a device
    slower than so many median ones; alone in its cluster it never trains.

    extractor: W_ext of algorithm 1, "pretrained" on the hub's public samples (``--public``), or the "random" initial
    weights.  extractor_steps: of the pre-training, at least.  layer: of the model, whose ReLU is read: "auto" (the
    last dense one, or else the last of a convolution), or a name (``training/sparsity.py``).
    send: descriptions travel in the "clear", or with Gaussian "noise" that is (epsilon, dp_delta)-differentially
    private for one sample of a device.  noise_along: the directions of the noise: those in which the
    "classes" of the public samples differ, or "all" channels.  clip: L2 norm to which a sample's vector minus the
    public mean is clipped (along the same directions); 0 for the median norm of the public samples.
    describe_every: rounds between two descriptions of all devices, whose data may have changed; 0: once.
    leave_after: a device that gave no answer so many times in a row leaves its cluster until it is described again.

    gamma: weight of eq. (4) in eq. (3).  theta_merge, theta_split: thresholds of eq. (7) and (8).  eta: of eq. (6).
    neighbours: k of a device's radius.  singles_to: up to so many devices clusters are merged from single devices,
    without ``eta`` and ``neighbours``; beyond, from the dense parts of eq. (5) and (6).  floors_per_scale: a
    divergence of 1 is at least so many median noise floors; fewer separate finer groups, which devices with few
    samples need.  reference_mode: distances to one reference device (section 3.5).
    force_thresholds: allow theta_split below theta_merge, as in table 2.

    fill: a choice has at least this share of the devices that the time budget has room for; 0 leaves it to the bandit.
    panel: devices of each cluster that measure its model in every round, for L_k.
    confidence: delta of eq. (11); less explores more.  history: rounds over which a device's gradient norm and loss
    drop are averaged, tau of eq. (9).  window: past choices that a bandit remembers.
    stop: the run ends when the losses of the clusters have moved by less than ``converged`` ("together", algorithm 4),
    as a mean over the devices, or each cluster ends by its own loss ("cluster", section 3.5).  converged: that
    threshold; 0 to train all rounds.  settle: in so many rounds in a row.
    distribute: a cluster's model goes to all of its devices at the "end" (algorithm 4), or after every "round".

    min_cluster: mode hardened: the helper releases no sum of fewer models, so each cluster and each choice has at
    least so many devices.
    """

    lr: float = 0.1
    slowest: float = 1.0
    participation: float = 0.5
    mu: float = 0.01
    time_budget: float | Literal["auto"] = "auto"
    straggler: Annotated[float, fl.Meta(ge=1, le=fl.LARGEST)] = 5.0
    extractor: Literal["pretrained", "random"] = "pretrained"
    extractor_steps: fl.AtLeastOne = 150
    layer: str = "auto"
    send: Literal["clear", "noise"] = "clear"
    epsilon: Annotated[float, fl.Meta(gt=0, le=MOST_EPSILON)] = 4.0
    dp_delta: Annotated[float, fl.Meta(ge=LEAST_DELTA, lt=1)] = 1e-5
    noise_along: Literal["classes", "all"] = "classes"
    clip: float = 0.0
    describe_every: Annotated[int, fl.Meta(ge=0)] = 0
    leave_after: fl.AtLeastOne = 3
    gamma: float = 1.0
    theta_merge: float = 0.15
    theta_split: float = 0.18
    eta: float = 1.0
    neighbours: int = 5
    singles_to: int = FEW
    floors_per_scale: float = FLOORS_PER_SCALE
    reference_mode: bool = False
    force_thresholds: bool = False
    fill: fl.Share = 0.5
    panel: fl.AtLeastOne = 10
    confidence: float = 0.1
    history: fl.AtLeastOne = 5
    window: fl.AtLeastOne = 128
    stop: Literal["together", "cluster"] = "together"
    converged: fl.NotNegative = 1e-4
    settle: fl.AtLeastOne = 3
    distribute: Literal["end", "round"] = "end"
    min_cluster: Annotated[int, fl.Meta(ge=2)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_budget != "auto" and not (
            isinstance(self.time_budget, int | float) and 0 < self.time_budget < inf
        ):
            raise fl.UserError(f"time_budget must be a positive number or 'auto', not {self.time_budget!r}")
        if self.clip != 0 and not CLIP[0] <= self.clip <= CLIP[1]:
            raise fl.UserError(
                f"clip must be from {CLIP[0]:g} to {CLIP[1]:g}, or 0 for the median norm, not {self.clip}"
            )
        fl.refuse_unused(self, "send=clear", self.send == "clear", "epsilon", "dp_delta", "noise_along", "clip")
        fl.refuse_unused(self, "extractor=random", self.extractor == "random", "extractor_steps")
        fl.refuse_unused(
            self, f"time_budget={self.time_budget}", self.time_budget != "auto", "participation", "straggler"
        )
        fl.refuse_unused(self, "converged=0", not self.converged, "settle")
        self.clustering(), self.selection()  # they check their own settings

    def solver(self) -> fl.Sgd:
        # Eq. (14): the gradient of mu / 2 |W - W_k|^2 is mu (W - W_k).
        return self.solver_of(fl.Proximal)

    @property
    def selects(self) -> bool:
        return True

    def clustering(self, mode: str = "paper") -> Aidc:
        own = {one.name: getattr(self, one.name) for one in fields(Aidc) if hasattr(self, one.name)}
        return Aidc(**own, literal=mode == "literal", reference=self.reference_mode)

    def selection(self, mode: str = "paper") -> Cics:
        return Cics(confidence=self.confidence, window=self.window, literal=mode == "literal")

    def multiplier(self) -> float:
        return noise_multiplier(self.epsilon, self.dp_delta)

    def most(self, clients: int) -> int | None:
        """How many may train in a round; None if T_max alone decides."""
        return fl.sample_size(clients, self.participation) if self.time_budget == "auto" else None

    def beyond_budget(self) -> Mapping[str, str]:
        found = {}
        if self.extractor == "pretrained":
            steps = self.extractor_steps
            found["extractor"] = f"its server trains an extractor on its public samples, for {steps} steps"
        if self.time_budget != "auto":
            found["time_budget"] = "this time, and no share, decides how many devices train in a round"
        if self.participation < 1 or self.time_budget != "auto":
            found["panel"] = "so many devices of each cluster also get its model to measure it, and do not train it"
        if self.distribute == "round":
            found["distribute"] = "all devices of a cluster get its new model after every round"
        return found


HARDENING = ("min_cluster", "cipher", "key_bits", "fraction_bits", "value_bits", "kappa", "randomness")
"""Of mode hardened alone."""


def check(config: FedEPCConfig, common: fl.Common) -> None:
    hardened = common.mode == "hardened"
    config.clustering(common.mode), config.selection(common.mode)  # they check their own settings
    for setting, value in (("extractor", "pretrained"), ("send", "noise")):
        if getattr(config, setting) == value and not common.public:
            other = "random" if setting == "extractor" else "clear"
            raise fl.UserError(
                f"{setting}={value} needs public samples at the hub: give a share of the data to it (--public 0.05), "
                f"or choose {setting}={other}"
            )
    fl.refuse_unused(config, f"mode {common.mode}", not hardened, *HARDENING)
    few = common.mode != "literal" and len(common.clients) <= config.singles_to
    fl.refuse_unused(config, f"singles_to={config.singles_to}", few, "eta", "neighbours")
    if hardened and not common.public:
        raise fl.UserError(
            "mode hardened needs public samples at the hub, which tell it how long a description is: give a share of "
            "the data to it (--public 0.05)"
        )
    if hardened:
        fl.insist(config, {"distribute": "round", "reference_mode": False}, "mode hardened")
        here = config.founders or len(common.clients)
        if here < config.min_cluster:
            raise fl.UserError(
                f"min_cluster is {config.min_cluster}, but only {here} of {len(common.clients)} clients begin"
            )
        if (most := config.most(here)) is not None and most < config.min_cluster:
            raise fl.UserError(
                f"min_cluster is {config.min_cluster}, but participation={config.participation} of {here} clients lets "
                f"{most} train in a round: raise participation"
            )
