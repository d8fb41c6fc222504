"""One whole run: building, set-up, rounds, and the files in its folder."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import ArrayLike, NDArray
from torch import nn

import coterie.method as fl
from coterie.protocols import openings
from coterie.record import folder
from coterie.record.files import Log, atomic_write, locked, writing
from coterie.record.load import read_summary
from coterie.record.summary import Line, write_result
from coterie.runs import benefit, checkpoint
from coterie.runs.advice import absent_to_the_end, advise, no_better_than_chance, numbers_of_patients, surplus_clusters
from coterie.runs.attackers import NoAttackError
from coterie.runs.best import Best
from coterie.runs.config import Resolved, RunConfig, differences, resolve, to_toml
from coterie.runs.evaluation import AllSkippedError, check_not_all_skipped
from coterie.runs.experiment import Experiment, build
from coterie.runs.explained import calibration
from coterie.runs.folder import check_free, claim, resumed
from coterie.runs.logs import check_installed, logged
from coterie.runs.models import Models, export_model, load_models, write_models
from coterie.runs.outcome import summary
from coterie.runs.priors import write_priors
from coterie.runs.trained import OwnModel
from coterie.runs.views import VIEWS, ViewLog
from coterie.training.jobs import DivergedError

OnRound = Callable[[Line], None]
_CHECKPOINT_SHARE = 0.05  # of the time, where nothing is said


class Interrupted(KeyboardInterrupt):
    """The run was interrupted. It can be continued from ``folder``.

    done: rounds that are kept.  kept: the same in words.  advice: the command that continues it.
    """

    def __init__(self, out: Path, done: int) -> None:
        super().__init__(f"interrupted; {done} rounds are kept in {out}")
        self.folder, self.done = out, done
        self.kept = f"{done} round{'s' * (done != 1)} kept" if done else "no round finished"
        self.advice = f"coterie run --resume --out {out}"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. summary: its ``result.json``.  rounds: the lines of ``metrics.jsonl``.

    A client is named as a party (``"client/3"``) or by its own name. architecture: of the models, if it was given as a
    Python object (``runs/trained.py``).
    """

    folder: Path
    summary: Mapping[str, Any]
    rounds: Sequence[Line]
    architecture: OwnModel | None = None

    @cached_property
    def models(self) -> Models:
        """The trained models of all clients."""
        return load_models(self.folder)

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients that have a model."""
        return self.models.clients

    def model(self, client: str) -> nn.Module:
        """A client's trained module in evaluation mode, for scaled samples (``TrainedModel.module``)."""
        return self.models.of(client).module(self.architecture)

    def predict(self, client: str, x: ArrayLike, proba: bool = False) -> NDArray[Any]:
        """Classes, or probabilities (n, K), of samples x (n, ...) as the data set stores them, by a client's model."""
        return self.models.of(client).predict(x, proba, model=self.architecture)

    def export(self, client: str, path: str | Path) -> None:
        """Write a client's model as one self-contained ``.safetensors`` file."""
        export_model(self.models.of(client), path)


def run(config: RunConfig, on_round: OnRound | None = None, *, resume: bool = False) -> FinishedRun:
    """Run to the end and write the run folder. on_round: called with the line of every new round.

    resume: continue the run in ``config.out``, which must be of the same work, or start anew without a checkpoint. The
    numbers are those of an undisturbed run. The folder is locked meanwhile. Raises UserError before anything is
    written, RunError if the run cannot go on or all rounds were skipped, and Interrupted on Ctrl-C.
    """
    config = resolve(config)
    check_installed(config.log)
    with contextlib.ExitStack() as held:
        if resume:
            out = resumable(config)
            held.enter_context(locked(out))
        elif config.out is not None:
            check_free(Path(config.out))
        kept = checkpoint.read(out, config) if resume else None
        experiment = build(config, None if kept is None else checkpoint.founded(out, kept))
        held.callback(experiment.close)
        advise(surplus_clusters(experiment.config))
        advise(absent_to_the_end(experiment.config))
        advise(numbers_of_patients(experiment.features))
        if resume:
            return _Running(experiment, out, kept, on_round).to_the_end()
        out = claim(experiment.config)
        held.enter_context(locked(out))
        running = _Running(experiment, out, None, on_round)
        try:
            return running.to_the_end()
        except fl.CoterieError:
            if not running.done:
                shutil.rmtree(out, ignore_errors=True)  # nothing in it is worth keeping
            raise


def load_result(out: str | Path, model: OwnModel | None = None) -> FinishedRun:
    """A finished run from its folder. Raises UserError if there is none.

    model: the architecture, if the run was given it as a Python object.
    """
    out = Path(out)
    return FinishedRun(out, read_summary(out), folder.read_lines(out / folder.METRICS), model)


