"""Baselines whose server withstands a minority of malicious clients: Krum, multi-Krum, trimmed mean, median, FLTrust.

    server --Train--> client --Update--> server            (every round, as in FedAvg)

The server holds all models of a round, and puts their changes together by a robust rule in the place of the mean
(``aggregation/robust.py`` has the papers and formulas). No rule weighs by samples, since a client states its own
number. ``docs/poisoning.md`` measures them under attack (``--attack``).

Sees. As in FedAvg: server: every client's plain model, by name. client: the global model.
Decided here: f is a share (``faulty``) of the updates that came, rounded down; FLTrust's server trains on public
samples of its own (``--public``), for ``max_epochs``; running statistics (buffers) count in no distance and no angle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation import robust
from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.robust import Robust
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.steps import Steps, compute
from coterie.protocol.system import PartyFactory, System
from coterie.protocol.told import Common, Own
from coterie.protocols import averaging
from coterie.protocols.averaging import Averaging, Client, Train, Update, Updates
from coterie.protocols.keeping import own_model
from coterie.protocols.local_training import ask_round, batch_seed

Doubles = NDArray[np.float64]
Rule = Callable[[Doubles, int], Robust]
"""Of the changes (n, d), of which so many may be malicious."""


@dataclass(frozen=True)
class RobustConfig(Averaging):
    """faulty: from 0 to below 1/2, the share of a round's updates that the rule is to withstand."""

    faulty: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.faulty < 0.5:
            raise UserError(f"faulty must be at least 0 and below 1/2, not {self.faulty:g}: no rule withstands half")


class Server(averaging.Server, role="server"):
    """Holds the global model. rule: puts the changes of a round together.

    by_coordinate: whether the rule chooses in each coordinate, so that it serves for buffers, too.
    """

    def __init__(
        self, own: Own, common: Common, config: Averaging, *, rule: Rule | None, by_coordinate: bool = False
    ) -> None:
        super().__init__(own, common, config)
        self.rule, self.by_coordinate = rule, by_coordinate

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """One round. The robust mean of the clients' changes moves the global model."""
        old, config = self.state.weights, self.config
        updates, models = Updates(self.spec, old), dict[str, Vector]()

        def fold(name: str, update: Update) -> None:
            models[name] = updates.checked(name, update.spec, update.weights, update.samples)
            updates.took(name, update.weights, samples=update.samples)

        notes = yield from ask_round(self, r, Train(r, self.spec.digest, old), Update, fold)
        notes |= updates.notes()
        if not models:
            return notes
        try:
            rule = self.rule or (yield from self.trusting(r))
            names = [name for name in self.clients if name in models]
            f = floor(getattr(config, "faulty", 0) * len(names))
            found, new = combined(
                self.spec,
                old,
                np.stack([models[name] for name in names]),
                lambda changes: rule(changes, f),
                config.server_step(r),
                by_coordinate=self.by_coordinate,
            )
        except (UserError, PeerError) as error:  # too few updates, or no update of the server's own
            return {**notes, "skipped": str(error)}
        self.state.weights = updates.model(new)
        return {
            **notes,
            "influence": dict(zip(names, found.influence.tolist(), strict=True)),
            "flagged": [name for name, is_one in zip(names, found.flagged, strict=True) if is_one],
        }

    def trusting(self, r: int) -> Steps[Rule]:
        """FLTrust's rule in round r, by the server's own update. Raises PeerError if its training diverges."""
        start, config = self.state.weights, self.config
        fitted: Fitted = yield from compute(Fit(start, config.solver(), config.max_epochs, batch_seed(self, r)))
        change = (fitted.weights - start).astype(np.float64)
        own = with_buffers(self.spec, change, np.zeros_like(change))
        return lambda updates, f: robust.fltrust(updates, own)


def combined(
    spec: ModelSpec,
    old: Vector,
    models: Vector,
    rule: Callable[[Doubles], Robust],
    step: float,
    *,
    by_coordinate: bool = False,
) -> tuple[Robust, Doubles]:
    """What a rule makes of the changes of models (n, d), and the next model, (d,) float64.

    Buffers get a mean of the clients' (``aggregation/buffers.py``), by influence unless the rule is by coordinate.
    """
    changes = models.astype(np.float64) - old
    if by_coordinate:
        found = rule(changes)
        mean = old + found.mean
    else:
        found = rule(with_buffers(spec, changes, np.zeros_like(changes)))
        total = float(found.influence.sum())
        mean = found.influence @ models / total if total else old.astype(np.float64)
    return found, stepped(spec, old, found.mean, mean, step)


def _check(config: Any, common: Common) -> None:
    if not common.public:
        raise UserError(
            "fltrust compares updates with one that its server trains on public samples of its own: give it some "
            "(public, --public .05)"
        )


def _parties(rule: Rule | None, by_coordinate: bool, config: Averaging) -> Mapping[str, PartyFactory]:
    return {"server": partial(Server, rule=rule, by_coordinate=by_coordinate), "client": Client}


BLANCHARD = "Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, NeurIPS 2017"
YIN = "Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018"
CAO = "Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, NDSS 2021"

_TABLE: tuple[tuple[str, str, str, type, Rule | None, bool], ...] = (
    ("fltrust", "FLTrust", CAO, Averaging, None, False),
    ("krum", "Krum", BLANCHARD, RobustConfig, robust.krum, False),
    ("median", "Coordinate-wise median", YIN, Averaging, lambda updates, f: robust.median(updates), True),
    ("multi_krum", "Multi-Krum", BLANCHARD, RobustConfig, robust.multi_krum, False),
    ("trimmed_mean", "Trimmed mean", YIN, RobustConfig, lambda updates, f: robust.trimmed_mean(updates, f), True),
)
"""Name, title, citation, settings, rule (None for one that needs the server's own update), whether by coordinate."""

SYSTEMS: Mapping[str, System] = {
    name: System(
        name=name,
        title=title,
        citation=citation,
        config=config,
        parties=partial(_parties, rule, by_coordinate),
        models=averaging.models,
        own_model=own_model,
        sees=averaging.SEES,
        releases=averaging.RELEASES,
        baseline=True,
        public=0.0 if rule else 0.05,
        check=(lambda config, common: None) if rule else _check,
    )
    for name, title, citation, config, rule, by_coordinate in _TABLE
}
