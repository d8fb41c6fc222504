"""One whole run."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import coterie.method as fl
from coterie.record.files import locked
from coterie.runs import checkpoint
from coterie.runs.advice import absent_to_the_end, advise, numbers_of_patients, of_the_frequent_class, surplus_clusters
from coterie.runs.config import RunConfig, resolve
from coterie.runs.experiment import build
from coterie.runs.finished import FinishedRun, resumable
from coterie.runs.folder import check_free, claim
from coterie.runs.logs import check_installed
from coterie.runs.running import OnRound, RunInProgress


def run(config: RunConfig, on_round: OnRound | None = None, *, resume: bool = False) -> FinishedRun:
    """Run to the end and write the run folder, locked meanwhile.  on_round: called with each new round's line.

    resume: continue the run in ``config.out``, which must be of the same work, or start anew without a checkpoint.
    Raises UserError before anything is written, RunError if the run cannot go on or all rounds were skipped, and
    Interrupted on Ctrl-C.
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
        advise(of_the_frequent_class(experiment.config, experiment.class_names, experiment.label_counts))
        if resume:
            return RunInProgress(experiment, out, kept, on_round).to_the_end()
        out = claim(experiment.config)
        held.enter_context(locked(out))
        running = RunInProgress(experiment, out, None, on_round)
        try:
            return running.to_the_end()
        except fl.CoterieError:
            if not running.done:
                shutil.rmtree(out, ignore_errors=True)  # nothing in it is worth keeping
            raise