def check_inputs(result: FinishedRun, present: str) -> None:
    """Raises UserError for a run of other inputs than present ones (``Experiment.inputs_digest``)."""
    if result.summary.get("inputs_digest", present) != present:
        raise fl.UserError(
            f"{result.folder} was run with other data, or with another model or loss of your own, than there are now "
            "under these names: restore them, or run again into another folder"
        )


load = load_result
"""The name of ``load_result`` for users: ``load("runs/a").predict("client/3", x)``."""


def is_divergence(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is a diverged training, which the same options would repeat."""
    while error is not None and not isinstance(error, DivergedError):
        error = error.__cause__
    return error is not None


def resumable(config: Resolved) -> Path:
    """The folder to continue in. Raises UserError unless it holds the same work."""
    if config.out is None:
        raise fl.UserError("--resume continues the run in a folder: say which with --out")
    out = Path(config.out)
    folder.check_writable(out)
    if found := differences(resumed(out), config):
        raise fl.UserError(
            f"{out} holds another run ({'; '.join(found)}): choose another --out, or resume it with the options it was "
            f"started with, as coterie run --resume --out {shlex.quote(str(out))} alone does"
        )
    return out


class _Running:
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
        self.set_up: Line = {}
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
            final = is_divergence(error) or isinstance(error, AllSkippedError | NoAttackError)
            raise fl.RunError(kept if final else f"{kept}: --resume goes on there") from error
        finally:
            for log in self.logs:
                log.close()
            self.saver.close()

    def _start(self) -> None:
        with writing(self.out / folder.RESULT):
            (self.out / folder.RESULT).unlink(missing_ok=True)
        atomic_write(self.out / folder.CONFIG, to_toml(self.experiment.config).encode())
        write_partition(self.out, self.experiment)
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
        finish: Line | None = folder.jsonable(e.finish(self.done))
        if finish is not None and self.views is not None:
            self.views.append()
        models, r = e.models(self.done), self.done
        if self.best is not None and self.best.models:
            models, r = self.best.models, self.best.round
        write_models(self.out, e, models, r)
        write_priors(self.out, e, models, r)
        honest = e.attackers.left_out(models)
        if r != self.done:
            e.scored = e.observer.scores(honest)
        scored = e.scored or e.score_again(self.done)  # the last round scores, but a resumed run may have none left
        folder.write_json(self.out / folder.CLIENTS, {"clients": list(honest), **scored.values})
        benefit.write(self.out, e, honest)
        folder.write_json(self.out / folder.OBSERVED, e.observed())
        *_, client = e.system.factories(e.settings, e.config.mode).values()
        holders = e.seen.of_role(e.common.roster.client_role) if openings.stating(fl.party_type(client)) else ()
        write_openings(self.out, e.common.roster, holders)
        result = {**summary(e, self.set_up, rounds, finish, models), "calibration": self._calibration()}
        if self.best is not None:
            result |= {**scored.line(), "best_round": r}
        write_result(self.out, result)
        advise(no_better_than_chance(e.config, result, e.label_counts))
        return FinishedRun(self.out, result, rounds)

    def _calibration(self) -> dict[str, Any] | None:
        task, outputs = self.experiment.config.task, self.experiment.model.outputs
        if task != "classes" or outputs != 2 or len(self.experiment.tasks) > 1:
            return None
        names = self.experiment.tasks[0].dataset.targets.names or ("0", "1")
        return calibration(benefit.read(self.out, task).values(), names[1])


def write_openings(out: Path, roster: fl.Roster, parties: Iterable[Any]) -> None:
    """Write ``openings.json``: what these parties state that they have opened; no file if that is nothing."""
    place, found = out / folder.OPENINGS, openings.collected(roster, parties)
    if found is not None:
        atomic_write(place, msgspec.json.encode(found))
    else:
        with writing(place):
            place.unlink(missing_ok=True)


def write_partition(out: Path, experiment: Experiment) -> None:
    """Write ``partition.json``: what every client was dealt."""
    e, names = experiment, experiment.shown
    own_names, of_all, drift = e.split.names, e.common.clients, e.dealt.drift
    dealt = {
        "clients": names,
        "names": [own_names[of_all.index(name)] for name in names] if own_names else [],
        "samples": [len(e.dealt.data[name].y) for name in names],
        "epochs": [e.owns[name].epochs for name in names],
        "label_counts": e.dealt_counts,
        "class_names": e.tasks[0].dataset.targets.names or (),
        "groups": e.groups(e.dealt.split),
        "tasks": [task.words for task in e.tasks],
        "public": e.common.public,
        "drift": None if drift is None or e.config.evaluated else {"round": drift.round, "data_of": e.dealt.givers},
    }
    folder.write_json(out / folder.PARTITION, dealt)
