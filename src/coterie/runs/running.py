"""The rounds of a run, and the files that grow by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.record import folder
from coterie.record.files import Log
from coterie.runs import checkpoint
from coterie.runs.ending import write_end, write_start
from coterie.runs.experiment import Experiment
from coterie.runs.failures import check_not_all_skipped, is_final
from coterie.runs.finished import FinishedRun
from coterie.runs.logs import logged
from coterie.runs.models import load_models, write_models
from coterie.runs.trained import TrainedModel
from coterie.runs.views import VIEWS, ViewLog

OnRound = Callable[[dict[str, Any]], None]
_CHECKPOINT_SHARE = 0.05  # of the time, where nothing is said


class Interrupted(KeyboardInterrupt):
    """The run can be continued from ``folder``.  done: rounds that are kept.  kept: in words.  advice: the command."""

    def __init__(self, out: Path, done: int) -> None:
        super().__init__(f"interrupted; {done} rounds are kept in {out}")
        self.folder, self.done = out, done
        self.kept = f"{done} round{'s' * (done != 1)} kept" if done else "no round finished"
        self.advice = f"coterie run --resume --out {out}"


class Best:
    """Early stopping: the round with the least loss on samples held out of clients' training, and its models."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self.round, self.loss, self.since = 0, inf, 0
        self.models: dict[str, fl.ClientModel] = {}

    def take(self, line: dict[str, Any]) -> None:
        """Notes in a line that the run has ``stopped``, once its patience is over."""
        r, patience = line["round"], self.experiment.config.early_stop
        if self._improves(line):
            self.models = self.experiment.models(r)
            write_models(self.out, self.experiment, self.models, r)
        elif patience is not None and self.since >= patience:
            times = f"{self.since} evaluation{'s' * (self.since > 1)}"
            why = f"no lower loss on held-out samples in {times} since round {self.round}, which is kept"
            line["notes"].setdefault("stopped", why)

    @property
    def kept(self) -> tuple[dict[str, fl.ClientModel], int] | None:
        return (self.models, self.round) if self.models else None

    def recall(self, lines: Sequence[dict[str, Any]]) -> None:
        """Go on after these lines, without models of later rounds."""
        for line in lines:
            self._improves(line)
        try:
            kept = load_models(self.out)
            if kept.index.round == self.round:
                self.models = {name: self._weights(kept.of(name)) for name in kept.clients}
        except fl.UserError:  # damaged, or none yet
            self.models = {}
        if not self.models:
            self.round, self.loss, self.since = 0, inf, 0

    def _weights(self, kept: TrainedModel) -> fl.ClientModel:
        parts = self.experiment.model.spec.parts
        flat = [np.concatenate([own[part.name].numpy().reshape(-1) for part in parts]) for own in kept.tensors]
        return flat[0] if len(flat) == 1 else fl.Mixture(kept.shares, np.stack(flat))

    def _improves(self, line: dict[str, Any]) -> bool:
        loss = line.get("held_out_loss")
        if loss is not None and loss < self.loss:
            self.round, self.loss, self.since = line["round"], loss, 0
            return True
        self.since += "held_out_loss" in line
        return False


class RunInProgress:
    def __init__(
        self, experiment: Experiment, out: Path, kept: checkpoint.Checkpoint | None, on_round: OnRound | None
    ) -> None:
        self.experiment, self.out, self.on_round = experiment, out, on_round
        self.rounds = experiment.config.rounds
        self.metrics = Log(out / folder.METRICS)
        transcript = experiment.transport.transcript
        self.views = None if transcript is None else ViewLog(out / VIEWS, transcript)
        self.logs = [self.metrics] if self.views is None else [self.metrics, self.views.log]
        self.saver = checkpoint.Saver(out, experiment)
        self.best = None if experiment.config.early_stop is None else Best(out, experiment)
        self.set_up: dict[str, Any] = {}
        self.stopped = False
        self.done = self.checkpointed = 0
        self._since_s, self._cost_s = 0.0, 0.0
        if kept is not None:
            self._go_on_from(kept)
        else:
            for log in self.logs:
                log.truncate(0)

    def _go_on_from(self, kept: checkpoint.Checkpoint) -> None:
        if kept.round > self.rounds:
            raise fl.UserError(f"{self.out} already has {kept.round} rounds, more than --rounds {self.rounds}")
        self.experiment.reach(kept.round)
        self.saver.restore(kept)  # before anything is cut off on the checkpoint's word
        if self.views is not None:
            self.views.restore(kept.views_bytes, self.experiment.system.kinds(self.experiment.settings))
            self.views.transcript.stopped_at = kept.views_stopped  # a gap is not filled behind its back
        self.metrics.truncate(kept.metrics_bytes)
        lines = folder.read_lines(self.out / folder.METRICS)
        if self.best is not None:
            self.best.recall(lines)
        for line in lines:
            self.experiment.effects.took(line["round"], line["notes"])
            self.stopped = "stopped" in line["notes"]
        self.done = self.checkpointed = kept.round
        self.set_up = kept.set_up

    def to_the_end(self) -> FinishedRun:
        try:
            self._start()
            before = folder.read_lines(self.out / folder.METRICS) if self.done else []
            with logged(self.out, self.experiment.config, before) as tell:
                while self.done < self.rounds and not self.stopped:
                    self._round(self.done + 1, tell)
                return self._finish()
        except KeyboardInterrupt:
            raise Interrupted(self.out, self.checkpointed) from None
        except fl.RunError as error:
            if not self.checkpointed:
                raise
            kept = f"{error}. Rounds 1 to {self.checkpointed} are kept in {self.out}"
            raise fl.RunError(kept if is_final(error) else f"{kept}: --resume goes on there") from error
        finally:
            for log in self.logs:
                log.close()
            self.saver.close()

    def _start(self) -> None:
        write_start(self.out, self.experiment)
        if not self.done:
            self.set_up = folder.jsonable(self.experiment.set_up())
            if self.views is not None:
                self.views.append()

    def _round(self, r: int, tell: OnRound) -> None:
        line = folder.jsonable(self.experiment.round(r))
        if self.best is not None:
            self.best.take(line)
        self.metrics.append(folder.encode_line(line))
        if self.views is not None:
            self.views.append()
        self.done, self.stopped = r, "stopped" in line["notes"]
        self._since_s += line["seconds"] + line["observing_seconds"]
        every = self.experiment.config.checkpoint_every
        due = r % every == 0 if every else self._since_s * _CHECKPOINT_SHARE >= self._cost_s
        ends = r == self.rounds or self.stopped
        if due or ends:
            started = time.perf_counter()
            if not ends and self.best is None:  # else they follow at once, or the best round's are there
                write_models(self.out, self.experiment, self.experiment.models(r), r)
            views_bytes = 0 if self.views is None else self.views.log.length()
            self.saver.save(r, self.metrics.length(), views_bytes, self.set_up)
            self.checkpointed = r
            self._since_s, self._cost_s = 0.0, time.perf_counter() - started
        tell(line)
        if self.on_round is not None:
            self.on_round(line)

    def _finish(self) -> FinishedRun:
        e = self.experiment
        rounds = folder.read_lines(self.out / folder.METRICS)
        check_not_all_skipped(rounds)
        e.attackers.check([self.set_up, *rounds])
        finish: dict[str, Any] | None = folder.jsonable(e.finish(self.done))
        if finish is not None and self.views is not None:
            self.views.append()
        result = write_end(self.out, e, self.set_up, rounds, finish, None if self.best is None else self.best.kept)
        return FinishedRun(self.out, result, rounds)
