"""The settings of OFL, and their valid combinations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from statistics import median
from typing import Annotated, Literal

import coterie.method as fl
from coterie.aggregation.detection import FEWEST
from coterie.crypto.ckks_parameters import named as parameters_named
from coterie.dp.distributed import Distributed
from coterie.dp.heuristic import refuse_epsilon
from coterie.dp.uploads import Standard, eligible
from coterie.protocols.noise import NoiseSettings, check_sums, error_of_sums, warn_of_silence
from coterie.protocols.reports import RANGES, StatusReport, costs, limits
from coterie.protocols.threshold import Joint
from coterie.selection.resources import Costs, Ratios, ratios
from coterie.systems.ofl.messages import CLIENT, MODEL

PARAMETERS = {"none": "threshold-8192-sum", "norms": "threshold-8192-mul", "fourier": "threshold-8192-high"}
"""By detection, the ciphers' parameters: for sums, one product, and one with a filter."""

SCALARS = {"none": 0, "norms": 2, "fourier": 3}
"""By detection, how many numbers of each leader's model are opened in a round."""

LEAST_BALANCE = 1.1
"""With detection "norms", the least effective number of leaders: one has 95 % of the weights at most."""

DETECTIONS = {"paper": "fourier", "standard": "norms", "distributed": "none"}
"""By mechanism, what "auto" means."""

WHOLE = 2.0**24
"""Up to which uploads, in float32, have all whole numbers."""

LEAST_LEADERS = 2
"""A global model of one leader would be that leader's model."""


