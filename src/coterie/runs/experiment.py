"""A built run, one round at a time. It writes nothing."""

from __future__ import annotations

import time
from math import prod
from typing import Any

import coterie.method as fl
from coterie.data.partition import Split
from coterie.record.summary import Line
from coterie.runs.config import Resolved, RunConfig, resolve
from coterie.runs.digests import models_digest
from coterie.runs.failures import shown, why_still
from coterie.runs.founding import Founded, FoundedRun
from coterie.runs.in_process import effects_of, transport_of
from coterie.runs.observer import RunObserver


class Experiment:
    """Raises UserError for any mistake in its config.  founded: of a resumed run.

    As of ``FoundedRun``, and tasks: of clients' groups, or the one of all.  split: as the data lie now.  label_counts:
    (evaluated clients, classes) training samples; dealt_counts before a drift.  sample_numbers: of one sample.
    """

    def __init__(self, config: Resolved, founded: Founded | None = None) -> None:
        self._run = run = FoundedRun(config, founded)
        self.config, self.system, self.settings = run.config, run.system, run.settings
        self.dealt, self.shown, self.seen, self.attackers = run.dealt, run.shown, run.seen, run.attackers
        self.inputs_digest, self.own_code, self.fingerprint = run.inputs_digest, run.own_code, run.fingerprint
        self.federation, self.owns, self.parties = run.federation, run.owns, run.parties
        self.common = run.federation.common
        self.tasks, self.model, self.data = run.inputs.tasks, run.inputs.model, run.inputs.data
        self.names = run.inputs.data.clients
        self.sample_numbers = prod(run.inputs.dataset.input_shape)
        self.features, self.class_names = run.inputs.dataset.features, run.inputs.dataset.targets.names
        self.label_counts = self.dealt_counts = run.inputs.label_counts(run.shown)
        self.devices, self.traces, self.delays = run.around.devices, run.around.traces, run.around.delays
        self._drifted = False
        self.effects = effects_of(run)
        self.observer = RunObserver(run, self.effects)
        self.transport = transport_of(run, self.effects)

    @property
    def split(self) -> Split:
        return self._run.inputs.split

    @property
    def crypto(self) -> str:
        """``"real"``, ``"emulated"``, or ``"none"`` for a system that encrypts nothing."""
        return self.config.crypto if self.system.encrypts(self.config.mode) else "none"

    def models(self, r: int | None = None) -> dict[str, fl.ClientModel]:
        """Of all evaluated clients that have joined by round r, by default the last, in order."""
        return self.observer.models(r or self.config.rounds)

    def set_up(self) -> Line:
        _, costs = self._driven(0, self._hub.setup())
        self.parties.rest()
        return costs

    def reach(self, r: int) -> None:
        """Exchange clients' data if the drift is before round r."""
        drift, givers, names = self.dealt.drift, self.dealt.givers, self.common.clients
        if drift is None or self._drifted or r < drift.round:
            return
        self._drifted = True
        self._run.inputs = self._run.inputs.exchanged()
        self.effects.workers.drift()
        self.label_counts = self._run.inputs.label_counts(self.shown)
        changed = [names[i] for i, giver in enumerate(givers) if giver != i]
        self.owns.forget()
        for name in changed:
            if self.parties.touched(name):
                self.parties.renew(name)

    @property
    def _hub(self) -> Any:
        return self.parties[self.federation.hub]

    def _driven(self, r: int, steps: fl.Steps[Any], *, settle: bool = False) -> tuple[dict[str, Any], Line]:
        started = time.perf_counter()
        try:
            notes = dict(self.transport.drive(steps, r, settle=settle) or {})
        except fl.NoAnswerError as error:
            raise fl.RunError(f"{error}{self._why_refused()}") from error
        counted = vars(self.transport.meter)
        costs = {**counted, **{f"phase_{key}": counted[key] for key in ("seconds", "virtual_seconds")}}
        costs |= {"seconds": time.perf_counter() - started, "virtual_seconds": self.transport.clock_s}
        costs |= self.attackers.costs()
        return notes, costs

    def _begins_s(self, r: int) -> float:
        now_s, pace_s = self.transport.clock_s, self._run.around.pace_s if r > 1 else 0.0
        return now_s if self.traces is None else self.traces.opens_s(now_s + pace_s)

    def _begun(self, r: int, began_s: float) -> fl.Steps[Any]:
        if began_s > self.transport.clock_s:
            yield from fl.wake(began_s)
        return (yield from self._hub.round(r))

    def _why_refused(self) -> str:
        refused = [reason for reason, _ in self.transport.meter.refused.most_common()]
        return f" ({shown(refused)})" if refused else ""

    def round(self, r: int) -> Line:
        """The line of round r. Raises RunError if the run cannot go on. It ends after the last round, or if the hub
        notes that it has ``stopped``.
        """
        self.reach(r)
        moved = self.observer.watch()
        try:
            began_s = self._begins_s(r)
            with self.effects.watched():
                notes, costs = self._driven(r, self._begun(r, began_s))
        except fl.RunError as error:
            raise fl.RunError(f"round {r}: {error}") from error
        if "skipped" in notes:
            notes["skipped"] = f"{notes['skipped']}{self._why_refused()}"
        self.effects.took(r, notes)
        line: Line = {"round": r, **costs, "began_virtual_seconds": began_s, "notes": notes}
        observed = time.perf_counter()
        if not moved() and "skipped" not in notes:
            notes["skipped"] = why_still(line, self.system.observe(self.seen).get("why_kept", ()))
        config = self.config
        last = r == config.rounds or "stopped" in notes
        tunes = last or bool(config.fine_tune_every and r % config.fine_tune_every == 0)
        line |= self.observer.line(r, scores=last or r % config.eval_every == 0, tunes=tunes)
        self.parties.rest()
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def finish(self, r: int) -> Line | None:
        """The hub's steps after the last round r, as messages of round r + 1: costs and notes, and scores if a model
        has changed; None if it has none. Raises RunError.
        """
        if not self._hub.finishes:
            return None
        before, began = models_digest(self.models(r)), self.transport.clock_s
        try:
            with self.effects.watched():
                notes, costs = self._driven(r + 1, self._hub.finish(), settle=True)
        except fl.RunError as error:
            raise fl.RunError(f"after round {r}: {error}") from error
        observed = time.perf_counter()
        moved = models_digest(self.models(r)) != before or self.system.counts_labels(self.settings)
        line = {
            **costs,
            "began_virtual_seconds": began,
            "notes": notes,
            **self.observer.line(r, scores=moved, tunes=moved),
        }
        self.parties.rest()
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def close(self) -> None:
        self.effects.workers.close()
        self.transport.close()
        self.parties.close()


def build(config: RunConfig, founded: Founded | None = None) -> Experiment:
    """Ready for its set-up. Raises UserError."""
    return Experiment(resolve(config), founded)
