"""The settings of Coterie, and which of them work together."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Literal

import numpy as np

import coterie.method as fl
from coterie.crypto import shared_rows
from coterie.protocols.hidden_settings import HiddenSums, fewest_uploads
from coterie.protocols.masked_sums import FEWEST
from coterie.protocols.noise import warn_of_silence
from coterie.training.solvers import sampling


@fl.settings
class CoterieConfig(fl.Averaging, HiddenSums):
    """Settings of Coterie: local training, late updates and sums in hidden groups.

    clusters: how many groups are looked for, "auto" for as many as stand out, or 1 for one group of all.
    control_variates: the share of SCAFFOLD's correction of the local steps, 0 for none. Below 1, errors fade that
    noise and absences leave in it (docs/systems/coterie.md#control-variates).
    """

    max_staleness: Annotated[int, fl.Meta(ge=0, le=shared_rows.OLDEST)] = shared_rows.OLDEST
    clusters: Annotated[int | Literal["auto"], fl.Meta(ge=1)] = "auto"
    control_variates: fl.Share = 0.0

    def solver(self) -> fl.Sgd:
        return self.solver_of(fl.Scaffold if self.control_variates else fl.Sgd)

    def turned(self, turn: fl.Vector, samples: int, epochs: int) -> Mapping[str, fl.Vector]:
        """The control variates that turn a training by ``turn`` (d,) in all."""
        if not self.control_variates:
            return {}
        steps = sampling(samples, self.batch_size, epochs).steps
        return {"control": turn / np.float32(steps * self.lr), "server_control": np.zeros_like(turn)}


def check(config: CoterieConfig, common: fl.Common) -> None:
    clients = len(common.clients)
    if config.server_lr > 1:
        raise fl.UserError(f"server_lr={config.server_lr:g}: at most 1, or a client's upload is longer than clip")
    if clients < FEWEST:
        raise fl.UserError(f"coterie needs at least {FEWEST} clients, not {clients}: smaller sums show too much")
    if config.clusters == "auto" and clients < 2 * config.min_cluster:
        warnings.warn(
            f"clusters=auto: {clients} clients make one group, since two of min_cluster={config.min_cluster} need "
            f"{2 * config.min_cluster}. Set clusters=1, which says so and costs less, or a smaller min_cluster",
            fl.CoterieWarning,
            stacklevel=2,
        )
    if config.foundings > 1 and (config.check == "norm" or config.epsilon is not None):
        raise fl.UserError(
            f"foundings={config.foundings}: not with check=norm or epsilon, since new groups, and runs that begin from "
            "models, begin with a sum of whole models"
        )
    if config.foundings > 1 and config.control_variates:
        raise fl.UserError(
            f"foundings={config.foundings}: not with control_variates, which need the last movement of the same group"
        )
    if config.label_counts and (config.foundings > 1 or config.min_cluster < FEWEST):
        raise fl.UserError(
            f"label_counts: not with foundings above 1, since the counts of groups that are made anew would differ "
            f"from the former ones by those of the clients that came or left, nor with min_cluster below {FEWEST}"
        )
    grid = config.grid(clients, common.spec)
    if (budget := config.budget()) is not None:
        warn_of_silence(budget, config.release(grid))
    if config.clusters not in ("auto", 1) and clients < 2 * config.min_cluster:
        raise fl.UserError(
            f"clusters={config.clusters}: {clients} clients are too few for two groups of min_cluster="
            f"{config.min_cluster}. Set clusters=1, or a smaller min_cluster"
        )
    groups = 1 if config.clusters == 1 else 2
    if config.budget_s is not None and (config.deadline_s is not None or not config.may_leave_out(clients, groups)):
        raise fl.UserError(
            f"budget_s={config.budget_s:g}: needs a min_cluster above fewest, and no deadline_s, with which a slow "
            "client answers late, and is asked again when it has answered"
        )
    if why := config.shows_few(clients, config.expected(clients), groups):
        enough = fewest_uploads(clients, config.expected(clients), groups, config.min_cluster, config.fewest)
        fits = config.budget_s is None and enough <= clients
        hint = f". Set participation={ceil(100 * enough / clients) / 100:g} or more" if fits else ""
        raise fl.UserError(f"participation={config.participation:g}: {why}{hint}")