@fl.settings
class OFLConfig(NoiseSettings, fl.LocalTraining):
    """Settings of OFL. The paper prints none of their values but those of epsilon in figures.

    clusters: k, the number of clusters, and so of leaders.  smallest: the least members of a cluster, or clients /
    clusters if there are fewer. With 1 a client can report numbers that make it the leader of a cluster of its own.
    recluster_every: T_rc, rounds between two clusterings.
    penalty: a client's score at an election is divided by 1 + penalty * terms it has served.
    leader_s: seconds that a leader waits for its members; None to wait for all. What comes later counts in the next
    round.  step_s: seconds of a time step, for which eq. (4) has limits.
    gamma_min: a smaller share of the model is not worth a message.  most_up: the largest share of the model that a
    client uploads (gamma_up), whatever eq. (4) allows.  most_down: the same for its downloads (gamma_down).
    full_share: a client with so large a share of the median number of samples has data enough to upload the whole
    model. The hub takes that median from the status reports, at every clustering.  full_samples: the same as a number
    of samples, instead of full_share; None for the share.

    mechanism: "paper" (selection by the o-factor and Laplace noise around density clusters; a heuristic, without a
    proof), "standard" (clipped changes at public random places, Gaussian noise on each), or "distributed" (clipped
    changes at public random places, and noise that only the opened sum must bear).
    noise_by: with mechanism=distributed, "leaders" add the noise to what they encrypt, or "members" to their uploads.
    With members, ``missing`` counts clients, also those that are asked in a round and give no upload.
    epsilon1: epsilon that the paper gives to the selection of one parameter (mechanism=paper).
    epsilon2: epsilon that the paper gives to the noise on one parameter (mechanism=paper).
    clip, noise, epsilon, private_rounds, dp_delta: of the other mechanisms, as in ``NoiseSettings``.

    keys: the leaders make their joint key themselves ("distributed"), or a key centre deals it ("dealer").
    threshold: t, the number of leaders that together open a sum; 0 for all of them.
    renew: when leaders change, they make a "new" key, or get "shares" of the old one.
    detection: the scalars by which the server weighs leader models: "fourier" (eq. 6: energy of high frequencies and
    distance to the global model), "norms" (squared norm, and dot product with the mean update), or "none" for
    equal weights. "auto" is the first of these with mechanism=paper, the second with standard, the third with
    distributed, where scalars would be releases of their own.
    """

    lr: float = 0.1
    slowest: float = 1.0
    clusters: Annotated[int, fl.Meta(ge=LEAST_LEADERS)] = 4
    smallest: fl.AtLeastOne = 3
    recluster_every: fl.AtLeastOne = 5
    penalty: fl.NotNegative = 1.0
    leader_s: Annotated[float | None, fl.Meta(gt=0, le=fl.LARGEST)] = None
    step_s: fl.Positive = 60.0
    gamma_min: fl.Share = 0.05
    most_up: float = 1.0
    most_down: float = 1.0
    full_share: fl.Positive = 0.5
    full_samples: Annotated[int | None, fl.Meta(ge=1)] = None
    mechanism: Literal["paper", "standard", "distributed"] = "paper"
    noise_by: Literal["leaders", "members"] = "leaders"
    epsilon1: fl.Positive = 50.0
    epsilon2: fl.Positive = 50.0
    keys: Literal["distributed", "dealer"] = "distributed"
    threshold: Annotated[int, fl.Meta(ge=0)] = 0
    renew: Literal["new", "shares"] = "new"
    detection: Literal["auto", "fourier", "norms", "none"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leader_s is not None and self.deadline_s is not None and not self.leader_s < self.deadline_s:
            raise fl.UserError(f"leader_s={self.leader_s} must be below deadline_s={self.deadline_s}")
        for name in ("most_up", "most_down"):
            if not self.gamma_min <= getattr(self, name) <= 1:
                raise fl.UserError(
                    f"{name} must lie between gamma_min={self.gamma_min} and 1, not {getattr(self, name)}"
                )
        if self.threshold and not LEAST_LEADERS <= self.threshold <= self.clusters:
            raise fl.UserError(
                f"threshold must lie in [{LEAST_LEADERS}, clusters={self.clusters}], or be 0 for all leaders, "
                f"not {self.threshold}"
            )
        paper, sums = self.mechanism == "paper", self.mechanism == "distributed"
        if paper:
            refuse_epsilon(self.epsilon)
        fl.refuse_unused(self, "mechanism=paper", paper, "clip", "noise", "private_rounds")
        fl.refuse_unused(self, f"mechanism={self.mechanism}", not paper, "epsilon1", "epsilon2")
        fl.refuse_unused(self, f"mechanism={self.mechanism}", not sums, "noise_by", "missing")
        fl.refuse_unused(self, "keys=dealer", self.keys == "dealer", "renew")
        fl.refuse_unused(self, "full_samples", self.full_samples is not None, "full_share")
        self.budget()
        if not paper:
            self.uploads(1)
        if self.detection == "auto":
            object.__setattr__(self, "detection", DETECTIONS[self.mechanism])
        if sums and (self.detection != "none" or self.threshold):
            raise fl.UserError(
                "mechanism=distributed opens one sum of all leaders a round, and nothing else, so it needs "
                f"detection=none and threshold=0, not detection={self.detection} and threshold={self.threshold}"
            )

    def uploads(self, parameters: int) -> Standard | Distributed:
        """Of a client's uploads, or their sum. Raises UserError for impossible settings."""
        return self.sums(parameters) if self.mechanism == "distributed" else self.standard()

    def sums(self, parameters: int) -> Distributed:
        # members read the model; with leaders' noise, ``missing`` counts one that does
        return self.on_sums(parameters, read_by_makers=self.noise_by == "members")

    def makers(self, clients: int, leaders: int) -> int:
        """How many parties add noise to a round's sum, of clients that have joined, and leaders."""
        return leaders if self.noise_by == "leaders" else fl.sample_size(clients, self.participation)

    @property
    def sends_changes(self) -> bool:
        return self.detection == "norms" or self.mechanism == "distributed"

    def unit(self, parameters: int, clients: int = 0) -> float:
        """The divisor, by public numbers alone, of an encrypted change, which makes its norm about 1 at most, or its
        numbers fit the cipher.
        """
        if not self.sends_changes or self.mechanism == "paper":
            return 1.0
        mechanism = self.uploads(parameters)
        if isinstance(mechanism, Distributed):
            return mechanism.largest(clients) / parameters_named(PARAMETERS["none"]).reach
        return self.clip + mechanism.sensitivity * mechanism.noise_multiplier * sqrt(parameters)

    def beyond_budget(self) -> Mapping[str, str]:
        if self.participation == 1:
            return {}
        return {"participation": "beside this share the leader of every cluster trains, and gets the new model"}


def usual_samples(config: OFLConfig, reports: Iterable[StatusReport]) -> float:
    """The median number of samples, or 0 if nobody needs it."""
    if config.full_samples is not None:
        return 0.0
    return float(median([limits(report).data for report in reports] or [1.0]))


def check_usual(config: OFLConfig, usual: float) -> float:
    """Raises PeerError for an impossible median."""
    least, most = (0.0, 0.0) if config.full_samples is not None else RANGES["samples"]
    if not least <= usual <= most:
        raise fl.PeerError(f"a median of {usual} samples; from {least:g} to {most:g} are taken")
    return usual


def costs_of(report: StatusReport, spec: fl.ModelSpec, config: OFLConfig, usual: float) -> Costs:
    """Eq. (4), of one parameter. usual: the median number of samples, for full_share.

    Privacy bounds no share: a client whose budget is spent uploads nothing.
    """
    up_bytes = 8.0 if config.mechanism == "paper" else 4.0
    full = config.full_share * usual if config.full_samples is None else config.full_samples
    return costs(report, spec, config.max_epochs, full_samples=full, up_bytes=up_bytes, down_bytes=4.0)


def shares(report: StatusReport, spec: fl.ModelSpec, config: OFLConfig, usual: float) -> Ratios:
    """Eq. (4). usual: as in ``costs_of``."""
    bounds = {"most_up": config.most_up, "most_down": config.most_down}
    return ratios(limits(report), costs_of(report, spec, config, usual), spec.size, config.gamma_min, **bounds)


def joint_of(config: OFLConfig) -> Joint:
    # Of leaders, who open scalars of single ones, too. With detection "norms" one may have most weight without most of
    # the sum.
    return Joint(
        MODEL,
        PARAMETERS[config.detection],
        roles=(CLIENT,),
        threshold=config.threshold,
        least=max(LEAST_LEADERS, config.threshold),
        fewest=LEAST_LEADERS,
        dealer=config.keys == "dealer",
        products=config.detection != "none",
        scalars=SCALARS[config.detection],
        pads=True,
        missing=0 if config.mechanism == "distributed" else None,
        effective=LEAST_BALANCE if config.detection == "norms" else FEWEST,
    )


def check(config: OFLConfig, common: fl.Common) -> None:
    """Raises UserError for settings that do not fit; warns of a budget that allows no upload."""
    if config.clusters > len(common.clients):
        raise fl.UserError(f"{config.clusters} clusters for {len(common.clients)} clients: lower clusters")
    if config.mechanism != "paper":
        mechanism = config.uploads(len(eligible(common.spec)))
        if isinstance(mechanism, Distributed):
            check_parties(config, mechanism, common)
        warn_of_silence(config.budget(), mechanism.release())
    if common.mode == "literal" and config.mechanism != "paper":
        raise fl.UserError(f"mechanism={config.mechanism} is not for mode literal, which is the printed text")


def check_parties(config: OFLConfig, mechanism: Distributed, common: fl.Common) -> None:
    """Raises UserError if so many parties can't put noise on sums, or numbers don't fit the cipher."""
    error = error_of_sums(PARAMETERS["none"], common.clients[: config.clusters])
    error *= config.unit(mechanism.length, len(common.clients))
    makers = config.makers(len(common.clients), LEAST_LEADERS)
    check_sums(mechanism, makers, config.noise_by, error)
    if config.noise_by == "members" and mechanism.largest_alone(makers) > WHOLE:
        raise fl.UserError(
            f"noise={mechanism.noise_multiplier:g} is too large for uploads: raise epsilon, or lower noise"
        )
