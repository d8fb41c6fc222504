"""Baselines whose server withstands a minority of malicious clients: Krum, multi-Krum, trimmed mean, median, FLTrust,
FLAME.

    server --Train--> client --Update--> server            (every round, as in FedAvg)

The server combines a round's changes by a robust rule (``aggregation/robust.py`` has the papers and formulas).
``docs/poisoning.md`` measures them under attack.

Decided here: f is a share (``faulty``) of the updates that came, rounded down; FLTrust's server trains on public
samples of its own (``--public``), for ``max_epochs``; running statistics (buffers) count in no distance and no angle,
and the next model gets their coordinate-wise median over all updates, whatever the rule; FLAME compares the angles of
changes (algorithm 1, l. 6: of models, which a long common past makes alike), and admits all where HDBSCAN finds no
majority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor
from typing import Annotated, Any, ClassVar

import numpy as np

import coterie.method as fl
from coterie.aggregation import robust
from coterie.aggregation.robust import Robust

Rule = Callable[[fl.Doubles, int], Robust]
"""Of the changes (n, d), of which so many may be malicious."""


@fl.settings
class RobustConfig(fl.Averaging):
    """faulty: from 0 to below 1/2, the share of a round's updates that the rule withstands."""

    faulty: Annotated[float, fl.Meta(ge=0, lt=0.5)] = 0.25


@fl.settings
class FlameConfig(fl.Averaging):
    """noise: lambda, standard deviation of the noise over the median length of a round's changes; 0.001 for images in
    the authors' experiments.
    """

    noise: fl.NotNegative = 0.001


class Server(fl.Server):
    """by_coordinate: whether the rule chooses in each coordinate, and so may see the buffers, too."""

    combine: ClassVar[Any] = None
    by_coordinate: ClassVar[bool] = False

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        old, config = self.state.weights, self.config
        gather, models = self.gather(means=0), dict[str, fl.Vector]()

        def fold(name: str, update: fl.Update) -> None:
            models[name] = gather.note(name, update)

        notes = yield from fl.ask_round(self, r, fl.Train(r, self.spec.digest, old), fl.Update, fold)
        notes |= gather.notes()
        if not models:
            return notes
        try:
            rule: Rule = yield from self.ruled(r)
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
        except (fl.UserError, fl.PeerError) as error:  # too few updates, or no update of the server's own
            return {**notes, "skipped": str(error)}
        self.state.weights = gather.model(new)
        return {
            **notes,
            "influence": dict(zip(names, found.influence.tolist(), strict=True)),
            "flagged": [name for name, is_one in zip(names, found.flagged, strict=True) if is_one],
        }

    def ruled(self, r: int) -> fl.Steps[Rule]:
        """The rule of round r."""
        yield from ()
        rule: Rule = self.combine
        return rule


class TrustingServer(Server):
    def ruled(self, r: int) -> fl.Steps[Rule]:
        """FLTrust's. Raises PeerError if the server's own training diverges."""
        start, config = self.state.weights, self.config
        fitted: fl.Fitted = yield from fl.compute(fl.fit(self, start, r, epochs=config.max_epochs))
        change = (fitted.weights - start).astype(np.float64)
        own = fl.with_buffers(self.spec, change, np.zeros_like(change))
        return lambda updates, f: robust.fltrust(updates, own)


class NoisyServer(Server):
    def ruled(self, r: int) -> fl.Steps[Rule]:
        """FLAME's rule. Equal changes get equal noise."""
        yield from ()

        def flame(updates: fl.Doubles, f: int) -> Robust:
            normal = self.kept("noise", updates.tobytes(), r).normal(self.spec.size)
            return robust.flame(updates, self.config.noise * normal)

        return flame


def combined(
    spec: fl.ModelSpec,
    old: fl.Vector,
    models: fl.Vector,
    rule: Callable[[fl.Doubles], Robust],
    step: float,
    *,
    by_coordinate: bool = False,
) -> tuple[Robust, fl.Doubles]:
    """A rule's result for the changes of models (n, d), and the next model, (d,) float64.

    The rule sees buffers only if it is by coordinate. They get the coordinate-wise median.
    """
    changes = models.astype(np.float64) - old
    found = rule(changes if by_coordinate else fl.with_buffers(spec, changes, np.zeros_like(changes)))
    median = np.median(models, axis=0) if found.influence.any() else old
    return found, fl.stepped(spec, old, found.mean, median, step)


def _check(config: Any, common: fl.Common) -> None:
    if not common.public:
        raise fl.UserError(
            "fltrust compares updates with one that its server trains on public samples of its own: give it some "
            "(public, --public .05)"
        )


def _server(rule: Rule | type[Server], by_coordinate: bool) -> type[Server]:
    if isinstance(rule, type):
        return rule
    return type("RobustServer", (Server,), {"combine": staticmethod(rule), "by_coordinate": by_coordinate})


BLANCHARD = "Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, NeurIPS 2017"
YIN = "Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018"
CAO = "Cao et al., FLTrust: Byzantine-robust federated learning via trust bootstrapping, NDSS 2021"
NGUYEN = "Nguyen et al., FLAME: taming backdoors in federated learning, USENIX Security 2022"

_TABLE: tuple[tuple[str, str, str, type, Rule | type[Server], bool], ...] = (
    ("flame", "FLAME", NGUYEN, FlameConfig, NoisyServer, False),
    ("fltrust", "FLTrust", CAO, fl.Averaging, TrustingServer, False),
    ("krum", "Krum", BLANCHARD, RobustConfig, robust.krum, False),
    ("median", "Coordinate-wise median", YIN, fl.Averaging, lambda updates, f: robust.median(updates), True),
    ("multi_krum", "Multi-Krum", BLANCHARD, RobustConfig, robust.multi_krum, False),
    ("trimmed_mean", "Trimmed mean", YIN, RobustConfig, lambda updates, f: robust.trimmed_mean(updates, f), True),
)
"""Name, title, citation, settings, rule (or its server, where the rule differs by round), whether by coordinate."""

SYSTEMS: Mapping[str, fl.System] = {
    name: fl.system(
        name,
        config,
        _server(rule, by_coordinate),
        fl.AveragingClient,
        title=title,
        citation=citation,
        public=0.05 if rule is TrustingServer else 0.0,
        check=_check if rule is TrustingServer else (lambda config, common: None),
    )
    for name, title, citation, config, rule, by_coordinate in _TABLE
}
