"""An observer of all parties: scores of models and their forms, clusters, movement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.agreement import grouping
from coterie.record.summary import Line
from coterie.runs import tuning
from coterie.runs.digests import federation_digest, models_digest
from coterie.runs.evaluation import Evaluator, Scores
from coterie.runs.forms import scored_forms
from coterie.runs.founding import FoundedRun
from coterie.runs.interpreter import LocalEffects
from coterie.runs.metrics import run_metrics
from coterie.runs.starts import try_loss


class RunObserver(Evaluator):
    """Raises UserError for one's own loss or metrics that fail.  scored: honest clients, when last scored.
    tuned_outputs: by client, of the models last fine-tuned.
    """

    scored: Scores | None = None
    tuned_outputs: Mapping[str, NDArray[Any]] | None = None

    def __init__(self, run: FoundedRun, effects: LocalEffects) -> None:
        config, inputs = run.config, run.inputs
        super().__init__(
            inputs.model,
            inputs.data,
            config.accelerator,
            targets=inputs.dataset.targets,
            metrics=run_metrics(config),
            seed=config.seed if config.evaluate == "sample" else None,
        )
        self.run, self.effects = run, effects
        self._models_digest = ""  # after the last round
        if ":" in f"{config.loss}{config.metrics}":
            name = inputs.data.clients[0]
            try_loss(inputs.model, run.starts[0], inputs.data[name])
            self.scores({name: run.starts[0]})

    def models(self, r: int) -> dict[str, fl.ClientModel]:
        """Of all evaluated clients that have joined by round r, in order."""
        run = self.run
        models = run.system.models(run.seen)
        here = fl.joined(run.federation.common.clients, run.settings, r)
        there: Collection[str] = here if isinstance(here, fl.Names) else frozenset(here)
        return {name: models[name] for name in run.shown if name in there}

    def told_counts(self) -> dict[str, NDArray[np.int64] | None] | None:
        """Label counts by client, as told by messages; None without the setting."""
        run, counts = self.run, self.run.system.counts
        if counts is None or not run.system.counts_labels(run.settings):
            return None
        return {one.name: counts(one) for one in run.seen.of_role(run.federation.common.roster.client_role)}

    def watch(self) -> Callable[[], bool]:
        """The result, called after the round, says whether it has moved a model."""
        run = self.run
        if not run.config.evaluated:
            before = self._models_digest or federation_digest(run.system, run.federation)

            def moved() -> bool:
                self._models_digest = federation_digest(run.system, run.federation)
                return self._models_digest != before

            return moved
        parties = run.parties
        parties.mark()

        def moved_of_some() -> bool:
            asked = [name for name in parties.asked if name in run.inputs.data.clients]
            now = run.federation.among(tuple(dict.fromkeys([*asked, *run.shown])))
            then = now.among(now.common.clients, parties.look_back)
            found = federation_digest(run.system, then) != federation_digest(run.system, now)
            parties.forget_mark()
            return found

        return moved_of_some

    def line(self, r: int, *, scores: bool, tunes: bool) -> Line:
        """For ``metrics.jsonl``. tunes: also score all forms."""
        line, attackers = Line(), self.run.attackers
        if scores:
            models = self.models(r)
            honest = attackers.left_out(models)
            found = self.scored = self.scores(honest)
            line |= {**found.line(), "bands": found.bands(), "models_sha256": models_digest(models)}
            if (trigger := attackers.trigger) is not None:
                line["backdoor_success"] = self.backdoor_success(honest, trigger)
            line |= self.grouping()
            if self.run.config.early_stop is not None:
                line["held_out_loss"] = self.held_out_loss(honest)
        if tunes and self.run.config.fine_tune != "no":
            line = _merged(line, self._forms(r))
        return line

    def score_again(self, r: int) -> Scores:
        """The honest clients', as in round r's line."""
        self.line(r, scores=True, tunes=True)
        assert self.scored is not None
        return self.scored

    def _forms(self, r: int) -> Line:
        config, models, line = self.run.config, self.run.attackers.left_out(self.models(r)), Line()
        kept: dict[str, fl.Vector] | None = None
        likeliest: dict[str, fl.Vector] | None = None
        if self.fine_tunes:
            kept, tuned = self.fine_tuned(r)
            of_all = self.scores(kept)
            if config.fine_tune == "held_out":
                likeliest = {name: one.weights for name, one in tuned.items()}
            if self.model.outputs is not None:
                self.tuned_outputs = dict(zip(kept, self.own_outputs(kept), strict=True))
            line = of_all.line("fine_tuned_")
            line["fine_tuned_epochs"] = [one.epochs if one.gains else 0 for one in tuned.values()]
            untuned = [name for name, one in tuned.items() if one.diverged]
            line |= {"untuned": untuned} if untuned else {}
            self.scored = self.scored and self.scored.beside(fine_tuned_=of_all)
        plain = config.class_weights is None  # else the mixture that a model bets on is not that of its samples
        told = self.told_counts()
        forms = scored_forms(self, models, config.seed, kept, likeliest, told) if plain else {}
        for form, scores_of in forms.items():
            line = _merged(line, scores_of.line(form))
        self.scored = self.scored and self.scored.beside(**forms)
        return line

    @property
    def fine_tunes(self) -> bool:
        """On request, with one model a client and local training."""
        known = all(hasattr(self.run.settings, name) for name in ("lr", "batch_size", "momentum", "weight_decay"))
        return self.run.config.fine_tune != "no" and self.run.system.fine_tunes and known

    def fine_tuned(self, r: int) -> tuple[dict[str, fl.Vector], dict[str, tuning.Tuned]]:
        """The model (d,) that each honest client predicts with, and the tuned ones."""
        run, of = self.run, self.run.settings
        models = run.attackers.left_out(self.models(r))
        if any(isinstance(model, fl.Mixture) for model in models.values()):
            raise TypeError(f"{run.system.name} says that it fine-tunes, but leaves clients mixtures of models")
        solver = fl.Sgd(of.lr, of.batch_size, of.momentum, of.weight_decay)  # the same for every method

        def seed(name: str, epoch: int) -> int:
            return int(fl.rng(run.config.seed, name, "fine-tuning", r, epoch).integers(1 << 62))

        starts: dict[str, Any] = dict(models)
        names, tuned = list(models), {}  # type: list[str], dict[str, tuning.Tuned]
        for first in range(0, len(names), self.effects.chunk):
            some = {name: starts[name] for name in names[first : first + self.effects.chunk]}
            if run.config.fine_tune == "held_out":
                tuned |= tuning.tune_by_held_out(self.effects, some, solver, seed)
            else:
                epochs = {name: run.owns[name].epochs for name in some}
                tuned |= tuning.tune_by_own_epochs(self.effects, some, epochs, solver, seed)
        return {name: one.of(starts[name]) for name, one in tuned.items()}, tuned

    def observed(self) -> dict[str, Any]:
        """The content of ``observed.json``: of the evaluated clients."""
        run, clients = self.run, self.run.inputs.data.clients
        found = dict(run.system.observe(run.seen))
        membership = found.get("membership")
        if run.config.evaluated and membership is not None and len(membership) == len(clients):  # a hub's own list
            found["membership"] = [membership[clients.index(name)] for name in run.shown]
        return found

    def grouping(self) -> Line:
        """For a system with clusters: ``{"grouping": ...}``."""
        membership, groups = self.observed().get("membership"), self.run.inputs.groups(self.run.shown)
        return {} if membership is None else {"grouping": asdict(grouping(membership, groups))}


def _merged(one: Line, other: Line) -> Line:
    metrics = {**one.get("metrics", {}), **other.get("metrics", {})}
    return {**one, **other, **({"metrics": metrics} if metrics else {})}
