"""The settings of PAFed, and which of them work together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import coterie.method as fl
from coterie.crypto.ckks_parameters import named
from coterie.protocols.late import LateTraining
from coterie.protocols.own_mean import KeepsMean
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import MODEL_TERMS, STEP_SHARES

PARAMETERS = {"paper": "ckks-8192-deep", "hardened": "ckks-8192-deep", "literal": "ckks-32768-deep"}
PRINTED: Mapping[str, Any] = {"server_decay": 0.0, "project": "printed", "clip": 0.0, "local": "admm"}
"""By the paper, and the only values of these settings in mode ``literal``."""
ADDED: Mapping[str, Any] = {"rule": "corrected", "server_rounds": 0, "ema": 0.0}
"""Settings that the paper does not have, without what they add."""
UNUSED_PLAIN = "project", "agreeing", "conflicting", "clip", "signs", "dummies"
"""Settings without effect with rule=averaged."""
MOST_MASK = 512.0
"""Of a real mask."""
# weights and masks together must lie within 1024 in the ciphers
MOST_DUMMIES = 4096
# the helper opens at most 2^16 scalars a request, four a set of sums
MEMBERS, OPENERS = 7, 3
"""Of a committee, by default."""
MOST_ASKED = 256
"""Clients in a round."""
# with n in time and m late, scalars reach n^2 and n m, and there is room for 2^24


@dataclass(frozen=True)
class Rates:
    """alpha_0, alpha_1, alpha_2 of eq. (17): of updates in time, late agreeing, late conflicting."""

    in_time: fl.NotNegative = 0.8
    agreeing: fl.NotNegative = 0.8
    conflicting: fl.NotNegative = 0.8

    def __post_init__(self) -> None:
        fl.check_bounds(self)

    def scaled(self, factor: float) -> Rates:
        return Rates(factor * self.in_time, factor * self.agreeing, factor * self.conflicting)


@dataclass(frozen=True)
class PAFedConfig(KeepsMean, LateTraining):
    """Settings of PAFed; local training, delays and the server's step as in ``protocols/late.py``, table III.

    rule: "corrected" by eq. (17). "averaged", eq. (11) under the same encryption: clients send changes as they are, and
    the server's step is along the plain mean of all that came, in time or late.

    rho: coefficient of the quadratic term of eq. (8).  local: "admm", or "sgd" to leave ADMM out.
    agreeing: the step along late updates that agree, over the server's step (eq. (17): alpha_1 over alpha_0).
    conflicting: the step along those that conflict, likewise (alpha_2 over alpha_0).
    project: "exact" by eq. (12), "printed" by eq. (14), or "none": late updates are averaged as they come.
    clip: largest length of an update that the server is told. Then steps are as long as updates were on average. 0 for
    steps of constant length, as printed.
    signs: "shown": the helper sees the signs of late updates' masked cosines, among dummies. "hidden": it does not see
    whether any update conflicts (``classification.py``).
    dummies: random masked cosines that the helper also sees; with signs=hidden, decoy sets of sums.
    keys: "helper": the helper holds sk_s. "threshold", mode paper: it opens only what clients of a committee help with.
    members: how many clients the committee has; 0 for 7, or all clients if there are fewer.
    openers: how many of its members help with each opening; 0 for 3, or all members if there are fewer.
    iterations: of Min(), mode literal.  mask_bound: the mask of algorithm 5 is uniform in +-this, mode literal.
    """

    rule: Literal["corrected", "averaged"] = "corrected"
    rho: float = 0.01
    local: Literal["admm", "sgd"] = "admm"
    agreeing: float = 1.0
    conflicting: float = 1.0
    project: Literal["exact", "printed", "none"] = "exact"
    clip: fl.NotNegative = 0.0
    signs: Literal["shown", "hidden"] = "shown"
    dummies: Annotated[int, fl.Meta(ge=0, le=MOST_DUMMIES)] = 4
    keys: Literal["helper", "threshold"] = "helper"
    members: int = 0
    openers: int = 0
    iterations: Annotated[int, fl.Meta(ge=0, le=7)] = 7
    mask_bound: Annotated[float, fl.Meta(gt=0, le=MOST_MASK)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates(1)
        if self.founders:
            raise fl.UserError("founders: clients that join later are not supported with delays; leave it at 0")

    def solver(self) -> fl.Sgd:
        if self.local == "sgd":
            return fl.Sgd(self.lr, self.batch_size, self.momentum, self.weight_decay)
        return fl.Admm(self.lr, self.batch_size, self.momentum, self.weight_decay, rho=self.rho)

    def rates(self, r: int) -> Rates:
        return Rates(1.0, self.agreeing, self.conflicting).scaled(self.server_step(r))

    def committee(self, clients: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """With keys=threshold, the first clients, and how many help to open."""
        members = tuple(clients[: self.members or MEMBERS])
        return members, self.openers or min(OPENERS, len(members))

    def most_cosines(self, late: int) -> int:
        """That the helper opens in a round with so many late updates, dummies included."""
        return late + self.dummies

    def most_late(self, clients: int) -> int:
        return clients * self.max_staleness

    @property
    def most_sums(self) -> int:
        """That the helper opens in a round, four a set, decoys included."""
        return 4 * (1 + (self.dummies if self.signs == "hidden" else 0))

    @property
    def largest_share(self) -> int:
        return max(1, math.ceil(self.server_lr * max(1.0, self.agreeing, self.conflicting) * max(1.0, self.clip)))


def corrects(config: PAFedConfig, mode: str) -> bool:
    return config.rule == "corrected" and config.project != "none"


def compares(config: PAFedConfig, mode: str) -> bool:
    return corrects(config, mode) and mode != "literal"


def by_committee(config: PAFedConfig, mode: str) -> bool:
    return config.keys == "threshold"


@lru_cache(maxsize=4)
def layout_of(spec: fl.ModelSpec, mode: str) -> Layout:
    return Layout(spec, named(PARAMETERS[mode]).degree)


class Laid(fl.Party):
    """A party of PAFed."""

    config: PAFedConfig

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.spec, self.common.mode)

    @property
    def literal(self) -> bool:
        return self.common.mode == "literal"


def check(config: PAFedConfig, common: fl.Common) -> None:
    literal = common.mode == "literal"
    fl.refuse_unused(config, "rule=averaged", config.rule == "averaged" and not literal, *UNUSED_PLAIN)
    fl.refuse_unused(config, f"mode {common.mode}", not literal, "iterations", "mask_bound")
    fl.refuse_unused(config, "mode literal", literal, "dummies", "signs")
    fl.refuse_unused(config, "project=none", config.project == "none", "signs", "conflicting")
    fl.refuse_unused(config, "keys=helper", config.keys == "helper", "members", "openers")
    fl.refuse_unused(config, f"mode {common.mode}", common.mode != "paper", "keys")
    fl.refuse_unused(config, "local=sgd", config.local == "sgd", "rho")
    members, openers = config.committee(common.clients)
    if config.keys == "threshold" and not (config.members <= len(members) and 1 <= openers <= len(members)):
        raise fl.UserError(
            f"keys=threshold: {openers} of {config.members or len(members)} members can't help the helper, with "
            f"{len(common.clients)} clients"
        )
    if literal:
        fl.insist(config, {**PRINTED, **ADDED}, "mode literal, which is the printed text")
    asked = fl.sample_size(len(common.clients), config.participation)
    if asked > MOST_ASKED:
        raise fl.UserError(f"{asked} clients a round, but CKKS has room for {MOST_ASKED}: lower participation")
    longest = (named(PARAMETERS[common.mode]).max_terms - MODEL_TERMS) // STEP_SHARES
    if config.largest_share > longest:
        raise fl.UserError(
            f"steps {config.largest_share} times as long as updates don't fit the ciphers, which have room for "
            f"{longest}: lower server_lr, clip, agreeing or conflicting"
        )
