"""The settings of Coterie, and which of them work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

import coterie.method as fl
from coterie.crypto import shared_rows
from coterie.protocols.hidden_settings import HiddenSums
from coterie.protocols.masked_sums import FEWEST
from coterie.protocols.noise import warn_of_silence


@dataclass(frozen=True)
class CoterieConfig(HiddenSums):
    """Settings of Coterie: local training, late updates and sums in hidden groups.

    clusters: how many groups are looked for, "auto" for as many as stand out, or 1 for one group of all.
    """

    lr: float = 0.01
    momentum: float = 0.0
    max_epochs: int = 5
    slowest: float = 0.2
    participation: float = 1.0
    server_lr: float = 1.0
    server_decay: float = 0.0
    max_staleness: Annotated[int, Meta(ge=0, le=shared_rows.OLDEST)] = shared_rows.OLDEST
    clusters: Annotated[int | Literal["auto"], Meta(ge=1)] = "auto"


def check(config: CoterieConfig, common: fl.Common) -> None:
    """Raises UserError for settings that do not fit these clients."""
    clients = len(common.clients)
    if config.server_lr > 1:
        raise fl.UserError(f"server_lr={config.server_lr:g}: at most 1, or a client's upload is longer than clip")
    if clients < FEWEST:
        raise fl.UserError(f"coterie needs at least {FEWEST} clients, not {clients}: smaller sums show too much")
    if config.foundings > 1 and (config.clusters == 1 or config.check == "norm" or config.epsilon is not None):
        raise fl.UserError(
            f"foundings={config.foundings}: not with clusters=1, which makes no groups, nor with check=norm or "
            "epsilon, since new groups begin with a sum of whole models"
        )
    grid = config.grid(clients, common.spec)
    if (budget := config.budget()) is not None:
        warn_of_silence(budget, config.release(grid))
    groups = 1 if config.clusters == 1 else 2
    if config.budget_s is not None and (config.deadline_s is not None or not config.may_leave_out(clients, groups)):
        raise fl.UserError(
            f"budget_s={config.budget_s:g}: needs a min_cluster above fewest, and no deadline_s, with which a slow "
            "client answers late, and is asked again when it has answered"
        )
    if why := config.shows_few(clients, config.expected(clients), groups):
        raise fl.UserError(f"participation={config.participation:g}: {why}")
